package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/stack"
)

// fixedLimit are lanes whose limit stays where it is.
func fixedLimit(cluster string, limit int) string {
	return fmt.Sprintf(`
clusters:
  %s:
    lanes: {mode: enforce, virtualLanes: true, minLimit: %d, initialLimit: %d, maxLimit: %d, maxShare: 1, window: 1h, maxWait: 30s}
decision: {maxWait: 30s}
`, cluster, limit, limit, max(limit, 100))
}

// TestFairShares: one tenant with 20 connections and four with one each share a limit of 4, which lets one request (cost
// 4) run at a time. Each quiet tenant gets its fair share, the noisy one the rest, and all of it once they stop.
func TestFairShares(t *testing.T) {
	t.Parallel()
	s := start(t, stack.Options{Overlay: fixedLimit("default", 4)})
	const service = 200 * time.Millisecond
	var served [5]atomic.Int64
	run := func(tenant int, until <-chan struct{}) {
		c := client(t, false)
		for {
			select {
			case <-until:
				return
			default:
			}
			got, err := send(t.Context(), s, c, request{path: "/slow?ms=200", headers: map[string]string{"x-tenant-id": fmt.Sprint("tenant-", tenant)}})
			if err != nil || got.status != 200 {
				t.Errorf("tenant %d: %d, %v; want 200", tenant, got.status, err)
				return
			}
			served[tenant].Add(1)
		}
	}
	stopQuiet, stopNoisy := make(chan struct{}), make(chan struct{})
	var quiet, noisy sync.WaitGroup
	for range 20 {
		noisy.Go(func() { run(0, stopNoisy) })
	}
	for tenant := 1; tenant <= 4; tenant++ {
		quiet.Go(func() { run(tenant, stopQuiet) })
	}
	count := func(d time.Duration) (n [5]int64, total int64) {
		var before [5]int64
		for i := range served {
			before[i] = served[i].Load()
		}
		time.Sleep(d)
		for i := range served {
			n[i] = served[i].Load() - before[i]
			total += n[i]
		}
		return n, total
	}
	count(time.Second) // everybody has begun
	together := 100 * service
	shares, total := count(together)
	fair := float64(total) / 5
	for tenant := 1; tenant <= 4; tenant++ {
		if got := float64(shares[tenant]); got < fair*0.9-1 || got > fair*1.1+1 {
			t.Errorf("quiet tenant %d was served %v of %d requests, want its fair share of %.1f within 10 %% (shares %v)", tenant, got, total, fair, shares)
		}
	}
	close(stopQuiet)
	quiet.Wait()
	alone, all := count(3 * time.Second)
	if most := int64(3 * time.Second / service); alone[0] != all || all < most*8/10 {
		t.Errorf("alone the noisy tenant was served %d of %d in 3 s, want all and about %d: nothing may idle", alone[0], all, most)
	}
	close(stopNoisy)
	noisy.Wait()
}

// TestShadowChangesNothing: the same mixed requests with lanes off and in shadow differ in no status, header or body.
func TestShadowChangesNothing(t *testing.T) {
	t.Parallel()
	const each = 10_000
	var answers [2]map[int]string
	for i, mode := range []string{"off", "shadow"} {
		s := start(t, stack.Options{Overlay: fmt.Sprintf("bytes: {hardMaxBody: 64KiB}\nclusters: {\"*\": {lanes: {mode: %s, minLimit: 1, initialLimit: 1, maxLimit: 1, virtualLanes: true}}}", mode)})
		answers[i] = mixed(t, s, each)
	}
	for n, off := range answers[0] {
		if shadow := answers[1][n]; off != shadow {
			t.Fatalf("request %d: in shadow\n%s\nbut with lanes off\n%s", n, shadow, off)
		}
	}
	if len(answers[0]) != each || len(answers[1]) != each {
		t.Errorf("%d and %d answers, want %d each", len(answers[0]), len(answers[1]), each)
	}
}

