package sim

import (
	"fmt"
	"maps"
	"math"
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

// free is an upstream on which nothing contends.
func free() Upstream { return Upstream{Capacity: 1e9, Knee: Sharing} }

// beside is a setup of four tenants that send steadily and one whose requests all get an answer that is its own fault.
func beside(seed uint64, rate float64, sizes Sizes, bad float64, no Rejection) Setup {
	s := Setup{Seed: seed, Upstream: free(), Warmup: time.Minute, Length: 6 * time.Minute}
	for i := range 4 {
		s.Tenants = append(s.Tenants, Tenant{Name: fmt.Sprint(i), Rate: rate / 4, Sizes: sizes})
	}
	if bad > 0 {
		s.Tenants = append(s.Tenants, Tenant{Name: "bad", Rate: bad, Sizes: sizes})
	}
	s.Front = func(_ *Run, x *Exchange) *Rejection {
		if x.Tenant == 4 {
			return &no
		}
		return nil
	}
	return s
}

// others is how the four were served, and how far the limit is from where it is without the fifth.
func (b *Bench) others(name string, setup func(seed uint64, bad float64) Setup, rates ...float64) (goals []Goal) {
	for _, rate := range rates {
		served := b.judge(fmt.Sprintf("%s at %g/s: others served", name, rate), 0.99, false, b.ours(), func(seed uint64, f Factory) float64 {
			return b.Run(setup(seed, rate), f).Served(0, 1, 2, 3)
		})
		apart := b.mean(b.ours(), func(seed uint64, f Factory) float64 {
			with, without := b.Run(setup(seed, rate), f), b.Run(setup(seed, 0), f)
			return math.Abs(with.Mean(time.Minute, 6*time.Minute)/without.Mean(time.Minute, 6*time.Minute) - 1)
		})
		goals = append(goals, served, atMost(fmt.Sprintf("%s at %g/s: change of the limit", name, rate), apart, 0.10, ""))
	}
	return goals
}

func (b *Bench) ownRefusals() []Goal {
	sizes := fixed(5, 200*time.Millisecond, 0.3, time.Second)
	return b.others("a tenant's own 429s", func(seed uint64, bad float64) Setup {
		return beside(seed, 20, sizes, bad, Rejection{
			Answer: adaptive.AnswerRefused, Outcome: adaptive.Overload, After: 20 * time.Millisecond, RetryAfter: 20 * time.Second,
		})
	}, 0.1, 1, 3)
}

func (b *Bench) ownErrors() []Goal {
	sizes := fixed(5, 100*time.Millisecond, 0.3, 300*time.Millisecond)
	return b.others("a tenant's own 500s", func(seed uint64, bad float64) Setup {
		return beside(seed, 50, sizes, bad, Rejection{Answer: adaptive.AnswerFailed, Outcome: adaptive.UpstreamError, After: 20 * time.Millisecond})
	}, 2, 5)
}

// quota is a bucket of requests that refills at rate, as providers limit requests per minute.
type quota struct {
	rate, burst, level float64
	at                 time.Duration
}

// take a request, or say when one will be there.
func (q *quota) take(now time.Duration) (wait time.Duration, ok bool) {
	q.level = min(q.burst, q.level+q.rate*(now-q.at).Seconds())
	q.at = now
	if q.level >= 1 {
		q.level--
		return 0, true
	}
	return time.Duration((1 - q.level) / q.rate * float64(time.Second)), false
}

// sharedQuota: a provider that serves so many requests a second for all tenants together, at twice that.
func (b *Bench) sharedQuota() []Goal {
	const rate, quiet = 20.0, 10
	setup := func(seed uint64) (Setup, *int) {
		q := &quota{rate: rate, burst: rate, level: rate}
		refused := new(int)
		s := Setup{Seed: seed, Upstream: free(), Warmup: 3 * time.Minute, Length: 13 * time.Minute}
		sizes := fixed(5, 500*time.Millisecond, 0.3, 2*time.Second)
		s.Tenants = append(s.Tenants, Tenant{Name: "hot", Rate: rate, Sizes: sizes})
		for i := range quiet {
			s.Tenants = append(s.Tenants, Tenant{Name: fmt.Sprint("quiet", i), Rate: rate / quiet, Sizes: sizes})
		}
		s.Front = func(r *Run, _ *Exchange) *Rejection {
			wait, ok := q.take(r.now())
			if ok {
				return nil
			}
			if r.now() >= s.Warmup {
				*refused++
			}
			return &Rejection{
				Answer: adaptive.AnswerRefused, Outcome: adaptive.Overload, After: 20 * time.Millisecond,
				RetryAfter: wait.Truncate(time.Second) + time.Second,
			}
		}
		return s, refused
	}
	run := func(seed uint64, f Factory) (*Result, float64) {
		s, refused := setup(seed)
		r := b.Run(s, f)
		return r, float64(*refused)
	}
	completed := func(r *Result) (n float64) {
		for _, t := range r.Tenants {
			n += float64(t.Completed)
		}
		return n
	}
	used := b.judge("shared quota at 2x: quota used", 0.97, false, b.ours(), func(seed uint64, f Factory) float64 {
		r, _ := run(seed, f)
		return completed(r) / rate / (r.setup.Length - r.setup.Warmup).Seconds()
	})
	refused := b.judge("shared quota at 2x: refused by the provider", 0.08, true, b.ours(), func(seed uint64, f Factory) float64 {
		r, n := run(seed, f)
		return n / (n + completed(r))
	})
	share := b.judge("shared quota at 2x: least of its share that a quiet tenant gets", 0.9, false, b.ours(), func(seed uint64, f Factory) float64 {
		r, _ := run(seed, f)
		least := math.Inf(1)
		for _, t := range r.Tenants[1:] {
			least = min(least, float64(t.Completed)/(rate/(quiet+1)*(r.setup.Length-r.setup.Warmup).Seconds()))
		}
		return least
	})
	return []Goal{used, refused, share}
}

// outages: the proxy reaches no upstream for a while and answers by itself.
func (b *Bench) outages() (goals []Goal) {
	for _, away := range []time.Duration{10 * time.Second, time.Minute} {
		const from = 2 * time.Minute
		sizes := fixed(5, 200*time.Millisecond, 0.3, time.Second)
		run := func(seed uint64, f Factory) *Result {
			s := beside(seed, 26, sizes, 0, Rejection{})
			s.Front = func(r *Run, _ *Exchange) *Rejection {
				if now := r.now(); now < from || now >= from+away {
					return nil
				}
				return &Rejection{Answer: adaptive.AnswerProxyFailed, Outcome: adaptive.UpstreamError, After: time.Millisecond}
			}
			return b.Run(s, f)
		}
		goals = append(goals,
			b.judge(fmt.Sprintf("upstream away for %v: limit after over before", away), 0.9, false, b.ours(), func(seed uint64, f Factory) float64 {
				r := run(seed, f)
				return r.limitAt(from+away+5*time.Second) / max(1, r.limitAt(from))
			}),
			atMost(fmt.Sprintf("upstream away for %v: refused from 5 s after its return on", away), b.mean(b.ours(), func(seed uint64, f Factory) float64 {
				return run(seed, f).refusedBetween(from+away+5*time.Second, 6*time.Minute)
			}), 0, ""))
	}
	return goals
}

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

// refusingUpstream: an upstream that refuses what is above its own limit, by status or by gRPC trailers after headers.
func (b *Bench) refusingUpstream() (goals []Goal) {
	figure := func(trailers bool) func(seed uint64, f Factory) float64 {
		return func(seed uint64, f Factory) float64 {
			s := Overload(seed, capacity, Sharing, Moderate(), 6*time.Minute)
			s.Front = func(r *Run, x *Exchange) *Rejection {
				if r.Upstream.load+float64(x.Size.Cost) <= capacity {
					return nil
				}
				no := &Rejection{Answer: adaptive.AnswerRefused, Outcome: adaptive.Overload, After: 20 * time.Millisecond}
				if trailers {
					no.Answer = adaptive.AnswerAccepted
				}
				return no
			}
			r := b.Run(s, f)
			var rejected, forwarded int
			for _, t := range r.Tenants {
				rejected, forwarded = rejected+t.Rejected, forwarded+t.Forwarded
			}
			return float64(rejected) / float64(max(1, forwarded))
		}
	}
	status := b.judge("an upstream that answers 503 above its limit: share refused by it", 0.15, true, b.ours(), figure(false))
	trailers := b.judge("an upstream that says so in gRPC trailers: share refused by it", 0.15, true, b.ours(), figure(true))
	return []Goal{status, trailers, atMost("gRPC trailers over status", trailers.Value/max(1e-9, status.Value), 1.25, "")}
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
