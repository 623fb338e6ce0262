package sim

import (
	"math"
	"math/rand/v2"
	"time"
)

// fixed sizes with a latency that scatters evenly by the given share.
func fixed(cost int, prefill time.Duration, scatter float64, generate time.Duration) Sizes {
	return func(r *rand.Rand) Size {
		f := 1 + scatter*(2*r.Float64()-1)
		return Size{Cost: cost, Prefill: time.Duration(f * float64(prefill)), Generate: generate}
	}
}

// rate at which requests of the sizes offer load times the capacity.
func rate(load float64, sizes Sizes) float64 {
	return load * capacity / sizes.meanWork()
}

func one(rate float64, sizes Sizes) []Tenant {
	return []Tenant{{Name: "one", Rate: rate, Sizes: sizes}}
}

// farthest is how far the limit got from where it should be.
func farthest(limits []float64, from float64) float64 {
	var most float64
	for _, l := range limits {
		most = max(most, math.Abs(l-from))
	}
	return most
}

// IdleGoals says that sparse traffic leaves the limit alone, and the burst after it finds all of it.
func IdleGoals(run Runner, length time.Duration) []Goal {
	s := Setup{
		Seed: 1, Tenants: one(1, fixed(1, 50*time.Millisecond, 0.5, 0)),
		Upstream: Upstream{Capacity: capacity, Knee: Sharing}, Warmup: length, Length: length + time.Second,
		Steps: []Step{{At: length, Do: func(r *Run) { r.Inject(0, capacity-1) }}},
	}
	r := run(s, Headgate(Enforcing()))
	return []Goal{
		atMost("one request a second: change of the limit", farthest(r.Limits, capacity), 1, "over %v", length),
		atLeast("the burst after it: admitted at once", float64(atOnce(r.Tenants[0])), capacity-1, "of %d", capacity-1),
	}
}

func atOnce(t TenantResult) int {
	var n int
	for _, w := range t.Waits {
		if w == 0 {
			n++
		}
	}
	return n
}

// SickGoals says that an upstream a hundred times slower, whatever the limit, is not made worse by a limit that falls to the least, and
// one that is well again is used again.
func SickGoals(run Runner, sick time.Duration) []Goal {
	const well = 3 * time.Minute
	sizes := fixed(8, 50*time.Millisecond, 0.3, 0)
	s := Setup{
		Seed: 2, Tenants: one(rate(0.9, sizes), sizes), Timeout: time.Minute,
		Upstream: Upstream{Capacity: capacity, Knee: Sharing}, Length: well + sick + well,
		Steps: []Step{
			{At: well, Do: func(r *Run) { r.Upstream.Slowdown = 100 }},
			{At: well + sick, Do: func(r *Run) { r.Upstream.Slowdown = 1 }},
		},
	}
	r := run(s, Headgate(Enforcing()))
	at := func(d time.Duration) float64 { return r.Limits[int(d/time.Second)-1] }
	return []Goal{
		atLeast("100x slower: limit at the end over the capacity", at(well+sick)/capacity, 0.5, "after %v", sick),
		atMost("100x slower: limit at the end over the capacity, at most", at(well+sick)/capacity, 4, ""),
		atLeast("well again: limit after two minutes over the capacity", at(well+sick+2*time.Minute)/capacity, 0.8, "%.0f before", at(well)),
	}
}

// CancelGoals says that clients that leave teach the limit nothing.
func CancelGoals(run Runner, length time.Duration) []Goal {
	sizes := fixed(4, 300*time.Millisecond, 0.5, time.Second)
	s := Setup{
		Seed: 4, Tenants: one(rate(0.4, sizes), sizes), Cancel: 0.5,
		Upstream: Upstream{Capacity: capacity, Knee: Sharing}, Length: length,
	}
	r := run(s, Headgate(Enforcing()))
	t := r.Tenants[0]
	lost := t.Offered - t.Refused - t.Completed - t.Timeouts - t.Cancelled - r.Open
	return []Goal{
		atMost("half of the clients cancel: change of the limit", farthest(r.Limits, capacity), 1, "%d of %d", t.Cancelled, t.Offered),
		atMost("requests without an outcome", math.Abs(float64(lost)), 0, ""),
	}
}

