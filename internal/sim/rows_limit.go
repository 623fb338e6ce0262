package sim

import (
	"fmt"
	"time"
)

// initialLimits: wherever the limit starts, it finds where it belongs.
func (b *Bench) initialLimits() (goals []Goal) {
	const early, late, end = 2 * time.Minute, 10 * time.Minute, 20 * time.Minute
	type upstream struct {
		name   string
		limits []int
		setup  func(seed uint64) Setup
		good   func(r *Result, from, to time.Duration) float64
	}
	onKnee := func(k Knee) func(uint64) Setup {
		return func(seed uint64) Setup { s := Overload(seed, capacity, k, Moderate(), end); s.Warmup = 0; return s }
	}
	upstreams := []upstream{
		{"hard knee", []int{58, 64, 70, 77}, onKnee(Hard), (*Result).GoodWork},
		{"soft knee", []int{77, 83, 93, 102}, onKnee(Soft), (*Result).GoodWork},
		{"engine", []int{100, 120, 140}, func(seed uint64) Setup {
			s := b.engine(seed, 1.5)
			s.Warmup, s.Length = 0, end
			return s
		}, (*Result).GoodRequests},
	}
	for _, u := range upstreams {
		key := "initial " + u.name
		bestEarly := b.bestFixed(key+" early", u.limits, func(seed uint64, f Factory) float64 { return u.good(b.Run(u.setup(seed), f), early, late) })
		bestLate := b.bestFixed(key+" late", u.limits, func(seed uint64, f Factory) float64 { return u.good(b.Run(u.setup(seed), f), late, end) })
		for _, initial := range []int{16, 64, 256, 640} {
			var soon, later, limit float64
			b.mean(b.started(initial), func(seed uint64, f Factory) float64 {
				r := b.Run(u.setup(seed), f)
				soon += u.good(r, early, late) / bestEarly / float64(len(b.Seeds))
				later += u.good(r, late, end) / bestLate / float64(len(b.Seeds))
				limit += r.Mean(late, end) / float64(len(b.Seeds))
				return 0
			})
			name := fmt.Sprintf("%s, initial limit %d: good over best fixed, ", u.name, initial)
			goals = append(goals,
				atLeast(name+"minutes 2-10", soon, 0.80, ""),
				atLeast(name+"after", later, 0.90, "limit %.0f", limit))
		}
	}
	return goals
}

// serviceTimes: latency that does not answer to the limit is no overload.
func (b *Bench) serviceTimes() (goals []Goal) {
	const at = 3 * time.Minute
	const load = 48.0 // of the initial limit of 64, after the step
	measure := func(name string, setup func(seed uint64) Setup) {
		var back, refused float64
		b.mean(b.ours(), func(seed uint64, f Factory) float64 {
			r := b.Run(setup(seed), f)
			before := r.limitAt(at)
			back += r.limitAt(at+time.Minute) / before / float64(len(b.Seeds))
			refused += r.refusedBetween(at+20*time.Second, at+3*time.Minute) / float64(len(b.Seeds))
			return 0
		})
		goals = append(goals,
			atLeast(name+": limit after 60 windows over before", back, 0.9, ""),
			atMost(name+": refused after 20 windows", refused, 0.01, ""))
	}
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	for _, step := range [][2]int{{20, 200}, {100, 200}, {100, 1000}} {
		measure(fmt.Sprintf("service time %d -> %d ms", step[0], step[1]), func(seed uint64) Setup {
			return Setup{
				Seed: seed, Upstream: free(), Length: at + 3*time.Minute,
				Tenants: one(load/5/ms(step[1]).Seconds(), fixed(5, ms(step[0]), 0.3, 0)),
				Steps:   []Step{{At: at, Do: func(r *Run) { r.Upstream.Slowdown = float64(step[1]) / float64(step[0]) }}},
			}
		})
	}
	for _, cheap := range []float64{2, 250} {
		for _, between := range []bool{false, true} {
			name := fmt.Sprintf("cheap requests at %g/s before 200 ms ones", cheap)
			if between {
				name = fmt.Sprintf("cheap requests at %g/s before and between 200 ms ones", cheap)
			}
			measure(name, func(seed uint64) Setup {
				return Setup{
					Seed: seed, Upstream: free(), Length: at + 3*time.Minute,
					Tenants: []Tenant{
						{Name: "cheap", Rate: cheap, Sizes: fixed(3, ms(5), 0.3, 0)},
						{Name: "large", Sizes: fixed(3, ms(200), 0.3, 0)},
					},
					Steps: []Step{{At: at, Do: func(r *Run) {
						if !between {
							r.SetRate(0, 0)
						}
						r.SetRate(1, load/3/0.2)
					}}},
				}
			})
		}
	}
	return goals
}

// eightTimes the capacity that the initial limit is for.
func (b *Bench) eightTimes() (goals []Goal) {
	const large, from, to = 512, 2 * time.Minute, 10 * time.Minute
	for _, k := range []struct {
		name string
		knee Knee
	}{{"hard", Hard}, {"soft", Soft}} {
		goals = append(goals, b.ratio(fmt.Sprintf("capacity 512 from 64, %s knee: good over best fixed, minutes 2-10", k.name), 0.80, b.ours(), []int{512, 560, 640, 760}, func(seed uint64, f Factory) float64 {
			s := Overload(seed, large, k.knee, Moderate(), to)
			s.Warmup = 0
			return b.Run(s, f).GoodWork(from, to)
		}))
	}
	return goals
}
