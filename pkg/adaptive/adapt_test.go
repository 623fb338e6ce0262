package adaptive

import (
	"math"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

// one sends a request that takes the given time to its first byte and ends there.
func (r rig) one(cost int, latency time.Duration, o Outcome) {
	r.t.Helper()
	p := r.ask("t", cost, Admitted)
	p.Forwarded()
	time.Sleep(latency)
	p.FirstToken()
	p.Done(o)
}

func (r rig) limit() int { return r.c.Snapshot().CurrentLimit }

func TestUtilizationIsTheIntegralOverTheWindow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, baseSettings())
		p := r.ask("t", 8, Admitted)
		time.Sleep(100 * time.Millisecond)
		r.numbers("8 of 20 for a window", map[string]any{"utilization": .4})
		done(p)
		time.Sleep(100 * time.Millisecond)
		r.numbers("nothing for a window", map[string]any{"utilization": 0})
		p = r.ask("t", 20, Admitted)
		time.Sleep(25 * time.Millisecond)
		done(p)
		time.Sleep(975 * time.Millisecond)
		p = r.ask("t", 1, Admitted)
		r.numbers("a quarter of a window, then nine eventless", map[string]any{"utilization": 0})
		done(p)
	})
}

func TestCriticalPressureHalvesAtOnceOncePerWindow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := baseSettings()
		s.InitialLimit, s.MinLimit = 80, 1
		r := newRig(t, s)
		want := func(when string, limit int) {
			t.Helper()
			if got := r.limit(); got != limit {
				t.Errorf("%s: limit %d, want %d", when, got, limit)
			}
		}
		r.c.Observe(Critical)
		want("at once", 40)
		r.c.Observe(Critical)
		want("again in the same window", 40)
		r.c.Observe(Normal)
		time.Sleep(99 * time.Millisecond)
		r.c.Observe(Critical)
		want("99 ms later", 40)
		time.Sleep(time.Millisecond)
		r.c.Observe(Critical)
		want("a window later", 20)
		r.c.Observe(Normal)
		time.Sleep(time.Hour)
		want("an idle hour later", 80)
	})
}

// A sampler that has stopped does not keep the limit down for ever with the last that it saw.
func TestPressureThatIsNotSampledAnyMoreIsForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := baseSettings()
		s.InitialLimit, s.MinLimit = 80, 1
		r := newRig(t, s)
		r.c.Observe(High)
		time.Sleep(4 * time.Minute)
		if got := r.limit(); got != 64 {
			t.Errorf("four minutes after the last sample, which was high: limit %d, want 64 still", got)
		}
		time.Sleep(2 * time.Minute)
		r.one(1, time.Millisecond, OK)
		time.Sleep(10 * time.Second)
		if got := r.limit(); got != 80 {
			t.Errorf("six minutes after it: limit %d, want 80", got)
		}
		r.empty()
	})
}

func TestLatencySpikeDoesNotRaiseTheLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := baseSettings()
		s.ShortAlpha, s.LatencyGradientThreshold = .8, .2
		r := newRig(t, s)
		for range 5 {
			r.one(20, 10*time.Millisecond, OK)
		}
		time.Sleep(50 * time.Millisecond)
		before := r.limit()
		for range 5 {
			r.one(10, 200*time.Millisecond, OK)
		}
		if got := r.limit(); got > before {
			t.Errorf("limit %d -> %d", before, got)
		}
	})
}

func TestOneUpstreamErrorIsNoDisaster(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := baseSettings()
		s.InitialLimit = 40
		r := newRig(t, s)
		r.one(40, 100*time.Millisecond, UpstreamError)
		if got := r.limit(); got != 40 {
			t.Errorf("limit %d, want 40", got)
		}
	})
}

func TestAGrownLimitStartsAWaiterWithoutAnotherEvent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, baseSettings())
		a := r.ask("t", 10, Admitted)
		b := r.ask("t", 10, Admitted)
		done(a)
		a = r.ask("t", 10, Admitted)
		w := r.ask("t", 2, Waiting)
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		r.admitted("at the end of the window", w, true)
		done(a, b, w)
		r.empty()
	})
}

// Sparse traffic, however uneven, says nothing about the limit, and the burst that comes after it finds all of it.
func TestSparseTrafficLeavesTheLimitAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, benchSettings())
		rng := rand.New(rand.NewPCG(1, 1))
		for range 600 {
			r.one(5, time.Duration(25+rng.IntN(50))*time.Millisecond, OK)
			time.Sleep(950 * time.Millisecond)
			if got := r.limit(); got != 64 {
				t.Fatalf("limit %d, want 64", got)
			}
		}
		for range 10_000 {
			r.one(1, time.Millisecond, OK)
		}
		if got := r.limit(); got != 64 {
			t.Errorf("one at a time: limit %d, want 64", got)
		}
		var burst []*Permit
		for range 64 {
			burst = append(burst, r.ask("t", 1, Admitted))
		}
		done(burst...)
		r.empty()
	})
}

