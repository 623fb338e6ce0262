package adaptive

import "math"

// slope is how latency answers to the limit: the elasticity d log(latency) / d log(limit), fitted over the last minute or
// so in which the limit was what bound. Growing and shedding move the limit to and fro all the time, so that the experiment
// costs nothing.
//
// On an upstream with room the elasticity is 0. Where all further concurrency only queues it is 1, and where it makes the
// upstream lose throughput it is above. In between throughput still grows, by 1 - elasticity: the product of throughput and
// its price in latency is best near one half (Kleinrock, "Power and deterministic rules of thumb for probabilistic
// problems in computer communications", 1979). It needs no idea of what latency should be, and that is what it is used
// for: to tell a normal that was learned wrong from one that is right.
type slope struct {
	n, x, y, xx, xy float64 // decaying sums, weighted by samples
}

const (
	// slopeKeep is what remains of the sums after a window: they remember about 50.
	slopeKeep = 0.98
	// slopeSpread is the variance of log(limit) from which an elasticity can be told: two shedding steps in the memory.
	slopeSpread = 0.003
	// flatBelow is the elasticity under which the limit is not what makes requests slow.
	flatBelow = 0.2
	// kneeFrom is the elasticity from which more concurrency no longer pays. It is above one half because the limit is
	// lowered when latency happens to be high, which makes the fit too steep.
	kneeFrom = 0.65
	// steepFrom is the elasticity above which the whole range of the limit is past the knee.
	steepFrom = 1
)

func (l *slope) add(limit, latency, samples float64) {
	x, y := math.Log(limit), math.Log(latency)
	l.n = l.n*slopeKeep + samples
	l.x = l.x*slopeKeep + samples*x
	l.y = l.y*slopeKeep + samples*y
	l.xx = l.xx*slopeKeep + samples*x*x
	l.xy = l.xy*slopeKeep + samples*x*y
}

// elasticity is false while the limit has not moved enough to tell, and when latency went against the limit: then
// something else was stronger.
func (l *slope) elasticity() (float64, bool) {
	if l.n == 0 {
		return 0, false
	}
	spread := l.xx/l.n - l.x*l.x/(l.n*l.n)
	if spread < slopeSpread {
		return 0, false
	}
	e := (l.xy/l.n - l.x*l.y/(l.n*l.n)) / spread
	return e, e >= 0
}
