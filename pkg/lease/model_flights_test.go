package lease_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"pgregory.net/rapid"

	"github.com/headgate/headgate/pkg/lease"
)

// flight is an exchange on its way to an upstream.
type flight struct {
	owner             int
	generation, token int64
	connection        string
	keep              *lease.Keep
	lost              atomic.Pointer[lease.EndReason] // what onLost was called with
}

func (w *world) fly(f lease.Fence, n int) {
	x := &flight{owner: n, generation: f.Generation, token: f.Token, connection: f.Connection}
	w.flown++
	w.renewable[f.Generation] = true
	w.renews.Add(1)
	x.keep = w.svc.Keep(f, func(why lease.EndReason) { x.lost.Store(&why) })
	w.flights = append(w.flights, x)
}

func (w *world) land(i int) {
	w.flights[i].keep.Stop()
	if w.flights[i].lost.Load() != nil {
		w.foundLost++
	}
	w.flights = slices.Delete(w.flights, i, i+1)
	w.renews.Add(-1)
}

func (w *world) landAll() {
	for len(w.flights) > 0 {
		w.land(0)
	}
}

// expiresAsKnown says that a lease expires when the model says or, where it may have been renewed meanwhile, later.
func (w *world) expiresAsKnown(l *modelLease, at time.Time) bool {
	if w.exact || !w.renewable[l.generation] {
		return sameMillisecond(at, l.expires)
	}
	return at.UnixMilli() >= l.expires.UnixMilli() && at.UnixMilli() <= l.acquired.Add(w.maxHold).UnixMilli()
}

func (w *world) landStep(t *rapid.T) {
	if len(w.flights) > 0 {
		w.land(rapid.IntRange(0, len(w.flights)-1).Draw(t, "exchange"))
	}
}

// renewed takes over renewals of what is in flight on a server, and returns a moment at which they were known.
func (w *world) renewed() time.Time {
	for {
		from := w.now()
		fields := w.svc.Fields(pool)
		to := w.now()
		w.takeOver(fields, to)
		// What ended between the readings of the clock may have been renewed since the fields were read.
		if w.nextEdge(from).After(to) {
			return to
		}
	}
}

func (w *world) takeOver(fields map[string]string, now time.Time) {
	for c, l := range w.bound {
		var owner, principal string
		var generation, token, acquired, renewed, expires int64
		n, _ := fmt.Sscanf(fields["c:"+c], "%d %d %s %d %s %d %d", &expires, &renewed, &owner, &generation, &principal, &token, &acquired)
		if n != 7 || generation != l.generation || token != l.token {
			if l.expires.After(now) {
				w.t.Fatalf("%s holds %q at %v, the model %+v", c, fields["c:"+c], now, l)
			}
			continue
		}
		if !w.expiresAsKnown(l, time.UnixMilli(expires)) {
			w.t.Fatalf("%s expires at %v, the model says %+v", c, time.UnixMilli(expires), l)
		}
		l.renewed, l.expires = time.UnixMilli(renewed), time.UnixMilli(expires)
	}
}

// drainStep renews what is in flight to its full time to live.
func (w *world) drainStep(t *rapid.T) {
	w.losing = false
	w.step(func(before time.Time) func(time.Time) {
		w.svc.RenewHeld(context.Background())
		return func(time.Time) {
			w.resync(t)
			for _, x := range w.flights {
				l := w.holder(x, before)
				if l == nil || x.lost.Load() != nil {
					continue
				}
				if want := before.Add(w.ttl).Truncate(time.Millisecond); l.expires.Before(want) && l.expires.Before(l.acquired.Add(w.maxHold)) {
					t.Fatalf("after a drain %+v, want it to expire at %v or its longest hold", l, want)
				}
			}
		}
	})
}

// holder is the live lease of an exchange, nil where it is on its connection without one.
func (w *world) holder(x *flight, now time.Time) *modelLease {
	l := w.live(x.owner, now)
	if l == nil || l.generation != x.generation || l.connection != x.connection || l.token != x.token {
		return nil
	}
	return l
}

// lostSoFar are the exchanges whose leases were found lost.
func (w *world) lostSoFar() map[*flight]lease.EndReason {
	lost := map[*flight]lease.EndReason{}
	for _, x := range w.flights {
		if why := x.lost.Load(); why != nil {
			lost[x] = *why
		}
	}
	return lost
}

// inFlight holds what an exchange in flight is promised: its lease is on its connection with its token, or it learns that the
// lease is lost, in a bubble at once, on a server within a while. And it does not learn so of a lease that it has, but for one
// that is about to reach its longest hold or that could not be asked about. What has moved is found moved.
func (w *world) inFlight(t *rapid.T, now time.Time, lost map[*flight]lease.EndReason) {
	if w.exact && now.Before(w.grace) {
		return
	}
	for _, x := range w.flights {
		holds := w.holder(x, now) != nil
		why, found := lost[x]
		if holds && found && why != lease.MaxHold && why != lease.LostUnconfirmed {
			t.Fatalf("owner %d is in flight on %s with token %d and was found lost (%s); its lease is %+v", x.owner, x.connection, x.token, why, w.live(x.owner, now))
		}
		if holds {
			continue
		}
		l := w.live(x.owner, now)
		moved := l != nil && l.generation == x.generation
		if why := w.foundOut(x); why == "" || (moved && why != lease.LostMoved) {
			t.Fatalf("owner %d is in flight on %s with generation %d and token %d and was found lost (%q), moved %v; its lease is %+v, the connection's %+v",
				x.owner, x.connection, x.generation, x.token, why, moved, l, w.bound[x.connection])
		}
	}
	for _, x := range w.flights {
		for _, y := range w.flights {
			if y.connection == x.connection && y.owner != x.owner && y.lost.Load() == nil && x.lost.Load() == nil {
				t.Fatalf("owners %d and %d are in flight on %s, and neither was found lost", x.owner, y.owner, x.connection)
			}
		}
	}
}

// foundOut is why an exchange was found lost, "" where it was not, for which it waits where that takes a while.
func (w *world) foundOut(x *flight) lease.EndReason {
	for end := time.Now().Add(patience); !w.exact && x.lost.Load() == nil && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if why := x.lost.Load(); why != nil {
		return *why
	}
	return ""
}
