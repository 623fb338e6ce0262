package lease_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/headgate/headgate/pkg/lease"
)

// acquired takes over what an acquire answered, after judging it.
func (w *world) acquired(t *rapid.T, n int, who, name, connection string, l lease.Lease, before, after time.Time) {
	if l.Outcome == "REUSED" {
		if l.Generation != w.leases[n].generation {
			t.Fatalf("reuse changed the generation from %d to %d", w.leases[n].generation, l.Generation)
		}
		w.extended(t, n, l, before, after)
		return
	}
	previous := w.generation
	if e, was := w.ended[n]; was {
		previous = max(previous, e.generation)
	}
	if old := w.leases[n]; old != nil {
		previous = max(previous, old.generation)
	}
	byClock := l.Generation >= before.UnixMilli() && l.Generation <= after.UnixMilli()
	if l.Connection != connection || l.Generation <= previous || (l.Generation != previous+1 && !byClock) {
		t.Fatalf("acquired %+v between %d and %d; want %s and max(%d + 1, clock)", l, before.UnixMilli(), after.UnixMilli(), connection, previous)
	}
	if l.Generation <= w.highest {
		t.Fatalf("generation %d is not above %d, which was handed out before", l.Generation, w.highest)
	}
	got := modelLease{owner: n, principal: who, connection: l.Connection, generation: l.Generation, acquired: l.AcquiredAt, renewed: l.RenewedAt, expires: l.ExpiresAt}
	w.between(t, "acquiredAt", l.AcquiredAt, before, after)
	if life := l.ExpiresAt.Sub(l.AcquiredAt); life != min(w.ttl, w.maxHold) {
		t.Fatalf("a new lease lives %v, want %v", life, min(w.ttl, w.maxHold))
	}
	for _, c := range w.connections[name] { // fields that still named the owner are gone, as far as they were looked at
		if w.holders[c].owner == n {
			delete(w.holders, c)
		}
	}
	delete(w.ended, n)
	w.set(got)
	w.generation, w.highest, w.last[n] = l.Generation, l.Generation, l.Generation
}

// extended takes over a renewal, after judging it.
func (w *world) extended(t *rapid.T, n int, l lease.Lease, before, after time.Time) {
	held := *w.leases[n]
	w.between(t, "renewedAt", l.RenewedAt, before, after)
	want := l.RenewedAt.Add(w.ttl)
	if limit := held.acquired.Add(w.maxHold); want.After(limit) {
		want = limit
	}
	if want.Before(held.expires) {
		want = held.expires
	}
	if !sameMillisecond(l.ExpiresAt, want) || l.Connection != held.connection || l.Generation != held.generation {
		t.Fatalf("extended to %+v; was %+v, want expiry %v", l, held, want)
	}
	held.renewed, held.expires = l.RenewedAt, l.ExpiresAt
	w.set(held)
}

func (w *world) between(t *rapid.T, what string, at, before, after time.Time) {
	if at.UnixMilli() < before.UnixMilli() || at.UnixMilli() > after.UnixMilli() {
		t.Fatalf("%s is %v, the call was between %v and %v", what, at, before, after)
	}
}

// storedRest reads how long a connection rests: the later of what it was and what was asked for.
func (w *world) storedRest(t *rapid.T, c string, from, to time.Time) time.Time {
	_, _, fields, _ := w.svc.StoreKeys(pool, "")
	ms, err := w.svc.Client().HGet(context.Background(), fields, "r:"+c).Int64()
	got := time.UnixMilli(ms)
	if old := w.rests[c]; err == nil && old.After(to) && sameMillisecond(old, got) {
		return got
	}
	if errors.Is(err, redis.Nil) && w.now().After(to) {
		return to // over before it was read: the store forgets a pool with its last rest
	}
	if err != nil || ms < from.UnixMilli() || ms > to.UnixMilli() {
		t.Fatalf("%s rests until %v (%v), want between %v and %v", c, got, err, from, to)
	}
	return got
}

