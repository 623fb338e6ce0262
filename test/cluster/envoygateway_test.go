//go:build cluster

package cluster

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const system = "envoy-gateway-system"

// controlPlane installs Envoy Gateway as its chart does, with the two switches that docs/kubernetes.md asks for.
const controlPlane = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: envoy-gateway, namespace: envoy-gateway-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: envoy-gateway}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects: [{kind: ServiceAccount, name: envoy-gateway, namespace: envoy-gateway-system}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: envoy-gateway-config, namespace: envoy-gateway-system}
data:
  envoy-gateway.yaml: |
    apiVersion: gateway.envoyproxy.io/v1alpha1
    kind: EnvoyGateway
    gateway: {controllerName: gateway.envoyproxy.io/gatewayclass-controller}
    provider:
      type: Kubernetes
      kubernetes: {shutdownManager: {image: "docker.io/envoyproxy/gateway:v1.9.1"}}
    extensionApis: {enableBackend: true, enableEnvoyPatchPolicy: true}
---
apiVersion: batch/v1
kind: Job
metadata: {name: certgen, namespace: envoy-gateway-system}
spec:
  backoffLimit: 3
  template:
    spec:
      serviceAccountName: envoy-gateway
      restartPolicy: Never
      containers:
      - name: certgen
        image: docker.io/envoyproxy/gateway:v1.9.1
        args: [certgen, --disable-topology-injector]
        env: [{name: ENVOY_GATEWAY_NAMESPACE, value: envoy-gateway-system}, {name: KUBERNETES_CLUSTER_DOMAIN, value: cluster.local}]
---
apiVersion: v1
kind: Service
metadata: {name: envoy-gateway, namespace: envoy-gateway-system}
spec:
  selector: {control-plane: envoy-gateway}
  ports: [{name: grpc, port: 18000}, {name: ratelimit, port: 18001}, {name: wasm, port: 18002}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: envoy-gateway, namespace: envoy-gateway-system}
spec:
  selector: {matchLabels: {control-plane: envoy-gateway}}
  template:
    metadata: {labels: {control-plane: envoy-gateway}}
    spec:
      serviceAccountName: envoy-gateway
      containers:
      - name: envoy-gateway
        image: docker.io/envoyproxy/gateway:v1.9.1
        args: [server, --config-path=/config/envoy-gateway.yaml]
        env: [{name: ENVOY_GATEWAY_NAMESPACE, value: envoy-gateway-system}, {name: KUBERNETES_CLUSTER_DOMAIN, value: cluster.local}]
        readinessProbe: {httpGet: {path: /readyz, port: 8081}, periodSeconds: 2}
        volumeMounts: [{name: config, mountPath: /config, readOnly: true}, {name: certs, mountPath: /certs, readOnly: true}]
      volumes: [{name: config, configMap: {name: envoy-gateway-config}}, {name: certs, secret: {secretName: envoy-gateway}}]
`

// moduleDir is the folder of a module that tools/cluster/gateway is built from.
func moduleDir(t *testing.T, module string) string {
	t.Helper()
	c := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", module)
	c.Dir = filepath.Join(node.root, "tools", "cluster", "gateway")
	out, err := c.Output()
	if err != nil {
		t.Fatalf("find the module %s: %v", module, err)
	}
	return strings.TrimSpace(string(out))
}

// kinds are Envoy Gateway's own, from its chart without the template's conditions: the folder that holds them.
func kinds(t *testing.T) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(moduleDir(t, "github.com/envoyproxy/gateway"), "charts", "gateway-crds-helm", "templates", "generated", "*.yaml"))
	if err != nil || len(found) == 0 {
		t.Fatalf("the kinds of Envoy Gateway: %d files (%v)", len(found), err)
	}
	folder := t.TempDir()
	for _, file := range found {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var plain strings.Builder
		for line := range strings.Lines(string(text)) {
			if !strings.HasPrefix(line, "{{") {
				plain.WriteString(line)
			}
		}
		if err := os.WriteFile(filepath.Join(folder, filepath.Base(file)), []byte(plain.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

// TestEnvoyGateway runs Envoy Gateway's own control plane: what it makes of the overlay has to let packets through, tell the
// tenants of JWTs apart, and satisfy extproc doctor.
func TestEnvoyGateway(t *testing.T) {
	kubectl(t, "apply", "--server-side", "-f", filepath.Join(moduleDir(t, "sigs.k8s.io/gateway-api"), "config", "crd", "standard"))
	kubectl(t, "apply", "--server-side", "-f", kinds(t))
	namespaceCalled(t, system, "baseline")
	apply(t, controlPlane)
	ready(t, system, "deploy/envoy-gateway")
	namespaceCalled(t, "headgate", "restricted")
	upstream(t, "headgate")
	runSection(t, "kubernetes.md", "envoy-gateway", 1)
	key, jwks := signingKey(t)
	overlay{shipped: "overlays/envoy-gateway", patches: []string{`- target: {kind: EnvoyProxy, name: headgate}
  patch: |
    - {op: replace, path: /spec/provider/kubernetes/envoyDeployment/replicas, value: 1}
    - {op: replace, path: /spec/provider/kubernetes/envoyDeployment/container/resources/requests/cpu, value: 20m}
    - {op: replace, path: /spec/provider/kubernetes/envoyDeployment/initContainers/0/resources/requests/cpu, value: 20m}
    - {op: add, path: /spec/provider/kubernetes/envoyDeployment/container/image, value: "envoyproxy/envoy:v1.40.0"}
    - {op: add, path: /spec/provider/kubernetes/envoyService, value: {type: ClusterIP}}
