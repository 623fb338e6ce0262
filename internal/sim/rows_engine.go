package sim

import (
	"fmt"

	"github.com/headgate/headgate/pkg/adaptive"
)

func (b *Bench) belowCapacity() (goals []Goal) {
	for _, share := range []float64{0, 0.2, 0.5} {
		setup := func(seed uint64) Setup { return whole(b.engine(seed, 0.67), share) }
		name := fmt.Sprintf("below capacity, %.0f %% not streaming: ", 100*share)
		free := b.mean(Unlimited, func(seed uint64, f Factory) float64 { return b.Run(setup(seed), f).goodAfterWarmup() })
		var refused, limit float64
		good := b.mean(b.ours(), func(seed uint64, f Factory) float64 {
			r := b.Run(setup(seed), f)
			refused += r.refusedShare() / float64(len(b.Seeds))
			limit += r.Mean(r.setup.Warmup, r.setup.Length) / float64(len(b.Seeds))
			return r.goodAfterWarmup()
		})
		goals = append(goals,
			atLeast(name+"good over no limit's", good/free, 0.95, "limit %.0f", limit),
			atMost(name+"refused", refused, 0.01, ""))
	}
	return goals
}

func (b *Bench) overload() (goals []Goal) {
	loads := []float64{1.5, 2, 3}
	if b.Brief {
		loads = loads[:1]
	}
	for _, signal := range []struct {
		name   string
		signal adaptive.Signal
		sample int
		goal   float64
	}{{"witness", adaptive.FromWitness, 1, 0.90}, {"witness, 1 in 10", adaptive.FromWitness, 10, 0.85}, {"headers only", adaptive.FromHeaders, 1, 0.65}} {
		for _, load := range loads {
			name := fmt.Sprintf("overload %gx, headers at once, %s: good over best fixed", load, signal.name)
			g := b.ratio(name, signal.goal, b.ours(), []int{60, 80, 100, 120, 140, 160}, func(seed uint64, f Factory) float64 {
				s := b.engine(seed, load)
				s.Signal, s.Sample = signal.signal, signal.sample
				return b.Run(s, f).goodAfterWarmup()
			})
			goals = append(goals, g)
		}
	}
	return goals
}

func (b *Bench) overloadMixed() (goals []Goal) {
	loads := []float64{1.5, 3}
	if b.Brief {
		loads = loads[:1]
	}
	for _, share := range []float64{0.2, 0.5} {
		for _, load := range loads {
			name := fmt.Sprintf("overload %gx, %.0f %% not streaming: good over best fixed", load, 100*share)
			goals = append(goals, b.ratio(name, 0.85, b.ours(), []int{60, 80, 100, 120, 140, 160, 200}, func(seed uint64, f Factory) float64 {
				return b.Run(whole(b.engine(seed, load), share), f).goodAfterWarmup()
			}))
		}
	}
	return goals
}

// twoClasses: two tenants with the same requests, always some waiting, one of them not streaming.
func (b *Bench) twoClasses() []Goal {
	return []Goal{b.judge("two backlogged tenants, one not streaming: more served over less", 1.25, true, b.ours(), func(seed uint64, f Factory) float64 {
		s := b.engine(seed, 1)
		s.Tenants = []Tenant{{Name: "streams", Rate: engineCapacity, Sizes: b.conversations()}, {Name: "whole", Rate: engineCapacity, Sizes: b.conversations(), Whole: 1}}
		r := b.Run(s, f)
		x, y := float64(r.Tenants[0].Completed), float64(r.Tenants[1].Completed)
		return max(x, y) / max(1, min(x, y))
	})}
}

// context: equal weights are equal shares of tokens, within a factor.
func (b *Bench) context() []Goal {
	sizes := func(prompt, output int64) Sizes { return Even(tokenSize(prompt, output)) }
	return []Goal{b.judge("500+300 tokens against 20000+300: more tokens over less", 2.5, true, b.ours(), func(seed uint64, f Factory) float64 {
		s := b.engine(seed, 1)
		s.Tenants = []Tenant{{Name: "small", Rate: 10, Sizes: sizes(500, 300)}, {Name: "large", Rate: 1, Sizes: sizes(20_000, 300)}}
		r := b.Run(s, f)
		var tokens [2]float64
		for _, d := range r.Done {
			if d.End > s.Warmup && d.End <= s.Length {
				tokens[d.Tenant] += float64(d.Size.Prompt + 2*d.Size.Output)
			}
		}
		return max(tokens[0], tokens[1]) / max(1, min(tokens[0], tokens[1]))
	})}
}
