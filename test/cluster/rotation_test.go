//go:build cluster

package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"strings"
	"testing"
	"time"
)

// terminator is an Envoy that speaks TLS before the Redis and asks for client certificates. Its files come from a Secret, and
// it reads them anew when they change.
const terminator = `
apiVersion: v1
kind: ConfigMap
metadata: {name: redis-tls, namespace: NS}
data:
  server.yaml: |
    resources:
    - "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret
      name: server
      tls_certificate: {certificate_chain: {filename: /tls/tls.crt}, private_key: {filename: /tls/tls.key}, watched_directory: {path: /tls}}
  clients.yaml: |
    resources:
    - "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret
      name: clients
      validation_context: {trusted_ca: {filename: /tls/ca.crt}, watched_directory: {path: /tls}}
  envoy.yaml: |
    node: {id: redis-tls, cluster: redis-tls}
    static_resources:
      listeners:
      - name: redis
        address: {socket_address: {address: 0.0.0.0, port_value: 6380}}
        filter_chains:
        - transport_socket:
            name: envoy.transport_sockets.tls
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
              require_client_certificate: true
              common_tls_context:
                tls_certificate_sds_secret_configs: [{name: server, sds_config: {path_config_source: {path: /etc/envoy/server.yaml}, resource_api_version: V3}}]
                validation_context_sds_secret_config: {name: clients, sds_config: {path_config_source: {path: /etc/envoy/clients.yaml}, resource_api_version: V3}}
          filters:
          - name: envoy.filters.network.tcp_proxy
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: redis, cluster: redis}
      clusters:
      - name: redis
        type: STRICT_DNS
        load_assignment: {cluster_name: redis, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: redis, port_value: 6379}}}}]}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: redis-tls, namespace: NS}
spec:
  selector: {matchLabels: {app: redis-tls}}
  template:
    metadata: {labels: {app: redis-tls}}
    spec:
      securityContext: {runAsNonRoot: true, runAsUser: 101, fsGroup: 101, seccompProfile: {type: RuntimeDefault}}
      containers:
      - name: envoy
        image: envoyproxy/envoy:v1.40.0
        args: [-c, /etc/envoy/envoy.yaml, --disable-hot-restart, --concurrency, "1"]
        readinessProbe: {tcpSocket: {port: 6380}, periodSeconds: 1}
        securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
        volumeMounts: [{name: config, mountPath: /etc/envoy}, {name: tls, mountPath: /tls}]
      volumes: [{name: config, configMap: {name: redis-tls}}, {name: tls, secret: {secretName: redis-tls}}]
---
apiVersion: v1
kind: Service
metadata: {name: redis-tls, namespace: NS}
spec:
  selector: {app: redis-tls}
  ports: [{port: 6380}]
`

