package endurance

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestFit: a leak is told from noise, and noise from a leak.
func TestFit(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	series := func(leak float64, noise func(i int) float64) (times, values []float64) {
		for i := range 150 { // 5 min, a value every 2 s
			at := float64(2 * i)
			times, values = append(times, at), append(values, 50+leak*at+noise(i))
		}
		return times, values
	}
	white := func(int) float64 { return 5 * random.NormFloat64() }
	sawtooth := func(i int) float64 { return float64(i % 10) } // what a collector makes
	for name, c := range map[string]struct {
		leak  float64
		noise func(int) float64
		flat  bool
	}{
		"nothing":          {0, func(int) float64 { return 0 }, true},
		"noise":            {0, white, true},
		"a collector":      {0, sawtooth, true},
		"a leak":           {0.1, func(int) float64 { return 0 }, false},
		"a leak in noise":  {0.1, white, false},
		"a leak collected": {0.1, sawtooth, false},
		"what shrinks":     {-0.1, white, true},
	} {
		l := fit(series(c.leak, c.noise))
		if l.flat(300, 5) != c.flat {
			t.Errorf("%s: %.3f ± %.3f a second is at least %.1f in 5 min, want flat within 5: %t", name, l.slope, l.half, l.growth(300), c.flat)
		}
	}
	if l := fit([]float64{1, 2}, []float64{1, 2}); !math.IsInf(l.half, 1) {
		t.Errorf("two values: ± %v, want no certainty", l.half)
	}
}
