package lease_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/headgate/headgate/pkg/lease"
)

// world is the model next to a service, with the store's clock.
type world struct {
	*model
	svc     *lease.Service
	now     func() time.Time
	sleep   func(time.Duration)
	last    map[int]int64 // last generation each owner saw
	t       *rapid.T
	exact   bool         // in a bubble: the clock stands still during a call, and a lost answer is not asked for again
	lost    bool         // an expiry fell into a call: from here on both answers would be right
	losing  bool         // the next step's answer is lost
	drop    atomic.Bool  // the next answer is lost
	dropped []any        // the answer that was
	flights []*flight    // exchanges on their way to an upstream
	renews  atomic.Int64 // how many of them have their lease renewed
	grace   time.Time    // until then what the service could not see may not be known to it

	renewable map[int64]bool // generations that exchanges have been in flight under: they may have been renewed without a step

	tally
}

// tally says how much a test has seen.
type tally struct{ steps, flown, foundLost int }

func (a *tally) add(b tally) {
	a.steps, a.flown, a.foundLost = a.steps+b.steps, a.flown+b.flown, a.foundLost+b.foundLost
}

// enough fails a test that has seen too little to mean anything.
func (a *tally) enough(t *testing.T, steps int) {
	t.Helper()
	t.Logf("%d steps compared, %d exchanges in flight, of which %d were found lost", a.steps, a.flown, a.foundLost)
	if a.steps < steps || a.foundLost < steps/50 {
		t.Errorf("%d steps were compared and %d exchanges found lost, want %d and %d or more", a.steps, a.foundLost, steps, steps/50)
	}
}

const (
	modelOwners = 4
	seenWithin  = 2 * time.Second // what another process did, or a lost answer said
)

// interposed loses an answer. On a server, where time does not stand still during a step, that is never the answer of a
// renewal which may not be the step's own.
func (w *world) interposed(script string, value any, err error) error {
	all, ok := value.([]any)
	background := script == "sweep" || script == "list" || script == "held" || script == "abandon" ||
		(script == "renew" && !w.exact && w.renews.Load() > 0)
	if err != nil || !ok || background || !w.drop.CompareAndSwap(true, false) {
		return err
	}
	w.dropped = all
	return errors.New("the answer was lost")
}

// step runs f between two readings of the clock that no edge lies between.
func (w *world) step(f func(before time.Time) func(after time.Time)) {
	if w.lost {
		return
	}
	w.dropped = nil
	if w.exact {
		w.steps++
		before := w.now()
		w.drop.Store(w.losing)
		w.losing = false
		verify := f(before)
		w.drop.Store(false)
		synctest.Wait() // what goes on in the background is over
		if w.dropped != nil {
			w.grace = w.now().Add(seenWithin)
		}
		verify(w.now())
		return
	}
	before := w.renewed()
	for tries := 0; tries < 10; tries++ { // each time something else may be about to end
		until := w.unsure(before)
		if edge := w.nextEdge(before); edge.Sub(before) < 4*time.Millisecond && edge.After(until) {
			until = edge
		}
		if !until.After(before) {
			break
		}
		w.sleep(until.Sub(before) + time.Millisecond)
		before = w.renewed()
	}
	if w.unsure(before).After(before) {
		w.lost = true
		return
	}
	edge := w.nextEdge(before)
	w.drop.Store(w.losing)
	w.losing = false
	verify := f(before)
	w.drop.Store(false)
	after := w.now()
	// On a busy machine a call can take longer than a lease lives; an acquire then rightly fails.
	if !edge.After(after) || after.Sub(before) >= w.ttl {
		w.lost = true
		return
	}
	w.steps++
	verify(after)
}

func sameMillisecond(a, b time.Time) bool { return a.UnixMilli() == b.UnixMilli() }

func (w *world) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"acquire": w.acquireStep, "renew": w.renewStep, "release": w.releaseStep, "status": w.statusStep, "end": w.endStep,
		"check": w.checkStep, "a lease moves": w.moveStep, "a lease is used": w.useStep, "an exchange begins": w.flyStep, "unmanaged": w.unmanagedStep, "cooldown": w.cooldownStep,
		"end cooldown": w.endCooldownStep, "time passes": w.timePasses, "store loses": w.loseStep, "answer is lost": w.dropStep,
		"an exchange ends": w.landStep, "drain": w.drainStep,
		"": w.invariant,
	}
}

