package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/stack"
	"github.com/headgate/headgate/pkg/lease"
)

// TestDrainAndLeases: when a sidecar ends, the leases of responses that stream on are renewed to their full time to live, once;
// with onLost: cut their exchanges stay, so that renewals go on and a lease that is lost cuts, until the grace ends.
func TestDrainAndLeases(t *testing.T) {
	t.Parallel()
	withRedis := func(t *testing.T, leases, overlay string, e expectation) (*stack.Stack, session, string) {
		t.Helper()
		redis, err := stack.StartRedis(t.Context(), stack.RedisOptions{})
		if err != nil {
			t.Fatalf("start Redis: %v", err)
		}
		t.Cleanup(redis.Stop)
		s := start(t, stack.Options{Overlay: fmt.Sprintf("leases: {%s, store: {redis: {addrs: [%q], callTimeout: 1s}}}\n%s", leases, redis.Addr, overlay)}, e)
		a := session{s, client(t, false), "demo-key-a", "vlo_" + strings.Repeat("d", 43)}
		return s, a, a.acquire(t)
	}
	// streams begins a leased response of so many events, ten a second.
	streams := func(t *testing.T, s *stack.Stack, a session, generation string, events int) <-chan int {
		t.Helper()
		got := make(chan int, 1)
		go func() {
			r, _ := send(t.Context(), s, client(t, false), request{path: fmt.Sprintf("/leased/drip?n=%d&ms=100", events), headers: map[string]string{
				"authorization": "Bearer " + a.key, "x-omniroute-lease-owner": a.owner, "x-omniroute-lease-generation": generation}})
			got <- strings.Count(r.body, "data:")
		}()
		eventually(t, "the response to begin", func() bool {
			return s.Upstream.CountsOf("/leased/drip").Active == 1 && health(t, s).Exchanges.InFlight == 1
		})
		time.Sleep(300 * time.Millisecond) // its first bytes have passed
		return got
	}
	signal := func(t *testing.T, s *stack.Stack) {
		t.Helper()
		if err := s.Sidecar.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("keep", func(t *testing.T) {
		t.Parallel()
		s, a, generation := withRedis(t, "ttl: 10m", "shutdown: {drain: 1s, grace: 20s}", expectation{})
		got := streams(t, s, a, generation, 100)
		before := leaseOn(t, s)
		signal(t, s)
		ends(t, s, 8*time.Second, "an end by itself: the exchange was let go")
		restart(t, s)
		if after := leaseOn(t, s); !after.RenewedAt.After(before.RenewedAt) {
			t.Errorf("renewed at %v before the signal and at %v after the end, want once more: the response streams on", before.RenewedAt, after.RenewedAt)
		}
		if n := <-got; n != 100 {
			t.Errorf("%d of 100 events, want all: clients must notice nothing", n)
		}
	})
	t.Run("cut", func(t *testing.T) {
		t.Parallel()
		s, a, generation := withRedis(t, "ttl: 2s, onLost: cut", "shutdown: {drain: 0s, grace: 20s}", expectation{gone: true})
		got := streams(t, s, a, generation, 60)
		signal(t, s)
		if n := <-got; n != 60 {
			t.Errorf("%d of 60 events, want all: its lease is renewed during the drain", n)
		}
		ends(t, s, 10*time.Second, "an end once the exchange is over")
	})
	t.Run("cut, lost", func(t *testing.T) {
		t.Parallel()
		s, a, generation := withRedis(t, "ttl: 2s, onLost: cut", "shutdown: {drain: 0s, grace: 20s}", expectation{gone: true})
		got := streams(t, s, a, generation, 120)
		signal(t, s)
		if status, fields := a.do(t, `{"action":"release","generation":`+generation+`}`); status != 200 {
			t.Fatalf("release during the drain: %d %v", status, fields)
		}
		if n := <-got; n >= 120 {
			t.Errorf("%d of 120 events, want a response that broke off", n)
		}
		ends(t, s, 10*time.Second, "an end once the exchange is over")
	})
}

// leaseOn is the one live lease, as the admin port lists it.
func leaseOn(t *testing.T, s *stack.Stack) lease.LeaseListing {
	t.Helper()
	for _, p := range listing(t, s) {
		for _, c := range p.Connections {
			if c.Lease != nil {
				return *c.Lease
			}
		}
	}
	t.Fatal("there is no lease")
	return lease.LeaseListing{}
}

// listing is what the admin port lists.
func listing(t *testing.T, s *stack.Stack) []lease.PoolListing {
	t.Helper()
	text, err := s.Sidecar.Get(t.Context(), "/v1/session-leases")
	if err != nil {
		t.Fatal(err)
	}
	var all struct{ Pools []lease.PoolListing }
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return all.Pools
}
