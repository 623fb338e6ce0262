package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/headgate/headgate/internal/certs"
	"github.com/headgate/headgate/internal/stack"
)

const patience = 20 * time.Second

func newAuthority(t *testing.T) *certs.Authority {
	t.Helper()
	a, err := certs.New()
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// identity is a certificate of an authority for a client.
func identity(t *testing.T, a *certs.Authority, names ...string) []tls.Certificate {
	t.Helper()
	cert, key, err := a.Issue(names...)
	return pair(t, cert, key, err)
}

func pair(t *testing.T, cert, key []byte, err error) []tls.Certificate {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	p, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	return []tls.Certificate{p}
}

// trusting is a client's side: it takes servers of the authority by the name that they have here.
func trusting(a *certs.Authority, own []tls.Certificate) *tls.Config {
	roots := x509.NewCertPool()
	roots.AddCert(a.Cert)
	return &tls.Config{RootCAs: roots, ServerName: "headgate", Certificates: own, MinVersion: tls.VersionTLS12}
}

// lockedBuffer is a log that is read while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// serving is a sidecar in this process whose gRPC and API listeners ask for certificates.
type serving struct {
	grpc, api, dir string
	log            *lockedBuffer
}

// serveTLS serves with the certificate of an authority, for clients of the same, until the test ends.
func serveTLS(t *testing.T, a *certs.Authority, names string) serving {
	t.Helper()
	dir := t.TempDir()
	if err := a.WriteTo(dir, a, "headgate"); err != nil {
		t.Fatal(err)
	}
	ports, err := stack.FreePorts(3)
	if err != nil {
		t.Fatal(err)
	}
	s := serving{ports[0], ports[2], dir, &lockedBuffer{}}
	file := filepath.Join(t.TempDir(), "config.yaml")
	text := fmt.Sprintf(`listen:
  grpc: %s
  admin: %s
  api: %s
  grpcTLS: {certFile: %[4]s/tls.crt, keyFile: %[4]s/tls.key, clientCAFile: %[4]s/ca.crt, clientNames: [%[5]s]}
  apiTLS: {certFile: %[4]s/tls.crt, keyFile: %[4]s/tls.key, clientCAFile: %[4]s/ca.crt, clientNames: [%[5]s]}
shutdown: {drain: 0s, grace: 1s}
`, ports[0], ports[1], ports[2], dir, names)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, file, nil, s.log) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	for end := time.Now().Add(patience); !strings.Contains(s.log.String(), `"msg":"ready"`); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not ready after %v: %s", patience, s.log)
		}
	}
	return s
}

// callGRPC asks the health service over a new connection.
func callGRPC(t *testing.T, address string, c credentials.TransportCredentials) error {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(c))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return ask(t.Context(), conn)
}

func ask(ctx context.Context, conn *grpc.ClientConn) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	return err
}

// callAPI sends a request without an API key over a new connection: an answer of HTTP is what it is about.
func callAPI(t *testing.T, url string, c *tls.Config) error {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: c, DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	in, err := (&http.Client{Transport: transport, Timeout: patience}).Post(url+"/v1/session-leases", "application/json", strings.NewReader("{}"))
	if err != nil {
		return err
	}
	defer in.Body.Close()
	text, err := io.ReadAll(in.Body)
	if in.StatusCode != http.StatusUnauthorized && !bytes.Contains(text, []byte("LEASE_")) {
		return fmt.Errorf("%d %s", in.StatusCode, text)
	}
	return err
}