func drawConnection(t *rapid.T) string {
	return rapid.SampledFrom([]string{"acct-1", "acct-2", "acct-3"}).Draw(t, "connection")
}

func drawModel(t *rapid.T) string {
	return rapid.SampledFrom([]string{"small", "small", "large", "none", ""}).Draw(t, "model")
}

func drawOwner(t *rapid.T) int { return rapid.IntRange(1, modelOwners).Draw(t, "owner") }

// drawAsk is an owner with mostly its last generation, and mostly the same principal.
func (w *world) drawAsk(t *rapid.T) (int, string, lease.Ask) {
	n, who := drawOwner(t), rapid.SampledFrom([]string{teamA, teamA, teamA, teamB}).Draw(t, "principal")
	g := w.last[n] + rapid.SampledFrom([]int64{0, 0, 0, 0, 1, -1}).Draw(t, "offset")
	return n, who, lease.Ask{Pool: pool, Owner: owner(t, n), Generation: max(g, 1), Identity: w.svc.Identify(who)}
}

// same fails unless the service answered what the model says. A lost answer is no answer; where it is asked for again,
// the answer is the same.
func (w *world) same(t *rapid.T, what string, l lease.Lease, r *lease.Refusal, want string) {
	t.Helper()
	got := l.Outcome
	if r != nil {
		got = string(r.Reason)
	}
	if w.dropped != nil && w.exact {
		want = string(lease.ServiceUnavailable)
	}
	if w.dropped != nil && !w.exact && want == "MOVED" { // it finds the lease moved already
		want = "VALID"
	}
	if got != want {
		t.Fatalf("%s answered %s, the model says %s", what, got, want)
	}
}

// answered says that there is an answer to look at.
func (w *world) answered(r *lease.Refusal) bool { return r == nil && (w.dropped == nil || !w.exact) }

// holds is the owner's live lease when generation and principal are the right ones.
func (w *world) holds(n int, who string, a lease.Ask, now time.Time) *modelLease {
	held := w.live(n, now)
	if held == nil || held.generation != a.Generation || held.principal != who {
		return nil
	}
	return held
}

func (w *world) acquireStep(t *rapid.T) {
	n, who, a := w.drawAsk(t)
	name := drawModel(t)
	w.step(func(before time.Time) func(time.Time) {
		want, connection := w.acquire(n, who, name, before)
		l, r := w.svc.Acquire(context.Background(), a, name)
		return func(after time.Time) {
			w.same(t, "acquire", l, r, want)
			switch {
			case w.answered(r):
				w.acquired(t, n, who, name, connection, l, before, after)
			case want == "ACQUIRED" && r != nil:
				w.undone(t, n, who, name, connection)
			case want == "REUSED" && r != nil:
				w.resync(t)
			}
		}
	})
}

func (w *world) renewStep(t *rapid.T) {
	n, who, a := w.drawAsk(t)
	w.step(func(before time.Time) func(time.Time) {
		l, r := w.svc.Renew(context.Background(), a)
		return func(after time.Time) {
			if w.holds(n, who, a, before) == nil {
				w.same(t, "renew", l, r, string(lease.FenceStale))
				return
			}
			w.same(t, "renew", l, r, "RENEWED")
			if w.answered(r) {
				w.extended(t, n, l, before, after)
			}
			w.resync(t)
		}
	})
}

func (w *world) releaseStep(t *rapid.T) {
	n, who, a := w.drawAsk(t)
	w.step(func(before time.Time) func(time.Time) {
		l, r := w.svc.Release(context.Background(), a, lease.OwnerExit)
		return func(time.Time) {
			held := w.holds(n, who, a, before)
			past, was := w.ended[w.where[n]]
			switch {
			case held != nil:
				w.same(t, "release", l, r, "RELEASED")
				if w.answered(r) && w.expiresAsKnown(held, l.ExpiresAt) { // it may have been renewed just before
					held.expires = l.ExpiresAt
				}
				w.end(held, true)
			case w.live(n, before) == nil && was && past.owner == n && past.released && past.generation == a.Generation && past.principal == who:
				w.same(t, "repeated release", l, r, "RELEASED")
				if w.answered(r) && (l.Connection != past.connection || !sameMillisecond(l.ExpiresAt, past.expires)) {
					t.Fatalf("repeated release told %+v, the first %+v", l, past)
				}
			default:
				w.same(t, "release", l, r, string(lease.FenceStale))
			}
		}
	})
}

