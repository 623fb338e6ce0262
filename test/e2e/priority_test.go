package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metadatav3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_to_metadata/v3"

	"github.com/headgate/headgate/internal/stack"
)

// crowded is an upstream that keeps requests until it is told to let them go, or for a while, and notes how many it has at once, of
// each tenant and in all. A request is over before it is answered, so that what it counts is never more than what the sidecar let in.
type crowded struct {
	leave <-chan time.Time // nil: hold counts
	hold  time.Duration
	mu    sync.Mutex
	now   map[string]int
	most  map[string]int
}

func (u *crowded) serve(t *testing.T) (address string) {
	t.Helper()
	u.now, u.most = map[string]int{}, map[string]int{}
	s := httptest.NewServer(u)
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

func (u *crowded) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	keys := []string{"all", r.Header.Get("x-tenant-id")}
	u.count(1, keys)
	if u.leave != nil {
		<-u.leave
	} else {
		time.Sleep(u.hold)
	}
	u.count(-1, keys)
	_, _ = w.Write([]byte("done"))
}

func (u *crowded) count(n int, keys []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, key := range keys {
		u.now[key] += n
		u.most[key] = max(u.most[key], u.now[key])
	}
}

// has reports whether so many requests are there, by key.
func (u *crowded) has(want map[string]int) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	for key, n := range want {
		if u.now[key] != n {
			return false
		}
	}
	return true
}

// concurrency are lanes with bounds on requests and a limit that is out of the way.
func concurrency(cluster, tenant int, maxWait time.Duration) string {
	return fmt.Sprintf(`
decision: {maxWait: 30s}
clusters:
  "*":
    lanes: {mode: enforce, virtualLanes: true, maxConcurrent: %d, tenantMaxConcurrent: %d, maxWait: %v, minLimit: 100000, initialLimit: 100000, maxLimit: 100000}
`, cluster, tenant, maxWait)
}

// TestMaxConcurrent: however many connections send, the upstream never has more requests at once than the bounds say, of any
// tenant and in all, and as many where enough wait.
func TestMaxConcurrent(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		tenants []string
		reached map[string]int
	}{
		"of tenants":     {[]string{"small", "a"}, map[string]int{"small": 1, "a": 3}},
		"of the cluster": {[]string{"small", "a", "b", "c"}, map[string]int{"all": 7}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			leave := make(chan time.Time)
			u := &crowded{leave: leave}
			s := start(t, stack.Options{
				Upstream: u.serve(t), Overlay: concurrency(7, 3, 30*time.Second) + "tenant: {maxConcurrent: {small: 1}}\n",
			})
			var all sync.WaitGroup
			for _, tenant := range test.tenants {
				for range 8 {
					all.Go(func() {
						got, err := send(t.Context(), s, client(t, false), request{path: "/x", headers: map[string]string{"x-tenant-id": tenant}})
						if err != nil || got.status != 200 {
							t.Errorf("tenant %s: %d %s, %v; want 200", tenant, got.status, got.reason(), err)
						}
					})
				}
			}
			eventually(t, fmt.Sprintf("the upstream to have %v", test.reached), func() bool { return u.has(test.reached) })
			for range 8 * len(test.tenants) { // one by one, so that each is followed by another
				leave <- time.Time{}
			}
			all.Wait()
			u.mu.Lock()
			defer u.mu.Unlock()
			for key, most := range map[string]int{"all": 7, "small": 1, "a": 3, "b": 3, "c": 3} {
				if got := u.most[key]; got > most {
					t.Errorf("%s: the upstream had %d requests at once, at most %d may be", key, got, most)
				}
			}
		})
	}
}

