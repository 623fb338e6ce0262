//go:build sdk

package sdk

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/stack"
)

const mebibyte = 1 << 20

// settings: bodies of 64 KiB and more share 2 MiB, nothing waits for long, the cluster full has room for two requests without
// a body, and leases live for so long that nobody should wait inside a call.
const settings = `
bytes: {largeBody: 64KiB, hardMaxBody: 1MiB, budget: {override: 2MiB, floor: 1MiB}, queue: {calmWait: 50ms, maxWait: 50ms}}
clusters:
  gateway: {fanout: {issueParent: true}}
  full: {lanes: {mode: enforce, virtualLanes: true, minLimit: 8, initialLimit: 8, maxLimit: 8, maxShare: 1}}
leases: {ttl: 10m}
`

// call is what the programs of the libraries read.
type call struct {
	SDK     string            `json:"sdk"`
	Base    string            `json:"base"`
	Key     string            `json:"key"`
	Headers map[string]string `json:"headers"`
	Size    int               `json:"size"`
	Retries int               `json:"retries"`
	Path    string            `json:"path,omitempty"` // with Body instead of a chat request
	Body    any               `json:"body,omitempty"`
}

// outcome is what a library made of it.
type outcome struct {
	Error      string   `json:"error"` // "" is an answer
	Bases      []string `json:"bases"`
	Text       string   `json:"text"`
	Status     any      `json:"status"`
	Type       string   `json:"type"`
	Code       string   `json:"code"`
	Message    string   `json:"message"`
	RetryAfter string   `json:"retryAfter"`

	attempts int64 // that reached Envoy
	took     time.Duration
}

// rig is a stack with the programs that call it.
type rig struct {
	*stack.Stack
	root string
	held int // requests that hold has made
}

