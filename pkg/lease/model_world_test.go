package lease_test

import (
	"context"
	"time"

	"pgregory.net/rapid"

	"github.com/headgate/headgate/pkg/lease"
)

// world is the model next to a service, with the store's clock.
type world struct {
	*model
	svc   *lease.Service
	now   func() time.Time
	sleep func(time.Duration)
	last  map[int]int64 // last generation each owner saw
	exact bool          // the clock stands still during a call
	lost  bool          // an expiry fell into a call: from here on both answers would be right
	steps int
}

const modelOwners = 4

// step runs f between two readings of the clock that no edge lies between.
func (w *world) step(f func(before time.Time) func(after time.Time)) {
	if w.lost {
		return
	}
	before := w.now()
	if w.exact {
		w.steps++
		f(before)(w.now())
		return
	}
	if wait := w.nextEdge(before).Sub(before); wait < 4*time.Millisecond {
		w.sleep(wait + time.Millisecond)
		before = w.now()
	}
	edge := w.nextEdge(before)
	verify := f(before)
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
		"acquire": w.acquireStep, "renew": w.renewStep, "release": w.releaseStep, "status": w.statusStep, "invalidate": w.invalidateStep,
		"transition": w.transitionStep, "check": w.checkStep, "unmanaged": w.unmanagedStep, "rest": w.restStep,
		"time passes": w.timePasses, "store loses": w.loseStep, "": w.invariant,
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

// same fails unless the service answered what the model says.
func same(t *rapid.T, what string, l lease.Lease, r *lease.Refusal, want string) {
	got := l.Outcome
	if r != nil {
		got = string(r.Reason)
	}
	if got != want {
		t.Fatalf("%s answered %s, the model says %s", what, got, want)
	}
}

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
			same(t, "acquire", l, r, want)
			if r == nil {
				w.acquired(t, n, who, name, connection, l, before, after)
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
				same(t, "renew", l, r, string(lease.FenceStale))
				return
			}
			same(t, "renew", l, r, "RENEWED")
			w.extended(t, n, l, before, after)
		}
	})
}

func (w *world) releaseStep(t *rapid.T) {
	n, who, a := w.drawAsk(t)
	w.step(func(before time.Time) func(time.Time) {
		l, r := w.svc.Release(context.Background(), a, lease.OwnerExit)
		return func(time.Time) {
			held := w.holds(n, who, a, before)
			past, was := w.ended[n]
			switch {
			case held != nil:
				same(t, "release", l, r, "RELEASED")
				w.end(held, true)
			case w.live(n, before) == nil && was && past.released && past.generation == a.Generation && past.principal == who:
				same(t, "repeated release", l, r, "RELEASED")
				if l.Connection != past.connection || !sameMillisecond(l.ExpiresAt, past.expires) {
					t.Fatalf("repeated release told %+v, the first %+v", l, past)
				}
			default:
				same(t, "release", l, r, string(lease.FenceStale))
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
				same(t, "status", l, r, string(lease.FenceStale))
			} else if r != nil || l.Connection != held.connection || !sameMillisecond(l.ExpiresAt, held.expires) {
				t.Fatalf("status: %+v %v, the model has %+v", l, reason(r), held)
			}
		}
	})
}

func (w *world) invalidateStep(t *rapid.T) {
	n, _, a := w.drawAsk(t)
	w.step(func(before time.Time) func(time.Time) {
		l, r := w.svc.Invalidate(context.Background(), a, lease.QuotaUnavailable)
		return func(time.Time) {
			held := w.live(n, before)
			if held == nil || held.generation != a.Generation {
				same(t, "invalidate", l, r, string(lease.FenceStale))
				return
			}
			same(t, "invalidate", l, r, "INVALIDATED")
			w.end(held, false)
		}
	})
}

