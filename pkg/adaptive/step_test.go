package adaptive

import (
	"testing"

	"pgregory.net/rapid"
)

func TestStep(t *testing.T) {
	t.Parallel()
	even := known(64, 100, 100)
	busy := evidence{utilization: 1, fresh: samples(9, 100), completed: 9}
	with := func(e evidence, f func(*evidence)) evidence { f(&e); return e }
	for _, tc := range []struct {
		name   string
		from   state
		e      evidence
		limit  int
		reason StepReason
	}{
		{"latency far above normal sheds a fifth", known(64, 5500, 1900), evidence{utilization: 1, fresh: samples(1, 5500), completed: 1}, 51, StepLatency},
		{"used and completed grows by the step", even, with(busy, func(e *evidence) { e.utilization = .7 }), 65, StepGrow},
		{"just under the upper utilisation holds", even, with(busy, func(e *evidence) { e.utilization = .69 }), 64, StepHold},
		{"failures freeze growth", even, with(busy, func(e *evidence) { e.others = answers{all: 20, failed: 3} }), 64, StepFrozen},
		{"nothing completed, no growth", even, with(busy, func(e *evidence) { e.completed = 0 }), 64, StepHold},
		{"a gradient of exactly the threshold sheds", known(64, 125, 100), with(busy, func(e *evidence) { e.fresh = samples(9, 125) }), 51, StepLatency},
		{"just under the threshold does not", known(64, 124, 100), with(busy, func(e *evidence) { e.fresh = samples(9, 124) }), 65, StepGrow},
		{"without samples there is no gradient", known(64, 500, 100), with(busy, func(e *evidence) { e.fresh = sample{} }), 65, StepGrow},
		{"critical halves", known(80, 100, 100), evidence{pressure: Critical}, 40, StepCritical},
		{"the least limit holds under critical", known(9, 100, 100), evidence{pressure: Critical}, 8, StepCritical},
		{"critical that has cut already does not cut twice", known(40, 100, 100), with(busy, func(e *evidence) { e.pressure, e.cut = Critical, true }), 40, StepHold},
		{"after a cut nothing grows in the same window", known(40, 100, 100), with(busy, func(e *evidence) { e.cut = true }), 40, StepHold},
		{"high pressure sheds a fifth", even, evidence{pressure: High}, 51, StepPressure},
		{"refusals by the upstream shed a fifth", even, with(busy, func(e *evidence) { e.others = answers{all: 20, refused: 3} }), 51, StepOverload},
		{"a stray refusal changes nothing", even, with(busy, func(e *evidence) { e.others = answers{all: 20, refused: 1} }), 65, StepGrow},
		{"idle and under the initial limit recovers", known(30, 100, 100), evidence{}, 31, StepRecover},
		{"idle at the initial limit stays", even, evidence{}, 64, StepHold},
		{"sparse traffic stays, however slow", even, evidence{utilization: .02, fresh: samples(1, 9000), completed: 1}, 64, StepHold},
		{"so does hardly used", known(30, 100, 100), evidence{utilization: .02, fresh: samples(1, 100), completed: 1}, 31, StepRecover},
		{"growth ends at the highest limit", known(1000, 100, 100), busy, 1000, StepGrow},
	} {
		got, reason := step(DefaultSettings(), tc.from, tc.e)
		if got.limit != tc.limit || reason != tc.reason {
			t.Errorf("%s: limit %d -> %d (%s), want %d (%s)", tc.name, tc.from.limit, got.limit, reason, tc.limit, tc.reason)
		}
	}
}

func TestStepFreezesTheLongAverageWhileShedding(t *testing.T) {
	t.Parallel()
	st := known(64, 5500, 1900)
	for st.limit > 8 {
		st, _ = step(DefaultSettings(), st, evidence{utilization: 1, fresh: samples(5, 5500), completed: 5})
	}
	if st.long != 1900 {
		t.Errorf("after shedding from 64 to 8: long %v, want 1900", st.long)
	}
}