func (w *world) statusStep(t *rapid.T) {
	n, who, a := w.drawAsk(t)
	w.step(func(before time.Time) func(time.Time) {
		l, r := w.svc.Status(context.Background(), a)
		return func(time.Time) {
			held := w.holds(n, who, a, before)
			if held == nil {
				w.same(t, "status", l, r, string(lease.FenceStale))
			} else if w.answered(r) && (l.Connection != held.connection || !w.expiresAsKnown(held, l.ExpiresAt) || l.Token() != held.token) {
				t.Fatalf("status: %+v %v, the model has %+v", l, reason(r), held)
			}
		}
	})
}

func (w *world) endStep(t *rapid.T) {
	c := drawConnection(t)
	w.step(func(before time.Time) func(time.Time) {
		ended, r := w.svc.EndLease(context.Background(), pool, c, lease.QuotaUnavailable)
		return func(time.Time) {
			held := w.bound[c]
			if held == nil || !held.expires.After(before) {
				w.same(t, "end", lease.Lease{}, r, string(lease.LeaseRequired))
				return
			}
			if w.dropped != nil && !w.exact { // asked for again, it finds none
				w.same(t, "end", lease.Lease{}, r, string(lease.LeaseRequired))
			} else {
				w.same(t, "end", lease.Lease{}, r, "")
			}
			if w.answered(r) && ended.Generation != held.generation {
				t.Fatalf("ended %+v, the model has %+v", ended, held)
			}
			w.end(held, false)
		}
	})
}

func (w *world) checkStep(t *rapid.T) {
	n, who, a := w.drawAsk(t)
	w.checkAs(t, n, who, a, drawModel(t), rapid.SampledFrom([]string{"", "", "acct-1", "acct-2"}).Draw(t, "pin"),
		rapid.Bool().Draw(t, "stays in flight"))
}

// drawLive is a live lease, nil where there is none.
func (w *world) drawLive(t *rapid.T) *modelLease {
	var live []*modelLease
	for _, c := range w.connections[""] {
		if l := w.bound[c]; l != nil && l.expires.After(w.now()) && w.live(l.owner, w.now()) == l {
			live = append(live, l)
		}
	}
	if len(live) == 0 {
		return nil
	}
	return rapid.SampledFrom(live).Draw(t, "lease")
}

func (w *world) useStep(t *rapid.T) {
	if l := w.drawLive(t); l != nil {
		w.checkAs(t, l.owner, l.principal, w.askOf(t, l), drawModel(t), "", rapid.Bool().Draw(t, "stays in flight"))
	}
}

// flyStep begins an exchange that a lease is for.
func (w *world) flyStep(t *rapid.T) {
	if l := w.drawLive(t); l != nil {
		w.checkAs(t, l.owner, l.principal, w.askOf(t, l), l.name, "", true)
	}
}

func (w *world) askOf(t *rapid.T, l *modelLease) lease.Ask {
	return lease.Ask{Pool: pool, Owner: owner(t, l.owner), Generation: l.generation, Identity: w.svc.Identify(l.principal)}
}

// moveStep puts the connection of a lease into cooldown and uses it.
func (w *world) moveStep(t *rapid.T) {
	l := w.drawLive(t)
	if l == nil {
		return
	}
	w.cool(t, l.connection, w.ttl)
	w.checkAs(t, l.owner, l.principal, w.askOf(t, l), rapid.SampledFrom([]string{"", "small", "large"}).Draw(t, "model"), "",
		rapid.Bool().Draw(t, "stays in flight"))
}

