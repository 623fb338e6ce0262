package lease_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/stack"
	"github.com/headgate/headgate/pkg/lease"
)

// What holds for each connection, whichever lease is bound to it.

func TestTokenOfAConnectionOnlyGrows(t *testing.T) {
	t.Parallel()
	onStores(t, []string{"acct-1", "acct-2"}, func(t *testing.T, s lease.Settings) {
		svc, ctx := newService(t, s), within(t, 2*patience)
		// Given team-b's later lease on acct-2, which has ended
		a, b := acquire(t, svc, 1, teamA), acquire(t, svc, 2, teamB)
		second, r := svc.Check(ctx, fence(t, svc, 2, teamB, b.Generation))
		expect(t, "check of team-b", r, "")
		if _, r := svc.Release(ctx, ask(t, svc, 2, teamB, b.Generation), lease.OwnerExit); r != nil {
			t.Fatal(r.Reason)
		}
		// when team-a's older lease moves there, then acct-2 is sent a larger token, and the generation stays
		moved, r := move(t, svc, 1, teamA, a)
		if r != nil || moved.Connection != second.Connection || moved.Token <= second.Token || moved.Generation != a.Generation {
			t.Errorf("moved %+v %q, want to %s with a token above %d and generation %d", moved, reason(r), second.Connection, second.Token, a.Generation)
		}
		// and it is the same at the next check
		again, r := svc.Check(ctx, fence(t, svc, 1, teamA, a.Generation))
		if r != nil || again.Token != moved.Token {
			t.Errorf("checked again: %+v %q, want token %d", again, reason(r), moved.Token)
		}
	})
}

func TestExchangeOnAConnectionThatItsLeaseLeftIsLost(t *testing.T) {
	t.Parallel()
	onStores(t, []string{"acct-1", "acct-2"}, func(t *testing.T, s lease.Settings) {
		svc, ctx := newService(t, s), within(t, 2*patience)
		l := acquire(t, svc, 1, teamA)
		f, r := svc.Check(ctx, fence(t, svc, 1, teamA, l.Generation))
		expect(t, "check", r, "")
		var lost, after losses
		defer svc.Keep(f, lost.add).Stop()
		// when the lease moves, then the exchange on the connection it left is told, and the one on the new is not
		moved, r := move(t, svc, 1, teamA, l)
		expect(t, "move", r, "")
		defer svc.Keep(moved, after.add).Stop()
		eventually(t, patience, "MOVED", func() bool { return fmt.Sprint(lost.all()) == fmt.Sprint([]lease.EndReason{lease.LostMoved}) })
		// an exchange that is kept only now, on the old connection, is told too
		var late losses
		defer svc.Keep(f, late.add).Stop()
		eventually(t, patience, "MOVED", func() bool { return fmt.Sprint(late.all()) == fmt.Sprint([]lease.EndReason{lease.LostMoved}) })
		// and where the lease comes back, the exchange is lost all the same
		if _, r := svc.EndCooldown(ctx, pool, "acct-1"); r != nil {
			t.Fatal(r.Reason)
		}
		back, r := move(t, svc, 1, teamA, lease.Lease{Connection: "acct-2", Generation: l.Generation})
		if r != nil || back.Connection != "acct-1" || back.Token <= f.Token {
			t.Errorf("back on %+v %q, want acct-1 with a token above %d", back, reason(r), f.Token)
		}
		eventually(t, patience, "MOVED", func() bool { return fmt.Sprint(after.all()) == fmt.Sprint([]lease.EndReason{lease.LostMoved}) })
		if n := len(lost.all()); n != 1 {
			t.Errorf("the first exchange was told %d times, want once", n)
		}
	})
}

