package memory

import (
	"sync/atomic"

	"golang.org/x/time/rate"
)

// The trickle's rates, in requests a second.
const (
	trickleStart = 1
	trickleMost  = 1024
)

// trickle is what critical pressure lets through. A garbage-collected process that gets no requests never collects, so that
// nothing would ever end its pressure. It begins with one request a second; each sample after which the signal is no worse
// although something was let through doubles the rate, and one that is worse begins anew.
type trickle struct {
	limiter  *rate.Limiter
	admitted atomic.Int64 // since the last sample

	// Of the sampler alone.
	signal string
	value  float64
}

func newTrickle() *trickle { return &trickle{limiter: rate.NewLimiter(trickleStart, 1)} }

// admit lets one request through, or not.
func (t *trickle) admit() bool {
	if !t.limiter.Allow() {
		return false
	}
	t.admitted.Add(1)
	return true
}

// observe takes in what the last sample showed. measured says that its signal was read anew: that a value which is held
// is no worse says nothing.
func (t *trickle) observe(p Pressure, measured bool) {
	admitted := t.admitted.Swap(0)
	switch same := p.Signal == t.signal; {
	case p.Severity < Critical, !same, p.Value > t.value:
		t.set(trickleStart)
	case measured && admitted > 0:
		t.set(min(2*float64(t.limiter.Limit()), trickleMost))
	}
	t.signal, t.value = p.Signal, p.Value
}

func (t *trickle) set(perSecond float64) {
	t.limiter.SetLimit(rate.Limit(perSecond))
	t.limiter.SetBurst(max(1, int(perSecond)))
}
