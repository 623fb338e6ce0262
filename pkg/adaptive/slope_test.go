package adaptive

import (
	"math"
	"testing"
)

func TestSlope(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		latency func(limit float64) float64
		want    float64
		known   bool
	}{
		{"an upstream with room", func(float64) float64 { return 7 }, 0, true},
		{"one that only queues", func(l float64) float64 { return 3 * l }, 1, true},
		{"one past its knee", func(l float64) float64 { return l * l }, 2, true},
		{"one that something else made faster", func(l float64) float64 { return 1 / l }, -1, false},
	} {
		var l slope
		for i := range 60 {
			limit := 50 + float64(i%15)
			l.add(limit, tc.latency(limit), 10)
		}
		got, known := l.elasticity()
		if math.Abs(got-tc.want) > 1e-6 || known != tc.known {
			t.Errorf("%s: elasticity %.3f (%v), want %.3f (%v)", tc.name, got, known, tc.want, tc.known)
		}
	}
	var still slope
	for range 60 {
		still.add(64, 7, 10)
	}
	if e, known := still.elasticity(); known {
		t.Errorf("a limit that stood still: elasticity %.3f known", e)
	}
}
