//go:build cluster

package cluster

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

// node is the running cluster.
var node struct {
	root  string // of the repository
	tools string // .tools/cluster
	proxy string // host:port of an HTTP proxy into the node's network
}

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (int, error) {
	root, err := filepath.Abs(filepath.FromSlash("../.."))
	if err != nil {
		return 1, err
	}
	node.root, node.tools = root, filepath.Join(root, ".tools", "cluster")
	proxy, err := os.ReadFile(filepath.Join(node.tools, "node", "proxy"))
	if err != nil {
		return 1, fmt.Errorf("no node runs, make cluster starts one: %w", err)
	}
	node.proxy = string(proxy)
	build := exec.Command("go", "build", "-o", filepath.Join(node.tools, "bin", "extproc"), "./cmd/extproc")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return 1, fmt.Errorf("build the sidecar: %w: %s", err, out)
	}
	return m.Run(), nil
}

// command is a program of the node's, run by the rules of a user outside of it.
func command(ctx context.Context, name string, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, filepath.Join(node.tools, "bin", name), args...)
	c.Dir = node.root
	c.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(node.tools, "node", "kubeconfig"))
	return c
}

func try(ctx context.Context, name string, args ...string) (string, error) {
	var out, failed bytes.Buffer
	c := command(ctx, name, args...)
	c.Stdout, c.Stderr = &out, &failed
	if err := c.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, failed.String())
	}
	return strings.TrimSpace(out.String()), nil
}

func kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := try(t.Context(), "kubectl", args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// apply applies manifests.
func apply(t *testing.T, manifests string) {
	t.Helper()
	c := command(t.Context(), "kubectl", "apply", "-f", "-")
	c.Stdin = strings.NewReader(manifests)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("apply: %v: %s", err, out)
	}
}

// namespace makes a namespace that enforces the restricted Pod Security Standard, and deletes it after the test. Its name is
// prefix and the time, since the last of that name may still be going.
func namespace(t *testing.T, prefix string) string {
	t.Helper()
	name := prefix + "-" + strconv.FormatInt(time.Now().Unix()%1_000_000, 10)
	namespaceCalled(t, name, "restricted")
	return name
}

