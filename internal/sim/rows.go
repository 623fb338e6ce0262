package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/headgate/headgate/pkg/adaptive"
)

// Row is one scenario of traffic as language models have it, and what the lanes must reach in it.
type Row struct {
	Name  string
	Goals func(b *Bench) []Goal
}

// Rows are all of them.
func Rows() []Row {
	return []Row{
		{"below capacity", (*Bench).belowCapacity},
		{"overload", (*Bench).overload},
		{"overload, mixed", (*Bench).overloadMixed},
		{"two classes", (*Bench).twoClasses},
		{"a tenant's own refusals", (*Bench).ownRefusals},
		{"a tenant's own errors", (*Bench).ownErrors},
		{"shared quota", (*Bench).sharedQuota},
		{"outage", (*Bench).outages},
		{"large prompts", (*Bench).largePrompts},
		{"large heads", (*Bench).largeHeads},
		{"initial limit", (*Bench).initialLimits},
		{"service time", (*Bench).serviceTimes},
		{"refusing upstream", (*Bench).refusingUpstream},
		{"eight times the capacity", (*Bench).eightTimes},
		{"context", (*Bench).context},
	}
}

// Bench runs rows.
type Bench struct {
	Run    Runner
	Seeds  []uint64
	Rivals map[string]Factory // naive ones: a goal that they reach too proves nothing
	Peers  map[string]Factory // others' limiters: figures to compare with
	Change func(*adaptive.Settings)
	Brief  bool // fewer variants and shorter runs

	traces map[string]Sizes
	best   map[string]float64
}

// settings are the controller's: the defaults, enforced, with the changes that the bench makes.
func (b *Bench) settings() adaptive.Settings {
	s := Enforcing()
	if b.Change != nil {
		b.Change(&s)
	}
	return s
}

func (b *Bench) ours() Factory { return Headgate(b.settings()) }

// started is the controller with another initial limit.
func (b *Bench) started(initial int) Factory {
	s := b.settings()
	s.InitialLimit = initial
	return Headgate(s)
}

// mean of a figure over the seeds.
func (b *Bench) mean(f Factory, figure func(seed uint64, f Factory) float64) float64 {
	var sum float64
	for _, seed := range b.Seeds {
		sum += figure(seed, f)
	}
	return sum / float64(len(b.Seeds))
}

// judge a figure of ours, and mark the goal when a naive rival reaches it too.
func (b *Bench) judge(name string, goal float64, most bool, ours Factory, figure func(seed uint64, f Factory) float64) Goal {
	compare := atLeast
	if most {
		compare = atMost
	}
	value := b.mean(ours, figure)
	var notes []string
	var trivial bool
	for _, rival := range slices.Sorted(maps.Keys(b.Rivals)) {
		got := b.mean(b.Rivals[rival], figure)
		trivial = trivial || compare("", got, goal, "").Met
		notes = append(notes, fmt.Sprintf("%s %.3g", rival, got))
	}
	g := compare(name, value, goal, "%s", strings.Join(notes, ", "))
	g.ProvesNothing = trivial
	return g
}

// conversations are the sizes of the trace.
func (b *Bench) conversations() Sizes {
	if b.traces == nil {
		t, err := Conversations()
		if err != nil {
			panic(err) // it is embedded
		}
		b.traces = map[string]Sizes{"conversations": t.Sizes()}
	}
	return b.traces["conversations"]
}

// engineCapacity is what the engine completes of the conversations when it is never short of work, in requests per
// second.
const engineCapacity = 6.7