// TestOtherSidecarsTellWithinASecondOrSo: what another sidecar does to a lease is found long before the next renewal.
func TestOtherSidecarsTellWithinASecondOrSo(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, server *stack.Redis) {
		s := onRedis(settings("acct-1", "acct-2"), server.Addr)
		here, there, ctx := newService(t, s), newService(t, s), within(t, 2*patience)
		for name, c := range map[string]struct {
			does func(lease.Lease) *lease.Refusal
			want lease.EndReason
		}{
			"moves it": {func(l lease.Lease) *lease.Refusal { _, r := move(t, there, 1, teamA, l); return r }, lease.LostMoved},
			"releases it": {func(l lease.Lease) *lease.Refusal {
				_, r := there.Release(ctx, ask(t, there, 1, teamA, l.Generation), lease.OwnerExit)
				return r
			}, lease.LostStale},
			"ends it": {func(l lease.Lease) *lease.Refusal {
				_, r := there.EndLease(ctx, pool, l.Connection, lease.QuotaUnavailable)
				return r
			}, lease.LostStale},
		} {
			l := acquire(t, here, 1, teamA)
			f, r := here.Check(ctx, fence(t, here, 1, teamA, l.Generation))
			expect(t, "check", r, "")
			var lost losses
			keep := here.Keep(f, lost.add)
			if r := c.does(l); r != nil {
				t.Fatalf("%s: %s", name, r.Reason)
			}
			began := time.Now()
			eventually(t, patience, "a loss when another sidecar "+name, func() bool { return len(lost.all()) > 0 })
			t.Logf("told after %v", time.Since(began))
			if got := lost.all(); got[0] != c.want {
				t.Errorf("when another sidecar %s: told %v, want %s", name, got, c.want)
			}
			keep.Stop()
			for _, connection := range []string{"acct-1", "acct-2"} {
				_, _ = there.EndLease(ctx, pool, connection, lease.QuotaUnavailable)
				_, _ = there.EndCooldown(ctx, pool, connection)
			}
		}
	})
}

func TestDrainRenewsWhatIsInFlight(t *testing.T) {
	bubble(t, func(t *testing.T) {
		svc, ctx := newService(t, settings("acct-1", "acct-2")), context.Background()
		l, f := inFlight(t, svc)
		idle := acquire(t, svc, 2, teamA)
		keep := svc.Keep(f, nil)
		defer keep.Stop()
		time.Sleep(30 * time.Second)
		if n := svc.RenewHeld(ctx); n != 1 {
			t.Errorf("%d leases were renewed, want the one in flight", n)
		}
		status, r := svc.Status(ctx, ask(t, svc, 1, teamA, l.Generation))
		if r != nil || time.Until(status.ExpiresAt) != 120*time.Second {
			t.Errorf("expires in %v %q, want the full 120 s", time.Until(status.ExpiresAt), reason(r))
		}
		other, _ := svc.Status(ctx, ask(t, svc, 2, teamA, idle.Generation))
		if !other.ExpiresAt.Equal(idle.ExpiresAt) {
			t.Errorf("the lease that nothing is in flight for went from %v to %v", idle.ExpiresAt, other.ExpiresAt)
		}
		// and renewals go on: the stream outlives the drain by minutes
		time.Sleep(10 * time.Minute)
		_, r = svc.Check(ctx, fence(t, svc, 1, teamA, l.Generation))
		expect(t, "check ten minutes later", r, "")
	})
}

// TestStoreThatCannotBeAskedIsNoExpiry: another sidecar renews a lease that this one cannot ask about.
func TestStoreThatCannotBeAskedIsNoExpiry(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	relay := startRelay(t, server.Addr)
	s := onRedis(settings("acct-1"), relay.Addr)
	s.Store.Redis.CallTimeout = 500 * time.Millisecond
	here, there, ctx := newService(t, s), newService(t, onRedis(settings("acct-1"), server.Addr)), within(t, 2*patience)
	here.SetTTL(4 * time.Second)
	there.SetTTL(4 * time.Second)
	var f lease.Fence
	var l lease.Lease
	eventually(t, patience, "a lease in flight", func() bool { // on a busy machine a call may take longer than it may
		var r *lease.Refusal
		if l, r = here.Acquire(ctx, ask(t, here, 1, teamA, 0), "m"); r == nil {
			f, r = here.Check(ctx, fence(t, here, 1, teamA, l.Generation))
		}
		return r == nil
	})
	var lost losses
	defer here.Keep(f, lost.add).Stop()
	relay.BlackHole(true)
	eventually(t, patience, "a loss", func() bool {
		_, _ = there.Renew(ctx, ask(t, there, 1, teamA, l.Generation))
		time.Sleep(200 * time.Millisecond)
		return len(lost.all()) > 0
	})
	if got := lost.all(); got[0] != lease.LostUnconfirmed {
		t.Errorf("told %v, want UNCONFIRMED: the lease lives", got)
	}
	_, r := there.Check(ctx, fence(t, there, 1, teamA, l.Generation))
	expect(t, "check by the other sidecar", r, "")
}