// mixed sends n requests of many kinds over parallel connections and returns each answer without what changes by nature.
func mixed(t *testing.T, s *stack.Stack, n int) map[int]string {
	t.Helper()
	answers := make(map[int]string, n)
	var mu sync.Mutex
	var next atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			clients := [2]*http.Client{client(t, false), client(t, true)}
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				got, err := send(t.Context(), s, clients[i/8%2], kindOf(i))
				if err != nil {
					t.Errorf("request %d: %v", i, err)
					return
				}
				text := describe(got)
				mu.Lock()
				answers[i] = text
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return answers
}

// kindOf is the i-th of the mixed requests.
func kindOf(i int) request {
	json := map[string]string{"content-type": "application/json", "x-tenant-id": fmt.Sprint("t", i%17)}
	switch i % 8 {
	case 0:
		return request{path: fmt.Sprint("/get/", i), headers: json}
	case 1:
		body := fmt.Sprintf(`{"messages":[%d]}`, i)
		return request{method: "POST", path: "/post", body: strings.NewReader(body), length: int64(len(body)), headers: json}
	case 2:
		return request{method: "POST", path: "/v1/chat/completions", body: strings.NewReader(`{"model":"demo","messages":[{"role":"user","content":"hello"}]}`), headers: json}
	case 3:
		return request{method: "POST", path: "/chunked", body: zeros(int64(i % 40_000))}
	case 4:
		return request{path: fmt.Sprint("/status/", []int{204, 404, 429, 500, 503}[i/8%5])}
	case 5:
		return request{method: "POST", path: "/large", body: zeros(70_000), length: 70_000}
	case 6:
		return request{method: "HEAD", path: "/head"}
	default:
		return request{path: "/trailers"}
	}
}

func describe(r response) string {
	h := maps.Clone(r.header)
	for _, name := range []string{"Date", "X-Envoy-Upstream-Service-Time"} {
		delete(h, name)
	}
	body := r.body
	var fields map[string]any
	if json.Unmarshal([]byte(body), &fields) == nil {
		delete(fields, "id")
		delete(fields, "created")
		delete(fields, "host")
		if seen, ok := fields["headers"].(map[string]any); ok {
			for name := range seen {
				if strings.EqualFold(name, "x-request-id") {
					delete(seen, name)
				}
			}
		}
		sorted, _ := json.Marshal(fields)
		body = string(sorted)
		h.Del("Content-Length") // of a body with numbers of its own
	}
	headers, _ := json.Marshal(h)
	return fmt.Sprintf("%d %s %s", r.status, headers, body)
}

