package lease_test

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/pkg/lease"
)

// bubble runs a test on the embedded store with a clock of its own.
func bubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, test)
}

func expect(t testing.TB, what string, got *lease.Refusal, want lease.Reason) {
	t.Helper()
	if reason(got) != want {
		t.Errorf("%s: %q, want %q", what, reason(got), want)
	}
}

func TestLeaseExpiresExactlyAtItsEnd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		// Given a lease of 1 s that is renewed after half a second
		s := settings("acct-1")
		s.TTL = time.Second
		svc, ctx := newService(t, s), context.Background()
		start := time.Now()
		l := acquire(t, svc, 1, teamA)
		time.Sleep(time.Until(start.Add(500 * time.Millisecond)))
		if _, r := svc.Renew(ctx, ask(t, svc, 1, teamA, l.Generation)); r != nil {
			t.Fatal(r.Reason)
		}
		// when a contender comes at 1.0 s, the lease still holds; at 1.499 s it does, at 1.5 s it has expired
		time.Sleep(time.Until(start.Add(time.Second)))
		_, r := svc.Acquire(ctx, ask(t, svc, 2, teamA, 0), "m")
		expect(t, "contender at 1.0 s", r, lease.CapacityUnavailable)
		time.Sleep(time.Until(start.Add(1499 * time.Millisecond)))
		_, r = svc.Check(ctx, fence(t, svc, 1, teamA, l.Generation))
		expect(t, "check at 1.499 s", r, "")
		time.Sleep(time.Until(start.Add(1500 * time.Millisecond)))
		_, r = svc.Check(ctx, fence(t, svc, 1, teamA, l.Generation))
		expect(t, "check at 1.5 s", r, lease.LeaseRequired)
		// then the contender gets it, with a larger generation
		next := acquire(t, svc, 2, teamA)
		if next.Generation <= l.Generation || next.Connection != "acct-1" {
			t.Errorf("contender got %+v after generation %d", next, l.Generation)
		}
		_, r = svc.Renew(ctx, ask(t, svc, 1, teamA, l.Generation))
		expect(t, "late renewal", r, lease.FenceStale)
		_, r = svc.Release(ctx, ask(t, svc, 1, teamA, l.Generation), lease.OwnerExit)
		expect(t, "late release", r, lease.FenceStale)
		_, r = svc.Check(ctx, fence(t, svc, 2, teamA, next.Generation))
		expect(t, "the successor after the late release", r, "")
	})
}

func TestLeaseOfTwoMinutesRenewedAfterOne(t *testing.T) {
	bubble(t, func(t *testing.T) {
		svc, ctx := newService(t, settings("acct-1")), context.Background()
		l := acquire(t, svc, 1, teamA)
		if life := l.ExpiresAt.Sub(l.AcquiredAt); life != 120*time.Second {
			t.Errorf("a lease lives %v, want 120 s", life)
		}
		time.Sleep(60 * time.Second)
		if _, r := svc.Renew(ctx, ask(t, svc, 1, teamA, l.Generation)); r != nil {
			t.Fatal(r.Reason)
		}
		time.Sleep(90 * time.Second)
		_, r := svc.Release(ctx, ask(t, svc, 1, teamA, l.Generation+1), lease.OwnerExit)
		expect(t, "release of another generation at 150 s", r, lease.FenceStale)
		_, r = svc.Check(ctx, fence(t, svc, 1, teamA, l.Generation))
		expect(t, "check at 150 s", r, "")
		_, r = svc.Release(ctx, ask(t, svc, 1, teamA, l.Generation), lease.ClientCancelled)
		expect(t, "release", r, "")
		again := acquire(t, svc, 1, teamA)
		if again.Generation <= l.Generation {
			t.Errorf("generation went from %d to %d", l.Generation, again.Generation)
		}
		_, r = svc.Renew(ctx, ask(t, svc, 1, teamA, l.Generation))
		expect(t, "renewal of the old generation", r, lease.FenceStale)
		_, r = svc.Release(ctx, ask(t, svc, 1, teamA, l.Generation), lease.OwnerExit)
		expect(t, "repeated release of the old generation, after a new acquire", r, lease.FenceStale)
	})
}

