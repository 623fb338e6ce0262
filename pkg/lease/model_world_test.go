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
	lost  bool          // an expiry fell into a call: from here on both answers would be right
	steps int
}

const modelOwners = 4

func (w *world) identity(who string) lease.Identity { return w.svc.Identify(who) }

// step runs f between two readings of the clock that no edge lies between.
func (w *world) step(f func(before time.Time) func(after time.Time)) {
	if w.lost {
		return
	}
	before := w.now()
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
	ctx := context.Background()
	owners := rapid.IntRange(1, modelOwners)
	principals := rapid.SampledFrom([]string{teamA, teamA, teamA, teamB})
	connections := rapid.SampledFrom([]string{"acct-1", "acct-2", "acct-3"})
	models := rapid.SampledFrom([]string{"small", "small", "large", "none", ""})
	drawAsk := func(t *rapid.T) (int, string, lease.Ask) {
		n, who := owners.Draw(t, "owner"), principals.Draw(t, "principal")
		g := w.last[n] + rapid.SampledFrom([]int64{0, 0, 0, 0, 1, -1}).Draw(t, "offset")
		return n, who, lease.Ask{Pool: pool, Owner: owner(t, n), Generation: max(g, 1), Identity: w.identity(who)}
	}
	expect := func(t *rapid.T, what, got, want string) {
		if got != want {
			t.Fatalf("%s answered %s, the model says %s", what, got, want)
		}
	}
	answer := func(l lease.Lease, r *lease.Refusal) string {
		if r != nil {
			return string(r.Reason)
		}
		return l.Outcome
	}
	return map[string]func(*rapid.T){
		"acquire": func(t *rapid.T) {
			n, who, a := drawAsk(t)
			name := models.Draw(t, "model")
			w.step(func(before time.Time) func(time.Time) {
				want, connection := w.acquire(n, who, name, before)
				l, r := w.svc.Acquire(ctx, a, name)
				return func(after time.Time) {
					expect(t, "acquire", answer(l, r), want)
					if r == nil {
						w.acquired(t, n, who, name, connection, l, before, after)
					}
				}
			})
		},
		"renew": func(t *rapid.T) {
			n, who, a := drawAsk(t)
			w.step(func(before time.Time) func(time.Time) {
				l, r := w.svc.Renew(ctx, a)
				return func(after time.Time) {
					held := w.live(n, before)
					if held == nil || held.generation != a.Generation || held.principal != who {
						expect(t, "renew", answer(l, r), string(lease.FenceStale))
						return
					}
					expect(t, "renew", answer(l, r), "RENEWED")
					w.extended(t, n, l, before, after)
				}
			})
		},
		"release": func(t *rapid.T) {
			n, who, a := drawAsk(t)
			w.step(func(before time.Time) func(time.Time) {
				l, r := w.svc.Release(ctx, a, lease.OwnerExit)
				return func(time.Time) {
					held := w.live(n, before)
					past, was := w.ended[n]
					switch {
					case held != nil && held.generation == a.Generation && held.principal == who:
						expect(t, "release", answer(l, r), "RELEASED")
						w.end(held, true)
					case held == nil && was && past.released && past.generation == a.Generation && past.principal == who:
						expect(t, "repeated release", answer(l, r), "RELEASED")
						if l.Connection != past.connection || !sameMillisecond(l.ExpiresAt, past.expires) {
							t.Fatalf("repeated release told %+v, the first %+v", l, past)
						}
					default:
						expect(t, "release", answer(l, r), string(lease.FenceStale))
					}
				}
			})
		},
		"status": func(t *rapid.T) {
			n, who, a := drawAsk(t)
			w.step(func(before time.Time) func(time.Time) {
				l, r := w.svc.Status(ctx, a)
				return func(time.Time) {
					held := w.live(n, before)
					if held == nil || held.generation != a.Generation || held.principal != who {
						expect(t, "status", answer(l, r), string(lease.FenceStale))
					} else if r != nil || l.Connection != held.connection || !sameMillisecond(l.ExpiresAt, held.expires) {
						t.Fatalf("status: %+v %v, the model has %+v", l, reason(r), held)
					}
				}
			})
		},
		"invalidate": func(t *rapid.T) {
			n, _, a := drawAsk(t)
			w.step(func(before time.Time) func(time.Time) {
				l, r := w.svc.Invalidate(ctx, a, lease.QuotaUnavailable)
				return func(time.Time) {
					held := w.live(n, before)
					if held == nil || held.generation != a.Generation {
						expect(t, "invalidate", answer(l, r), string(lease.FenceStale))
						return
					}
					expect(t, "invalidate", answer(l, r), "INVALIDATED")
					w.end(held, false)
				}
			})
		},
		"transition": func(t *rapid.T) {
			n, who, a := drawAsk(t)
			to := connections.Draw(t, "to")
			w.step(func(before time.Time) func(time.Time) {
				l, r := w.svc.Transition(ctx, a, to, lease.HealthOrCooldown)
				return func(time.Time) {
					held := w.live(n, before)
					switch {
					case held == nil || held.generation != a.Generation || held.principal != who:
						expect(t, "transition", answer(l, r), string(lease.FenceStale))
					case held.connection == to:
						expect(t, "transition to the same", answer(l, r), "REUSED")
						if !sameMillisecond(l.ExpiresAt, held.expires) {
							t.Fatalf("transition to the same extended the lease to %v from %v", l.ExpiresAt, held.expires)
						}
					case !w.free(to, n, before):
						expect(t, "transition to a taken one", answer(l, r), string(lease.CapacityUnavailable))
					default:
						expect(t, "transition", answer(l, r), "MOVED")
						if l.Generation != held.generation || !sameMillisecond(l.ExpiresAt, held.expires) {
							t.Fatalf("transition changed more than the connection: %+v, was %+v", l, held)
						}
						moved := *held
						moved.connection = to
						delete(w.holders, held.connection)
						w.set(moved)
					}
				}
			})
		},
		"check": func(t *rapid.T) {
			n, who, a := drawAsk(t)
			name := models.Draw(t, "model")
			pin := rapid.SampledFrom([]string{"", "", "acct-1", "acct-2"}).Draw(t, "pin")
			w.step(func(before time.Time) func(time.Time) {
				f, r := w.svc.Check(ctx, lease.FenceAsk{Pool: pool, Owner: a.Owner, Generation: a.Generation, Identity: a.Identity, Pin: pin, Model: name})
				return func(time.Time) {
					want, connection := w.check(n, who, a.Generation, pin, name, before)
					got := "VALID"
					if r != nil {
						got = string(r.Reason)
					} else if f.Moved {
						got = "MOVED"
					}
					expect(t, "check", got, want)
					if r == nil && (f.Connection != connection || f.Generation != a.Generation || f.Cluster != "to-"+connection) {
						t.Fatalf("check sends to %+v, the model to %s", f, connection)
					}
				}
			})
		},
		"unmanaged": func(t *rapid.T) {
			name := models.Draw(t, "model")
			w.step(func(before time.Time) func(time.Time) {
				f, r := w.svc.Unmanaged(ctx, lease.UnmanagedAsk{Pool: pool, Model: name})
				return func(time.Time) {
					want, connection := w.acquire(0, "", name, before) // owner 0 never has a lease
					if want == "ACQUIRED" {
						want = ""
					}
					expect(t, "unmanaged", string(reason(r)), want)
					if f.Connection != connection {
						t.Fatalf("unmanaged sent to %q, the model to %q", f.Connection, connection)
					}
				}
			})
		},
		"rest": func(t *rapid.T) {
			c := connections.Draw(t, "connection")
			d := time.Duration(rapid.Int64Range(1, int64(w.ttl/time.Millisecond)).Draw(t, "ms")) * time.Millisecond
			w.step(func(before time.Time) func(time.Time) {
				r := w.svc.Rest(ctx, pool, c, d)
				return func(after time.Time) {
					expect(t, "rest", string(reason(r)), "")
					w.rests[c] = w.storedRest(t, c, before.Add(d), after.Add(d))
				}
			})
		},
		"time passes": func(t *rapid.T) {
			if !w.lost {
				w.sleep(time.Duration(rapid.Int64Range(1, int64(w.ttl/2/time.Millisecond)).Draw(t, "ms")) * time.Millisecond)
			}
		},
		"store loses": func(t *rapid.T) {
			n, what := owners.Draw(t, "owner"), rapid.SampledFrom([]string{"nothing", "nothing", "owner key", "pool key", "everything"}).Draw(t, "what")
			w.step(func(time.Time) func(time.Time) {
				w.lose(t, n, what)
				return func(time.Time) {}
			})
		},
		"": w.invariant,
	}
}
