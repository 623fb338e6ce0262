package adaptive

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// The order gives the flow with the smallest key, of all and of those whose head is cheap enough, whatever was pushed,
// moved and removed before.
func TestOrderAgainstASortedList(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		o := newOrder()
		var in []*flow
		cost := rapid.OneOf(rapid.IntRange(1, 5), rapid.IntRange(0, MaxCost))
		key := rapid.Float64Range(-10, 10)
		pick := func() *flow { return in[rapid.IntRange(0, len(in)-1).Draw(t, "flow")] }
		smallest := func(free int) float64 {
			best := math.Inf(1)
			for _, f := range in {
				if f.head.cost <= free {
					best = min(best, f.key)
				}
			}
			return best
		}
		check := func(name string, got *flow, want float64) {
			if got == nil && math.IsInf(want, 1) || got != nil && got.key == want {
				return
			}
			t.Fatalf("%s of %d flows: got %+v, want the key %v", name, len(in), got, want)
		}
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				f := new(flow)
				f.enqueue(&Permit{cost: cost.Draw(t, "cost")})
				o.push(f, key.Draw(t, "key"))
				in = append(in, f)
			},
			"move": func(t *rapid.T) {
				if len(in) == 0 {
					t.Skip()
				}
				f := pick()
				if rapid.Bool().Draw(t, "another head") {
					f.head.cost = cost.Draw(t, "cost")
				}
				o.fix(f, key.Draw(t, "key"))
			},
			"remove": func(t *rapid.T) {
				if len(in) == 0 {
					t.Skip()
				}
				f := pick()
				o.remove(f)
				in = slices.DeleteFunc(in, func(other *flow) bool { return other == f })
			},
			"": func(t *rapid.T) {
				check("first", o.firstWithin(math.MaxInt), smallest(math.MaxInt))
				free := rapid.IntRange(-1, MaxCost+10).Draw(t, "free")
				want := smallest(free)
				if free <= 0 {
					want = math.Inf(1)
				}
				check("firstWithin", o.firstWithin(free), want)
			},
		})
	})
}

// The wheel finds every waiter whose time has come and no other, and the earliest of the rest, also when it is asked late.
func TestDeadlinesAgainstAList(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		longest := rapid.Int64Range(1, 10_000).Draw(t, "longest wait")
		var d deadlines
		var now int64
		d.reset(longest, now)
		var in []*Permit
		leave := func(p *Permit) {
			d.remove(p)
			in = slices.DeleteFunc(in, func(other *Permit) bool { return other == p })
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				p := &Permit{deadline: now + rapid.Int64Range(1, longest).Draw(t, "wait")}
				d.add(p, now)
				in = append(in, p)
			},
			"remove": func(t *rapid.T) {
				if len(in) == 0 {
					t.Skip()
				}
				leave(in[rapid.IntRange(0, len(in)-1).Draw(t, "waiter")])
			},
			"expire": func(t *rapid.T) {
				// As late as the timer may be: it is set to the next deadline.
				late := rapid.Int64Range(0, longest).Draw(t, "late")
				if len(in) > 0 {
					now = max(now, d.next()+late)
				} else {
					now += late
				}
				for p := d.expired(now); p != nil; p = d.expired(now) {
					if p.deadline > now {
						t.Fatalf("at %d: expired %d", now, p.deadline)
					}
					leave(p)
				}
			},
			"": func(t *rapid.T) {
				earliest := int64(math.MaxInt64)
				for _, p := range in {
					earliest = min(earliest, p.deadline)
				}
				if (d.used == 0) != (len(in) == 0) {
					t.Fatalf("used %b with %d waiters", d.used, len(in))
				}
				if len(in) > 0 && earliest > d.base && d.next() != earliest {
					t.Fatalf("at %d: next %d, want %d", now, d.next(), earliest)
				}
			},
		})
		if len(in) > 0 {
			now = d.base + 100*longest
			for p := d.expired(now); p != nil; p = d.expired(now) {
				leave(p)
			}
			if len(in) != 0 {
				t.Fatalf("%d waiters were never expired", len(in))
			}
		}
	})
}
