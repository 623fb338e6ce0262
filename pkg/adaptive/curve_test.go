package adaptive

import (
	"math"
	"testing"
)

// Requests with a fixed part of cost 4 that takes no time: their latency is not in proportion to their cost.
func TestCurveLearnsWhatTheCostDoesNotSay(t *testing.T) {
	t.Parallel()
	latency := func(cost int) float64 { return 10 * float64(cost-4) }
	mean := func(c *curve, costs ...int) float64 {
		var s sample
		for _, cost := range costs {
			s.add(latency(cost), c.expected(cost))
		}
		return s.mean()
	}
	c := newCurve()
	small, large := mean(&c, 6), mean(&c, 20)
	if large/small < 2 {
		t.Fatalf("before: %.1f for small, %.1f for large requests, want them apart", small, large)
	}
	level := mean(&c, 6, 6, 8, 20)
	for range 400 {
		for _, cost := range []int{6, 6, 8, 20} {
			c.add(cost, latency(cost))
		}
		level *= c.learn()
	}
	small, large = mean(&c, 6), mean(&c, 20)
	if math.Abs(large/small-1) > .05 {
		t.Errorf("after: %.2f for small, %.2f for large requests, want them equal", small, large)
	}
	if now := mean(&c, 6, 6, 8, 20); math.Abs(level/now-1) > .05 {
		t.Errorf("an average of %.2f was carried along to %.2f", now, level)
	}
}

func TestCurveDoesNotTakeASlowUpstreamForAShape(t *testing.T) {
	t.Parallel()
	c := newCurve()
	for i := range 400 {
		slow := 1 + float64(i)
		c.add(5, 5*slow)
		c.add(50, 50*slow)
		c.learn()
	}
	for _, cost := range []int{5, 50} {
		if got := c.expected(cost); math.Abs(got/float64(cost)-1) > 1e-9 {
			t.Errorf("cost %d is expected as %.3f", cost, got)
		}
	}
}

func TestCostClasses(t *testing.T) {
	t.Parallel()
	last := -1
	for cost := 1; cost <= MaxCost; cost++ {
		k := costClass(cost)
		if k < last || k >= costClasses {
			t.Fatalf("cost %d: class %d after %d, of %d", cost, k, last, costClasses)
		}
		last = k
	}
}
