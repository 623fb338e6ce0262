package lease_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/headgate/headgate/internal/stack"
	"github.com/headgate/headgate/pkg/lease"
)

// acquired takes over what an acquire answered, after judging it.
func (w *world) acquired(t *rapid.T, n int, who, name, connection string, l lease.Lease, before, after time.Time) {
	if l.Outcome == "REUSED" {
		if held := w.live(n, before); l.Generation != held.generation {
			t.Fatalf("reuse changed the generation from %d to %d", held.generation, l.Generation)
		}
		w.extended(t, n, l, before, after)
		return
	}
	previous := max(w.number, w.highest)
	byClock := l.Generation >= before.UnixMilli() && l.Generation <= after.UnixMilli()
	if l.Connection != connection || l.Generation <= previous || (l.Generation != previous+1 && !byClock) {
		t.Fatalf("acquired %+v between %d and %d; want %s and max(%d + 1, clock)", l, before.UnixMilli(), after.UnixMilli(), connection, previous)
	}
	w.between(t, "acquiredAt", l.AcquiredAt, before, after)
	if life := l.ExpiresAt.Sub(l.AcquiredAt); life != min(w.ttl, w.maxHold) {
		t.Fatalf("a new lease lives %v, want %v", life, min(w.ttl, w.maxHold))
	}
	w.bind(modelLease{owner: n, principal: who, name: name, connection: l.Connection, generation: l.Generation, token: l.Token(),
		acquired: l.AcquiredAt, renewed: l.RenewedAt, expires: l.ExpiresAt})
	w.number, w.highest, w.last[n] = l.Generation, l.Generation, l.Generation
}

// undone takes over an acquire whose answer was lost: the lease has ended again.
func (w *world) undone(t *rapid.T, n int, who, name, connection string) {
	if w.dropped[0] != "ACQUIRED" || w.dropped[2] != connection {
		t.Fatalf("the answer that was lost is %v, the model acquires %s", w.dropped, connection)
	}
	var owner, principal string
	var generation, token, acquired, renewed, expires int64
	if _, err := fmt.Sscanf(fmt.Sprint(w.dropped[3]), "%d %d %s %d %s %d %d", &expires, &renewed, &owner, &generation, &principal, &token, &acquired); err != nil {
		t.Fatalf("%v: %v", w.dropped, err)
	}
	l := modelLease{owner: n, principal: who, name: name, connection: connection, generation: generation, token: token,
		acquired: time.UnixMilli(acquired), renewed: time.UnixMilli(renewed), expires: time.UnixMilli(expires)}
	w.bind(l)
	w.end(w.bound[connection], true)
	w.number, w.last[n] = l.generation, l.generation
}

// checkDropped judges a check of which an answer was lost: of the check itself, which then says nothing, or of the move.
func (w *world) checkDropped(t *rapid.T, n int, who string, a lease.Ask, pin, name string, before time.Time, f lease.Fence, r *lease.Refusal) {
	changed := w.dropped[0] == "MOVED" || w.dropped[0] == "UNAVAILABLE"
	if w.exact && reason(r) != lease.ServiceUnavailable {
		t.Fatalf("check answered %q although its answer was lost", reason(r))
	}
	if w.exact && !changed {
		return
	}
	want, connection := w.check(n, who, a.Generation, pin, name, before)
	w.resync(t)
	switch {
	case w.exact:
	case want == "MOVED" || want == "VALID":
		if r != nil || f.Connection != connection {
			t.Fatalf("check asked for again answered %+v %q, the model says %s", f, reason(r), connection)
		}
		w.sent(t, n, a.Generation, connection, f)
	case w.dropped[0] == "UNAVAILABLE": // asked for again, there is no lease any more
		w.same(t, "check", lease.Lease{}, r, string(lease.LeaseRequired))
	default:
		w.same(t, "check", lease.Lease{}, r, want)
	}
}

