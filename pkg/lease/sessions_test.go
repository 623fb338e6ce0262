package lease_test

import (
	"context"
	"flag"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/pkg/lease"
)

// sessionsFlag is a million in `make test-leases-million`.
var sessionsFlag = flag.Int("sessions", 8000, "how many sessions TestSessionsLeaveNothingBehind begins and ends")

const (
	sessionPools = 16 // each begins at most one lease a millisecond
	sessionConns = 4
)

// TestSessionsLeaveNothingBehind: however many sessions have begun and ended, the store holds what it held after the first
// tenth of them. Of eight sessions six are released, one is ended by an operator and one is left to expire.
func TestSessionsLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	onStores(t, nil, func(t *testing.T, s lease.Settings) {
		s.History = 100
		s.Store.Redis.PoolSize = 2 * sessionPools
		s.Pools = map[string]lease.PoolSettings{}
		for p := range sessionPools {
			var connections []lease.ConnectionSettings
			for c := range sessionConns {
				connections = append(connections, lease.ConnectionSettings{ID: fmt.Sprintf("acct-%d-%d", p, c)})
			}
			s.Pools[poolName(p)] = lease.PoolSettings{Connections: connections}
		}
		svc := newService(t, s)
		manySessions(t, svc, 0, *sessionsFlag/10)
		before, err := svc.StoreSize(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		manySessions(t, svc, *sessionsFlag/10, *sessionsFlag)
		took := time.Since(began)
		after, err := svc.StoreSize(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%d keys, %d fields and %d bytes after %d sessions, %d, %d and %d after %d; %.0f sessions a second",
			after.Keys, after.Fields, after.Bytes, *sessionsFlag, before.Keys, before.Fields, before.Bytes, *sessionsFlag/10,
			float64(*sessionsFlag)*0.9/took.Seconds())
		if after.Keys > 2*sessionPools || after.Fields > sessionPools*(1+2*sessionConns) || after.Bytes > before.Bytes*4/3 {
			t.Errorf("%+v after %d sessions, %+v after a tenth of them; want %d keys, %d fields and a third more bytes at most",
				after, *sessionsFlag, before, 2*sessionPools, sessionPools*(1+2*sessionConns))
		}
	})
}

func poolName(p int) string { return fmt.Sprintf("pool-%d", p) }

// manySessions begins and ends the sessions from one number to another, each of a new owner.
func manySessions(t *testing.T, svc *lease.Service, from, to int) {
	t.Helper()
	var all sync.WaitGroup
	for p := range sessionPools {
		all.Go(func() {
			for n := from + p; n < to && !t.Failed(); n += sessionPools {
				if refusal := oneSession(t, svc, p, n); refusal != nil {
					t.Errorf("session %d: %s", n, refusal.Reason)
				}
			}
		})
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

func oneSession(t *testing.T, svc *lease.Service, p, n int) *lease.Refusal {
	ctx := context.Background()
	a := lease.Ask{Pool: poolName(p), Owner: owner(t, n), Identity: svc.Identify(teamA)}
	l, refusal := svc.Acquire(ctx, a, "m")
	if refusal != nil {
		return refusal
	}
	a.Generation = l.Generation
	switch n / sessionPools % 8 {
	case 0:
		svc.Expire(l)
	case 1:
		_, refusal = svc.EndLease(ctx, a.Pool, l.Connection, lease.QuotaUnavailable)
	default:
		_, refusal = svc.Release(ctx, a, lease.OwnerExit)
	}
	return refusal
}