// TestFanoutProbe: of 10 targets with 3 free places 3 are admitted and 7 skipped, in one call, and nothing is held or
// taught afterwards.
func TestFanoutProbe(t *testing.T) {
	t.Parallel()
	s := start(t, stack.Options{Overlay: issuing})
	token := upstreamHeader(t.Context(), t, s, request{path: "/gateway", headers: map[string]string{"x-tenant-id": "a"}}, "X-Headgate-Parent")
	if token == "" {
		t.Fatal("the upstream saw no parent token")
	}
	var targets []map[string]any
	for range 10 {
		targets = append(targets, map[string]any{"cluster": "targets", "bytes": 0, "stream": false}) // costs 4
	}
	c := &http.Client{Timeout: 10 * time.Second}
	best := time.Hour
	for range 20 {
		began := time.Now()
		answer := probe(t, c, s, token, targets)
		best = min(best, time.Since(began))
		if answer.Admit != 3 || answer.Skip != 7 {
			t.Fatalf("%d admitted and %d skipped, want 3 and 7", answer.Admit, answer.Skip)
		}
		for i, d := range answer.Targets {
			if want := map[bool]string{true: "admit", false: "skip"}[i < 3]; d.Decision != want {
				t.Errorf("target %d: %s, want %s", i, d.Decision, want)
			}
		}
	}
	if best > 5*time.Millisecond {
		t.Errorf("the best of 20 calls took %v, want at most 5 ms", best)
	}
	health, err := s.Sidecar.Health(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	lanes := health["adaptiveAdmission"].(map[string]any)["targets"].(map[string]any)
	for key, want := range map[string]float64{
		"virtualFanoutProbed": 200, "virtualFanoutSkipped": 140, "admittedCount": 0, "activeCount": 0, "shortLatencyEwma": 0,
	} {
		if got := lanes[key]; got != want {
			t.Errorf("%s is %v after 20 probes, want %v", key, got, want)
		}
	}
	for name, bad := range map[string]string{"forged": "x", "empty": "", "altered": token[:len(token)-2] + "AA"} {
		if status := probeStatus(t, c, s, bad, targets); status != 403 {
			t.Errorf("%s parent: %d, want 403", name, status)
		}
	}
}

type probeResult struct {
	Admit, Skip int
	Targets     []struct{ Cluster, Decision string }
}

func probe(t *testing.T, c *http.Client, s *stack.Stack, token string, targets []map[string]any) (r probeResult) {
	t.Helper()
	response := postProbe(t, c, s, token, targets)
	defer response.Body.Close()
	if err := json.NewDecoder(response.Body).Decode(&r); err != nil || response.StatusCode != 200 {
		t.Fatalf("probe: %d, %v", response.StatusCode, err)
	}
	return r
}

func probeStatus(t *testing.T, c *http.Client, s *stack.Stack, token string, targets []map[string]any) int {
	t.Helper()
	response := postProbe(t, c, s, token, targets)
	defer response.Body.Close()
	return response.StatusCode
}

func postProbe(t *testing.T, c *http.Client, s *stack.Stack, token string, targets []map[string]any) *http.Response {
	t.Helper()
	body, err := json.Marshal(map[string]any{"parent": token, "targets": targets})
	if err != nil {
		t.Fatal(err)
	}
	response, err := c.Post("http://"+s.Sidecar.Config.Listen.API+"/v1/admission/probe", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return response
}

// issuing gives every forwarded request a parent token, and three places of cost 4 to the cluster "targets".
const issuing = `
clusters:
  "*": {fanout: {issueParent: true}}
  targets: {lanes: {mode: enforce, virtualLanes: true, minLimit: 12, initialLimit: 12, maxLimit: 100, maxShare: 1, window: 1h}}
`

// TestInternalHeadersFromClients: what a client sends in the sidecar's own headers reaches no upstream and changes
// nothing; a parent token that verifies does.
func TestInternalHeadersFromClients(t *testing.T) {
	t.Parallel()
	s := start(t, stack.Options{Overlay: "bytes: {hardMaxBody: 1MiB}"})
	forged := map[string]string{
		"x-headgate-parent": "forged", "x-headgate-lane": "gold", "x-omniroute-admission-bypass": "internal",
	}
	for name := range forged {
		if got := upstreamHeader(t.Context(), t, s, request{path: "/", headers: forged}, name); got != "" {
			t.Errorf("the upstream saw %s: %q, want it removed", name, got)
		}
	}
	got := must(t, s, client(t, false), request{method: "POST", path: "/", body: zeros(1<<20 + 1), length: 1<<20 + 1, headers: forged})
	if got.status != 413 {
		t.Errorf("too large with forged bypass headers: %d, want 413", got.status)
	}
}

// upstreamHeader sends a request and returns a header as the upstream saw it.
func upstreamHeader(ctx context.Context, t *testing.T, s *stack.Stack, r request, name string) string {
	t.Helper()
	got, err := send(ctx, s, client(t, false), r)
	if err != nil || got.status != 200 {
		t.Fatalf("%s: %d, %v", r.path, got.status, err)
	}
	var e stack.Echo
	if err := json.Unmarshal([]byte(got.body), &e); err != nil {
		t.Fatal(err)
	}
	return e.Headers.Get(name)
}