// sent judges what an upstream is sent: per connection the fencing token only grows.
func (w *world) sent(t *rapid.T, n int, generation int64, connection string, f lease.Fence) {
	held := w.bound[connection]
	if f.Connection != connection || f.Generation != generation || f.Cluster != "to-"+connection || held == nil || f.Token != held.token {
		t.Fatalf("check of owner %d sends to %+v, the model to %s with %+v", n, f, connection, held)
	}
	if f.Token < w.top[connection] {
		t.Fatalf("%s is sent token %d after %d", connection, f.Token, w.top[connection])
	}
	w.top[connection] = f.Token
}

// extended takes over a renewal, after judging it.
func (w *world) extended(t *rapid.T, n int, l lease.Lease, before, after time.Time) {
	held := w.bound[w.where[n]]
	w.between(t, "renewedAt", l.RenewedAt, before, after)
	want := l.RenewedAt.Add(w.ttl)
	if limit := held.acquired.Add(w.maxHold); want.After(limit) {
		want = limit
	}
	if want.Before(held.expires) {
		want = held.expires
	}
	if !sameMillisecond(l.ExpiresAt, want) || l.Connection != held.connection || l.Generation != held.generation || l.Token() != held.token {
		t.Fatalf("extended to %+v; was %+v, want expiry %v", l, held, want)
	}
	held.renewed, held.expires = l.RenewedAt, l.ExpiresAt
}

func (w *world) between(t *rapid.T, what string, at, before, after time.Time) {
	if at.UnixMilli() < before.UnixMilli() || at.UnixMilli() > after.UnixMilli() {
		t.Fatalf("%s is %v, the call was between %v and %v", what, at, before, after)
	}
}

// storedCooldown reads until when a connection is in cooldown: the later of what it was and what was asked for.
func (w *world) storedCooldown(t *rapid.T, c string, from, to time.Time) time.Time {
	till, _, _ := cut(w.svc.Fields(pool)["d:"+c])
	got := time.UnixMilli(till)
	if old := w.cooldown[c]; old.After(to) && sameMillisecond(old, got) {
		return got
	}
	if now := w.now(); till == 0 && !now.Before(from.Truncate(time.Millisecond)) { // the store counts milliseconds
		return now // over before it was read
	}
	if till < from.UnixMilli() || till > to.UnixMilli() {
		t.Fatalf("%s is in cooldown until %v, want between %v and %v", c, got, from, to)
	}
	return got
}

func cut(field string) (till, set int64, ok bool) {
	n, err := fmt.Sscan(field, &till, &set)
	return till, set, n == 2 && err == nil
}

// resync takes over what changes without the model's doing: tokens that are drawn and renewals of what is in flight.
func (w *world) resync(t *rapid.T) {
	fields := w.svc.Fields(pool)
	now := w.now()
	for c, l := range w.bound {
		var owner, principal string
		var generation, token, acquired, renewed, expires int64
		n, _ := fmt.Sscanf(fields["c:"+c], "%d %d %s %d %s %d %d", &expires, &renewed, &owner, &generation, &principal, &token, &acquired)
		if n != 7 || generation != l.generation {
			if l.expires.After(now) {
				t.Fatalf("%s holds %q, the model %+v", c, fields["c:"+c], l)
			}
			continue
		}
		if token < l.token || expires < l.expires.UnixMilli() || expires > l.acquired.Add(w.maxHold).UnixMilli() {
			t.Fatalf("%s: token %d after %d, expiry %v after %v, longest hold until %v", c, token, l.token, time.UnixMilli(expires), l.expires, l.acquired.Add(w.maxHold))
		}
		l.token, l.renewed, l.expires = token, time.UnixMilli(renewed), time.UnixMilli(expires)
		w.number, w.highest = max(w.number, token), max(w.highest, token)
	}
}

