package e2e

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/stack"
)

// sidecarBinary is built once, by TestMain.
var sidecarBinary string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "headgate-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	root, err := stack.Root()
	if err == nil {
		sidecarBinary = filepath.Join(dir, "extproc")
		err = stack.BuildSidecar(ctx, root, sidecarBinary, buildFlags...)
	}
	if err == nil {
		_, err = stack.FindEnvoy(ctx) // once, before tests ask for it in parallel
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// expectation is what may be left at the end of a test.
type expectation struct {
	faults []string // counters of the ext_proc filter that may be above zero
	gone   bool     // the sidecar has ended
}

// start starts a stack and checks at the end of the test that nothing is left in it.
func start(t *testing.T, o stack.Options, expected ...expectation) *stack.Stack {
	t.Helper()
	var e expectation
	if len(expected) > 0 {
		e = expected[0]
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	o.Binary = cmp.Or(o.Binary, sidecarBinary)
	s, err := stack.Start(ctx, o)
	if err != nil {
		t.Fatalf("start the stack: %v", err)
	}
	t.Cleanup(func() {
		defer s.Stop()
		checkEnd(t, s, e)
		if t.Failed() {
			t.Logf("sidecar: %s\nEnvoy: %s", s.Sidecar.Tail(), s.Envoy.Tail())
		}
	})
	return s
}

// checkEnd checks the invariants of the package.
func checkEnd(t *testing.T, s *stack.Stack, e expectation) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if !e.gone {
		idle(ctx, t, s)
	}
	faults, err := s.Faults(ctx, e.faults...)
	if err != nil {
		t.Errorf("read Envoy's counters: %v", err)
	}
	if len(faults) > 0 {
		t.Errorf("Envoy counted %v, want none of these", faults)
	}
}

// idle waits for the sidecar to have nothing in flight, and fails the test when it has after 5 s.
func idle(ctx context.Context, t *testing.T, s *stack.Stack) {
	t.Helper()
	var busy map[string]float64
	var err error
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if busy, err = s.Sidecar.Busy(ctx); err == nil && len(busy) == 0 {
			return
		}
	}
	t.Errorf("5 s after the end of the test the sidecar still has %v (%v), want nothing in flight, waiting or reserved", busy, err)
}

// client returns an HTTP client that speaks HTTP/1.1, or HTTP/2 without TLS, and follows no redirect.
func client(t *testing.T, http2 bool) *http.Client {
	t.Helper()
	transport := &http.Transport{Protocols: new(http.Protocols), DisableCompression: true}
	transport.Protocols.SetHTTP1(!http2)
	transport.Protocols.SetUnencryptedHTTP2(http2)
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: time.Minute, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
}

// request is one request through Envoy. The zero value is GET / without a body.
type request struct {
	method  string
	path    string
	body    io.Reader
	length  int64 // declared; 0 with a body is not declared (chunked, or HTTP/2 without content-length)
	headers map[string]string
}

// response is what came back, read to its end.
type response struct {
	status  int
	header  http.Header
	trailer http.Header
	body    string
}

// reason returns the reason of a refusal, "" for anything else.
func (r response) reason() string { return r.header.Get("X-Headgate-Reason") }

// send sends a request and reads the response. It reports errors instead of failing, so that goroutines can use it.
func send(ctx context.Context, s *stack.Stack, c *http.Client, r request) (response, error) {
	method, path := r.method, r.path
	if method == "" {
		method = http.MethodGet
	}
	if path == "" {
		path = "/"
	}
	out, err := http.NewRequestWithContext(ctx, method, s.Envoy.URL()+path, r.body)
	if err != nil {
		return response{}, err
	}
	if r.body != nil {
		out.ContentLength = -1
	}
	if r.length > 0 {
		out.ContentLength = r.length
	}
	for name, value := range r.headers {
		out.Header.Set(name, value)
	}
	in, err := c.Do(out)
	if err != nil {
		return response{}, err
	}
	defer in.Body.Close()
	body, err := io.ReadAll(in.Body)
	return response{in.StatusCode, in.Header, in.Trailer, string(body)}, err
}

// must is send for the test's own goroutine.
func must(t *testing.T, s *stack.Stack, c *http.Client, r request) response {
	t.Helper()
	got, err := send(t.Context(), s, c, r)
	if err != nil {
		t.Fatalf("%s %s: %v", r.method, r.path, err)
	}
	return got
}

// zeros returns a body of n zero bytes that takes no memory.
func zeros(n int64) io.Reader { return io.LimitReader(zeroReader{}, n) }

type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// patience is for what has to happen, where nothing is said about how soon: a busy machine takes its time.
const patience = 30 * time.Second

// eventually waits for a condition.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %v for %s", patience, what)
		}
	}
}

// protocols runs a test over HTTP/1.1 and over HTTP/2.
func protocols(t *testing.T, test func(t *testing.T, c *http.Client)) {
	t.Helper()
	for _, http2 := range []bool{false, true} {
		t.Run(map[bool]string{false: "HTTP1", true: "HTTP2"}[http2], func(t *testing.T) { test(t, client(t, http2)) })
	}
}

// lines returns the non-empty lines of a text.
func lines(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == '\n' })
}
