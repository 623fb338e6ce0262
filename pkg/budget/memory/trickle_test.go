package memory

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestTheTrickleEndsWhatNothingElseWould: a garbage-collected process whose memory falls only as it serves requests. Without
// a trickle it is critical for ever.
func TestTheTrickleEndsWhatNothingElseWould(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		trickle := newTrickle()
		var state pressureState
		used, sinceCollection := .95, 0
		var p Pressure
		var admitted []int
		for range 120 { // seconds
			p = state.step(time.Now(), calm(memory(used)), DefaultPressureSettings(), .75)
			trickle.observe(p, state.measured)
			let := 0
			for range 100 { // requests in this second
				time.Sleep(10 * time.Millisecond)
				if p.Severity < Critical || trickle.admit() {
					let++
				}
			}
			admitted = append(admitted, let)
			if p.Severity == Critical {
				sinceCollection += let
			}
			if sinceCollection >= 30 { // it collects
				sinceCollection, used = 0, .5
			}
			if p.Severity == Normal && len(admitted) > 2 {
				break
			}
		}
		if p.Severity != Normal {
			t.Fatalf("after %d s the pressure is still %+v; admitted each second: %v", len(admitted), p, admitted)
		}
		if admitted[1] > 2 {
			t.Errorf("%d admitted in the first second of critical pressure, want one", admitted[1])
		}
		t.Logf("normal after %d s; admitted each second: %v", len(admitted), admitted)
	})
}

// TestTheTrickleBeginsAnewWhenItGetsWorse: each that leaves the signal no worse allows more, one that does not stops that.
func TestTheTrickleBeginsAnewWhenItGetsWorse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		trickle := newTrickle()
		second := func(value float64) (let int) {
			trickle.observe(Pressure{Severity: Critical, Signal: SignalMemoryRatio, Value: value}, true)
			for range 100 {
				time.Sleep(10 * time.Millisecond)
				if trickle.admit() {
					let++
				}
			}
			return let
		}
		var got []int
		for _, value := range []float64{.95, .95, .95, .94, .97, .97} {
			got = append(got, second(value))
		}
		for i, most := range []int{2, 3, 6, 10, 2, 4} {
			if got[i] < 1 || got[i] > most {
				t.Errorf("admitted each second: %v, want 1 to %d in second %d", got, most, i+1)
			}
		}
	})
}

// TestTheTrickleNeedsAMeasurement: a value that is held, because its file cannot be read or because a kill is not measured again,
// is no sign that what was let through did no harm; and another kill begins anew.
func TestTheTrickleNeedsAMeasurement(t *testing.T) {
	t.Parallel()
	for name, samples := range map[string][]sample{
		"unreadable": {calm(memory(.95)), calm(memory(.95)), calm(memory(unknown)), calm(memory(unknown)), calm(memory(unknown)), calm(memory(unknown))},
		"a kill":     {calm(kills(0)), calm(kills(1)), calm(kills(1)), calm(kills(1)), calm(kills(1)), calm(kills(1))},
		"two kills":  {calm(kills(0)), calm(kills(1)), calm(kills(1)), calm(kills(2)), calm(kills(2)), calm(kills(2))},
	} {
		synctest.Test(t, func(t *testing.T) {
			trickle := newTrickle()
			var state pressureState
			for i, s := range samples {
				p := state.step(time.Now(), s, DefaultPressureSettings(), .75)
				trickle.observe(p, state.measured)
				let := 0
				for range 100 {
					time.Sleep(10 * time.Millisecond)
					if p.Severity == Critical && trickle.admit() {
						let++
					}
				}
				if i > 0 && (p.Severity != Critical || let < 1 || let > 2) {
					t.Errorf("%s, second %d: %d let through at %+v, want one a second of critical pressure", name, i+1, let, p)
				}
			}
		})
	}
}
