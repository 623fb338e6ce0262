package sim

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// Goal is one figure that the lanes must reach.
type Goal struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Goal  float64 `json:"goal"`
	// AtMost says that the value must not exceed the goal; otherwise it must not fall short of it.
	AtMost bool   `json:"atMost"`
	Met    bool   `json:"met"`
	Peer   bool   `json:"peer,omitempty"` // a figure to compare with, not a goal
	Note   string `json:"note,omitempty"`
	// ProvesNothing says that a naive rival reaches the goal too.
	ProvesNothing bool `json:"provesNothing,omitempty"`
}

func atLeast(name string, value, goal float64, note string, args ...any) Goal {
	return Goal{Name: name, Value: value, Goal: goal, Met: value >= goal, Note: fmt.Sprintf(note, args...)}
}

func atMost(name string, value, goal float64, note string, args ...any) Goal {
	return Goal{Name: name, Value: value, Goal: goal, AtMost: true, Met: value <= goal, Note: fmt.Sprintf(note, args...)}
}

// String is the goal's line in a report.
func (g Goal) String() string {
	if g.Peer {
		return fmt.Sprintf("%-66s %9.3f  %20s  %s", g.Name, g.Value, "", g.Note)
	}
	sign, met := ">=", "met"
	if g.AtMost {
		sign = "<="
	}
	if !g.Met {
		met = "MISSED"
	}
	note := g.Note
	if g.ProvesNothing {
		note += " (proves nothing)"
	}
	return fmt.Sprintf("%-66s %9.3f  %s %-8g %-6s  %s", g.Name, g.Value, sign, g.Goal, met, note)
}

// Runner simulates a setup in a bubble of virtual time.
type Runner func(Setup, Factory) *Result

// capacity of the simulated upstream in cost units, where a scenario does not say otherwise: the default initial limit,
// as if someone had once measured it.
const capacity = 64

// Moderate requests: cost 7, 0.3 s to the first byte, 1.1 s of generation.
func Moderate() Sizes {
	return LogNormal{Cost: 7, Sigma: 0.5, PerCost: 40 * time.Millisecond, Noise: 0.3, Generate: time.Second, GenSigma: 0.5}.Sizes()
}

func every(from, to int) []int {
	var tenants []int
	for i := from; i < to; i++ {
		tenants = append(tenants, i)
	}
	return tenants
}

// FairnessGoals says that with everyone backlogged, work is shared equally, whoever asks more often or for more.
func FairnessGoals(run Runner, length time.Duration) []Goal {
	backlogged := func(sizes func(tenant int) Sizes, rate func(tenant int) float64) (lanes, fifo float64) {
		const limit, tenants = 200, 11
		s := Setup{Seed: 1, Upstream: Upstream{Capacity: limit, Knee: Sharing}, Warmup: 20 * time.Second, Length: length}
		for i := range tenants {
			work := sizes(1).meanWork()
			fair := limit / float64(tenants) / work
			s.Tenants = append(s.Tenants, Tenant{Name: fmt.Sprint(i), Rate: rate(i) * fair, Sizes: sizes(i)})
		}
		return Jain(run(s, Headgate(Static(limit))).Works()), Jain(run(s, FIFO(Static(limit))).Works())
	}
	sized := func(factor float64) Sizes {
		return LogNormal{
			Cost: 5 * factor, Sigma: 0.2, PerCost: time.Duration(float64(100*time.Millisecond) / factor), Noise: 0.3,
		}.Sizes()
	}
	rate, rateFIFO := backlogged(func(int) Sizes { return sized(1) }, func(i int) float64 {
		if i == 0 {
			return 20
		}
		return 2
	})
	size, sizeFIFO := backlogged(func(i int) Sizes {
		if i == 0 {
			return sized(10)
		}
		return sized(1)
	}, func(int) float64 { return 2 })
	return []Goal{
		atLeast("Jain over work, one tenant at 10x the rate", rate, 0.99, "FIFO %.2f", rateFIFO),
		atLeast("Jain over work, one tenant with 10x larger requests", size, 0.99, "FIFO %.2f", sizeFIFO),
	}
}

