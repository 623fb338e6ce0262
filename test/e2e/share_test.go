package e2e

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/stack"
)

// sharedPlaces is how many requests the upstream of TestShareAmongReplicas is to have at once; each costs 4.
const sharedPlaces = 16

// places is an upstream that counts what runs at once, and what each tenant was served.
type places struct {
	running, most atomic.Int64
	served        [2]atomic.Int64 // "one", "all"
}

func (p *places) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	now := p.running.Add(1)
	defer p.running.Add(-1)
	for most := p.most.Load(); now > most && !p.most.CompareAndSwap(most, now); most = p.most.Load() {
	}
	select {
	case <-time.After(100 * time.Millisecond):
	case <-r.Context().Done():
		return
	}
	if r.URL.Query().Get("tenant") == "one" {
		p.served[0].Add(1)
	} else {
		p.served[1].Add(1)
	}
}

// over is what each tenant was served in a while.
func (p *places) over(d time.Duration) (one, all int64) {
	one, all = p.served[0].Load(), p.served[1].Load()
	time.Sleep(d)
	return p.served[0].Load() - one, p.served[1].Load() - all
}

// fair checks that both tenants get the same, and that the upstream neither idles nor has more than its places.
func (p *places) fair(t *testing.T, when string) {
	t.Helper()
	const span = 5 * time.Second
	p.most.Store(0)
	one, all := p.over(span)
	if one+all == 0 || float64(one) < 0.75*float64(all) || float64(all) < 0.75*float64(one) {
		t.Errorf("%s the tenant that reaches one replica was served %d, the one that reaches all %d; want the same within 25 %%", when, one, all)
	}
	// A member may always have one request in, whatever its part. After a death maxLimit keeps room for who may come back.
	if most := p.most.Load(); most > sharedPlaces+3 || most < sharedPlaces/3 {
		t.Errorf("%s at most %d ran at once, want a third of %d at least and no more than three above", when, most, sharedPlaces)
	}
	t.Logf("%s: one replica %d, all replicas %d, at most %d at once", when, one, all, p.most.Load())
}

// TestShareAmongReplicas: three sidecars, each behind an Envoy, share the places of one upstream through one Redis. A tenant that reaches
// one of them and a tenant that reaches all get the same, also after the Redis and a sidecar were stopped and killed.
func TestShareAmongReplicas(t *testing.T) {
	t.Parallel()
	redis, err := stack.StartRedis(t.Context(), stack.RedisOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(redis.Stop)
	upstream := &places{}
	server := httptest.NewServer(upstream)
	t.Cleanup(server.Close)
	overlay := fmt.Sprintf(`
clusters:
  default:
    protocol: http1
    lanes: {mode: enforce, virtualLanes: true, minLimit: 64, initialLimit: 64, maxLimit: 64, maxShare: 1, maxWait: 30s, share: redis, replicas: 3}
leases: {store: {redis: {addrs: [%q]}}}
fanout: {secret: 0123456789abcdef0123456789abcdef}
decision: {maxWait: 30s}
`, redis.Addr)
	var replicas []*stack.Stack
	for i := range 3 {
		e := expectation{}
		if i > 0 { // the one that is killed, and the one that is stopped
			e.faults = []string{"streams_failed", "message_timeouts", "failure_mode_allowed", "spurious_msgs_received"}
		}
		replicas = append(replicas, start(t, stack.Options{Overlay: overlay, Upstream: strings.TrimPrefix(server.URL, "http://")}, e))
	}
	stop := offer(t, replicas)
	defer stop()
	time.Sleep(6 * time.Second)
	upstream.fair(t, "at first")

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	disturb(ctx, t, redis, replicas)
	time.Sleep(8 * time.Second)
	upstream.fair(t, "after all disturbances")
}

// disturb stops the Redis and a sidecar for a while, and kills both.
func disturb(ctx context.Context, t *testing.T, redis *stack.Redis, replicas []*stack.Stack) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(redis.Freeze())
	time.Sleep(3 * time.Second)
	must(redis.Thaw())
	time.Sleep(time.Second)
	redis.Kill()
	time.Sleep(2 * time.Second)
	must(redis.Restart(ctx))
	must(replicas[1].Sidecar.Signal(syscall.SIGSTOP))
	time.Sleep(4 * time.Second)
	must(replicas[1].Sidecar.Signal(syscall.SIGCONT))
	replicas[2].Sidecar.Kill()
	time.Sleep(4 * time.Second)
	must(replicas[2].Sidecar.Restart(ctx))
}

// offer keeps 20 requests of each tenant under way: of "one" at the first replica, of "all" at each.
func offer(t *testing.T, replicas []*stack.Stack) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	run := func(s *stack.Stack, tenant string) {
		clients.Go(func() {
			c := client(t, false)
			for ctx.Err() == nil {
				r, err := http.NewRequestWithContext(ctx, "GET", s.Envoy.URL()+"/slow?tenant="+tenant, nil)
				if err != nil {
					return
				}
				r.Header.Set("x-tenant-id", tenant)
				answer, err := c.Do(r)
				if err == nil {
					_ = answer.Body.Close()
				}
				if err != nil || answer.StatusCode != 200 { // a sidecar is away
					time.Sleep(50 * time.Millisecond)
				}
			}
		})
	}
	for range 20 {
		run(replicas[0], "one")
		for _, s := range replicas {
			run(s, "all")
		}
	}
	return func() {
		cancel()
		clients.Wait()
	}
}