func TestLongestHoldEndsALeaseThatIsAlwaysRenewed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := settings("acct-1")
		s.TTL, s.MaxHold = 10*time.Second, 25*time.Second
		svc, ctx := newService(t, s), context.Background()
		l := acquire(t, svc, 1, teamA)
		end := l.AcquiredAt.Add(25 * time.Second)
		for time.Now().Before(end.Add(-time.Second)) {
			time.Sleep(time.Second)
			renewed, r := svc.Renew(ctx, ask(t, svc, 1, teamA, l.Generation))
			if r != nil || renewed.ExpiresAt.After(end) {
				t.Fatalf("%v after the acquire: %q, expires %v, may not outlive %v", time.Since(l.AcquiredAt), reason(r), renewed.ExpiresAt, end)
			}
		}
		time.Sleep(time.Until(end))
		_, r := svc.Renew(ctx, ask(t, svc, 1, teamA, l.Generation))
		expect(t, "renewal at the longest hold", r, lease.FenceStale)
		svc.SweepNow(ctx)
		listing, err := svc.List(ctx, pool, 1)
		if err != nil || len(listing.Events) != 1 || listing.Events[0].Event != "expired" || listing.Events[0].Reason != lease.MaxHold {
			t.Errorf("last event %+v (%v), want expired with MAX_HOLD", listing.Events, err)
		}
	})
}

func TestReleaseIsRepeatable(t *testing.T) {
	bubble(t, func(t *testing.T) {
		svc, ctx := newService(t, settings("acct-1")), context.Background()
		l := acquire(t, svc, 1, teamA)
		first, r := svc.Release(ctx, ask(t, svc, 1, teamA, l.Generation), lease.OwnerExit)
		if r != nil || first.State != "RELEASED" {
			t.Fatalf("release: %+v %q", first, reason(r))
		}
		time.Sleep(10 * time.Minute)
		second, r := svc.Release(ctx, ask(t, svc, 1, teamA, l.Generation), lease.ClientCancelled)
		if r != nil || second.State != "RELEASED" || !second.ExpiresAt.Equal(first.ExpiresAt) {
			t.Errorf("repeated: %+v %q, want as before %+v", second, reason(r), first)
		}
		_, r = svc.Release(ctx, ask(t, svc, 1, teamB, l.Generation), lease.OwnerExit)
		expect(t, "repeated by another principal", r, lease.FenceStale)
		_, r = svc.Release(ctx, ask(t, svc, 1, teamA, l.Generation+1), lease.OwnerExit)
		expect(t, "repeated with another generation", r, lease.FenceStale)
		time.Sleep(24*time.Hour - 11*time.Minute)
		svc.SweepNow(ctx)
		_, r = svc.Release(ctx, ask(t, svc, 1, teamA, l.Generation), lease.OwnerExit)
		expect(t, "repeated within a day", r, "")
		time.Sleep(2 * time.Minute)
		svc.SweepNow(ctx)
		svc.SweepNow(ctx)
		if left := svc.Fields(pool); len(left) != 1 || left["gen"] == "" {
			t.Errorf("after a day the pool holds %v, want the last number only", left)
		}
	})
}

func TestWhoeverElseComesChangesNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		svc, ctx := newService(t, settings("acct-1", "acct-2")), context.Background()
		l := acquire(t, svc, 1, teamA)
		_, r := svc.Acquire(ctx, ask(t, svc, 1, teamB, 0), "m")
		expect(t, "acquire by another principal", r, lease.FenceStale)
		_, r = svc.Renew(ctx, ask(t, svc, 1, teamB, l.Generation))
		expect(t, "renewal by another principal", r, lease.FenceStale)
		_, r = svc.Release(ctx, ask(t, svc, 1, teamB, l.Generation), lease.OwnerExit)
		expect(t, "release by another principal", r, lease.FenceStale)
		_, r = svc.Status(ctx, ask(t, svc, 1, teamB, l.Generation))
		expect(t, "status by another principal", r, lease.FenceStale)
		_, r = svc.Status(ctx, ask(t, svc, 2, teamA, l.Generation))
		expect(t, "status by another owner", r, lease.FenceStale)
		_, r = svc.Check(ctx, fence(t, svc, 1, teamB, l.Generation))
		expect(t, "check by another principal", r, lease.FenceStale)
		_, r = svc.Check(ctx, fence(t, svc, 1, teamA, l.Generation+1))
		expect(t, "check of the next generation", r, lease.FenceStale)
		_, r = svc.Check(ctx, fence(t, svc, 2, teamA, l.Generation))
		expect(t, "check by another owner", r, lease.LeaseRequired)
		r = svc.End(ctx, pool, l.Connection, l.Generation+1, lease.ManagedKeyRevoked)
		expect(t, "invalidation of another generation", r, lease.LeaseRequired)
		_, r = svc.Renew(ctx, ask(t, svc, 1, teamA, l.Generation))
		expect(t, "renewal by its owner", r, "")
		r = svc.End(ctx, pool, l.Connection, l.Generation, lease.ManagedKeyRevoked)
		expect(t, "invalidation of the exact generation", r, "")
		r = svc.End(ctx, pool, l.Connection, l.Generation, lease.ManagedKeyRevoked)
		expect(t, "repeated invalidation", r, lease.LeaseRequired)
		_, r = svc.Check(ctx, fence(t, svc, 1, teamA, l.Generation))
		expect(t, "check after it", r, lease.LeaseRequired)
	})
}

func TestBoundConnectionIsPreferredOverABetterOne(t *testing.T) {
	bubble(t, func(t *testing.T) {
		// Given owner 2 on the second connection because the first was taken then
		svc, ctx := newService(t, settings("acct-1", "acct-2")), context.Background()
		first := acquire(t, svc, 1, teamA)
		second := acquire(t, svc, 2, teamA)
		if first.Connection != "acct-1" || second.Connection != "acct-2" {
			t.Fatalf("bound to %s and %s, want the order of preference", first.Connection, second.Connection)
		}
		if _, r := svc.Release(ctx, ask(t, svc, 1, teamA, first.Generation), lease.OwnerExit); r != nil {
			t.Fatal(r.Reason)
		}
		// when it acquires again although the first is free
		again := acquire(t, svc, 2, teamA)
		// then it keeps what it has
		if again.Outcome != "REUSED" || again.Connection != "acct-2" || again.Generation != second.Generation {
			t.Errorf("acquired again: %+v, want acct-2 of generation %d reused", again, second.Generation)
		}
	})
}

func TestRestingConnectionIsLeftForAFreeOne(t *testing.T) {
	bubble(t, func(t *testing.T) {
		svc, ctx := newService(t, settings("acct-1", "acct-2")), context.Background()
		l := acquire(t, svc, 1, teamA)
		if r := svc.SetCooldown(ctx, pool, "acct-1", svc.CooldownFor(lease.Answered{Pool: pool, Connection: "acct-1", Status: 429, RetryAfter: "7"})); r != nil {
			t.Fatal(r.Reason)
		}
		f, r := svc.Check(ctx, fence(t, svc, 1, teamA, l.Generation))
		if r != nil || !f.Moved || f.Connection != "acct-2" || f.Cluster != "to-acct-2" || f.Generation != l.Generation {
			t.Fatalf("check while acct-1 is in cooldown: %+v %q, want moved to acct-2 with the same generation", f, reason(r))
		}
		status, _ := svc.Status(ctx, ask(t, svc, 1, teamA, l.Generation))
		if !status.ExpiresAt.Equal(l.ExpiresAt) {
			t.Errorf("the move changed the expiry from %v to %v", l.ExpiresAt, status.ExpiresAt)
		}
		// the connection it left is not given to anybody while it is in cooldown
		_, r = svc.Acquire(ctx, ask(t, svc, 2, teamA, 0), "m")
		expect(t, "acquire while one is held and one is in cooldown", r, lease.CapacityUnavailable)
		if r != nil && r.Eligible != 1 {
			t.Errorf("eligible connections: %d, want 1", r.Eligible)
		}
		time.Sleep(7 * time.Second)
		if got := acquire(t, svc, 2, teamA); got.Connection != "acct-1" {
			t.Errorf("after the rest owner 2 got %s, want acct-1", got.Connection)
		}
	})
}

