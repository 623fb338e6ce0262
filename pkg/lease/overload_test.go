package lease_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/stack"
	"github.com/headgate/headgate/pkg/lease"
)

// watched is a service with the deadline of production and the states that its breaker has entered.
type watched struct {
	*lease.Service
	mu      sync.Mutex
	states  []string
	answers map[string]int
}

func watch(t *testing.T, s lease.Settings) *watched {
	t.Helper()
	w := &watched{answers: map[string]int{}}
	w.Service = newLoggedService(t, s, silentWriter{}, lease.Observer{
		Breaker: func(_, state string) { w.mu.Lock(); defer w.mu.Unlock(); w.states = append(w.states, state) },
		Answer: func(action, _, outcome string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.answers[action+" "+outcome]++
		},
	})
	return w
}

func (w *watched) opened() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.states...)
}

// leased acquires a lease on a store that is calm, and returns what a request with it asks.
func (w *watched) leased(t *testing.T) lease.FenceAsk {
	t.Helper()
	var l lease.Lease
	eventually(t, patience, "a lease", func() bool {
		var r *lease.Refusal
		l, r = w.Acquire(context.Background(), ask(t, w.Service, 1, teamA, 0), "m")
		return r == nil
	})
	return fence(t, w.Service, 1, teamA, l.Generation)
}

// inAnyRound runs a test about load until a round shows no fault: a busy machine may spoil some, not all.
func inAnyRound(t *testing.T, rounds int, round func(t *testing.T) (fault string)) {
	t.Helper()
	var fault string
	for n := range rounds {
		if fault = round(t); fault == "" {
			t.Logf("round %d of at most %d shows no fault", n+1, rounds)
			return
		}
		t.Log(fault)
	}
	t.Error(fault)
}

// offers is the fault of a round in which the machine did not come up with the load.
func (l *load) offers(perSecond int) (fault string) {
	if l.offered < 0.98*float64(perSecond) || l.latest > 100*time.Millisecond {
		return fmt.Sprintf("%.0f checks a second were offered, the latest %v late; want %d, within 100 ms", l.offered, l.latest, perSecond)
	}
	return ""
}

// TestHiccupCostsNoRefusals: the store stands still for 40 ms, twice a second, under 1000 checks a second. It is not parallel:
// other tests would make the hiccups longer.
func TestHiccupCostsNoRefusals(t *testing.T) {
	for name, binary := range servers(t) {
		t.Run(name, func(t *testing.T) {
			inAnyRound(t, 8, func(t *testing.T) string { return hiccups(t, startServer(t, stack.RedisOptions{Binary: binary})) })
		})
	}
}

func hiccups(t *testing.T, server *stack.Redis) (fault string) {
	const perSecond = 1000
	svc := watch(t, strict(settings("acct-1"), server.Addr))
	f := svc.leased(t)
	ctx := within(t, 3*time.Second)
	var stalls sync.WaitGroup
	var stood []time.Duration
	stalls.Go(func() {
		for ctx.Err() == nil {
			time.Sleep(460 * time.Millisecond)
			from := time.Now()
			_ = server.Freeze()
			time.Sleep(40 * time.Millisecond)
			_ = server.Thaw()
			stood = append(stood, time.Since(from).Round(time.Millisecond))
		}
	})
	var l load
	l.run(ctx, perSecond, func() lease.Reason { _, r := svc.Check(context.Background(), f); return reason(r) })
	stalls.Wait()
	slices.Sort(l.times)
	t.Logf("%.0f checks a second offered, the store stood still for %v; answers %v, half within %v, the last %v; breaker %v",
		l.offered, stood, l.answers, l.times[len(l.times)/2], l.times[len(l.times)-1], svc.opened())
	if fault = l.offers(perSecond); fault != "" {
		return fault
	}
	if refused := len(l.times) - l.answers[""]; refused > 0 || len(svc.opened()) > 0 {
		return fmt.Sprintf("%d of %d checks were refused and the breaker went through %v, want none and closed: %v", refused, len(l.times), svc.opened(), l.answers)
	}
	return ""
}

// TestOverloadQueuesAndServes: twice as many checks as the connections carry one by one.
func TestOverloadQueuesAndServes(t *testing.T) {
	for name, binary := range servers(t) {
		t.Run(name, func(t *testing.T) {
			inAnyRound(t, 8, func(t *testing.T) string { return overload(t, startServer(t, stack.RedisOptions{Binary: binary})) })
		})
	}
}

