package adaptive

import "math"

// answers counts how the upstream answered a lane's requests, or those of several lanes. Counts decay by window.
type answers struct {
	all, refused, failed float64
	window               int64 // up to which they have decayed
	since                int64 // requests forwarded earlier are not counted
}

const (
	// answersKept is what remains of a count after a window: it remembers about 20.
	answersKept = 0.95
	// fewAnswers is how many refusals, or failures, make a share of them mean anything.
	fewAnswers = 3
	// alone is the share of all answers from which a lane is the only one that matters.
	alone = 0.95
)

func (a *answers) decay(window int64) {
	if n := window - a.window; n > 0 {
		f := math.Pow(answersKept, float64(n))
		a.all, a.refused, a.failed, a.window = a.all*f, a.refused*f, a.failed*f, window
	}
}

// answeredLocked counts how a request ended. Cancelled clients, refusals of ours and answers of the proxy say nothing, and
// nor do requests that were forwarded before the limit was last lowered.
func (c *Controller) answeredLocked(p *Permit, o Outcome) {
	since := c.window.shedAt
	if p.answer == AnswerProxyFailed || o > Overload || (p.forwarded != notForwarded && p.forwarded < since) {
		return
	}
	a := &p.lane.answers
	if a.since != since {
		*a = answers{since: since}
	}
	a.decay(c.now / int64(c.settings.Window))
	a.all++
	switch o {
	case UpstreamError, Timeout:
		a.failed++
		c.troubled = true
	case Overload:
		a.refused++
		c.troubled = true
	}
}

// othersLocked sums the answers of all lanes but the one with most refusals and failures: one tenant's exhausted key or
// broken requests are not the upstream's condition. When nearly all answers are that lane's, they count.
func (c *Controller) othersLocked() answers {
	if !c.troubled {
		return answers{}
	}
	var sum, worst answers
	window := c.now / int64(c.settings.Window)
	c.lanes.each(func(l *lane) {
		a := &l.answers
		if a.since != c.window.shedAt {
			return
		}
		a.decay(window)
		sum.all, sum.refused, sum.failed = sum.all+a.all, sum.refused+a.refused, sum.failed+a.failed
		if a.refused+a.failed > worst.refused+worst.failed {
			worst = *a
		}
	})
	c.troubled = sum.refused+sum.failed >= 0.01
	return sum.without(worst)
}

// without leaves a lane out of the answers of all, unless nearly all are that lane's.
func (a answers) without(worst answers) answers {
	if worst.all >= alone*a.all {
		return a
	}
	return answers{all: a.all - worst.all, refused: a.refused - worst.refused, failed: a.failed - worst.failed}
}

// overloaded reports whether refusals are frequent enough to mean overload.
func (a answers) overloaded() bool {
	return a.refused >= fewAnswers && a.refused >= overloadShare*a.all
}

// doubtful reports whether refusals and failures are frequent enough to stop growth.
func (a answers) doubtful() bool {
	bad := a.refused + a.failed
	return bad >= fewAnswers && bad >= overloadShare*a.all
}