// load offers requests at random moments: each holds its cost for a random time, and ends as outcome says.
type load struct {
	perSecond float64
	cost      int
	latency   func(*rand.Rand) time.Duration
	outcome   func(*rand.Rand) Outcome
	stream    func(*rand.Rand) time.Duration // after the first byte
}

func (l load) run(r rig, length time.Duration, seed uint64) (limits []float64, refused int) {
	rng := rand.New(rand.NewPCG(seed, 1))
	start := time.Now()
	next := start
	second := start
	for next.Sub(start) < length {
		next = next.Add(time.Duration(rng.ExpFloat64() / l.perSecond * float64(time.Second)))
		time.Sleep(time.Until(next))
		for ; !second.After(next); second = second.Add(time.Second) {
			limits = append(limits, float64(r.limit()))
		}
		p := new(Permit)
		state := r.c.Acquire(p, Request{Lane: "t", Cost: l.cost})
		if state == Refused {
			refused++
			continue
		}
		latency, outcome := l.latency(rng), OK
		if l.outcome != nil {
			outcome = l.outcome(rng)
		}
		var stream time.Duration
		if l.stream != nil {
			stream = l.stream(rng)
		}
		go func() {
			if state == Waiting {
				<-p.Ready()
			}
			p.Forwarded()
			time.Sleep(latency)
			if outcome == OK {
				p.FirstToken()
				time.Sleep(stream)
			}
			p.Done(outcome)
		}()
	}
	time.Sleep(2 * time.Minute)
	synctest.Wait()
	return limits, refused
}

func logNormal(median time.Duration, sigma float64) func(*rand.Rand) time.Duration {
	return func(r *rand.Rand) time.Duration {
		return time.Duration(float64(median) * math.Exp(sigma*r.NormFloat64()))
	}
}

func meanAndVariation(v []float64) (mean, variation float64) {
	for _, x := range v {
		mean += x / float64(len(v))
	}
	for _, x := range v {
		variation += (x - mean) * (x - mean) / float64(len(v))
	}
	return mean, math.Sqrt(variation) / mean
}

func TestNoiseAtLowLoadNeitherRefusesNorMovesTheLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, benchSettings())
		// 30 % of 64: 19.2 cost in flight, of requests of cost 5 that take 0.165 s in the mean.
		limits, refused := load{perSecond: 23, cost: 5, latency: logNormal(100*time.Millisecond, 1)}.run(r, time.Hour, 1)
		mean, variation := meanAndVariation(limits)
		if refused != 0 || variation > .3 {
			t.Errorf("%d refused, limit %.1f with a coefficient of variation of %.2f, want none and under 0.3", refused, mean, variation)
		}
		r.empty()
	})
}

func TestCancelledClientsTeachNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, benchSettings())
		half := func(rng *rand.Rand) Outcome { return []Outcome{OK, Cancelled}[rng.IntN(2)] }
		limits, _ := load{perSecond: 20, cost: 5, latency: logNormal(200*time.Millisecond, .1), outcome: half}.run(r, 10*time.Minute, 1)
		for i, l := range limits {
			if l < 63 || l > 65 {
				t.Fatalf("limit %v after %d s, want 64", l, i)
			}
		}
		r.empty()
	})
}

func TestLongStreamsAreNoSlowResponses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mean := func(stream func(*rand.Rand) time.Duration) float64 {
			r := newRig(t, benchSettings())
			limits, _ := load{perSecond: 4, cost: 20, latency: logNormal(200*time.Millisecond, .2), stream: stream}.run(r, 10*time.Minute, 1)
			m, _ := meanAndVariation(limits)
			return m
		}
		without := mean(nil)
		with := mean(func(rng *rand.Rand) time.Duration {
			if rng.IntN(5) == 0 {
				return 20 * time.Second
			}
			return 0
		})
		if with < .9*without {
			t.Errorf("mean limit %.1f with streams of 20 s among a fifth, %.1f without", with, without)
		}
	})
}

// A hundred times the service time for half an hour, whatever the limit, is no overload of ours: a lower limit would only
// refuse more. When it is over, the limit is not lower than before.
func TestASlowServiceDoesNotHoldTheLimitDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, benchSettings())
		began := time.Now()
		latency := func(rng *rand.Rand) time.Duration {
			median := 50 * time.Millisecond
			if at := time.Since(began); at > 5*time.Minute && at < 35*time.Minute {
				median = 5 * time.Second
			}
			return logNormal(median, .2)(rng)
		}
		limits, _ := load{perSecond: 200, cost: 5, latency: latency}.run(r, 40*time.Minute, 1)
		at := func(d time.Duration) float64 { return limits[int(d/time.Second)] }
		before := at(4*time.Minute + 50*time.Second)
		for _, d := range []time.Duration{7 * time.Minute, 20 * time.Minute, 34*time.Minute + 50*time.Second, 37 * time.Minute} {
			if l := at(d); l < .8*min(64, before) {
				t.Errorf("limit %v after %v, before it %v", l, d, before)
			}
		}
		r.empty()
	})
}