func TestNowhereToMoveEndsTheLease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		svc, ctx := newService(t, settings("acct-1", "acct-2")), context.Background()
		l := acquire(t, svc, 1, teamA)
		acquire(t, svc, 2, teamA)
		if r := svc.SetCooldown(ctx, pool, "acct-1", 30*time.Second); r != nil {
			t.Fatal(r.Reason)
		}
		pinned := fence(t, svc, 1, teamA, l.Generation)
		pinned.Pin = "acct-1"
		_, r := svc.Check(ctx, pinned)
		expect(t, "pinned to a connection in cooldown", r, lease.EligibilityUnavailable)
		if r == nil || r.RetryAfter != 30*time.Second {
			t.Errorf("retry after %+v, want 30 s", r)
		}
		_, r = svc.Check(ctx, fence(t, svc, 1, teamA, l.Generation))
		expect(t, "nothing free", r, lease.EligibilityUnavailable)
		_, r = svc.Check(ctx, fence(t, svc, 1, teamA, l.Generation))
		expect(t, "afterwards", r, lease.LeaseRequired)
		listing, err := svc.List(ctx, pool, 1)
		if err != nil || listing.Events[0].Event != "invalidated" || listing.Events[0].Reason != lease.HealthOrCooldown {
			t.Errorf("last event %+v (%v), want invalidated with HEALTH_OR_COOLDOWN", listing.Events, err)
		}
	})
}

func TestOnlyRestingCandidatesAreNotACapacityProblem(t *testing.T) {
	bubble(t, func(t *testing.T) {
		svc, ctx := newService(t, settings("acct-1", "acct-2")), context.Background()
		for c, d := range map[string]time.Duration{"acct-1": 90 * time.Second, "acct-2": 20*time.Second + time.Millisecond} {
			if r := svc.SetCooldown(ctx, pool, c, d); r != nil {
				t.Fatal(r.Reason)
			}
		}
		_, r := svc.Acquire(ctx, ask(t, svc, 1, teamA, 0), "m")
		expect(t, "acquire", r, lease.EligibilityUnavailable)
		if r == nil || r.RetryAfter != 21*time.Second {
			t.Errorf("retry after %+v, want 21 s: the next to wake, rounded up", r)
		}
		_, r = svc.Unmanaged(ctx, lease.UnmanagedAsk{Pool: pool})
		expect(t, "unmanaged", r, lease.EligibilityUnavailable)
	})
}

func TestUnmanagedTrafficKeepsOffLeasedConnections(t *testing.T) {
	bubble(t, func(t *testing.T) {
		svc, ctx := newService(t, settings("acct-1", "acct-2")), context.Background()
		l := acquire(t, svc, 1, teamA)
		f, r := svc.Unmanaged(ctx, lease.UnmanagedAsk{Pool: pool})
		if r != nil || f.Connection != "acct-2" || f.Cluster != "to-acct-2" {
			t.Errorf("unmanaged: %+v %q, want acct-2", f, reason(r))
		}
		_, r = svc.Unmanaged(ctx, lease.UnmanagedAsk{Pool: pool, Pin: "acct-1"})
		expect(t, "pinned to a leased one", r, lease.ConnectionMismatch)
		_, r = svc.Unmanaged(ctx, lease.UnmanagedAsk{Pool: pool, Pin: "acct-9"})
		expect(t, "pinned to an unknown one", r, lease.ConnectionMismatch)
		acquire(t, svc, 2, teamB)
		_, r = svc.Unmanaged(ctx, lease.UnmanagedAsk{Pool: pool})
		expect(t, "all leased", r, lease.CapacityUnavailable)
		if _, r := svc.Release(ctx, ask(t, svc, 1, teamA, l.Generation), lease.OwnerExit); r != nil {
			t.Fatal(r.Reason)
		}
		if f, r := svc.Unmanaged(ctx, lease.UnmanagedAsk{Pool: pool, Pin: "acct-1"}); r != nil || f.Connection != "acct-1" {
			t.Errorf("pinned to a free one: %+v %q", f, reason(r))
		}
	})
}