// lose takes keys away behind everybody's back.
func (w *world) lose(t *rapid.T, n int, what string) {
	ownerKey, _, fields, events := w.svc.StoreKeys(pool, owner(t, n))
	var keys []string
	switch what {
	case "nothing":
		return
	case "owner key":
		keys = []string{ownerKey}
		delete(w.leases, n)
	case "pool key":
		keys = []string{fields}
		clear(w.holders)
		clear(w.rests)
		w.generation = 0
	case "everything":
		keys = []string{fields, events}
		for o := 1; o <= modelOwners; o++ {
			k, e, _, _ := w.svc.StoreKeys(pool, owner(t, o))
			keys = append(keys, k, e)
		}
		clear(w.leases)
		clear(w.holders)
		clear(w.ended)
		clear(w.rests)
		w.generation = 0
	}
	if err := w.svc.Client().Del(context.Background(), keys...).Err(); err != nil {
		t.Fatalf("lose %s: %v", what, err)
	}
}

// invariant holds after every step: the store's live leases are the model's, no connection and no owner has two, and no
// key lives for ever.
func (w *world) invariant(t *rapid.T) {
	w.step(func(before time.Time) func(time.Time) {
		listing, err := w.svc.List(context.Background(), pool, 0)
		return func(time.Time) {
			if err != nil {
				t.Fatalf("list: %v", err)
			}
			owners := map[string]string{}
			for _, c := range listing.Connections {
				h, held := w.holders[c.ID]
				if live := held && h.expires.After(before); live != (c.Lease != nil) {
					t.Fatalf("%s: leased is %v, the model says %v", c.ID, c.Lease != nil, live)
				}
				if c.Lease == nil {
					continue
				}
				if c.Lease.Generation != h.generation {
					t.Fatalf("%s has generation %d, the model %d", c.ID, c.Lease.Generation, h.generation)
				}
				if w.live(h.owner, before) == nil || w.live(h.owner, before).connection != c.ID {
					continue // half of a lost lease
				}
				if other, twice := owners[c.Lease.Owner]; twice {
					t.Fatalf("%s holds %s and %s", c.Lease.Owner, other, c.ID)
				}
				owners[c.Lease.Owner] = c.ID
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

// runModel plays one random sequence and returns how many steps were compared.
func runModel(t *rapid.T, s lease.Settings, ttl time.Duration, exact bool, now func(*lease.Service) func() time.Time) int {
	svc, err := lease.New(s, managers(s), lease.Options{Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer svc.Close()
	svc.SetTTL(ttl)
	w := &world{model: newModel(ttl, s.MaxHold), svc: svc, now: now(svc), exact: exact, sleep: time.Sleep, last: map[int]int64{}}
	t.Repeat(w.actions())
	return w.steps
}

func TestEmbeddedStoreFollowsTheModel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		steps := 0
		// Without its own type, which cannot be asked for its deadline in a bubble.
		rapid.Check(struct{ testing.TB }{t}, func(rt *rapid.T) {
			s := modelSettings()
			s.MaxHold = 4 * time.Second
			steps += runModel(rt, s, time.Second, true, func(*lease.Service) func() time.Time { return time.Now })
		})
		t.Logf("%d steps compared", steps)
		if steps < 3000 {
			t.Errorf("only %d steps were compared, want 3000 or more", steps)
		}
	})
}

func TestRealRedisFollowsTheModel(t *testing.T) {
	t.Parallel()
	server := startRedis(t)
	steps, games := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		s := onRedis(modelSettings(), server.Addr)
		s.MaxHold = 480 * time.Millisecond
		games++
		s.Store.Redis.KeyPrefix = fmt.Sprintf("game%d", games)
		steps += runModel(rt, s, 120*time.Millisecond, false, func(svc *lease.Service) func() time.Time {
			return func() time.Time {
				now, err := svc.Client().Time(context.Background()).Result()
				if err != nil {
					rt.Fatal(err)
				}
				return now
			}
		})
	})
	t.Logf("%d steps compared in %d games", steps, games)
	if steps < 1000 {
		t.Errorf("only %d steps were compared, want 1000 or more", steps)
	}
}