// TestClockThatWasFarAheadLeavesNothingBehind: what was written while the clock was 100 h ahead is over when it is back.
func TestClockThatWasFarAheadLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	onStores(t, []string{"acct-1"}, func(t *testing.T, s lease.Settings) {
		svc, ctx := newService(t, s), within(t, 2*patience)
		l := acquire(t, svc, 1, teamA)
		if r := svc.SetCooldown(ctx, pool, "acct-1", time.Minute); r != nil {
			t.Fatal(r.Reason)
		}
		const ahead = 100 * 3600 * 1000
		later := func(at time.Time) string { return fmt.Sprintf("%016d", at.UnixMilli()+ahead) }
		parts := strings.Split(svc.Fields(pool)["c:acct-1"], " ")
		parts[0], parts[1] = later(l.ExpiresAt), later(l.RenewedAt)
		parts[3], parts[5], parts[6] = fmt.Sprint(l.Generation+ahead), fmt.Sprint(l.Generation+ahead), fmt.Sprint(l.AcquiredAt.UnixMilli()+ahead)
		svc.SetField(pool, "c:acct-1", strings.Join(parts, " "))
		svc.SetField(pool, "d:acct-1", later(l.ExpiresAt)+" "+later(l.RenewedAt))
		svc.SetField(pool, "gen", fmt.Sprint(l.Generation+ahead))
		_, r := svc.Check(ctx, fence(t, svc, 1, teamA, l.Generation+ahead))
		expect(t, "check of a lease from the future", r, lease.LeaseRequired)
		next, r := svc.Acquire(ctx, ask(t, svc, 2, teamA, 0), "m")
		if r != nil || next.Generation <= l.Generation+ahead || next.ExpiresAt.Sub(l.ExpiresAt) > time.Hour {
			t.Errorf("another owner: %+v %q, want acct-1 for two minutes with a generation above %d", next, reason(r), l.Generation+ahead)
		}
	})
}

func TestNumbersStayAboveWhatWasSeenOverAFailover(t *testing.T) {
	t.Parallel()
	// Given a primary whose clock is ahead, and a replica that misses its last lease
	primary := startRedis(t, "repl-diskless-sync yes", "repl-diskless-sync-delay 0")
	replica := startRedis(t, "replicaof 127.0.0.1 "+primary.Port())
	relay := startRelay(t, primary.Addr)
	svc, ctx := newService(t, onRedis(settings("acct-1"), relay.Addr)), within(t, 2*patience)
	svc.SetField(pool, "gen", fmt.Sprint(time.Now().Add(10*time.Second).UnixMilli()))
	a := acquire(t, svc, 1, teamA)
	if _, r := svc.Release(ctx, ask(t, svc, 1, teamA, a.Generation), lease.OwnerExit); r != nil {
		t.Fatal(r.Reason)
	}
	key, _ := svc.StoreKeys(pool)
	eventually(t, patience, "replication", func() bool {
		n, err := replica.Client().HGet(ctx, key, "gen").Int64()
		return err == nil && n == a.Generation
	})
	if _, err := replica.Do(ctx, "REPLICAOF", "NO", "ONE"); err != nil {
		t.Fatal(err)
	}
	b := acquire(t, svc, 2, teamA) // by the old primary
	// when the replica takes over, then its numbers go on above the one it never saw
	relay.Retarget(replica.Addr)
	relay.Cut()
	c := acquire(t, svc, 3, teamA)
	if c.Generation <= b.Generation {
		t.Errorf("the new primary gave %d after %d", c.Generation, b.Generation)
	}
}
