package stack

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	envoyconf "github.com/headgate/headgate/deploy/envoy"
	"github.com/headgate/headgate/pkg/config"
)

// bench is an Envoy with the demo's configuration between a stub processor, a stub API and the demo upstream.
type bench struct {
	*Envoy
	stub     *stub
	upstream *Upstream
	log      string // of accesses
}

func newBench(t *testing.T, edits ...func(*Bootstrap) error) *bench {
	t.Helper()
	return newBenchWith(t, &stub{}, nil, edits...)
}

// newBenchWith is newBench with a processor of the test's own and the faults that Envoy is expected to count.
func newBenchWith(t *testing.T, stub *stub, expected []string, edits ...func(*Bootstrap) error) *bench {
	t.Helper()
	binary, err := FindEnvoy(t.Context()) // may install it, which the limit below does not allow for
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	upstream, err := NewUpstream("")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(upstream.Close)
	processor := startProcessor(t, stub)
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { reply(w, http.StatusTeapot, r.URL.Path) }))
	t.Cleanup(api.Close)

	c, err := config.Load("demo.yaml", []string{"HEADGATE_LISTEN_GRPC=" + processor, "HEADGATE_LISTEN_API=" + api.Listener.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	bootstrap, err := NewBootstrap(c, envoyconf.Options{Upstream: upstream.Addr()})
	if err != nil {
		t.Fatal(err)
	}
	bootstrap.FreePorts()
	for _, edit := range edits {
		if err := edit(bootstrap); err != nil {
			t.Fatal(err)
		}
	}
	text, err := bootstrap.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	access, err := os.Create(filepath.Join(t.TempDir(), "access.log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { access.Close() })
	envoy, err := StartEnvoy(ctx, EnvoyOptions{Binary: binary, Bootstrap: text, AccessLog: access})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(envoy.Stop)
	b := &bench{envoy, stub, upstream, access.Name()}
	t.Cleanup(func() {
		faults, err := (&Stack{Envoy: envoy}).Faults(context.Background(), append(expected, "rejected_header_mutations")...)
		if err != nil || len(faults) > 0 {
			t.Errorf("Envoy counted %v (%v), want none of these\n%s", faults, err, envoy.Tail())
		}
	})
	return b
}

// do sends a request and returns the response with its body read.
func (b *bench) do(t *testing.T, c *http.Client, method, path string, body io.Reader, headers ...string) (*http.Response, []byte) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, b.URL()+path, body)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	answer, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer, text
}

// client returns an HTTP client that speaks HTTP/1.1, or HTTP/2 without TLS.
func client(t *testing.T, http2 bool) *http.Client {
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetHTTP1(!http2)
	transport.Protocols.SetUnencryptedHTTP2(http2)
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 30 * time.Second}
}

func decode[T any](t *testing.T, text []byte) T {
	t.Helper()
	var out T
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatalf("decode %q: %v", text, err)
	}
	return out
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for start := time.Now(); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Since(start) > 30*time.Second {
			t.Fatalf("waited 30 s for %s", what)
		}
	}
}