// StreamGoals has a case in which a fifth of the responses stream for a minute, and hold almost half of the limit; the limit is that of a run
// without them.
func StreamGoals(run Runner, length time.Duration) []Goal {
	short := fixed(4, 300*time.Millisecond, 0.5, 0)
	mixed := func(r *rand.Rand) Size {
		size := short(r)
		if r.Float64() < 0.2 {
			size.Generate = time.Minute
		}
		return size
	}
	limit := func(sizes Sizes) float64 {
		s := Setup{
			Seed: 5, Tenants: one(rate(0.5, mixed), sizes),
			Upstream: Upstream{Capacity: capacity, Knee: Sharing}, Length: length,
		}
		return run(s, Headgate(Enforcing())).Mean(length/2, length)
	}
	without, with := limit(short), limit(mixed)
	return []Goal{atMost("a fifth streams for a minute: change of the limit", math.Abs(with/without-1), 0.10, "%.0f without, %.0f with", without, with)}
}

// NoiseGoals says that latency that scatters widely at a load far below the limit refuses nobody.
func NoiseGoals(run Runner, length time.Duration) []Goal {
	sizes := LogNormal{Cost: 4, Sigma: 0.3, PerCost: 50 * time.Millisecond, Noise: 1}.Sizes()
	s := Setup{
		Seed: 6, Tenants: one(rate(0.3, sizes), sizes), Upstream: Upstream{Capacity: capacity, Knee: Sharing}, Length: length,
	}
	r := run(s, Headgate(Enforcing()))
	mean := r.Mean(0, length)
	var squares float64
	for _, l := range r.Limits {
		squares += (l - mean) * (l - mean)
	}
	cv := math.Sqrt(squares/float64(len(r.Limits))) / mean
	return []Goal{
		atMost("log-normal latency of sigma 1 at 30 % load: refused", float64(r.Tenants[0].Refused), 0, "of %d", r.Tenants[0].Offered),
		atMost("log-normal latency of sigma 1: variation of the limit", cv, 0.3, "mean %.0f", mean),
	}
}

// CreditGoals says that nobody saves up credit, and a few small requests do not wait behind many large ones.
func CreditGoals(run Runner) []Goal {
	const busy, idle = 0, 1
	settings := Static(capacity)
	settings.MaxQueueCount, settings.MaxQueueCost, settings.MaxWait = 2000, 100_000, time.Hour

	large, small := fixed(40, time.Second, 0, 0), fixed(1, time.Second, 0, 0)
	s := Setup{
		Seed: 7, Tenants: []Tenant{{Name: "large", Sizes: large}, {Name: "small", Sizes: small}},
		Upstream: Upstream{Capacity: capacity, Knee: Sharing}, Length: time.Minute,
		Steps: []Step{
			{At: time.Second, Do: func(r *Run) { r.Inject(busy, 1000) }},
			{At: 10500 * time.Millisecond, Do: func(r *Run) { r.Inject(idle, 10) }},
		},
	}
	wait := run(s, Headgate(settings)).Wait(1, idle)

	var grants [2]int
	same := fixed(4, time.Second, 0.2, 0)
	s = Setup{
		Seed: 8, Tenants: []Tenant{{Name: "busy", Sizes: same}, {Name: "idle", Sizes: same}},
		Upstream: Upstream{Capacity: capacity, Knee: Sharing}, Length: 700 * time.Second,
	}
	for at := time.Second; at < 640*time.Second; at += 10 * time.Second {
		s.Steps = append(s.Steps, Step{At: at, Do: func(r *Run) { r.Inject(busy, 200) }})
	}
	s.Steps = append(s.Steps, Step{At: 605 * time.Second, Do: func(r *Run) { r.Inject(idle, 100) }})
	returned := false
	s.Forwarded = func(tenant int) {
		returned = returned || tenant == idle
		if returned && grants[busy]+grants[idle] < 100 {
			grants[tenant]++
		}
	}
	run(s, Headgate(settings))
	return []Goal{
		atMost("10 small behind 1000 large: longest wait in service times", wait.Seconds(), 2, ""),
		atMost("back after 10 idle minutes: share of the next 100 grants", float64(grants[idle]), 60, ""),
	}
}
