package sim

import (
	"fmt"
	"time"
)

// largePrompts on a cluster that is hardly used.
func (b *Bench) largePrompts() []Goal {
	var least = 1.0
	for _, cost := range []int{70, 100, 250, 600, 1000} {
		least = min(least, b.mean(b.ours(), func(seed uint64, f Factory) float64 {
			s := Setup{Seed: seed, Upstream: free(), Length: 10 * time.Minute, Tenants: []Tenant{
				{Name: "chat", Rate: 0.5, Sizes: fixed(5, 300*time.Millisecond, 0.3, 12*time.Second)},
				{Name: "agent", Rate: 0.2, Sizes: fixed(cost, 2*time.Second, 0.3, 0)},
			}}
			return b.Run(s, f).Served(1)
		}))
	}
	return []Goal{atLeast("a prompt above the limit on a cluster used to an eighth: served", least, 1, "")}
}

// largeHeads: at a fixed limit of 64, of which 40 are in streams, one request of cost 50 every five seconds.
func (b *Bench) largeHeads() (goals []Goal) {
	for _, fixedLimit := range []bool{true, false} {
		f, name := b.ours(), "one of cost 50 per 5 s, 40 in streams: "
		if fixedLimit {
			s := b.settings()
			s.MinLimit, s.InitialLimit, s.MaxLimit = 64, 64, 64
			f, name = Headgate(s), "one of cost 50 per 5 s, limit 64, 40 in streams: "
		}
		run := func(seed uint64, f Factory) *Result {
			s := Setup{Seed: seed, Upstream: free(), Warmup: time.Minute, Length: 6 * time.Minute}
			for i := range 4 {
				s.Tenants = append(s.Tenants, Tenant{Name: fmt.Sprint("chat", i), Rate: 0.5, Sizes: fixed(5, 300*time.Millisecond, 0.3, 20*time.Second)})
			}
			s.Tenants = append(s.Tenants, Tenant{Name: "large", Sizes: fixed(50, 3*time.Second, 0.1, 20*time.Second)})
			for at := 5 * time.Second; at < s.Length; at += 5 * time.Second {
				s.Steps = append(s.Steps, Step{At: at, Do: func(r *Run) { r.Inject(4, 1) }})
			}
			return b.Run(s, f)
		}
		goals = append(goals,
			atMost(name+"others refused", b.mean(f, func(seed uint64, f Factory) float64 { return 1 - run(seed, f).Served(0, 1, 2, 3) }), 0.01, ""),
			atLeast(name+"large ones served", b.mean(f, func(seed uint64, f Factory) float64 { return run(seed, f).Served(4) }), 0.95, ""))
	}
	return goals
}