// Quiet is a scenario of one hot tenant among quiet ones.
type Quiet struct {
	Name     string
	Sizes    Sizes
	Replay   *Trace // nil = Poisson arrivals
	Tenants  int    // quiet ones
	Capacity float64
	WaitGoal float64 // p99 of the quiet tenants' wait over the mean service
	Length   time.Duration
}

// Goals of the scenario: at 1.5 times the capacity, one tenant at ten times the rate of the others, limit adapting, the quiet
// tenants hardly notice. The upstream is the ideal server, so that utilisation lost is the gate's doing. Utilisation is
// that of the upstream: what the gate's own figure says depends on what it counts as used.
func (q Quiet) Goals(run Runner) []Goal {
	s := Setup{
		Seed: 3, Tenants: Mix(q.Tenants, 10, 1.5, q.Capacity, q.Sizes), Replay: q.Replay,
		Upstream: Upstream{Capacity: q.Capacity, Knee: Sharing}, Timeout: 60 * time.Second,
		Warmup: q.Length / 3, Length: q.Length,
	}
	lanes, fifo := run(s, Headgate(Enforcing())), run(s, FIFO(Enforcing()))
	static := run(s, Headgate(Static(int(q.Capacity))))
	quiet := every(1, len(s.Tenants))
	least := func(r *Result) float64 {
		served := 1.0
		for _, i := range quiet {
			served = min(served, r.Served(i))
		}
		return served
	}
	wait := func(r *Result) float64 { return r.Wait(0.99, quiet...).Seconds() / r.Service.Seconds() }
	name := fmt.Sprintf("%s, 1 hot + %d quiet, capacity %.0f: ", q.Name, q.Tenants, q.Capacity)
	return []Goal{
		atLeast(name+"least served", least(lanes), 0.99, "FIFO %.3f, limit fixed at the capacity %.3f", least(fifo), least(static)),
		atMost(name+"p99 wait/service", wait(lanes), q.WaitGoal, "FIFO %.2f, fixed %.2f", wait(fifo), wait(static)),
		atLeast(name+"utilisation", lanes.Busy, 0.95, "fixed %.3f; limit as the gate counts %.3f", static.Busy, lanes.Utilization()),
	}
}

// staticFactors are the static limits tried, in parts of the capacity.
func staticFactors() []float64 { return []float64{0.8, 0.9, 1, 1.1, 1.2, 1.3, 1.45, 1.6, 1.8} }

// staticSeeds are how many of the seeds static limits are tried on. Their goodput hardly varies from seed to seed.
const staticSeeds = 6

// bestStatic is the highest goodput that any static limit reaches on the mean of the seeds, and that limit.
func bestStatic(run Runner, setup func(seed uint64) Setup, seeds []uint64, factors []float64) (goodput float64, limit int) {
	seeds = seeds[:min(len(seeds), staticSeeds)]
	for _, f := range factors {
		l := int(f * setup(seeds[0]).Upstream.Capacity)
		if good := meanGoodput(run, setup, seeds, Headgate(Static(l))); good > goodput {
			goodput, limit = good, l
		}
	}
	return goodput, limit
}

func meanGoodput(run Runner, setup func(seed uint64) Setup, seeds []uint64, f Factory) (mean float64) {
	for _, seed := range seeds {
		mean += run(setup(seed), f).Good / float64(len(seeds))
	}
	return mean
}

// Overload is the setup that goodput is measured in: 1.5 times the capacity, one tenant of eleven at ten times the rate.
func Overload(seed uint64, c float64, knee Knee, sizes Sizes, length time.Duration) Setup {
	return Setup{
		Seed: seed, Tenants: Mix(10, 10, 1.5, c, sizes), Upstream: Upstream{Capacity: c, Knee: knee},
		Timeout: 30 * time.Second, Warmup: min(120*time.Second, length/4), Length: length,
	}
}