func (w *world) checkAs(t *rapid.T, n int, who string, a lease.Ask, name, pin string, fly bool) {
	w.step(func(before time.Time) func(time.Time) {
		given := max(w.number, w.highest)
		f, r := w.svc.Check(context.Background(), lease.FenceAsk{
			Pool: pool, Owner: a.Owner, Generation: a.Generation, Identity: a.Identity, Pin: pin, Model: name,
		})
		if r == nil && fly {
			w.fly(f, n)
		}
		return func(time.Time) {
			if w.dropped != nil {
				w.checkDropped(t, n, who, a, pin, name, before, f, r)
				return
			}
			want, connection := w.check(n, who, a.Generation, pin, name, before)
			got := "VALID"
			if f.Moved {
				got = "MOVED"
			}
			w.same(t, "check", lease.Lease{Outcome: got}, r, want)
			if f.Moved && f.Token <= given {
				t.Fatalf("moved to %s with token %d, %d was given before", f.Connection, f.Token, given)
			}
			w.resync(t)
			if r == nil {
				w.sent(t, n, a.Generation, connection, f)
			}
		}
	})
}

func (w *world) unmanagedStep(t *rapid.T) {
	name := drawModel(t)
	w.step(func(before time.Time) func(time.Time) {
		f, r := w.svc.Unmanaged(context.Background(), lease.UnmanagedAsk{Pool: pool, Model: name})
		return func(time.Time) {
			if w.dropped != nil && w.exact {
				w.same(t, "unmanaged", lease.Lease{}, r, "")
				return
			}
			want, connection := w.unmanaged(name, before)
			w.same(t, "unmanaged", lease.Lease{Outcome: "FREE"}, r, want)
			if r == nil && (f.Connection != connection || f.Token != 0) {
				t.Fatalf("unmanaged sent to %q with token %d, the model to %q without", f.Connection, f.Token, connection)
			}
		}
	})
}

func (w *world) cooldownStep(t *rapid.T) {
	c := drawConnection(t)
	w.cool(t, c, time.Duration(rapid.Int64Range(1, int64(w.ttl/time.Millisecond)).Draw(t, "ms"))*time.Millisecond)
}

func (w *world) cool(t *rapid.T, c string, d time.Duration) {
	w.step(func(before time.Time) func(time.Time) {
		r := w.svc.SetCooldown(context.Background(), pool, c, d)
		return func(after time.Time) {
			w.same(t, "cooldown", lease.Lease{}, r, "")
			if w.known[c].from.After(before) {
				return // a repetition
			}
			if r == nil {
				w.known[c] = span{before.Add(d), after.Add(d)}
			}
			w.cooldown[c] = w.storedCooldown(t, c, before.Add(d), after.Add(d))
		}
	})
}

func (w *world) endCooldownStep(t *rapid.T) {
	c := drawConnection(t)
	w.step(func(before time.Time) func(time.Time) {
		ended, r := w.svc.EndCooldown(context.Background(), pool, c)
		return func(time.Time) {
			w.same(t, "end of a cooldown", lease.Lease{}, r, "")
			if w.dropped == nil && ended != w.cooling(c, before) {
				t.Fatalf("ended a cooldown of %s: %v, the model says %v", c, ended, w.cooling(c, before))
			}
			delete(w.cooldown, c)
			if r == nil {
				delete(w.known, c)
			}
		}
	})
}

func (w *world) timePasses(t *rapid.T) {
	d := time.Duration(rapid.Int64Range(1, int64(w.ttl/2/time.Millisecond)).Draw(t, "ms")) * time.Millisecond
	if w.exact && rapid.Bool().Draw(t, "to the next edge") {
		now := w.now()
		d = min(w.nextEdge(now).Sub(now), w.ttl)
	}
	if w.lost {
		return
	}
	w.sleep(d)
	if w.exact {
		synctest.Wait()
		w.resync(t)
	}
}

func (w *world) loseStep(t *rapid.T) {
	if rapid.IntRange(0, 5).Draw(t, "is it lost") > 0 {
		return
	}
	w.step(func(time.Time) func(time.Time) {
		w.svc.Forget(pool)
		w.lose()
		w.grace = w.now().Add(seenWithin)
		return func(time.Time) {}
	})
}

func (w *world) dropStep(*rapid.T) { w.losing = true }
