package adaptive

import (
	"encoding/binary"
	"math"
	"math/bits"
)

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

// pool adds a sum of samples of one class to the window's; the result is their expected cost.
func (c *curve) pool(class int, sum ClassSum) (expected float64) {
	w := &c.window[class]
	w.latency, w.cost = w.latency+sum.Latency, w.cost+sum.Cost
	c.fresh = true
	return c.shape[class] * sum.Cost
}

// forget the window's samples.
func (c *curve) forget() {
	clear(c.window[:])
	c.fresh = false
}

// adopt another curve's shape, and what it is from.
func (c *curve) adopt(other *curve) { c.shape, c.took, c.cost = other.shape, other.took, other.cost }

// append the sums that the shape is from: the number of classes that have any, then class, latency and cost of each.
func (c *curve) append(b []byte) []byte {
	at := len(b)
	b = append(b, 0)
	for k := range c.cost {
		if c.cost[k] > 0 {
			b = append(b, byte(k))
			b = binary.BigEndian.AppendUint32(b, math.Float32bits(float32(c.took[k])))
			b = binary.BigEndian.AppendUint32(b, math.Float32bits(float32(c.cost[k])))
			b[at]++
		}
	}
	return b
}

// read what append wrote; the result is what follows.
func (c *curve) read(b []byte) ([]byte, bool) {
	const each = 1 + 4 + 4
	if len(b) < 1 || len(b) < 1+int(b[0])*each {
		return nil, false
	}
	n, b := int(b[0]), b[1:]
	for range n {
		k := int(b[0])
		took, cost := float64(math.Float32frombits(binary.BigEndian.Uint32(b[1:]))), float64(math.Float32frombits(binary.BigEndian.Uint32(b[5:])))
		if k >= costClasses || !(took >= 0 && cost >= 0) || math.IsInf(took+cost, 0) {
			return nil, false
		}
		c.took[k], c.cost[k], c.shape[k] = took, cost, shapeOf(took, cost)
		b = b[each:]
	}
	return b, true
}

func shapeOf(took, cost float64) float64 { return max(minShape, (took+shapePrior)/(cost+shapePrior)) }

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
		c.shape[k] = shapeOf(c.took[k], c.cost[k])
		after += c.cost[k] * c.shape[k]
	}
	c.forget()
	if after == 0 {
		return 1
	}
	return before / after
}
