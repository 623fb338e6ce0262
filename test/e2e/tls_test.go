package e2e

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

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

// sdsFile is how docs/security.md has Envoy read a certificate that is replaced: from a file, watched.
const sdsFile = `resources:
- "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret
  name: envoy
  tls_certificate:
    certificate_chain: {filename: %[1]s/tls.crt}
    private_key: {filename: %[1]s/tls.key}
    watched_directory: {path: %[1]s}
`

// fromSDS has Envoy read its certificate from the file in dir.
func fromSDS(dir string) func(*stack.Bootstrap) error {
	return func(b *stack.Bootstrap) error {
		b.Node = &corev3.Node{Id: "envoy", Cluster: "envoy"}
		for _, c := range b.GetStaticResources().GetClusters() {
			packed := c.GetTransportSocket().GetTypedConfig()
			if packed == nil {
				continue
			}
			var tls tlsv3.UpstreamTlsContext
			if err := packed.UnmarshalTo(&tls); err != nil {
				return err
			}
			tls.CommonTlsContext.TlsCertificates = nil
			tls.CommonTlsContext.TlsCertificateSdsSecretConfigs = []*tlsv3.SdsSecretConfig{{Name: "envoy", SdsConfig: &corev3.ConfigSource{
				ResourceApiVersion:    corev3.ApiVersion_V3,
				ConfigSourceSpecifier: &corev3.ConfigSource_PathConfigSource{PathConfigSource: &corev3.PathConfigSource{Path: filepath.Join(dir, "sds.yaml")}},
			}}}
			if err := packed.MarshalFrom(&tls); err != nil {
				return err
			}
		}
		return nil
	}
}

// through puts a relay between Envoy and the sidecar.
func through(t *testing.T, relay **stack.Relay) func(*stack.Bootstrap) error {
	return func(b *stack.Bootstrap) error {
		for _, c := range b.GetStaticResources().GetClusters() {
			if c.Name != "headgate" {
				continue
			}
			at := c.GetLoadAssignment().Endpoints[0].LbEndpoints[0].GetEndpoint().GetAddress().GetSocketAddress()
			r, err := stack.StartRelay(stack.RelayOptions{Target: fmt.Sprintf("%s:%d", at.Address, at.GetPortValue())})
			if err != nil {
				return err
			}
			t.Cleanup(r.Stop)
			*relay = r
			_, port, err := net.SplitHostPort(r.Addr)
			if err != nil {
				return err
			}
			n, err := strconv.ParseUint(port, 10, 16)
			if err != nil {
				return err
			}
			at.PortSpecifier = &corev3.SocketAddress_PortValue{PortValue: uint32(n)}
		}
		return nil
	}
}

// TestBothSidesRotate: given an Envoy that reads its certificate by SDS from a file, when the CA of clients is replaced in the
// sidecar's file and Envoy's certificate after it, then the next connection passes with the new ones, and neither was restarted
// for it.
func TestBothSidesRotate(t *testing.T) {
	t.Parallel()
	server, before, after := newAuthority(t), newAuthority(t), newAuthority(t)
	overlay, sidecarDir, envoyDir := protected(t, server, before, before)
	if err := os.WriteFile(filepath.Join(envoyDir, "sds.yaml"), fmt.Appendf(nil, sdsFile, envoyDir), 0o600); err != nil {
		t.Fatal(err)
	}
	var relay *stack.Relay
	s := start(t, stack.Options{Overlay: overlay, TLSDir: envoyDir, Envoy: []func(*stack.Bootstrap) error{fromSDS(envoyDir), through(t, &relay)}},
		expectation{faults: []string{"streams_failed"}})
	c := client(t, false)
	if got := must(t, s, c, request{path: "/before"}); got.status != http.StatusOK {
		t.Fatalf("before: %d, want 200", got.status)
	}
	if err := server.WriteTo(sidecarDir, after, "headgate"); err != nil {
		t.Fatal(err)
	}
	replaceLikeKubernetes(t, envoyDir, after, server)
	if got := must(t, s, c, request{path: "/open"}); got.status != http.StatusOK {
		t.Errorf("over the open connection: %d, want 200", got.status)
	}
	connections := relay.Total()
	time.Sleep(1500 * time.Millisecond) // the sidecar reads its files once a second at most
	relay.Cut()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		got := must(t, s, c, request{path: "/after"})
		if got.status == http.StatusOK {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("with the new certificates: %d after 30 s, want 200", got.status)
		}
	}
	if n := relay.Total(); n == connections {
		t.Errorf("%d connections to the sidecar as before, want a new one", n)
	}
	// Envoy's old certificate is worth nothing any more: the new one passed.
	replaceLikeKubernetes(t, envoyDir, before, server)
	time.Sleep(time.Second)
	relay.Cut()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		got := must(t, s, c, request{path: "/old"})
		if got.status == http.StatusServiceUnavailable {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("with the old certificate: %d after 30 s, want 503", got.status)
		}
		relay.Cut()
	}
}

// replaceLikeKubernetes puts new files into a folder by a rename, which is what Envoy watches for.
func replaceLikeKubernetes(t *testing.T, dir string, own, other *certs.Authority) {
	t.Helper()
	next := t.TempDir()
	if err := own.WriteTo(next, other, "envoy.example"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{certs.CAFile, certs.KeyFile, certs.CertFile} {
		if err := os.Rename(filepath.Join(next, name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
}