func TestModelsAndListsDecideWhatIsEligible(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := settings("acct-1", "acct-2")
		s.Pools[pool].Connections[0].Models = []string{"small"}
		s.Pools[pool].Connections[1].Models = []string{"*"}
		svc, ctx := newService(t, s), context.Background()
		_, r := svc.Acquire(ctx, lease.Ask{Pool: pool, Owner: owner(t, 1), Identity: lease.Identity{Principal: "x", Managed: true, Connections: []string{"acct-1"}}}, "large")
		expect(t, "a model that no connection of the list serves", r, lease.NoEligibleConnection)
		l := acquire(t, svc, 1, teamA) // "model": only the second serves everything
		if l.Connection != "acct-2" {
			t.Errorf("bound to %s, want acct-2", l.Connection)
		}
		small, _ := svc.Acquire(ctx, ask(t, svc, 2, teamA, 0), "small")
		if small.Connection != "acct-1" {
			t.Errorf("bound to %s, want acct-1", small.Connection)
		}
		// the request's model decides too: the bound connection does not serve it, and no other is free; the lease ends
		f := fence(t, svc, 2, teamA, small.Generation)
		f.Model = "large"
		_, r = svc.Check(ctx, f)
		expect(t, "a model the bound one does not serve", r, lease.EligibilityUnavailable)
		listing, err := svc.List(ctx, pool, 1)
		if err != nil || listing.Events[0].Event != "invalidated" || listing.Events[0].Reason != lease.ModelIneligible {
			t.Errorf("last event %+v (%v), want invalidated with MODEL_INELIGIBLE", listing.Events, err)
		}
		// a lease keeps its model: taken from the only connection that serves it, it ends, although another one is free
		f = fence(t, svc, 1, teamA, l.Generation)
		f.Identity.Connections = []string{"acct-1"}
		_, r = svc.Check(ctx, f)
		expect(t, "after acct-2 was taken from the key", r, lease.NoEligibleConnection)
	})
}

// TestLeaseMovesToWhatServesItsModelAndTheRequests: acct-1 serves m1, acct-2 m2, acct-3 both.
func TestLeaseMovesToWhatServesItsModelAndTheRequests(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := settings("acct-1", "acct-2", "acct-3")
		for i, models := range [][]string{{"m1"}, {"m2"}, {"m1", "m2"}} {
			s.Pools[pool].Connections[i].Models = models
		}
		svc, ctx := newService(t, s), context.Background()
		l, r := svc.Acquire(ctx, ask(t, svc, 1, teamA, 0), "m1")
		if r != nil || l.Connection != "acct-1" {
			t.Fatalf("acquired %+v %q, want acct-1", l, reason(r))
		}
		// in cooldown it leaves for acct-3, not for acct-2, which comes first but does not serve m1
		if f, r := move(t, svc, 1, teamA, l); r != nil || f.Connection != "acct-3" {
			t.Fatalf("moved to %q %q, want acct-3", f.Connection, reason(r))
		}
		if _, r := svc.EndCooldown(ctx, pool, "acct-1"); r != nil {
			t.Fatal(r.Reason)
		}
		// a request for m2 stays there
		f := fence(t, svc, 1, teamA, l.Generation)
		f.Model = "m2"
		if got, r := svc.Check(ctx, f); r != nil || got.Connection != "acct-3" || got.Moved {
			t.Errorf("a request for m2: %+v %q, want acct-3", got, reason(r))
		}
		// a lease on acct-1 moves for it
		other, r := svc.Acquire(ctx, ask(t, svc, 2, teamA, 0), "m1")
		if r != nil || other.Connection != "acct-1" {
			t.Fatalf("acquired %+v %q, want acct-1", other, reason(r))
		}
		if _, r := svc.Release(ctx, ask(t, svc, 1, teamA, l.Generation), lease.OwnerExit); r != nil {
			t.Fatal(r.Reason)
		}
		f = fence(t, svc, 2, teamA, other.Generation)
		f.Model = "m2"
		if got, r := svc.Check(ctx, f); r != nil || got.Connection != "acct-3" || !got.Moved {
			t.Errorf("a request for m2 with a lease for m1: %+v %q, want moved to acct-3", got, reason(r))
		}
		// a model that nothing serves beside the lease's own ends it
		f.Model = "m3"
		_, r = svc.Check(ctx, f)
		expect(t, "a model that nothing serves", r, lease.NoEligibleConnection)
		// and without a lease the model decides as well
		if got, r := svc.Unmanaged(ctx, lease.UnmanagedAsk{Pool: pool, Model: "m1"}); r != nil || got.Connection != "acct-3" {
			t.Errorf("unmanaged for m1: %+v %q, want acct-3, the last that serves it", got, reason(r))
		}
		_, r = svc.Unmanaged(ctx, lease.UnmanagedAsk{Pool: pool, Model: "m3"})
		expect(t, "unmanaged for m3", r, lease.NoEligibleConnection)
	})
}

