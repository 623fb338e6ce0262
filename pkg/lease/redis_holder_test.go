package lease_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/stack"
	"github.com/headgate/headgate/pkg/lease"
)

func TestLateReleaseLeavesTheSuccessorAlone(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	svc := newService(t, onRedis(settings("acct-1"), server.Addr))
	ctx := within(t, 2*patience)
	a := acquire(t, svc, 1, teamA)
	svc.Expire(a)
	b := acquire(t, svc, 2, teamA)
	_, r := svc.Release(ctx, ask(t, svc, 1, teamA, a.Generation), lease.OwnerExit)
	expect(t, "release after the expiry", r, lease.FenceStale)
	_, r = svc.Check(ctx, fence(t, svc, 2, teamA, b.Generation))
	expect(t, "the successor", r, "")
}

func TestRenewalRevivesNothing(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	svc := newService(t, onRedis(settings("acct-1"), server.Addr))
	ctx := within(t, 2*patience)
	l := acquire(t, svc, 1, teamA)
	svc.Forget(pool)
	_, r := svc.Renew(ctx, ask(t, svc, 1, teamA, l.Generation))
	expect(t, "renewal of a lease that is gone", r, lease.FenceStale)
	if left := svc.Fields(pool); left["o:"+string(owner(t, 1))] != "" {
		t.Errorf("the pool holds %v after the renewal, want no lease", left)
	}
}

func TestCrashedHolderIsReplacedWhenItsLeaseEnds(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	svc := newService(t, onRedis(settings("acct-1"), server.Addr))
	svc.SetTTL(2 * time.Second)
	ctx := within(t, 2*patience)
	var late time.Duration
	for n := range 5 { // a busy machine may spoil one
		l := acquire(t, svc, 2*n, teamA)
		var next lease.Lease
		eventually(t, patience, "a successor", func() bool {
			var r *lease.Refusal
			next, r = svc.Acquire(ctx, ask(t, svc, 2*n+1, teamA, 0), "m")
			return r == nil
		})
		late = next.AcquiredAt.Sub(l.ExpiresAt)
		if next.Generation <= l.Generation || late < 0 {
			t.Fatalf("the successor came %v after the expiry with generation %d after %d", late, next.Generation, l.Generation)
		}
		if late <= 100*time.Millisecond {
			return
		}
		time.Sleep(2500 * time.Millisecond) // it expires too
	}
	t.Errorf("the successor came %v after the expiry, want at most 100 ms", late)
}

// TestAcquireNobodyWaitsForIsUndone: the answer comes when the caller has gone, or has been told that there is none.
func TestAcquireNobodyWaitsForIsUndone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		disturb     func(*stack.Relay)
		callTimeout time.Duration
		patience    time.Duration
	}{
		"the caller leaves before the reply":      {func(r *stack.Relay) { r.DelayReplies(200 * time.Millisecond) }, 2 * time.Second, 50 * time.Millisecond},
		"the deadline passes before the reply":    {func(r *stack.Relay) { r.DelayReplies(350 * time.Millisecond) }, 200 * time.Millisecond, time.Minute},
		"the deadline passes before it arrives":   {func(r *stack.Relay) { r.DelayRequests(350 * time.Millisecond) }, 200 * time.Millisecond, time.Minute},
		"the caller leaves before it has arrived": {func(r *stack.Relay) { r.DelayRequests(200 * time.Millisecond) }, 2 * time.Second, 50 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := startRedis(t)
			relay := startRelay(t, server.Addr)
			calm := newService(t, onRedis(settings("acct-1"), server.Addr))
			s := onRedis(settings("acct-1"), relay.Addr)
			s.Store.Redis.CallTimeout = c.callTimeout
			undone := make(chan struct{}, 1)
			svc := newLoggedService(t, s, silentWriter{}, lease.Observer{Answer: func(action, _, outcome string) {
				if action == "abandon" && outcome == "ABANDONED" {
					undone <- struct{}{}
				}
			}})
			answering(t, svc)
			c.disturb(relay)
			ctx, cancel := context.WithTimeout(context.Background(), c.patience)
			defer cancel()
			start := time.Now()
			if _, r := svc.Acquire(ctx, ask(t, svc, 1, teamA, 0), "m"); reason(r) != lease.ServiceUnavailable {
				t.Fatalf("acquire: %q, want %s", reason(r), lease.ServiceUnavailable)
			}
			select {
			case <-undone:
			case <-time.After(patience):
				t.Fatal("not undone")
			}
			t.Logf("undone, and known to be, %v after the acquire began", time.Since(start))
			time.Sleep(time.Second) // whatever was under way has arrived
			if got := acquire(t, calm, 2, teamA); got.Connection != "acct-1" {
				t.Errorf("another owner got %+v", got)
			}
		})
	}
}