func (w *world) transitionStep(t *rapid.T) {
	n, who, a := w.drawAsk(t)
	to := drawConnection(t)
	w.step(func(before time.Time) func(time.Time) {
		l, r := w.svc.Transition(context.Background(), a, to, lease.HealthOrCooldown)
		return func(time.Time) {
			held := w.holds(n, who, a, before)
			switch {
			case held == nil:
				same(t, "transition", l, r, string(lease.FenceStale))
				return
			case held.connection == to:
				same(t, "transition to the same", l, r, "REUSED")
			case !w.free(to, n, before):
				same(t, "transition to a taken one", l, r, string(lease.CapacityUnavailable))
				return
			default:
				same(t, "transition", l, r, "MOVED")
				moved := *held
				moved.connection = to
				delete(w.holders, held.connection)
				w.set(moved)
			}
			if l.Generation != held.generation || !sameMillisecond(l.ExpiresAt, held.expires) {
				t.Fatalf("transition changed more than the connection: %+v, was %+v", l, held)
			}
		}
	})
}

func (w *world) checkStep(t *rapid.T) {
	n, who, a := w.drawAsk(t)
	name := drawModel(t)
	pin := rapid.SampledFrom([]string{"", "", "acct-1", "acct-2"}).Draw(t, "pin")
	w.step(func(before time.Time) func(time.Time) {
		f, r := w.svc.Check(context.Background(), lease.FenceAsk{
			Pool: pool, Owner: a.Owner, Generation: a.Generation, Identity: a.Identity, Pin: pin, Model: name,
		})
		return func(time.Time) {
			want, connection := w.check(n, who, a.Generation, pin, name, before)
			got := "VALID"
			if f.Moved {
				got = "MOVED"
			}
			same(t, "check", lease.Lease{Outcome: got}, r, want)
			if r == nil && (f.Connection != connection || f.Generation != a.Generation || f.Cluster != "to-"+connection) {
				t.Fatalf("check sends to %+v, the model to %s", f, connection)
			}
		}
	})
}

func (w *world) unmanagedStep(t *rapid.T) {
	name := drawModel(t)
	w.step(func(before time.Time) func(time.Time) {
		f, r := w.svc.Unmanaged(context.Background(), lease.UnmanagedAsk{Pool: pool, Model: name})
		return func(time.Time) {
			want, connection := w.acquire(0, "", name, before) // owner 0 never has a lease
			same(t, "unmanaged", lease.Lease{Outcome: "ACQUIRED"}, r, want)
			if f.Connection != connection {
				t.Fatalf("unmanaged sent to %q, the model to %q", f.Connection, connection)
			}
		}
	})
}

func (w *world) restStep(t *rapid.T) {
	c := drawConnection(t)
	d := time.Duration(rapid.Int64Range(1, int64(w.ttl/time.Millisecond)).Draw(t, "ms")) * time.Millisecond
	w.step(func(before time.Time) func(time.Time) {
		r := w.svc.Rest(context.Background(), pool, c, d)
		return func(after time.Time) {
			same(t, "rest", lease.Lease{}, r, "")
			w.rests[c] = w.storedRest(t, c, before.Add(d), after.Add(d))
		}
	})
}

func (w *world) timePasses(t *rapid.T) {
	d := time.Duration(rapid.Int64Range(1, int64(w.ttl/2/time.Millisecond)).Draw(t, "ms")) * time.Millisecond
	if w.exact && rapid.Bool().Draw(t, "to the next edge") {
		now := w.now()
		d = min(w.nextEdge(now).Sub(now), w.ttl)
	}
	if !w.lost {
		w.sleep(d)
	}
}

func (w *world) loseStep(t *rapid.T) {
	n := drawOwner(t)
	what := rapid.SampledFrom([]string{"nothing", "nothing", "owner key", "pool key", "everything"}).Draw(t, "what")
	w.step(func(time.Time) func(time.Time) {
		w.lose(t, n, what)
		return func(time.Time) {}
	})
}