func overload(t *testing.T, server *stack.Redis) (fault string) {
	relay := startRelay(t, server.Addr)
	s := strict(settings("acct-1"), relay.Addr)
	s.Store.Redis.PoolSize = 2
	svc := watch(t, s)
	f := svc.leased(t)
	relay.DelayReplies(3 * time.Millisecond)
	const capacity, seconds = 2 * 1000 / 3, 3 // calls a second of two connections
	var l load
	l.run(within(t, seconds*time.Second), 2*capacity, func() lease.Reason { _, r := svc.Check(context.Background(), f); return reason(r) })
	t.Logf("%.0f checks a second offered to %d; answers %v, breaker %v, %d connections", l.offered, capacity, l.answers, svc.opened(), relay.Total())
	if fault = l.offers(2 * capacity); fault != "" {
		return fault
	}
	if served := l.answers[""]; served < capacity*seconds*8/10 || len(svc.opened()) > 0 {
		return fmt.Sprintf("%d of %d checks were served and the breaker went through %v, want 80%% of the %d that the connections carry one by one, and closed",
			served, len(l.times), svc.opened(), capacity*seconds)
	}
	return ""
}

func TestCallsThatWereNeverSentAreNotUndone(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	svc := watch(t, strict(settings("acct-1"), server.Addr))
	svc.leased(t)
	server.Kill()
	for n := range 300 {
		if _, r := svc.Acquire(context.Background(), ask(t, svc.Service, n, teamA, 0), "m"); reason(r) != lease.ServiceUnavailable {
			t.Fatalf("acquire without a store: %q", reason(r))
		}
	}
	time.Sleep(time.Second)
	svc.mu.Lock()
	defer svc.mu.Unlock()
	undone := 0
	for what, n := range svc.answers {
		if len(what) > 7 && what[:7] == "abandon" {
			undone += n
		}
	}
	if undone > 16 { // connections that were open when the server died
		t.Errorf("%d acquires are undone although nothing was sent: %v", undone, svc.answers)
	}
}

// TestNothingGoesOutUnconfirmed: the one replica is away.
func TestNothingGoesOutUnconfirmed(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, server *stack.Redis) {
		calm := onRedis(settings("acct-1", "acct-2"), server.Addr)
		strict := calm
		strict.Store.Redis.WaitReplicas, strict.Store.Redis.CallTimeout = 1, 500*time.Millisecond
		sure, svc, ctx := newService(t, calm), newService(t, strict), within(t, 2*patience)
		// Given a lease that was confirmed when there was a replica
		l := acquire(t, sure, 1, teamA)
		a := ask(t, svc, 1, teamA, l.Generation)
		unavailable := func(what string, r *lease.Refusal) {
			t.Helper()
			expect(t, what, r, lease.ServiceUnavailable)
		}
		_, r := svc.Acquire(ctx, ask(t, svc, 2, teamA, 0), "m")
		unavailable("acquire", r)
		_, r = svc.Acquire(ctx, a, "m")
		unavailable("acquire that is REUSED", r)
		_, r = svc.Renew(ctx, a)
		unavailable("renew", r)
		_, r = svc.Status(ctx, a)
		unavailable("status", r)
		// the lease has not ended by any of it, and what it is not told needs no replica; on a busy machine calls may be paused
		eventually(t, patience, "a valid check", func() bool {
			_, r := svc.Check(ctx, fence(t, svc, 1, teamA, l.Generation))
			return r == nil
		})
		eventually(t, patience, "STALE for another generation", func() bool {
			_, r := svc.Renew(ctx, ask(t, svc, 1, teamA, l.Generation+1))
			return reason(r) == lease.FenceStale
		})
		eventually(t, patience, "the unconfirmed lease to be undone", func() bool {
			listing, err := sure.List(ctx, pool, 0)
			return err == nil && listing.Connections[1].State == "free"
		})
		_, r = move(t, svc, 1, teamA, l)
		unavailable("the move of a lease", r)
		_, r = svc.Release(ctx, a, lease.OwnerExit)
		unavailable("release", r)
		_, r = svc.Release(ctx, a, lease.OwnerExit)
		unavailable("repeated release", r)
	})
}