func newRig(t *testing.T) *rig {
	t.Helper()
	root, err := stack.Root()
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(t.TempDir(), "extproc")
	if err := stack.BuildSidecar(t.Context(), root, binary); err != nil {
		t.Fatalf("build the sidecar: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	s, err := stack.Start(ctx, stack.Options{Overlay: settings, Binary: binary})
	if err != nil {
		t.Fatalf("start the stack: %v", err)
	}
	t.Cleanup(s.Stop)
	return &rig{Stack: s, root: root}
}

// library is a running program that makes calls with one of the libraries.
type library struct {
	sdk    string
	in     io.Writer
	out    *bufio.Scanner
	stderr *bytes.Buffer
}

// library starts the program of a library. It ends with the test.
func (r *rig) library(t *testing.T, sdk string) *library {
	t.Helper()
	program := exec.CommandContext(t.Context(), filepath.Join(r.root, ".tools/sdk/bin/python"), filepath.Join(r.root, "test/sdk/client.py"))
	if strings.HasSuffix(sdk, "-node") {
		program = exec.CommandContext(t.Context(), "node", filepath.Join(r.root, "test/sdk/node/client.mjs"))
	}
	l := &library{sdk: sdk, stderr: &bytes.Buffer{}}
	program.Env = append(os.Environ(), "NO_PROXY=*", "no_proxy=*")
	program.Stderr = l.stderr
	in, err := program.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := program.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := program.Start(); err != nil {
		t.Fatalf("%s: %v (make test-sdk installs the libraries)", sdk, err)
	}
	t.Cleanup(func() {
		in.Close() // the program ends with its input
		_ = program.Wait()
	})
	l.in, l.out = in, bufio.NewScanner(out)
	return l
}

// do makes the call and counts the requests that Envoy got for it.
func (r *rig) do(t *testing.T, l *library, c call) outcome {
	t.Helper()
	c.SDK, c.Base, c.Key = l.sdk, r.Envoy.URL()+c.Base, "demo-key-a"
	before, begun := r.requests(t), time.Now()
	if err := json.NewEncoder(l.in).Encode(c); err != nil {
		t.Fatalf("%s: %v\n%s", l.sdk, err, l.stderr)
	}
	if !l.out.Scan() {
		t.Fatalf("%s ended: %v\n%s", l.sdk, l.out.Err(), l.stderr)
	}
	var o outcome
	if err := json.Unmarshal(l.out.Bytes(), &o); err != nil {
		t.Fatalf("%s printed %q: %v", l.sdk, l.out.Bytes(), err)
	}
	o.attempts, o.took = r.requests(t)-before, time.Since(begun)
	return o
}

// requests is how many requests Envoy has got, by its own count.
func (r *rig) requests(t *testing.T) int64 {
	t.Helper()
	const name = "http.ingress.downstream_rq_total"
	stats, err := r.Envoy.Stats(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return stats[name]
}

// hold keeps n requests with bodies of size bytes in flight and returns once the upstream has all of them.
func (r *rig) hold(t *testing.T, path string, n int, size int64) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range n {
		r.held++
		at := fmt.Sprintf("%s/held%d", path, r.held)
		all.Go(func() {
			request, err := http.NewRequestWithContext(ctx, http.MethodPost, r.Envoy.URL()+at+"?ms=600000", io.LimitReader(zeros{}, size))
			if err != nil {
				return
			}
			request.ContentLength = size
			if response, err := http.DefaultClient.Do(request); err == nil { // ends with cancel
				response.Body.Close()
			}
		})
		for deadline := time.Now().Add(30 * time.Second); r.Upstream.CountsOf(at).Seen == 0; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("the upstream has not seen %s after 30 s", at)
			}
		}
	}
	return func() { cancel(); all.Wait() }
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// want is what a library should make of a refusal.
type want struct {
	exception string // or one that it derives from
	status    int
	kind      string // the library's type or status field
	code      string
	message   string
	attempts  int64
	least     time.Duration // between the first attempt and the end
}

func (w want) check(t *testing.T, sdk, what string, got outcome) {
	t.Helper()
	if !slices.Contains(got.Bases, w.exception) {
		t.Errorf("%s, %s: raised %s (%s), want %s", sdk, what, got.Error, got.Text, w.exception)
	}
	if status := fmt.Sprint(got.Status); status != strconv.Itoa(w.status) || got.Type != w.kind || got.Code != w.code {
		t.Errorf("%s, %s: status %s, type %q, code %q; want %d, %q, %q", sdk, what, status, got.Type, got.Code, w.status, w.kind, w.code)
	}
	if !strings.Contains(got.Text, w.message) || !strings.Contains(got.Message, w.message) {
		t.Errorf("%s, %s: text %q, message %q; want %q in both", sdk, what, got.Text, got.Message, w.message)
	}
	if got.attempts != w.attempts || got.took < w.least {
		t.Errorf("%s, %s: %d requests in %v, want %d in %v at least", sdk, what, got.attempts, got.took, w.attempts, w.least)
	}
}

var sdks = []string{"openai-python", "openai-node", "anthropic-python", "anthropic-node", "google-python"}

// TestRefusals: each library raises the exception of the status with our message, sends once what is hopeless, and retries
// what is not after the time that the refusal names.
func TestRefusals(t *testing.T) {
	r := newRig(t)
	parent := r.parentToken(t)
	endBytes := r.hold(t, "", 2, mebibyte)
	endLane := r.hold(t, "/full", 2, 0)
	for _, sdk := range sdks {
		l := r.library(t, sdk)
		owner := "vlo_" + strings.Repeat("a", 43)
		lease := map[string]string{"x-omniroute-lease-owner": owner, "x-omniroute-lease-generation": "1"}
		for what, c := range map[string]struct {
			call
			reason string
		}{
			"too large":       {call{Size: mebibyte + 1}, "payload_too_large"},
			"busy":            {call{Size: mebibyte / 2, Retries: 1}, "queue_timeout"},
			"fan-out skipped": {call{Base: "/full", Headers: map[string]string{"x-headgate-parent": parent}, Size: 10, Retries: 2}, "fanout_skipped"},
			"no lease":        {call{Base: "/leased", Headers: lease, Size: 10, Retries: 2}, "LEASE_REQUIRED"},
		} {
			got := r.do(t, l, c.call)
			expected(sdk, c.reason).check(t, sdk, what, got)
		}
	}
	endLane()
	endBytes()
}

// parentToken is one that the product gives a gateway.
func (r *rig) parentToken(t *testing.T) string {
	t.Helper()
	response, err := http.Get(r.Envoy.URL() + "/gateway/echo")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var seen stack.Echo
	if err := json.NewDecoder(response.Body).Decode(&seen); err != nil {
		t.Fatal(err)
	}
	return seen.Headers.Get("X-Headgate-Parent")
}

// TestRetriesSucceed: a library that is refused while the service is busy comes back by itself and gets its answer.
func TestRetriesSucceed(t *testing.T) {
	r := newRig(t)
	for _, sdk := range []string{"openai-python", "openai-node", "anthropic-python", "anthropic-node"} {
		l := r.library(t, sdk)
		end := r.hold(t, "", 2, mebibyte)
		before := r.requests(t)
		var freed sync.WaitGroup
		freed.Go(func() {
			defer end()
			for r.requests(t) == before && t.Context().Err() == nil {
				time.Sleep(20 * time.Millisecond)
			}
			time.Sleep(500 * time.Millisecond) // long enough for the refusal, shorter than the wait it names
		})
		got := r.do(t, l, call{Size: mebibyte / 2, Retries: 2})
		freed.Wait()
		if got.Error != "" || got.attempts != 2 || got.took < 2*time.Second {
			t.Errorf("%s: %q after %d requests in %v, want the answer on the second one, 2 s later", sdk, got.Text, got.attempts, got.took)
		}
	}
}

// TestNobodyWaitsForALease: a lease that comes free in ten minutes is not waited for inside the call.
func TestNobodyWaitsForALease(t *testing.T) {
	r := newRig(t)
	for _, sdk := range []string{"openai-python", "openai-node"} {
		l := r.library(t, sdk)
		var last outcome
		for _, owner := range []string{"a", "b", "c"} { // there are two connections
			last = r.do(t, l, call{Path: "/session-leases", Body: map[string]string{"action": "acquire", "model": "demo"}, Retries: 2,
				Headers: map[string]string{"x-omniroute-lease-owner": "vlo_" + strings.Repeat(owner, 43)}})
		}
		after, _ := strconv.Atoi(last.RetryAfter)
		if !slices.Contains(last.Bases, "RateLimitError") || last.attempts != 1 || last.took > 30*time.Second || after < 500 {
			t.Errorf("%s: %s after %d requests in %v with Retry-After %q, want RateLimitError at once, after one, and nearly 600", sdk, last.Text, last.attempts, last.took, last.RetryAfter)
		}
	}
}
