package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/certs"
	"github.com/headgate/headgate/internal/stack"
)

// protected are settings of a sidecar with mutual TLS on both listeners, and the folders of the sidecar's and of Envoy's files:
// the sidecar has a certificate of serverCA and takes clients of clientCA, Envoy has one of envoyCA and takes serverCA's.
func protected(t *testing.T, serverCA, clientCA, envoyCA *certs.Authority) (overlay, sidecarDir, envoyDir string) {
	t.Helper()
	sidecarDir, envoyDir = t.TempDir(), t.TempDir()
	if err := serverCA.WriteTo(sidecarDir, clientCA, "headgate"); err != nil {
		t.Fatal(err)
	}
	if err := envoyCA.WriteTo(envoyDir, serverCA, "envoy.example"); err != nil {
		t.Fatal(err)
	}
	files := fmt.Sprintf("{certFile: %[1]s/tls.crt, keyFile: %[1]s/tls.key, clientCAFile: %[1]s/ca.crt, clientNames: [envoy.example]}", sidecarDir)
	return "listen: {grpcTLS: " + files + ", apiTLS: " + files + "}\nbytes: {hardMaxBody: 1MiB}", sidecarDir, envoyDir
}

func newAuthority(t *testing.T) *certs.Authority {
	t.Helper()
	a, err := certs.New()
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestMutualTLS: a real Envoy with the printed configuration reaches a sidecar whose listeners ask for certificates: requests
// pass, are refused, and the lease API answers, over TCP and over a socket.
func TestMutualTLS(t *testing.T) {
	t.Parallel()
	server, clients := newAuthority(t), newAuthority(t)
	for name, socket := range map[string]bool{"TCP": false, "socket": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			overlay, _, envoyDir := protected(t, server, clients, clients)
			s := start(t, stack.Options{Socket: socket, Overlay: overlay, TLSDir: envoyDir})
			protocols(t, func(t *testing.T, c *http.Client) {
				if got := must(t, s, c, request{method: "POST", path: "/x", body: zeros(1000)}); got.status != 200 {
					t.Errorf("1000 bytes = %d %s, want 200", got.status, got.body)
				}
				got := must(t, s, c, request{method: "POST", path: "/x", body: zeros(1<<20 + 1)})
				if got.status != 413 || got.reason() != "payload_too_large" {
					t.Errorf("1 MiB + 1 = %d %q, want 413 payload_too_large", got.status, got.reason())
				}
			})
			got := must(t, s, client(t, false), request{method: "POST", path: "/v1/session-leases", body: strings.NewReader(`{"action":"acquire","model":"demo"}`),
				headers: map[string]string{"Content-Type": "application/json"}})
			if got.status != http.StatusUnauthorized {
				t.Errorf("the lease API without a key = %d %s, want 401 from the sidecar", got.status, got.body)
			}
			n, err := s.Envoy.Stats(t.Context(), "cluster.headgate.ssl.handshake")
			if err != nil || n["cluster.headgate.ssl.handshake"] == 0 {
				t.Errorf("Envoy counted %v handshakes with the sidecar (%v), want one at least", n, err)
			}
		})
	}
}

// TestWrongCertificatesFailClosed: where Envoy's certificate, or the sidecar's, is of a CA that the other does not take, nothing
// passes.
func TestWrongCertificatesFailClosed(t *testing.T) {
	t.Parallel()
	ours, foreign := newAuthority(t), newAuthority(t)
	for name, c := range map[string]struct{ envoyCA, trusted *certs.Authority }{
		"Envoy's is of another CA":       {foreign, ours},
		"the sidecar's is of another CA": {ours, foreign},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			overlay, _, envoyDir := protected(t, ours, ours, ours)
			if err := c.envoyCA.WriteTo(envoyDir, c.trusted, "envoy.example"); err != nil {
				t.Fatal(err)
			}
			s := start(t, stack.Options{Overlay: overlay, TLSDir: envoyDir}, expectation{faults: []string{"streams_failed"}})
			got := must(t, s, client(t, false), request{path: "/x"})
			if got.status != http.StatusServiceUnavailable {
				t.Errorf("GET = %d, want 503", got.status)
			}
			if n := s.Upstream.CountsOf("/x").Seen; n != 0 {
				t.Errorf("the upstream saw %d requests, want 0", n)
			}
		})
	}
}