`}}.apply(t)
	apply(t, fmt.Sprintf(`
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: SecurityPolicy
metadata: {name: tenants, namespace: headgate}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: HTTPRoute, name: chat}]
  jwt:
    providers:
    - name: tenants
      issuer: https://issuer.example
      localJWKS: {type: Inline, inline: '%s'}
`, jwks))
	kubectl(t, "-n", "headgate", "wait", "--for=condition=Programmed", "gateway/headgate", "--timeout=120s")
	of := "gateway.envoyproxy.io/owning-gateway-name=headgate"
	eventually(t, 4*time.Minute, "one pod, that of the overlay, and Ready", func() error {
		states, err := try(t.Context(), "kubectl", "-n", system, "get", "pods", "-l", of, "-o", `jsonpath={range .items[*]}{.status.conditions[?(@.type=="Ready")].status} {end}`)
		if err == nil && states != "True" {
			err = fmt.Errorf("ready: %s", states)
		}
		return err
	})
	pod := pods(t, system, of)[0]
	service := kubectl(t, "-n", system, "get", "service", "-l", of, "-o", "jsonpath={.items[0].metadata.name}")
	url := "http://" + service + "." + system + ".svc.cluster.local"

	tokens := []string{token(t, key, "team-a"), token(t, key, "team-b")}
	eventually(t, time.Minute, "requests through the Service", func() error {
		code, answer, err := withToken(t.Context(), url+"/v1/chat/completions", tokens[0], strings.NewReader(chat))
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("%d %.200s", code, answer)
		}
		return err
	})
	if code, answer, err := withToken(t.Context(), url+"/v1/files", tokens[0], io.LimitReader(zeros{}, 60<<20)); err == nil && code != http.StatusRequestEntityTooLarge {
		t.Errorf("60 MiB: %d %.100s, want 413", code, answer)
	}
	if code, _, err := withToken(t.Context(), url+"/v1/chat/completions", "nonsense", strings.NewReader(chat)); err != nil || code != http.StatusUnauthorized {
		t.Errorf("with a token that is none: %d (%v), want 401", code, err)
	}
	runSection(t, "kubernetes.md", "envoy-gateway", 2, 3)
	checkLongResponse(t, url, tokens[0])
	checkTokensApart(t, pod, url, tokens)
}

// checkLongResponse reads a response that streams for longer than the message time-out, which Envoy Gateway also writes as that of
// the gRPC service.
func checkLongResponse(t *testing.T, url, token string) {
	t.Helper()
	code, answer, err := withToken(t.Context(), url+"/drip?n=13&ms=1000", token, http.NoBody)
	if n := strings.Count(answer, "data:"); err != nil || code != http.StatusOK || n < 13 {
		t.Errorf("a response of 13 s: %d with %d events (%v), want 200 with 13", code, n, err)
	}
}

// checkTokensApart sends chats of two tenants until both wait in the sidecar's lanes.
func checkTokensApart(t *testing.T, pod, url string, tokens []string) {
	t.Helper()
	sidecar := adminURL(t, system, pod)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var enough atomic.Bool
	var sent sync.WaitGroup
	for i := range 300 {
		sent.Go(func() {
			for !enough.Load() {
				_, _, _ = withToken(ctx, url+"/v1/chat/completions?n=20&ms=100", tokens[i%2], strings.NewReader(chat))
			}
		})
	}
	defer sent.Wait()
	defer enough.Store(true)
	eventually(t, time.Minute, "two tenants in the lanes", func() error {
		h, err := health(ctx, sidecar)
		if err != nil {
			return err
		}
		lanes, known := h.AdaptiveAdmission["httproute/headgate/chat/rule/0"]
		if !known || lanes.Mode != "enforce" || len(lanes.LaneTenants) < 2 {
			return fmt.Errorf("%+v", h.AdaptiveAdmission)
		}
		return nil
	})
}

// withToken sends a body with a JWT.
func withToken(ctx context.Context, url, token string, body io.Reader) (int, string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, body)
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("content-type", "application/json")
	r.Header.Set("authorization", "Bearer "+token)
	c := client()
	defer c.CloseIdleConnections()
	answer, err := c.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(text), err
}

// signingKey makes a key and the JSON Web Key Set that verifies with it.
func signingKey(t *testing.T) (*rsa.PrivateKey, string) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	jwks, err := json.Marshal(map[string]any{"keys": []any{map[string]any{
		"kty": "RSA", "alg": "RS256", "use": "sig", "kid": "k", "n": base64.RawURLEncoding.EncodeToString(key.N.Bytes()), "e": "AQAB",
	}}})
	if err != nil {
		t.Fatal(err)
	}
	return key, string(jwks)
}

// token is a JWT for a subject.
func token(t *testing.T, key *rsa.PrivateKey, subject string) string {
	t.Helper()
	claims := fmt.Sprintf(`{"iss":"https://issuer.example","sub":%q,"exp":%d}`, subject, time.Now().Add(time.Hour).Unix())
	text := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"RS256","kid":"k","typ":"JWT"}`)) + "." + base64.RawURLEncoding.EncodeToString([]byte(claims))
	sum := sha256.Sum256([]byte(text))
	signature, err := rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	return text + "." + base64.RawURLEncoding.EncodeToString(signature)
}