// TestRepeatedAcquireSurvivesTheUndoing: the client asks again at once, and what it then has is not taken from it.
func TestRepeatedAcquireSurvivesTheUndoing(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	relay := startRelay(t, server.Addr)
	s := onRedis(settings("acct-1"), relay.Addr)
	s.Store.Redis.CallTimeout = 400 * time.Millisecond
	svc, calm := newService(t, s), newService(t, onRedis(settings("acct-1"), server.Addr))
	ctx := within(t, 2*patience)
	answering(t, svc)
	relay.DelayReplies(time.Second)
	_, r := svc.Acquire(ctx, ask(t, svc, 1, teamA, 0), "m")
	expect(t, "acquire whose reply is late", r, lease.ServiceUnavailable)
	again := acquire(t, calm, 1, teamA) // on the other sidecar
	time.Sleep(3 * time.Second)
	if _, r := calm.Check(ctx, fence(t, calm, 1, teamA, again.Generation)); r != nil && again.Outcome == "REUSED" {
		t.Errorf("the lease that was reused is gone: %s", r.Reason)
	} else if r != nil {
		t.Logf("the first attempt was undone before the second: %s, %s", again.Outcome, r.Reason)
	}
}

func TestLeaseThatCameTooLateIsNoLease(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	relay := startRelay(t, server.Addr)
	svc := newService(t, onRedis(settings("acct-1"), relay.Addr))
	svc.SetTTL(300 * time.Millisecond)
	ctx := within(t, 2*patience)
	answering(t, svc)
	relay.DelayReplies(330 * time.Millisecond)
	_, r := svc.Acquire(ctx, ask(t, svc, 1, teamA, 0), "m")
	expect(t, "acquire that took longer than the lease lives", r, lease.ServiceUnavailable)
}

// TestFrozenStoreHoldsNoReleaseUp: a release is back within its call's deadline.
func TestFrozenStoreHoldsNoReleaseUp(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	svc := newService(t, strict(settings("acct-1"), server.Addr))
	var l lease.Lease
	eventually(t, patience, "a lease", func() bool {
		var r *lease.Refusal
		l, r = svc.Acquire(context.Background(), ask(t, svc, 1, teamA, 0), "m")
		return r == nil
	})
	if err := server.Freeze(); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	_, r := svc.Release(context.Background(), ask(t, svc, 1, teamA, l.Generation), lease.OwnerExit)
	if took := time.Since(start); reason(r) != lease.ServiceUnavailable || took > atMost {
		t.Errorf("release at a frozen store: %q after %v, want %s after 25 ms", reason(r), took, lease.ServiceUnavailable)
	}
}

// TestAcquireWaitsForReplicas: with waitReplicas an acquire that the replicas do not confirm is none.
func TestAcquireWaitsForReplicas(t *testing.T) {
	t.Parallel()
	primary := startRedis(t, "repl-diskless-sync yes", "repl-diskless-sync-delay 0")
	replica := startRedis(t, "replicaof 127.0.0.1 "+primary.Port())
	ctx := within(t, 2*patience)
	eventually(t, patience, "a replica that confirms", func() bool { // it is called online before it gets anything
		pipe := primary.Client().Pipeline()
		pipe.Set(ctx, "first", "1", time.Minute)
		confirmed := pipe.Do(ctx, "WAIT", 1, 1000)
		_, err := pipe.Exec(ctx)
		n, _ := confirmed.Int()
		return err == nil && n == 1
	})
	s := onRedis(settings("acct-1"), primary.Addr)
	s.Store.Redis.WaitReplicas = 1
	s.Store.Redis.CallTimeout = 400 * time.Millisecond
	svc := newService(t, s)
	l := acquire(t, svc, 1, teamA)
	key, _ := svc.StoreKeys(pool)
	if has, err := replica.Client().HExists(ctx, key, "c:acct-1").Result(); err != nil || !has {
		t.Errorf("the replica has the lease: %v (%v) when the acquire answers, want it", has, err)
	}
	if _, r := svc.Release(ctx, ask(t, svc, 1, teamA, l.Generation), lease.OwnerExit); r != nil {
		t.Fatal(r.Reason)
	}
	if _, err := primary.Do(ctx, "SCRIPT", "FLUSH"); err != nil { // the fallback confirms too
		t.Fatal(err)
	}
	l = acquire(t, svc, 1, teamA)
	if _, r := svc.Release(ctx, ask(t, svc, 1, teamA, l.Generation), lease.OwnerExit); r != nil {
		t.Fatal(r.Reason)
	}
	if err := replica.Freeze(); err != nil {
		t.Fatal(err)
	}
	_, r := svc.Acquire(ctx, ask(t, svc, 1, teamA, 0), "m")
	expect(t, "acquire that no replica confirms", r, lease.ServiceUnavailable)
	eventually(t, patience, "the unconfirmed lease to be undone", func() bool {
		has, err := primary.Client().HExists(ctx, key, "c:acct-1").Result()
		return err == nil && !has
	})
}