// DriftGoal says that half an hour of overload does not become the new normal.
func DriftGoal(run Runner, name string, knee Knee, sizes Sizes, length time.Duration) Goal {
	s := Overload(5, capacity, knee, sizes, length)
	r := run(s, Headgate(Enforcing()))
	third := (length - s.Warmup) / 3
	first, last := r.Mean(s.Warmup, s.Warmup+third), r.Mean(length-third, length)
	return atMost(name+": drift of the limit under 1.5x load", last/first, 1.15, "over %v: %.0f then %.0f", length, first, last)
}

// StepGoals has the case in which the capacity halves, and comes back; the median over the seeds.
func StepGoals(run Runner, name string, knee Knee, sizes Sizes, seeds []uint64) []Goal {
	const halved, back, end = 300 * time.Second, 600 * time.Second, 900 * time.Second
	var down, up []float64
	for _, seed := range seeds {
		s := Overload(seed, capacity, knee, sizes, end)
		s.Steps = []Step{
			{At: halved, Do: func(r *Run) { r.Upstream.Capacity = capacity / 2 }},
			{At: back, Do: func(r *Run) { r.Upstream.Capacity = capacity }},
		}
		r := run(s, Headgate(Enforcing()))
		down = append(down, settled(r.Limits, halved, back, capacity/2))
		up = append(up, settled(r.Limits, back, end, capacity))
	}
	slices.Sort(down)
	slices.Sort(up)
	return []Goal{
		atMost(name+": capacity halves, windows until within 25 %", down[len(down)/2], 10, "of %v", down),
		atMost(name+": capacity returns, windows until within 25 %", up[len(up)/2], 20, "of %v", up),
	}
}

// settled is how many windows after a change the limit has come within a quarter of where it belongs, to stay there on
// the average of the ten windows that follow.
func settled(limits []float64, from, to time.Duration, want float64) float64 {
	within := func(l float64) bool { return l >= 0.75*want && l <= 1.25*want }
	first, last := int(from/time.Second), min(int(to/time.Second), len(limits))
	for i := first; i+10 <= last; i++ {
		if within(limits[i]) && within(mean(limits, time.Duration(i)*time.Second, time.Duration(i+10)*time.Second)) {
			return float64(i - first + 1)
		}
	}
	return float64(last - first)
}

// Ratio of the adapting limit's goodput, the mean over the seeds, to that of the best static limit.
func Ratio(run Runner, knee Knee, sizes Sizes, c float64, seeds []uint64, factors []float64, length time.Duration) (ratio float64, note string) {
	setup := func(seed uint64) Setup { return Overload(seed, c, knee, sizes, length) }
	best, limit := bestStatic(run, setup, seeds, factors)
	good := meanGoodput(run, setup, seeds, Headgate(Enforcing()))
	return good / best, fmt.Sprintf("%.1f of %.1f at limit %d", good, best, limit)
}

// Peers are what goodput is compared with, beside the best static limit.
type Peers map[string]Factory

// GoodputGoals compares the adapting limit with the best static one on one knee: the mean over the size distributions is the
// goal, and what the peers reach on the first of them is in the note.
func GoodputGoals(run Runner, name string, knee Knee, sizes map[string]Sizes, peers Peers, seeds []uint64, length time.Duration) []Goal {
	var mean float64
	var parts string
	for _, s := range slices.Sorted(maps.Keys(sizes)) {
		r, note := Ratio(run, knee, sizes[s], capacity, seeds, staticFactors(), length)
		mean += r / float64(len(sizes))
		parts += fmt.Sprintf("%s %.3f (%s); ", s, r, note)
	}
	goals := []Goal{atLeast(name+" knee: goodput over best static", mean, 0.90, "%s", parts)}
	setup := func(seed uint64) Setup { return Overload(seed, capacity, knee, Moderate(), length) }
	best, _ := bestStatic(run, setup, seeds[:1], staticFactors())
	for _, p := range slices.Sorted(maps.Keys(peers)) {
		goals = append(goals, Goal{Name: name + " knee: goodput over best static of " + p, Value: run(setup(seeds[0]), peers[p]).Good / best, Peer: true})
	}
	return goals
}