// TestListenersAskForCertificates: the gRPC and the API listener take clients of their CA that have one of the names, and no
// others, over TLS 1.3 and nothing older.
func TestListenersAskForCertificates(t *testing.T) {
	t.Parallel()
	ours, foreign := newAuthority(t), newAuthority(t)
	s := serveTLS(t, ours, "envoy.example, spiffe://example/envoy")
	expired := func() []tls.Certificate {
		cert, key, err := ours.IssueExpired("envoy.example")
		return pair(t, cert, key, err)
	}
	older := trusting(ours, identity(t, ours, "envoy.example"))
	older.MaxVersion = tls.VersionTLS12
	for name, c := range map[string]struct {
		client *tls.Config
		want   bool
	}{
		"by a DNS name":                {trusting(ours, identity(t, ours, "other.example", "envoy.example")), true},
		"by a URI":                     {trusting(ours, identity(t, ours, "spiffe://example/envoy")), true},
		"none of the names":            {trusting(ours, identity(t, ours, "neighbour.example", "spiffe://example/neighbour")), false},
		"a name that begins like it":   {trusting(ours, identity(t, ours, "envoy.example.com", "spiffe://example/envoy/x")), false},
		"no certificate":               {trusting(ours, nil), false},
		"a certificate of another CA":  {trusting(ours, identity(t, foreign, "envoy.example")), false},
		"a certificate that has ended": {trusting(ours, expired()), false},
		"TLS 1.2":                      {older, false},
		"a client that trusts another": {trusting(foreign, identity(t, ours, "envoy.example")), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := callGRPC(t, s.grpc, credentials.NewTLS(c.client.Clone())); (err == nil) != c.want {
				t.Errorf("gRPC: %v, want it taken: %v", err, c.want)
			}
			if err := callAPI(t, "https://"+s.api, c.client.Clone()); (err == nil) != c.want {
				t.Errorf("API: %v, want it taken: %v", err, c.want)
			}
		})
	}
	t.Run("without TLS", func(t *testing.T) {
		t.Parallel()
		if err := callGRPC(t, s.grpc, insecure.NewCredentials()); err == nil {
			t.Error("gRPC: taken, want it refused")
		}
		if err := callAPI(t, "http://"+s.api, nil); err == nil {
			t.Error("API: taken, want it refused")
		}
	})
	t.Cleanup(func() {
		for _, listener := range []string{"listen.grpc", "listen.api"} { // a line in 10 s, whoever connects
			if n := strings.Count(s.log.String(), "TLS handshake on "+listener+" failed"); n < 1 || n > 3 {
				t.Errorf("%d lines about failed handshakes on %s, want one, or a few on a slow machine: %s", n, listener, s.log)
			}
		}
	})
}

// TestListenersReadCertificatesAgain: given a sidecar that serves, when its files are replaced by those of another CA, then new
// connections go by them within a few seconds, an open one goes on, and files that do not belong together change nothing.
func TestListenersReadCertificatesAgain(t *testing.T) {
	t.Parallel()
	first, second := newAuthority(t), newAuthority(t)
	s := serveTLS(t, first, "")
	before, after := trusting(first, identity(t, first, "envoy")), trusting(second, identity(t, second, "envoy"))
	open, err := grpc.NewClient("passthrough:///"+s.grpc, grpc.WithTransportCredentials(credentials.NewTLS(before.Clone())))
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	both := func(c *tls.Config) error {
		return errors.Join(callGRPC(t, s.grpc, credentials.NewTLS(c.Clone())), callAPI(t, "https://"+s.api, c.Clone()))
	}
	if err := errors.Join(ask(t.Context(), open), both(before)); err != nil {
		t.Fatalf("before: %v", err)
	}

	// The key of another certificate: half of a rotation.
	whole, err := os.ReadFile(filepath.Join(s.dir, "tls.key"))
	if err != nil {
		t.Fatal(err)
	}
	_, other, err := second.Issue("headgate")
	if err := errors.Join(err, os.WriteFile(filepath.Join(s.dir, "tls.key"), other, 0o600)); err != nil {
		t.Fatal(err)
	}
	until(t, "a word about the files", func() bool {
		if err := both(before); err != nil {
			t.Fatalf("with half a rotation: %v", err)
		}
		return strings.Contains(s.log.String(), "the last ones stay in force")
	})
	if strings.Contains(s.log.String(), string(bytes.TrimSpace(other[40:80]))) || strings.Contains(s.log.String(), string(bytes.TrimSpace(whole[40:80]))) {
		t.Error("the log shows a key")
	}

	if err := second.WriteTo(s.dir, second, "headgate"); err != nil {
		t.Fatal(err)
	}
	until(t, "the new certificates", func() bool { return both(after) == nil })
	if err := callGRPC(t, s.grpc, credentials.NewTLS(before.Clone())); err == nil {
		t.Error("gRPC: the old CA's client is still taken")
	}
	if err := callAPI(t, "https://"+s.api, before.Clone()); err == nil {
		t.Error("API: the old CA's client is still taken")
	}
	if err := ask(t.Context(), open); err != nil {
		t.Errorf("the open connection: %v, want it to go on", err)
	}
	if !strings.Contains(s.log.String(), "certificate replaced") {
		t.Errorf("the log does not say so: %s", s.log)
	}
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no %s after %v", what, patience)
		}
	}
}