// TestCertificatesRotate: the Redis is reached over TLS with client certificates, all from Secrets. Server, clients and their CA are
// replaced at once; the sidecars pick the new ones up for their next connection, without a restart.
func TestCertificatesRotate(t *testing.T) {
	monitoringKinds(t)
	ns := namespace(t, "rotate")
	upstream(t, ns)
	apply(t, secret(ns, "first"))
	first := newAuthority(t)
	apply(t, first.secrets(t, ns))
	apply(t, strings.ReplaceAll(terminator, "NS", ns))
	overlay{
		shipped: "overlays/gateway-with-redis", namespace: ns, envoy: fromPrinted,
		settings: func(s settings) {
			leased(s)
			redis := s.at("leases", "store", "redis")
			redis["addrs"] = []any{"redis-tls:6380"}
			redis["tls"] = map[string]any{"enabled": true, "caFile": "/run/secrets/redis-tls/ca.crt", "certFile": "/run/secrets/redis-tls/tls.crt", "keyFile": "/run/secrets/redis-tls/tls.key"}
		},
		patches: []string{lessCPU("gateway", "initContainers/0", "containers/0"), `- target: {kind: Deployment, name: gateway}
  patch: |
    - {op: add, path: /spec/template/spec/initContainers/0/volumeMounts/-, value: {name: redis-tls, mountPath: /run/secrets/redis-tls, readOnly: true}}
    - {op: add, path: /spec/template/spec/volumes/-, value: {name: redis-tls, secret: {secretName: sidecar-tls}}}
`},
	}.apply(t)
	ready(t, ns, "statefulset/redis")
	ready(t, ns, "deploy/redis-tls")
	ready(t, ns, "deploy/gateway")
	all := pods(t, ns, "app.kubernetes.io/name=gateway")
	gateway := "http://" + podIP(t, ns, all[0]) + ":8080"
	var held lease
	eventually(t, time.Minute, "a lease over TLS", func() (err error) {
		held, err = acquire(t.Context(), gateway, "vlo_"+strings.Repeat("r", 43))
		return err
	})
	server := podIP(t, ns, pods(t, ns, "app=redis-tls")[0]) + ":6380"
	if err := first.connect(t, server); err != nil {
		t.Fatalf("with the first CA: %v", err)
	}

	second := newAuthority(t)
	apply(t, second.secrets(t, ns))
	eventually(t, 2*time.Minute, "the server to have the new certificates", func() error { return second.connect(t, server) })
	if err := first.connect(t, server); err == nil {
		t.Error("the server still takes the first CA, so this test shows nothing")
	}
	kubectl(t, "-n", ns, "delete", "pod", "redis-0", "--grace-period=1") // ends every connection
	ready(t, ns, "statefulset/redis")
	for _, p := range all {
		url := "http://" + podIP(t, ns, p) + ":8080"
		eventually(t, 2*time.Minute, "leased requests through "+p+" under the new CA", func() error {
			code, answer, err := held.chat(t.Context(), url)
			if err == nil && code != http.StatusOK {
				err = fmt.Errorf("%d %s", code, answer)
			}
			return err
		})
		for container, n := range restarts(t, ns, p) {
			if n != 0 {
				t.Errorf("%s of %s was restarted %d times", container, p, n)
			}
		}
	}
}

// authority is a CA with a certificate that serves as the server's and one that is a client's.
type authority struct {
	pem            []byte
	server, client [2][]byte // certificate, key
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	ca := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: fmt.Sprint("CA ", time.Now().UnixNano())}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	key := newKey(t)
	a := &authority{}
	a.pem = sign(t, ca, ca, key, key)
	for of, pair := range map[string]*[2][]byte{"redis-tls": &a.server, "sidecar": &a.client} {
		leaf := newKey(t)
		der, err := x509.MarshalECPrivateKey(leaf)
		if err != nil {
			t.Fatal(err)
		}
		c := &x509.Certificate{
			SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: of}, DNSNames: []string{of},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		}
		*pair = [2][]byte{sign(t, c, ca, leaf, key), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})}
	}
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func sign(t *testing.T, c, by *x509.Certificate, of, with *ecdsa.PrivateKey) []byte {
	t.Helper()
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, c, by, &of.PublicKey, with)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// secrets are the Secrets of server and sidecars.
func (a *authority) secrets(t *testing.T, ns string) string {
	t.Helper()
	var items []any
	for name, pair := range map[string][2][]byte{"redis-tls": a.server, "sidecar-tls": a.client} {
		items = append(items, map[string]any{
			"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": name, "namespace": ns},
			"data": map[string]any{"ca.crt": a.pem, "tls.crt": pair[0], "tls.key": pair[1]},
		})
	}
	text, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": items})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// connect connects as a client of this CA that trusts nothing else, and waits for what the server thinks of its certificate.
func (a *authority) connect(t *testing.T, address string) error {
	t.Helper()
	certificate, err := tls.X509KeyPair(a.client[0], a.client[1])
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(a.pem)
	raw, err := dial(t.Context(), "tcp", address)
	if err != nil {
		return err
	}
	defer raw.Close()
	_ = raw.SetDeadline(time.Now().Add(10 * time.Second))
	c := tls.Client(raw, &tls.Config{RootCAs: roots, ServerName: "redis-tls", Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12})
	if _, err := c.Write([]byte("PING\r\n")); err != nil {
		return err
	}
	_, err = c.Read(make([]byte, 1))
	return err
}
