package adaptive

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestStep(t *testing.T) {
	t.Parallel()
	even := known(64, 100, 100)
	busy := evidence{utilization: 1, fresh: firsts(9, 100), completed: 9}
	with := func(e evidence, f func(*evidence)) evidence { f(&e); return e }
	for _, tc := range []struct {
		name   string
		from   state
		e      evidence
		limit  int
		reason StepReason
	}{
		{"latency far above normal sheds a fifth", known(64, 5500, 1900), evidence{utilization: 1, fresh: firsts(1, 5500), completed: 1}, 51, StepLatency},
		{"used and completed grows by the step", even, with(busy, func(e *evidence) { e.utilization = .7 }), 65, StepGrow},
		{"just under the upper utilisation holds", even, with(busy, func(e *evidence) { e.utilization = .69 }), 64, StepHold},
		{"failures freeze growth", even, with(busy, func(e *evidence) { e.others = answers{all: 20, failed: 3} }), 64, StepFrozen},
		{"nothing completed, no growth", even, with(busy, func(e *evidence) { e.completed = 0 }), 64, StepHold},
		{"a gradient of exactly the threshold sheds", known(64, 125, 100), with(busy, func(e *evidence) { e.fresh = firsts(9, 125) }), 51, StepLatency},
		{"just under the threshold comes down slowly", known(64, 124, 100), with(busy, func(e *evidence) { e.fresh = firsts(9, 124) }), 64, StepEase},
		{"without samples nothing tells of too much growth", even, with(busy, func(e *evidence) { e.fresh = [populations]sample{} }), 64, StepGrow},
		{"where no latency is known completed requests are enough", state{limit: 64, found: true}, with(busy, func(e *evidence) { e.fresh = [populations]sample{} }), 65, StepGrow},
		{"critical halves", known(80, 100, 100), evidence{pressure: Critical}, 40, StepCritical},
		{"the least limit holds under critical", known(9, 100, 100), evidence{pressure: Critical}, 8, StepCritical},
		{"critical that has cut already does not cut twice", known(40, 100, 100), with(busy, func(e *evidence) { e.pressure, e.cut = Critical, true }), 40, StepHold},
		{"after a cut nothing grows in the same window", known(40, 100, 100), with(busy, func(e *evidence) { e.cut = true }), 40, StepHold},
		{"high pressure sheds a fifth", even, evidence{pressure: High}, 51, StepPressure},
		{"refusals by the upstream shed a fifth", even, with(busy, func(e *evidence) { e.others = answers{all: 20, refused: 3} }), 51, StepOverload},
		{"a stray refusal changes nothing", even, with(busy, func(e *evidence) { e.others = answers{all: 20, refused: 1} }), 65, StepGrow},
		{"idle and under the initial limit recovers", known(30, 100, 100), evidence{}, 31, StepRecover},
		{"idle at the initial limit stays", even, evidence{}, 64, StepHold},
		{"sparse traffic stays, however slow", even, evidence{utilization: .02, fresh: firsts(1, 9000), completed: 1}, 64, StepHold},
		{"so does hardly used", known(30, 100, 100), evidence{utilization: .02, fresh: firsts(1, 100), completed: 1}, 31, StepRecover},
		{"latency does not shed while the limit is not what binds", known(64, 5500, 1900), evidence{utilization: .84, fresh: firsts(9, 5500), completed: 9}, 64, StepHold},
		{"growth ends at the highest limit", known(1000, 100, 100), busy, 1000, StepGrow},
	} {
		got, reason := step(DefaultSettings(), tc.from, tc.e)
		if got.limit != tc.limit || reason != tc.reason {
			t.Errorf("%s: limit %d -> %d (%s), want %d (%s)", tc.name, tc.from.limit, got.limit, reason, tc.limit, tc.reason)
		}
	}
}

// upstream answers every window of a limit that binds with a latency that depends on the limit.
func upstream(st state, windows int, latency func(limit float64) float64) (state, []int) {
	s := DefaultSettings()
	var limits []int
	for range windows {
		st, _ = step(s, st, evidence{utilization: 1, fresh: firsts(20, latency(float64(st.limit))), completed: 20})
		limits = append(limits, st.limit)
	}
	return st, limits
}

func meanOf(limits []int) float64 {
	var sum float64
	for _, l := range limits {
		sum += float64(l)
	}
	return sum / float64(len(limits))
}

// Wherever it starts, the limit comes to where latency begins to answer to it: where the elasticity of latency is about a half.
func TestTheLimitFindsTheKnee(t *testing.T) {
	t.Parallel()
	const capacity = 64
	for _, tc := range []struct {
		name     string
		latency  func(limit float64) float64
		low, top float64
	}{
		{"an upstream that queues", func(l float64) float64 { return 100 * max(1, l/capacity) }, 51, 96},
		{"one that shares softly", func(l float64) float64 { return 100 * math.Sqrt(1+l*l/capacity/capacity) }, 45, 100},
		{"one whose throughput collapses", func(l float64) float64 { x := l / capacity; return 100 * max(1, x/max(0.2, 2-x)) }, 48, 80},
	} {
		for _, initial := range []int{16, 64, 256, 640} {
			_, limits := upstream(state{limit: initial}, 600, tc.latency)
			if got := meanOf(limits[300:]); got < tc.low || got > tc.top {
				t.Errorf("%s from %d: limit %.0f after 300 windows, want %.0f..%.0f", tc.name, initial, got, tc.low, tc.top)
			}
		}
	}
}