// TestCertificateFilesThatAreNone: the start fails with the field that names the file.
func TestCertificateFilesThatAreNone(t *testing.T) {
	t.Parallel()
	a, b := newAuthority(t), newAuthority(t)
	_, foreignKey, err := b.Issue("headgate")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		file string
		text []byte // nil removes it
		want string
	}{
		"no certificate":            {"tls.crt", nil, "%s.certFile: open "},
		"no key":                    {"tls.key", nil, "%s.keyFile: open "},
		"no CA":                     {"ca.crt", nil, "%s.clientCAFile: open "},
		"no PEM":                    {"tls.crt", []byte("certificate"), "%s.certFile, keyFile: tls: failed to find any PEM data"},
		"the key of another":        {"tls.key", foreignKey, "%s.certFile, keyFile: tls: private key does not match"},
		"a CA file without any":     {"ca.crt", []byte("none"), "%s.clientCAFile: "},
		"a key where a CA is meant": {"ca.crt", foreignKey, "holds no certificate"},
	} {
		for _, listener := range []string{"grpcTLS", "apiTLS"} {
			t.Run(name+"/"+listener, func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				err := a.WriteTo(dir, a, "headgate")
				if c.text == nil {
					err = errors.Join(err, os.Remove(filepath.Join(dir, c.file)))
				} else {
					err = errors.Join(err, os.WriteFile(filepath.Join(dir, c.file), c.text, 0o600))
				}
				if err != nil {
					t.Fatal(err)
				}
				config := filepath.Join(dir, "config.yaml")
				text := fmt.Sprintf("listen: {grpc: \"127.0.0.1:0\", admin: \"127.0.0.1:0\", api: \"127.0.0.1:0\", %s: {certFile: %[2]s/tls.crt, keyFile: %[2]s/tls.key, clientCAFile: %[2]s/ca.crt}}", listener, dir)
				if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
				err = serve(t.Context(), config, nil, io.Discard)
				want := strings.Replace(c.want, "%s", "listen."+listener, 1)
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("serve: %v, want an error with %q", err, want)
				}
				if err != nil && strings.Contains(err.Error(), "PRIVATE KEY") {
					t.Errorf("the error shows a key: %v", err)
				}
			})
		}
	}
}

// TestAPIWithoutClientCertificates: listen.apiTLS without a CA asks clients for no certificate.
func TestAPIWithoutClientCertificates(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	dir := t.TempDir()
	if err := a.WriteTo(dir, a, "headgate"); err != nil {
		t.Fatal(err)
	}
	ports, err := stack.FreePorts(3)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "config.yaml")
	text := fmt.Sprintf("listen: {grpc: %s, admin: %s, api: %s, apiTLS: {certFile: %[4]s/tls.crt, keyFile: %[4]s/tls.key}}\nshutdown: {drain: 0s, grace: 1s}\n", ports[0], ports[1], ports[2], dir)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, file, nil, io.Discard) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("serve: %v", err)
		}
	}()
	until(t, "answer", func() bool { return callAPI(t, "https://"+ports[2], trusting(a, nil)) == nil })
	if err := callGRPC(t, ports[0], insecure.NewCredentials()); err != nil {
		t.Errorf("gRPC without listen.grpcTLS: %v, want it to answer", err)
	}
}

// TestSilentConnectionsEnd: a connection to the gRPC listener on which nobody says anything ends after 10 s.
func TestSilentConnectionsEnd(t *testing.T) {
	t.Parallel()
	s := serveTLS(t, newAuthority(t), "")
	conn, err := net.Dial("tcp", s.grpc)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	began := time.Now()
	if err := conn.SetReadDeadline(began.Add(openTimeout + patience)); err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(io.Discard, conn)
	if lasted := time.Since(began); errors.Is(err, os.ErrDeadlineExceeded) || lasted < openTimeout-time.Second {
		t.Errorf("the connection ended after %v (%v), want about %v", lasted, err, openTimeout)
	}
}