// A slow upstream does not become normal while it is slow, but nor is one that stays slow held down for ever.
func TestStepAtTheLeastLimit(t *testing.T) {
	t.Parallel()
	s := DefaultSettings()
	for _, tc := range []struct {
		name    string
		slower  float64
		windows int
		settled func(state) bool
	}{
		{"a hundred times slower for 30 minutes keeps the least limit", 100, 1800, func(st state) bool { return st.limit <= 2*s.MinLimit }},
		{"twice as slow for good is normal after 10 minutes", 2, 600, func(st state) bool { return st.limit > 2*s.MinLimit }},
	} {
		st := known(64, 1000, 1000)
		for range tc.windows {
			st, _ = step(s, st, evidence{
				utilization: 1, fresh: samples(5, 1000*tc.slower), calm: samples(5, 1000*tc.slower), completed: 5,
			})
		}
		if !tc.settled(st) {
			t.Errorf("%s: limit %d, long %.0f", tc.name, st.limit, st.long)
		}
	}
}

func TestStepSeedsBothAveragesWithTheFirstSample(t *testing.T) {
	t.Parallel()
	st, _ := step(DefaultSettings(), state{limit: 64}, evidence{utilization: 1, fresh: samples(1, 700), completed: 1})
	if st.short != 700 || st.long != 700 {
		t.Errorf("short %v, long %v, want 700", st.short, st.long)
	}
}

func TestStepStaleEvidenceExpiresWhenLoadIsLow(t *testing.T) {
	t.Parallel()
	st, _ := step(DefaultSettings(), state{limit: 64, short: 900, long: 100}, evidence{utilization: .3})
	if st.short != st.long {
		t.Errorf("short %v, long %v, want equal", st.short, st.long)
	}
}

// Whatever the evidence, the limit stays within its bounds, rises by at most what a window may, and falls by at most the
// critical factor.
func TestStepIsBounded(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := DefaultSettings()
		s.MinLimit = rapid.IntRange(1, 50).Draw(t, "min")
		s.MaxLimit = rapid.IntRange(s.MinLimit, maxQuantity).Draw(t, "max")
		s.IncreaseStep = rapid.IntRange(1, maxQuantity).Draw(t, "step")
		s.MaxIncreasePerWindow = rapid.IntRange(1, maxQuantity).Draw(t, "rise")
		latency := rapid.Float64Range(0, 1e18)
		st := state{limit: rapid.IntRange(s.MinLimit, s.MaxLimit).Draw(t, "limit"), short: latency.Draw(t, "short"), long: latency.Draw(t, "long")}
		e := evidence{
			utilization: rapid.Float64Range(0, 1).Draw(t, "utilization"),
			load:        rapid.Float64Range(0, 1e9).Draw(t, "load"),
			fresh:       samples(rapid.IntRange(0, 1000).Draw(t, "fresh"), latency.Draw(t, "latency")),
			stale:       samples(rapid.IntRange(0, 1000).Draw(t, "stale"), latency.Draw(t, "latency before")),
			completed:   rapid.IntRange(0, 1000).Draw(t, "completed"),
			others:      answers{all: 1000, refused: rapid.Float64Range(0, 1000).Draw(t, "refused")}, pressure: Severity(rapid.IntRange(0, 2).Draw(t, "pressure")),
			cut: rapid.Bool().Draw(t, "cut"), waiting: rapid.Bool().Draw(t, "waiting"),
		}
		got, reason := step(s, st, e)
		low := max(s.MinLimit, scale(st.limit, s.CriticalDecreaseFactor))
		high := min(s.MaxLimit, st.limit+min(s.IncreaseStep, s.MaxIncreasePerWindow))
		if got.limit < low || got.limit > high {
			t.Fatalf("%s: limit %d -> %d, want in %d..%d", reason, st.limit, got.limit, low, high)
		}
	})
}

// known is a state with a limit and settled averages.
func known(limit int, short, long float64) state {
	return state{limit: limit, short: short, long: long, count: 1e6, seen: settledSamples, reference: float64(limit)}
}

// samples that all show the same latency, at a cost of 1.
func samples(n int, latency float64) sample {
	var s sample
	for range n {
		s.add(latency, 1)
	}
	return s
}