// invariant holds after every step: the store's live leases are the model's, no owner has two, nobody is in flight where
// somebody else has the lease, and what the store holds is bounded.
func (w *world) invariant(t *rapid.T) {
	w.step(func(before time.Time) func(time.Time) {
		listing, err := w.svc.List(context.Background(), pool, 0)
		lost := w.lostSoFar()
		return func(time.Time) {
			if err != nil {
				t.Fatalf("list: %v", err)
			}
			if w.exact {
				w.resync(t)
			}
			w.inFlight(t, before, lost)
			owners := map[string]string{}
			for _, c := range listing.Connections {
				l := w.bound[c.ID]
				if live := l != nil && l.expires.After(before); live != (c.Lease != nil) {
					t.Fatalf("%s: leased is %v, the model says %v", c.ID, c.Lease != nil, live)
				}
				if c.Lease == nil {
					continue
				}
				if c.Lease.Generation != l.generation || c.Lease.Token != l.token {
					t.Fatalf("%s has generation %d and token %d, the model %+v", c.ID, c.Lease.Generation, c.Lease.Token, l)
				}
				if other, twice := owners[c.Lease.Owner]; twice {
					t.Fatalf("%s holds %s and %s", c.Lease.Owner, other, c.ID)
				}
				owners[c.Lease.Owner] = c.ID
			}
			if n, most := len(w.svc.Fields(pool)), 1+5*len(listing.Connections); n > most {
				t.Fatalf("the pool has %d fields, want at most %d", n, most)
			}
		}
	})
}

// modelSettings are three connections, of which the first does not serve the model "large".
func modelSettings() lease.Settings {
	s := settings("acct-1", "acct-2", "acct-3")
	s.Pools[pool].Connections[0].Models = []string{"small"}
	s.Pools[pool].Connections[1].Models = []string{"small", "large"}
	s.Pools[pool].Connections[2].Models = []string{"large", "small"}
	return s
}

// runModel plays one random sequence.
func runModel(t *rapid.T, s lease.Settings, ttl time.Duration, exact bool, now func(*lease.Service) func() time.Time) tally {
	w := &world{model: newModel(ttl, s.MaxHold), t: t, exact: exact, sleep: time.Sleep, last: map[int]int64{},
		renewable: map[int64]bool{}}
	svc, err := lease.New(s, managers(s), lease.Options{Log: slog.New(slog.DiscardHandler)}.Interposed(nil, w.interposed))
	if err != nil {
		t.Fatal(err)
	}
	defer svc.Close()
	svc.SetTTL(ttl)
	w.svc, w.now = svc, now(svc)
	defer w.landAll()
	t.Repeat(w.actions())
	w.landAll()
	return w.tally
}

func TestEmbeddedStoreFollowsTheModel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var all tally
		// Without its own type, which cannot be asked for its deadline in a bubble.
		rapid.Check(struct{ testing.TB }{t}, func(rt *rapid.T) {
			s := modelSettings()
			s.MaxHold = 4 * time.Second
			all.add(runModel(rt, s, time.Second, true, func(*lease.Service) func() time.Time { return time.Now }))
		})
		all.enough(t, 3000)
	})
}

func TestServersFollowTheModel(t *testing.T) {
	t.Parallel()
	onServers(t, func(t *testing.T, server *stack.Redis) {
		var all tally
		games := 0
		rapid.Check(t, func(rt *rapid.T) {
			s := onRedis(modelSettings(), server.Addr)
			s.MaxHold = 800 * time.Millisecond
			games++
			s.Store.Redis.KeyPrefix = fmt.Sprintf("game%d", games)
			all.add(runModel(rt, s, 200*time.Millisecond, false, func(svc *lease.Service) func() time.Time {
				return func() time.Time {
					now, err := svc.Client().Time(context.Background()).Result()
					if err != nil {
						rt.Fatal(err)
					}
					return now
				}
			}))
		})
		all.enough(t, 1000)
	})
}