// engine is a setup of one hot tenant among ten quiet ones before an engine.
func (b *Bench) engine(seed uint64, load float64) Setup {
	model := DefaultEngine()
	s := Setup{
		Seed: seed, Engine: &model, Timeout: 2 * time.Minute, Headers: 5 * time.Millisecond, Signal: adaptive.FromWitness,
		Warmup: 5 * time.Minute, Length: 15 * time.Minute,
	}
	if b.Brief {
		s.Warmup, s.Length = 3*time.Minute, 9*time.Minute
	}
	const quiet, hot = 10, 10
	unit := load * engineCapacity / (quiet + hot)
	s.Tenants = append(s.Tenants, Tenant{Name: "hot", Rate: hot * unit, Sizes: b.conversations()})
	for i := range quiet {
		s.Tenants = append(s.Tenants, Tenant{Name: fmt.Sprint("quiet", i), Rate: unit, Sizes: b.conversations()})
	}
	return s
}

func whole(s Setup, share float64) Setup {
	for i := range s.Tenants {
		s.Tenants[i].Whole = share
	}
	return s
}

// GoodRequests are those that arrived in the span and were served well by an engine: the first token within 3 s and twice the idle time
// of their arrival, and at most 100 ms a token. Per second.
func (r *Result) GoodRequests(from, to time.Duration) float64 {
	var n int
	for _, d := range r.Done {
		idle := r.setup.Engine.Idle(d.Size.Prompt)
		each := (d.End - d.First).Seconds() / float64(max(1, d.Size.Output-1))
		if d.Arrived >= from && d.Arrived < to && d.First-d.Arrived <= 3*time.Second+2*idle && each <= 0.1 {
			n++
		}
	}
	return float64(n) / (to - from).Seconds()
}

// GoodWork is the work per second that ended in the span after a first byte within twice the idle time of forwarding.
func (r *Result) GoodWork(from, to time.Duration) float64 {
	var work float64
	for _, d := range r.Done {
		if d.End >= from && d.End < to && d.First-d.Forwarded <= slowFirstByte*d.Size.Prefill {
			work += d.Size.Work()
		}
	}
	return work / (to - from).Seconds()
}

// refusedShare is the share of all that came which the limiter refused.
func (r *Result) refusedShare() float64 {
	var offered, refused int
	for _, t := range r.Tenants {
		offered, refused = offered+t.Offered, refused+t.Refused
	}
	return float64(refused) / float64(max(1, offered))
}

// refusedBetween is the share of the arrivals in the span that the limiter refused.
func (r *Result) refusedBetween(from, to time.Duration) float64 {
	var refused, done int
	for _, at := range r.Refusals {
		if at >= from && at < to {
			refused++
		}
	}
	for _, d := range r.Done {
		if d.Arrived >= from && d.Arrived < to {
			done++
		}
	}
	return float64(refused) / float64(max(1, refused+done))
}

func (r *Result) limitAt(at time.Duration) float64 {
	return r.Limits[min(int(at/time.Second), len(r.Limits))-1]
}

func (r *Result) goodAfterWarmup() float64 { return r.GoodRequests(r.setup.Warmup, r.setup.Length) }

// bestFixed is the highest of a figure that any fixed limit reaches.
func (b *Bench) bestFixed(key string, limits []int, figure func(seed uint64, f Factory) float64) (best float64) {
	if v, ok := b.best[key]; ok {
		return v
	}
	for _, l := range limits {
		s := Static(l)
		s.FirstToken, s.FirstTokenSample = b.settings().FirstToken, b.settings().FirstTokenSample
		if v := b.mean(Headgate(s), figure); v > best {
			best = v
		}
	}
	if b.best == nil {
		b.best = make(map[string]float64)
	}
	b.best[key] = best
	return best
}

// ratio of ours to the best fixed limit's, as a goal.
func (b *Bench) ratio(name string, goal float64, ours Factory, limits []int, figure func(seed uint64, f Factory) float64) Goal {
	best := b.bestFixed(name, limits, figure)
	g := b.judge(name, goal, false, ours, func(seed uint64, f Factory) float64 { return figure(seed, f) / best })
	g.Note = fmt.Sprintf("best fixed %.2f; %s", best, g.Note)
	for _, peer := range slices.Sorted(maps.Keys(b.Peers)) {
		g.Note += fmt.Sprintf(", %s %.3g", peer, b.mean(b.Peers[peer], figure)/best)
	}
	return g
}