// A service time that steps does not answer to the limit: within 60 windows the limit is back, and then grows.
func TestAServiceTimeThatStepsIsAccepted(t *testing.T) {
	t.Parallel()
	for _, factor := range []float64{1.5, 2, 10, 100} {
		st, _ := upstream(known(64, 1e6, 1e6), 60, func(float64) float64 { return 1e6 * factor })
		if st.limit < 58 {
			t.Errorf("latency times %g: limit %d after 60 windows, want at least 0.9 of 64", factor, st.limit)
		}
	}
}

// A trial that nobody is there for, or during which latency goes against the limit, concludes nothing.
func TestATrialWithoutEvidenceConcludesNothing(t *testing.T) {
	t.Parallel()
	s := DefaultSettings()
	begun := func() state {
		st, reason := step(s, known(64, 5500, 1900), evidence{utilization: 1, fresh: firsts(9, 5500), completed: 9})
		if reason != StepLatency || !st.trial.running() {
			t.Fatalf("no trial: %s", reason)
		}
		return st
	}
	idle, reason := step(s, begun(), evidence{utilization: .1})
	if reason != StepRestore || idle.trial.running() || idle.level().long != 1900 {
		t.Errorf("nobody there: %s, normal %v, want it restored and 1900", reason, idle.level().long)
	}
	st := begun()
	for from := st.trial.from; st.trial.from == from; {
		st, _ = step(s, st, evidence{utilization: 1, fresh: firsts(20, 50_000), completed: 20})
	}
	if !st.trial.running() || st.level().long != 1900 {
		t.Errorf("latency went up as the limit went down: trial %+v, normal %v, want another trial and 1900 still", st.trial, st.level().long)
	}
}

func TestStepSeedsBothAveragesWithTheFirstSample(t *testing.T) {
	t.Parallel()
	st, _ := step(DefaultSettings(), state{limit: 64}, evidence{utilization: 1, fresh: firsts(1, 700), completed: 1})
	if l := st.level(); l.short != 700 || l.long != 700 {
		t.Errorf("short %v, long %v, want 700", l.short, l.long)
	}
}

func TestStepStaleEvidenceExpiresWhenLoadIsLow(t *testing.T) {
	t.Parallel()
	st, _ := step(DefaultSettings(), known(64, 900, 100), evidence{utilization: .3})
	if l := st.level(); l.short != l.long {
		t.Errorf("short %v, long %v, want equal", l.short, l.long)
	}
}

// Whatever the evidence, the limit stays within its bounds, rises by at most what a window may, or to what it was before a
// trial, and falls by at most the critical factor.
func TestStepIsBounded(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := DefaultSettings()
		s.MinLimit = rapid.IntRange(1, 50).Draw(t, "min")
		s.MaxLimit = rapid.IntRange(s.MinLimit, maxQuantity).Draw(t, "max")
		s.IncreaseStep = rapid.IntRange(1, maxQuantity).Draw(t, "step")
		s.MaxIncreasePerWindow = rapid.IntRange(1, maxQuantity).Draw(t, "rise")
		latency := rapid.Float64Range(0, 1e18)
		st := known(rapid.IntRange(s.MinLimit, s.MaxLimit).Draw(t, "limit"), latency.Draw(t, "short"), latency.Draw(t, "long"))
		st.found = rapid.Bool().Draw(t, "found")
		for range 20 {
			e := evidence{
				utilization: rapid.Float64Range(0, 1).Draw(t, "utilization"),
				fresh:       firsts(rapid.IntRange(0, 1000).Draw(t, "fresh"), latency.Draw(t, "latency")),
				completed:   rapid.IntRange(0, 1000).Draw(t, "completed"),
				others:      answers{all: 1000, refused: rapid.Float64Range(0, 100).Draw(t, "refused")}, pressure: Severity(rapid.IntRange(0, 2).Draw(t, "pressure")),
				cut: rapid.Bool().Draw(t, "cut"), waiting: rapid.Bool().Draw(t, "waiting"),
			}
			from := st
			var reason StepReason
			st, reason = step(s, st, e)
			low := max(s.MinLimit, scale(from.limit, s.CriticalDecreaseFactor))
			high := min(s.MaxLimit, max(from.limit+s.MaxIncreasePerWindow, from.trial.from))
			if reason == StepRecover {
				high = min(s.MaxLimit, max(s.InitialLimit, high))
			}
			if math.IsNaN(st.growth.age) || st.limit < low || st.limit > high {
				t.Fatalf("%s: limit %d -> %d, want in %d..%d; growth %+v", reason, from.limit, st.limit, low, high, st.growth)
			}
		}
	})
}

// known is a state with a limit, settled averages, and a search that holds.
func known(limit int, short, long float64) state {
	st := state{limit: limit, found: true, proven: 1e6, bound: true, steady: true, since: time.Hour}
	st.latency[firstTokens] = level{short: short, long: long, count: 1e6, seen: settledSamples}
	return st
}

// firsts are samples of first tokens that all show the same latency, at a cost of 1.
func firsts(n int, latency float64) (of [populations]sample) {
	for range n {
		of[firstTokens].add(latency, 1)
	}
	return of
}