// namespaceCalled makes a namespace that enforces a Pod Security Standard, and deletes it after the test.
func namespaceCalled(t *testing.T, name, standard string) {
	t.Helper()
	apply(t, "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: "+name+"\n  labels: {pod-security.kubernetes.io/enforce: "+standard+"}\n")
	t.Cleanup(func() {
		if t.Failed() {
			describe(t, name)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
		defer cancel()
		_, workloadsErr := try(ctx, "kubectl", "delete", "deployments,statefulsets", "--all", "-n", name, "--cascade=orphan")
		_, podsErr := try(ctx, "kubectl", "delete", "pods", "--all", "-n", name, "--grace-period=0", "--force", "--wait=false")
		_, err := try(ctx, "kubectl", "delete", "namespace", name, "--wait=false")
		if err := errors.Join(workloadsErr, podsErr, err); err != nil {
			t.Errorf("delete the namespace: %v", err)
		}
	})
}

// upstream starts the demo upstream behind a Service.
func upstream(t *testing.T, namespace string) {
	t.Helper()
	apply(t, strings.ReplaceAll(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: llm-gateway, namespace: NS}
spec:
  selector: {matchLabels: {app.kubernetes.io/name: llm-gateway}}
  template:
    metadata: {labels: {app.kubernetes.io/name: llm-gateway}}
    spec:
      securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
      containers:
      - name: upstream
        image: example/llm-gateway:dev
        ports: [{containerPort: 8080}]
        readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
        securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
---
apiVersion: v1
kind: Service
metadata: {name: llm-gateway, namespace: NS}
spec:
  selector: {app.kubernetes.io/name: llm-gateway}
  ports: [{port: 8080}]
`, "NS", namespace))
}

// describe logs what a failed test wants to know.
func describe(t *testing.T, namespace string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for _, args := range [][]string{{"get", "pods", "-o", "wide"}, {"get", "events", "--sort-by=.lastTimestamp"}} {
		out, err := try(ctx, "kubectl", append(args, "-n", namespace)...)
		t.Logf("%v\n%s %v", args, out, err)
	}
}

// overlay is an overlay of a user's own on top of a shipped one.
type overlay struct {
	shipped   string            // folder under deploy/k8s
	namespace string            // empty leaves each object in its own
	patches   []string          // items of the list of patches
	settings  func(s settings)  // changes headgate.yaml; nil leaves it as shipped
	template  string            // name of the config map with headgate.yaml when it is not headgate-config
	envoy     []string          // options of extproc envoy; nil for overlays that do not print Envoy's configuration
	more      map[string]string // further files
	extra     string            // further lines of kustomization.yaml
}

// settings are a headgate.yaml.
type settings map[string]any

func (s settings) at(path ...string) settings {
	for _, key := range path {
		inner, ok := s[key].(map[string]any)
		if !ok {
			inner = map[string]any{}
			s[key] = inner
		}
		s = inner
	}
	return s
}

// apply writes the overlay and applies it with kubectl apply -k.
func (o overlay) apply(t *testing.T) string {
	t.Helper()
	folder := filepath.Join(node.tools, "apply", strings.ReplaceAll(o.shipped, "/", "-")+"-"+o.namespace)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	relative, err := filepath.Rel(folder, filepath.Join(node.root, "deploy", "k8s", filepath.FromSlash(o.shipped)))
	if err != nil {
		t.Fatal(err)
	}
	text := "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [" + relative + "]\n" + o.extra
	if o.namespace != "" {
		text += "namespace: " + o.namespace + "\n"
	}
	write := func(name, content string) {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if o.settings != nil {
		write("headgate.yaml", o.headgate(t))
		name, hash := "headgate-config", "\n  options: {disableNameSuffixHash: true}"
		if o.template != "" {
			name, hash = o.template, ""
		}
		text += "configMapGenerator:\n- name: " + name + "\n  behavior: merge\n  files: [headgate.yaml]" + hash + "\n"
		if o.envoy != nil {
			printed, err := try(t.Context(), "extproc", append([]string{"envoy", "--config", filepath.Join(folder, "headgate.yaml")}, o.envoy...)...)
			if err != nil {
				t.Fatal(err)
			}
			write("envoy.yaml", printed+"\n")
			text += "- name: envoy-config\n  behavior: merge\n  files: [envoy.yaml]\n"
		}
	}
	if len(o.patches) > 0 {
		text += "patches:\n" + strings.Join(o.patches, "")
	}
	for name, content := range o.more {
		write(name, content)
	}
	write("kustomization.yaml", text)
	kubectl(t, "apply", "-k", folder)
	return folder
}

// headgate is the shipped headgate.yaml with the overlay's changes.
func (o overlay) headgate(t *testing.T) string {
	t.Helper()
	file := filepath.Join(node.root, "deploy", "k8s", filepath.FromSlash(o.shipped), "headgate.yaml")
	if _, err := os.Stat(file); err != nil {
		file = filepath.Join(node.root, "deploy", "k8s", "base", "headgate.yaml") // overlays without their own
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var s map[string]any
	if err := yaml.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	o.settings(s)
	changed, err := yaml.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return string(changed)
}

// lessCPU is a patch that lowers requests of processor time, at paths below the pod's spec.
func lessCPU(deployment string, containers ...string) string {
	text := "- target: {kind: Deployment, name: " + deployment + "}\n  patch: |\n"
	for _, c := range containers {
		text += "    - {op: replace, path: /spec/template/spec/" + c + "/resources/requests/cpu, value: 20m}\n"
	}
	return text
}

// ready waits until a rollout is complete.
func ready(t *testing.T, namespace, what string) {
	t.Helper()
	kubectl(t, "-n", namespace, "rollout", "status", what, "--timeout=180s")
}

// pods returns the names of the pods with a label.
func pods(t *testing.T, namespace, selector string) []string {
	t.Helper()
	return strings.Fields(kubectl(t, "-n", namespace, "get", "pods", "-l", selector, "--field-selector=status.phase=Running", "-o", "jsonpath={.items[*].metadata.name}"))
}

// podIP returns the address of a pod.
func podIP(t *testing.T, namespace, pod string) string {
	t.Helper()
	return kubectl(t, "-n", namespace, "get", "pod", pod, "-o", "jsonpath={.status.podIP}")
}

// dial opens a connection inside the node.
func dial(ctx context.Context, _, address string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", node.proxy)
	if err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", address, address); err != nil {
		return nil, err
	}
	line := make([]byte, 0, 64) // byte by byte: what follows belongs to the connection
	for !bytes.HasSuffix(line, []byte("\r\n\r\n")) {
		one := make([]byte, 1)
		if _, err := c.Read(one); err != nil {
			_ = c.Close()
			return nil, fmt.Errorf("connect to %s: %w after %q", address, err, line)
		}
		line = append(line, one...)
	}
	if !bytes.HasPrefix(line, []byte("HTTP/1.1 200")) {
		_ = c.Close()
		return nil, fmt.Errorf("connect to %s: %s", address, line)
	}
	return c, nil
}

// client sends requests from inside the node.
func client() *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: dial, MaxIdleConnsPerHost: 200}, Timeout: time.Minute}
}

// post sends a body and returns status and answer.
func post(ctx context.Context, c *http.Client, url, tenant string, body io.Reader) (int, string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, body)
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("content-type", "application/json")
	r.Header.Set("x-tenant-id", tenant)
	answer, err := c.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return answer.StatusCode, answer.Header.Get("x-headgate-reason") + " " + string(text), err
}

const chat = `{"model":"demo","messages":[{"role":"user","content":"hello"}]}`

// eventually waits until check has no error.
func eventually(t *testing.T, within time.Duration, what string, check func() error) {
	t.Helper()
	began := time.Now()
	err := check()
	for err != nil && time.Since(began) < within {
		time.Sleep(250 * time.Millisecond)
		err = check()
	}
	if err != nil {
		t.Fatalf("%s: not within %v: %v", what, within, err)
	}
}

// adminURL forwards a port to the admin port of a pod's sidecar, which listens on loopback, and returns its URL.
func adminURL(t *testing.T, namespace, pod string) string {
	t.Helper()
	return forward(t, namespace, pod, "9003")
}

// forward forwards a port on loopback to a port of a pod and returns its URL.
func forward(t *testing.T, namespace, pod, port string) string {
	t.Helper()
	c := command(t.Context(), "kubectl", "-n", namespace, "port-forward", "pod/"+pod, ":"+port)
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("port-forward to %s: %v", pod, err)
	}
	found := regexp.MustCompile(`127\.0\.0\.1:[0-9]+`).FindString(line)
	go func() { _, _ = io.Copy(io.Discard, out) }()
	return "http://" + found
}

// healthDocument is what the tests read of a sidecar's health.
type healthDocument struct {
	Status        string
	ChatAdmission struct {
		BudgetSource, PressureSeverity, PressureReason string
		EffectiveCeiling, ShedTotal                    int64
	}
	AdaptiveAdmission map[string]struct {
		Mode                                                    string
		CurrentLimit, ActiveCount, QueuedCount, LaneQueuedCount int
		LaneTenants                                             []struct{ ID string }
	}
	Config struct {
		Hash, LastError string
		LastSuccess     bool
	}
}

// health reads the health document behind an admin URL.
func health(ctx context.Context, url string) (healthDocument, error) {
	var h healthDocument
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/api/monitoring/health", nil)
	if err != nil {
		return h, err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return h, err
	}
	defer answer.Body.Close()
	return h, json.NewDecoder(answer.Body).Decode(&h)
}

// restarts is how often the containers of a pod were restarted, by name.
func restarts(t *testing.T, namespace, pod string) map[string]int {
	t.Helper()
	var p struct {
		Status struct {
			InitContainerStatuses, ContainerStatuses []struct {
				Name         string
				RestartCount int
			}
		}
	}
	if err := json.Unmarshal([]byte(kubectl(t, "-n", namespace, "get", "pod", pod, "-o", "json")), &p); err != nil {
		t.Fatal(err)
	}
	n := map[string]int{}
	for _, c := range append(p.Status.InitContainerStatuses, p.Status.ContainerStatuses...) {
		n[c.Name] = c.RestartCount
	}
	return n
}