// TestSidecarsClockIsNeverSent: nothing that a sidecar sends is a moment of its own clock, so that a clock an hour off
// changes nothing: all that looks like one is a generation the store gave.
func TestSidecarsClockIsNeverSent(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex // sweeps are sent too
	var sent []int64
	svc := newInterposed(t, settings("acct-1", "acct-2"), func(_ string, args []any) error {
		mu.Lock()
		defer mu.Unlock()
		for _, arg := range args {
			if n, err := strconv.ParseInt(fmt.Sprint(arg), 10, 64); err == nil {
				sent = append(sent, n)
			}
		}
		return nil
	})
	ctx := context.Background()
	l := acquire(t, svc, 1, teamA)
	a := ask(t, svc, 1, teamA, l.Generation)
	_, _ = svc.Check(ctx, fence(t, svc, 1, teamA, l.Generation))
	_, _ = svc.Renew(ctx, a)
	_, _ = svc.Unmanaged(ctx, lease.UnmanagedAsk{Pool: pool})
	f, _ := move(t, svc, 1, teamA, l)
	_, _ = svc.Status(ctx, a)
	svc.SweepNow(ctx)
	_, _ = svc.Release(ctx, a, lease.OwnerExit)
	_, _ = svc.EndCooldown(ctx, pool, "acct-1")
	again := acquire(t, svc, 1, teamA)
	_, _ = svc.EndLease(ctx, pool, again.Connection, lease.QuotaUnavailable)
	mu.Lock()
	defer mu.Unlock()
	if len(sent) < 10 {
		t.Fatalf("only %d numbers were sent", len(sent))
	}
	given := []int64{l.Generation, f.Token, again.Generation}
	for _, n := range sent {
		if n > 1e11 && !slices.Contains(given, n) { // 1e11 ms after 1970 is 1973
			t.Errorf("sent %d, which looks like a moment", n)
		}
	}
}

func TestHistoryIsBoundedAndComplete(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	s := onRedis(settings("acct-1", "acct-2"), server.Addr)
	s.History = 100
	svc := newService(t, s)
	ctx := within(t, 2*patience)
	l := acquire(t, svc, 1, teamA)
	a := ask(t, svc, 1, teamA, l.Generation)
	_, r1 := svc.Renew(ctx, a)
	_, r2 := move(t, svc, 1, teamA, l)
	_, r3 := svc.Release(ctx, a, lease.ClientCancelled)
	l = acquire(t, svc, 1, teamA)
	_, r4 := svc.EndLease(ctx, pool, l.Connection, lease.QuotaUnavailable)
	for _, r := range []*lease.Refusal{r1, r2, r3, r4} {
		if r != nil {
			t.Fatal(r.Reason)
		}
	}
	svc.Expire(acquire(t, svc, 1, teamA))
	svc.SweepNow(ctx)
	listing, err := svc.List(ctx, pool, 100)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range listing.Events {
		got = append(got, strings.TrimSpace(e.Event+" "+string(e.Reason)))
	}
	want := "expired TTL_EXPIRED, acquired, invalidated QUOTA_UNAVAILABLE, acquired, released CLIENT_CANCELLED, moved HEALTH_OR_COOLDOWN, renewed, acquired"
	if strings.Join(got, ", ") != want {
		t.Errorf("history, newest first:\n%s\nwant\n%s", strings.Join(got, ", "), want)
	}
	l = acquire(t, svc, 1, teamA)
	for range 1000 {
		if _, r := svc.Renew(ctx, ask(t, svc, 1, teamA, l.Generation)); r != nil {
			t.Fatal(r.Reason)
		}
	}
	_, events := svc.StoreKeys(pool)
	if n, err := server.Client().XLen(ctx, events).Result(); err != nil || n > 300 {
		t.Errorf("%d events are kept (%v) with history 100, want about that", n, err)
	}
}
