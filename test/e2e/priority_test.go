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

// crowded is an upstream that notes how many requests it has at once, of each tenant and in all. A request is over before it is
// answered, so that what it counts is never more than what the sidecar let in.
type crowded struct {
	hold time.Duration
	mu   sync.Mutex
	now  map[string]int
	most map[string]int
}

func newCrowded(t *testing.T, hold time.Duration) (*crowded, string) {
	t.Helper()
	u := &crowded{hold: hold, now: map[string]int{}, most: map[string]int{}}
	s := httptest.NewServer(u)
	t.Cleanup(s.Close)
	return u, strings.TrimPrefix(s.URL, "http://")
}

func (u *crowded) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	keys := []string{"all", r.Header.Get("x-tenant-id")}
	u.count(1, keys)
	time.Sleep(u.hold)
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
	u, address := newCrowded(t, 50*time.Millisecond)
	s := start(t, stack.Options{Upstream: address, Overlay: concurrency(7, 3, 30*time.Second) + "tenant: {maxConcurrent: {small: 1}}\n"})
	var all sync.WaitGroup
	for _, tenant := range []string{"small", "a", "b", "c"} {
		for range 8 {
			all.Go(func() {
				c := client(t, false)
				for range 10 {
					got, err := send(t.Context(), s, c, request{path: "/x", headers: map[string]string{"x-tenant-id": tenant}})
					if err != nil || got.status != 200 {
						t.Errorf("tenant %s: %d %s, %v; want 200", tenant, got.status, got.reason(), err)
						return
					}
				}
			})
		}
	}
	all.Wait()
	u.mu.Lock()
	defer u.mu.Unlock()
	for key, want := range map[string]int{"all": 7, "small": 1, "a": 3, "b": 3, "c": 3} {
		if got := u.most[key]; got != want {
			t.Errorf("%s: the upstream had %d requests at once, want %d", key, got, want)
		}
	}
}

// TestMaxConcurrentRefuses: who waits in vain for its own bound gets 429, for the cluster's 503, in the form of the API.
func TestMaxConcurrentRefuses(t *testing.T) {
	t.Parallel()
	_, address := newCrowded(t, 3*time.Second)
	s := start(t, stack.Options{Upstream: address, Overlay: concurrency(2, 1, 200*time.Millisecond)})
	var running sync.WaitGroup
	for _, tenant := range []string{"a", "b"} {
		running.Go(func() {
			if got := must(t, s, client(t, false), request{path: "/x", headers: map[string]string{"x-tenant-id": tenant}}); got.status != 200 {
				t.Errorf("tenant %s: %d %s, want 200", tenant, got.status, got.reason())
			}
		})
	}
	eventually(t, "both to run", func() bool {
		busy, err := s.Sidecar.Busy(t.Context())
		return err == nil && strings.Contains(fmt.Sprint(busy), "activeCount:2")
	})
	for tenant, want := range map[string]struct {
		status int
		reason string
	}{"a": {429, "admission_tenant_concurrency"}, "c": {503, "admission_concurrency"}} {
		got := must(t, s, client(t, false), request{path: "/x", headers: map[string]string{"x-tenant-id": tenant}})
		if got.status != want.status || got.reason() != want.reason || got.header.Get("Retry-After") == "" || !strings.Contains(got.body, want.reason) {
			t.Errorf("tenant %s: %d %s, Retry-After %q, %s; want %d %s", tenant, got.status, got.reason(), got.header.Get("Retry-After"), got.body, want.status, want.reason)
		}
	}
	running.Wait()
}

// TestPriorityLevels: the level is what Envoy has verified, whatever a client's header says; while both levels want more each has
// its guaranteed share, and the lower one has all of it when the higher one has nothing to do.
func TestPriorityLevels(t *testing.T) {
	t.Parallel()
	_, address := newCrowded(t, 50*time.Millisecond)
	const levels = `
priority:
  levels: [{name: high, share: 3}, {name: low, share: 1}]
  sources: [{metadata: verified/level}]
`
	s := start(t, stack.Options{
		Upstream: address, Overlay: concurrency(8, 0, 30*time.Second) + levels,
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
