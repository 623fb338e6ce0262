package lease_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/pkg/lease"
)

// outage makes a store's calls fail while it is on.
type outage struct{ on atomic.Bool }

func (o *outage) fail(string, []any) error {
	if o.on.Load() {
		return errors.New("outage of the test")
	}
	return nil
}

// losses collects what onLost is told.
type losses struct {
	mu   sync.Mutex
	told []lease.EndReason
}

func (l *losses) add(r lease.EndReason) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told = append(l.told, r)
}

func (l *losses) all() []lease.EndReason {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.told)
}

// inFlight acquires and checks a lease of owner 1, as a request does.
func inFlight(t *testing.T, svc *lease.Service) (lease.Lease, lease.Fence) {
	t.Helper()
	l := acquire(t, svc, 1, teamA)
	f, r := svc.Check(context.Background(), fence(t, svc, 1, teamA, l.Generation))
	if r != nil {
		t.Fatalf("check: %s", r.Reason)
	}
	return l, f
}

func TestExchangeInFlightKeepsItsLease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		// Given two exchanges of one lease of 120 s
		var lost losses
		svc := newService(t, settings("acct-1"))
		l, f := inFlight(t, svc)
		long, short := svc.Keep(f, lost.add), svc.Keep(f, lost.add)
		if n := svc.KeptLeases(); n != 1 {
			t.Errorf("%d leases are renewed for two exchanges of one, want 1", n)
		}
		// when they run for ten minutes, the shorter one for one
		time.Sleep(time.Minute)
		short.Stop()
		time.Sleep(9 * time.Minute)
		// then the lease is alive and was renewed every 40 s
		status, r := svc.Status(context.Background(), ask(t, svc, 1, teamA, l.Generation))
		if r != nil || time.Since(status.RenewedAt) > 41*time.Second {
			t.Fatalf("after 10 min: %+v %q, want renewed within 40 s", status, reason(r))
		}
		// and it outlives the end of the response by what is left of it, not a moment more
		long.Stop()
		long.Stop()
		if n := svc.KeptLeases(); n != 0 {
			t.Errorf("%d leases are renewed after the last exchange", n)
		}
		time.Sleep(time.Until(status.ExpiresAt) - time.Millisecond)
		_, r = svc.Check(context.Background(), fence(t, svc, 1, teamA, l.Generation))
		expect(t, "a millisecond before the expiry", r, "")
		time.Sleep(time.Millisecond)
		_, r = svc.Check(context.Background(), fence(t, svc, 1, teamA, l.Generation))
		expect(t, "at the expiry", r, lease.LeaseRequired)
		if told := lost.all(); len(told) != 0 {
			t.Errorf("told of losses %v", told)
		}
	})
}

func TestLeaseEndedInMidResponseIsReported(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var lost, counted losses
		var log bytes.Buffer
		svc := newLoggedService(t, settings("acct-1"), &log, lease.Observer{
			Lost: func(_, why string) { counted.add(lease.EndReason(why)) },
		})
		l, f := inFlight(t, svc)
		defer svc.Keep(f, lost.add).Stop()
		defer svc.Keep(f, lost.add).Stop()
		time.Sleep(10 * time.Second)
		if r := svc.End(context.Background(), pool, l.Connection, l.Generation, lease.ManagedKeyRevoked); r != nil {
			t.Fatal(r.Reason)
		}
		time.Sleep(31 * time.Second)
		synctest.Wait()
		if got := lost.all(); !slices.Equal(got, []lease.EndReason{lease.LostStale, lease.LostStale}) {
			t.Errorf("exchanges were told %v, want STALE each, at the next renewal", got)
		}
		if got := counted.all(); len(got) != 1 {
			t.Errorf("counted %v, want one lost lease", got)
		}
	})
}

func TestWedgedUpstreamHoldsALeaseForSoLongOnly(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var lost losses
		s := settings("acct-1")
		s.TTL, s.MaxHold = 3*time.Second, 5*time.Second
		svc := newService(t, s)
		l, f := inFlight(t, svc)
		hold := svc.Keep(f, lost.add)
		defer hold.Stop()
		time.Sleep(time.Until(l.AcquiredAt.Add(4900 * time.Millisecond)))
		_, r := svc.Check(context.Background(), fence(t, svc, 1, teamA, l.Generation))
		expect(t, "check at 4.9 s", r, "")
		if got := lost.all(); len(got) != 0 {
			t.Fatalf("lost %v before the longest hold", got)
		}
		time.Sleep(time.Until(l.AcquiredAt.Add(5 * time.Second)))
		synctest.Wait()
		_, r = svc.Check(context.Background(), fence(t, svc, 1, teamA, l.Generation))
		expect(t, "check at 5 s", r, lease.LeaseRequired)
		if got := lost.all(); !slices.Equal(got, []lease.EndReason{lease.MaxHold}) {
			t.Errorf("lost %v at 5 s, want MAX_HOLD", got)
		}
	})
}

func TestRenewalSurvivesAnOutageShorterThanTheLease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var lost losses
		var down outage
		svc := newInterposed(t, settings("acct-1"), down.fail)
		l, f := inFlight(t, svc)
		defer svc.Keep(f, lost.add).Stop()
		// Given an outage from 30 s to 110 s, over the renewal at 40 s
		time.Sleep(30 * time.Second)
		down.on.Store(true)
		time.Sleep(80 * time.Second)
		down.on.Store(false)
		time.Sleep(20 * time.Second)
		_, r := svc.Check(context.Background(), fence(t, svc, 1, teamA, l.Generation))
		expect(t, "after an outage of 80 s", r, "")
		// when an outage outlasts the lease, then it counts as lost at its end, and nobody says that it expired
		down.on.Store(true)
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		if got := lost.all(); !slices.Equal(got, []lease.EndReason{lease.LostUnconfirmed}) {
			t.Errorf("lost %v, want UNCONFIRMED", got)
		}
	})
}

func TestKeepDoesNothingWhereThereIsNothingToKeep(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := settings("acct-1", "acct-2")
		s.RenewInFlight = false
		svc := newService(t, s)
		_, f := inFlight(t, svc)
		svc.Keep(f, nil).Stop()
		if n := svc.KeptLeases(); n != 0 {
			t.Errorf("%d leases are renewed with renewInFlight off", n)
		}
		svc = newService(t, settings("acct-1"))
		free, _ := svc.Unmanaged(context.Background(), lease.UnmanagedAsk{Pool: pool})
		svc.Keep(free, nil).Stop()
		svc.Keep(lease.Fence{Unchecked: true, Pool: pool}, nil).Stop()
		if n := svc.KeptLeases(); n != 0 {
			t.Errorf("%d leases are renewed for unmanaged and unchecked requests", n)
		}
	})
}

func TestManyExchangesEndWithoutATrace(t *testing.T) {
	bubble(t, func(t *testing.T) {
		svc := newService(t, settings("acct-1"))
		_, f := inFlight(t, svc)
		var all sync.WaitGroup
		for i := range 200 {
			all.Go(func() {
				hold := svc.Keep(f, func(lease.EndReason) { t.Error("told of a loss") })
				time.Sleep(time.Duration(i) * time.Second)
				hold.Stop()
			})
		}
		all.Wait()
		if n := svc.KeptLeases(); n != 0 {
			t.Errorf("%d leases are still renewed", n)
		}
	})
}
