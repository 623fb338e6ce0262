package adaptive

import "time"

// window is what the current adaptation window has shown so far.
type window struct {
	end int64 // when it ends

	busy     float64 // integral of min(active cost, limit), or of the limit while someone waits, in cost-nanoseconds
	capacity float64 // integral of the limit

	fresh [populations]sample

	completed int

	severity Severity // last observed
	observed int64    // when that was
	peak     Severity // worst that was sampled in this window: each sample counts once
	lastCut  int64    // when critical pressure last lowered the limit
	everCut  bool
	shedAt   int64 // requests forwarded before this say nothing about the limit

	utilization float64 // of the last complete window
	lastReason  StepReason
}

// cutWithin reports whether critical pressure has lowered the limit less than a window before t.
func (w *window) cutWithin(t int64, length time.Duration) bool {
	return w.everCut && t-w.lastCut < int64(length)
}

// severityLasts is for how long a sample of pressure counts: five of the longest intervals that can be configured. When none
// follows, the sampler has stopped, and what it saw last says nothing about now.
const severityLasts = 5 * time.Minute

// strained reports whether pressure was not normal when it was last sampled, unless that is long ago.
func (w *window) strained(t int64) bool {
	return w.severity != Normal && t-w.observed < int64(severityLasts)
}

// next starts a window that ends at end; what outlives a window stays.
func (w *window) next(end int64) {
	*w = window{
		end: end, severity: w.severity, observed: w.observed, lastCut: w.lastCut, everCut: w.everCut, shedAt: w.shedAt,
		utilization: w.utilization, lastReason: w.lastReason,
	}
}

// advanceLocked brings the accounts up to now, evaluating the windows that have ended since. Clocks are read before the
// lock is taken, so that now may lie a little in the past; time then stands still.
func (c *Controller) advanceLocked(now int64) {
	if now >= c.window.end {
		c.rollLocked(now)
	}
	c.accrueLocked(now)
	c.generatingLocked()
}

// accrueLocked integrates over the time since the last event.
//
// While nobody waits, virtual time runs as fast as the lanes together are served: nobody gets into debt by using what
// nobody else wants. While someone waits it follows the lanes that are served (see holdLocked), and while nothing runs it
// stands still, so that debts outlast idling.
func (c *Controller) accrueLocked(now int64) {
	if now <= c.now {
		return
	}
	d := float64(now - c.now)
	used := min(c.active.cost, c.state.limit)
	if c.starvedLocked() {
		used = c.state.limit // what is free is too small for those who wait
	}
	c.window.busy += d * float64(used)
	c.window.capacity += d * float64(c.state.limit)
	for _, v := range c.levels {
		if v.ranked == 0 {
			v.virtual += d * 1e-9 * v.rate
		}
	}
	c.now = now
}

// rollLocked evaluates the window that has ended, then the eventless ones between it and now, of which at most one can
// tell anything new.
func (c *Controller) rollLocked(now int64) {
	length := int64(c.settings.Window)
	w := &c.window
	end := w.end
	if c.member.inForce(now) { // the window ends with the report
		w.end = now + length
		return
	}
	c.accrueLocked(end)
	settings := c.aloneLocked()
	before := c.state.limit
	var reason StepReason
	e := w.evidence(c.starvedLocked(), c.settings.Window)
	e.others = c.othersLocked()
	c.state, reason = step(settings, c.state, e)
	for i := range c.curves {
		c.state.rescale(population(i), c.curves[i].learn())
	}
	if reason == StepCritical {
		w.lastCut, w.everCut = end, true
	}
	if c.state.since == 0 {
		w.shedAt = end
	}
	c.steppedLocked(reason)
	if w.capacity > 0 {
		w.utilization = w.busy / w.capacity
	}
	w.next(end + length)
	if quiet := (now - end) / length; quiet > 0 {
		c.quietLocked(settings, quiet)
	}
	if c.state.limit > before {
		c.dispatchLocked()
	}
}

// quietLocked accounts for windows in which nothing happened. Their evidence is all alike, so that n steps are one.
func (c *Controller) quietLocked(s Settings, n int64) {
	w := &c.window
	c.accrueLocked(w.end + (n-1)*int64(c.settings.Window))
	w.utilization = w.busy / w.capacity
	if w.utilization <= c.settings.UtilizationLow {
		for i := range c.state.latency {
			c.state.latency[i].short = c.state.latency[i].long
		}
	}
	if w.utilization <= c.settings.UtilizationLow && !c.starvedLocked() && !w.strained(c.now) && c.state.limit < s.InitialLimit {
		rise := n * int64(c.settings.recovery())
		c.state.limit = int(min(int64(s.InitialLimit), int64(c.state.limit)+rise))
		c.steppedLocked(StepRecover)
	}
	w.next(w.end + n*int64(c.settings.Window))
}

func (w *window) evidence(waiting bool, length time.Duration) evidence {
	e := evidence{
		fresh: w.fresh, completed: w.completed,
		pressure: w.peak, cut: w.cutWithin(w.end, length), waiting: waiting, strained: w.strained(w.end),
	}
	if w.capacity > 0 {
		e.utilization = w.busy / w.capacity
	}
	return e
}

// forwardLocked begins a latency sample. The first token of a whole answer is not seen, only expected.
func (c *Controller) forwardLocked(p *Permit, now int64) {
	p.forwarded = now
	if p.class == Whole {
		c.expectLocked(p)
	}
}

// sampleLocked takes a latency from forwarding until now. Samples are pooled over the window by expected cost: a large
// request is not a slow one, and a small one's fixed part does not count as if it were large. Those of requests that were
// forwarded before the limit was last moved are about another limit.
func (c *Controller) sampleLocked(p *Permit, of population) {
	if p.unsampled || p.forwarded == notForwarded {
		return
	}
	p.unsampled = true
	if p.forwarded < c.window.shedAt {
		return
	}
	latency := float64(max(0, c.now-p.forwarded))
	c.window.fresh[of].add(latency, c.curves[of].add(p.priced, latency))
}

// learnLocked counts how a request ended. Cancelled clients, refusals of ours and answers of the proxy teach nothing.
func (c *Controller) learnLocked(p *Permit, o Outcome) {
	if p.answer == AnswerProxyFailed {
		return
	}
	c.answeredLocked(p, o)
	if o == OK {
		c.window.completed++
		c.sampleLocked(p, p.population)
	}
}

// steppedLocked counts a step.
func (c *Controller) steppedLocked(r StepReason) {
	c.counts.steps[r]++
	c.window.lastReason = r
}