func TestAcquireNeedsAManagedPrincipalWithConnections(t *testing.T) {
	bubble(t, func(t *testing.T) {
		svc, ctx := newService(t, settings("acct-1")), context.Background()
		a := lease.Ask{Pool: pool, Owner: owner(t, 1), Identity: lease.Identity{Principal: "x"}}
		_, r := svc.Acquire(ctx, a, "m")
		expect(t, "without scope", r, lease.ScopeRequired)
		a.Identity.Managed = true
		_, r = svc.Acquire(ctx, a, "m")
		expect(t, "without connections", r, lease.KeyConfigurationInvalid)
		a.Identity.Connections = []string{"elsewhere"}
		_, r = svc.Acquire(ctx, a, "m")
		expect(t, "with connections of no pool", r, lease.NoEligibleConnection)
		a.Pool = "unknown"
		_, r = svc.Acquire(ctx, a, "m")
		expect(t, "in an unknown pool", r, lease.ServiceUnavailable)
	})
}

func TestRetryAfterIsTheEarliestExpiryOfTheOthers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		svc, ctx := newService(t, settings("acct-1", "acct-2")), context.Background()
		acquire(t, svc, 1, teamA)
		time.Sleep(30*time.Second + 500*time.Millisecond)
		acquire(t, svc, 2, teamA)
		_, r := svc.Acquire(ctx, ask(t, svc, 3, teamA, 0), "m")
		expect(t, "third owner", r, lease.CapacityUnavailable)
		// 120 s - 30.5 s - the few ms both acquires waited for the clock
		if r == nil || r.RetryAfter != 90*time.Second || r.Eligible != 2 {
			t.Errorf("%+v, want 90 s and 2 eligible", r)
		}
		time.Sleep(89*time.Second + 400*time.Millisecond)
		_, r = svc.Acquire(ctx, ask(t, svc, 3, teamA, 0), "m")
		if r == nil || r.RetryAfter != time.Second {
			t.Errorf("just before the expiry: %+v, want at least 1 s", r)
		}
	})
}

func TestGenerationsGrowWhenTheStoresClockIsSetBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		// Given a pool whose last generation is a minute ahead of the clock
		svc, ctx := newService(t, settings("acct-1")), context.Background()
		ahead := time.Now().Add(time.Minute).UnixMilli()
		svc.SetField(pool, "gen", strconv.FormatInt(ahead, 10))
		// when owners come and go, then they count on from there, and wait for the clock only a little
		for i := range int64(5) {
			start := time.Now()
			l := acquire(t, svc, int(i), teamA)
			if l.Generation != ahead+1+i || time.Since(start) > 100*time.Millisecond {
				t.Errorf("lease %d has generation %d after %v, want %d", i, l.Generation, time.Since(start), ahead+1+i)
			}
			if _, r := svc.Release(ctx, ask(t, svc, int(i), teamA, l.Generation), lease.OwnerExit); r != nil {
				t.Fatal(r.Reason)
			}
		}
	})
}
