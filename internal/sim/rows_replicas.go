package sim

import (
	"fmt"
	"time"
)

// Replicas are goals for several sidecars before one upstream.
type Replicas struct {
	Run   Runner
	Seeds []uint64
	Brief bool // shorter runs
}

// scene is traffic before an upstream.
type scene struct {
	name  string
	setup func(seed uint64) Setup
	good  func(r *Result, from, to time.Duration) float64
}

func (b *Replicas) length() time.Duration {
	if b.Brief {
		return 6 * time.Minute
	}
	return 15 * time.Minute
}

const replicasWarmup = 2 * time.Minute

// scenes are both knees and the engine, one tenant of eleven at ten times the rate, at one and a half times the capacity.
func (b *Replicas) scenes() []scene {
	knee := func(k Knee) func(uint64) Setup {
		return func(seed uint64) Setup { return Overload(seed, capacity, k, Moderate(), b.length()) }
	}
	bench := &Bench{Run: b.Run}
	engine := func(seed uint64) Setup {
		s := bench.engine(seed, 1.5)
		s.Warmup, s.Length = replicasWarmup, b.length()
		return s
	}
	return []scene{
		{"hard knee", knee(Hard), (*Result).GoodWork},
		{"soft knee", knee(Soft), (*Result).GoodWork},
		{"engine", engine, (*Result).GoodRequests},
	}
}

// sum of the limits after the warm-up.
func (r *Result) meanLimit() float64 { return r.Mean(replicasWarmup, r.setup.Length) }

// worstMinute is the least of the good work, or requests, of any minute after the warm-up.
func (s scene) worstMinute(r *Result) float64 {
	worst := s.good(r, replicasWarmup, r.setup.Length)
	for at := replicasWarmup; at+time.Minute <= r.setup.Length; at += time.Minute {
		worst = min(worst, s.good(r, at, at+time.Minute))
	}
	return worst
}

// Static has replicas that know nothing of each other but how many they are.
func (b *Replicas) Static() (goals []Goal) {
	for _, scene := range b.scenes() {
		for _, n := range []int{2, 4, 8} {
			var one, sum, alone, worst float64
			for i, seed := range b.Seeds {
				divided := Enforcing()
				divided.Replicas = n
				one += b.Run(scene.setup(seed), Headgate(Enforcing())).meanLimit()
				r := b.Run(scene.setup(seed), Fleet(n, divided, Evenly(n)))
				sum += r.meanLimit()
				if w := scene.worstMinute(r); i == 0 || w < worst {
					worst = w
				}
				alone += scene.worstMinute(b.Run(scene.setup(seed), Fleet(n, Enforcing(), Evenly(n)))) / float64(len(b.Seeds))
			}
			name := fmt.Sprintf("%d replicas, each with its part, %s: ", n, scene.name)
			goals = append(goals,
				atMost(name+"sum of limits over one's", sum/one, 2, "one %.0f", one/float64(len(b.Seeds))),
				atLeast(name+"good in the worst minute", worst, 0.1, "not divided %.2f", alone))
		}
	}
	return goals
}