// TestMaxConcurrentRefuses: who waits in vain for its own bound gets 429, for the cluster's 503, in the form of the API.
func TestMaxConcurrentRefuses(t *testing.T) {
	t.Parallel()
	leave := make(chan time.Time)
	u := &crowded{leave: leave}
	s := start(t, stack.Options{Upstream: u.serve(t), Overlay: concurrency(2, 1, 200*time.Millisecond)})
	var running sync.WaitGroup
	for _, tenant := range []string{"a", "b"} {
		running.Go(func() {
			if got := must(t, s, client(t, false), request{path: "/x", headers: map[string]string{"x-tenant-id": tenant}}); got.status != 200 {
				t.Errorf("tenant %s: %d %s, want 200", tenant, got.status, got.reason())
			}
		})
	}
	eventually(t, "both to run", func() bool { return u.has(map[string]int{"a": 1, "b": 1}) })
	for tenant, want := range map[string]struct {
		status int
		reason string
	}{"a": {429, "admission_tenant_concurrency"}, "c": {503, "admission_concurrency"}} {
		got := must(t, s, client(t, false), request{path: "/x", headers: map[string]string{"x-tenant-id": tenant}})
		if got.status != want.status || got.reason() != want.reason || got.header.Get("Retry-After") == "" || !strings.Contains(got.body, want.reason) {
			t.Errorf("tenant %s: %d %s, Retry-After %q, %s; want %d %s", tenant, got.status, got.reason(), got.header.Get("Retry-After"), got.body, want.status, want.reason)
		}
	}
	close(leave)
	running.Wait()
}

// TestPriorityLevels: the level is what Envoy has verified, whatever a client's header says; while both levels want more each has
// its guaranteed share, and the lower one has all of it when the higher one has nothing to do.
func TestPriorityLevels(t *testing.T) {
	t.Parallel()
	u := &crowded{hold: 50 * time.Millisecond}
	const levels = `
priority:
  levels: [{name: high, share: 3}, {name: low, share: 1}]
  sources: [{metadata: verified/level}]
`
	s := start(t, stack.Options{
		Upstream: u.serve(t), Overlay: concurrency(8, 0, 30*time.Second) + levels,
		Envoy: []func(*stack.Bootstrap) error{func(b *stack.Bootstrap) error {
			return b.AddFilter("envoy.filters.http.header_to_metadata", &metadatav3.Config{RequestRules: []*metadatav3.Config_Rule{{
				Header: "x-verified-level", Remove: true,
				OnHeaderPresent: &metadatav3.Config_KeyValuePair{MetadataNamespace: "verified", Key: "level"},
			}}}, false)
		}},
	})
	var served [2]atomic.Int64
	run := func(i int, headers map[string]string, until <-chan struct{}) {
		c := client(t, false)
		for {
			select {
			case <-until:
				return
			default:
			}
			got, err := send(t.Context(), s, c, request{path: "/x", headers: headers})
			if err != nil || got.status != 200 {
				t.Errorf("%v: %d %s, %v; want 200", headers, got.status, got.reason(), err)
				return
			}
			served[i].Add(1)
		}
	}
	stopHigh, stopLow := make(chan struct{}), make(chan struct{})
	var high, low sync.WaitGroup
	for range 16 {
		high.Go(func() { run(0, map[string]string{"x-tenant-id": "a", "x-verified-level": "high"}, stopHigh) })
		low.Go(func() { run(1, map[string]string{"x-tenant-id": "b", "x-level": "high", "priority": "high"}, stopLow) })
	}
	count := func(d time.Duration) (n [2]float64) {
		before := [2]int64{served[0].Load(), served[1].Load()}
		time.Sleep(d)
		return [2]float64{float64(served[0].Load() - before[0]), float64(served[1].Load() - before[1])}
	}
	count(time.Second)
	n := count(4 * time.Second)
	if share := n[0] / (n[0] + n[1]); share < 0.65 || share > 0.85 {
		t.Errorf("the high level was served %.0f of %.0f requests, %.2f; want 0.75 within 0.10", n[0], n[0]+n[1], share)
	}
	close(stopHigh)
	high.Wait()
	if got := count(2 * time.Second); got[0] != 0 || got[1] < n[1] {
		t.Errorf("alone the low level was served %.0f in 2 s, want more than the %.0f that it had in 4 s beside the high one", got[1], n[1])
	}
	close(stopLow)
	low.Wait()
}
