package adaptive

import "cmp"

const (
	// passLimit is how often a head may be passed over before what gets free is kept for it.
	passLimit = 2
	// lookPast is how many waiters behind a head that does not fit are looked at for one that does.
	lookPast = 16
	// leastWeight and mostWeight keep accounts finite.
	leastWeight, mostWeight = 1e-3, 1e6
)

func clampCost(cost int) int { return min(max(cost, 1), MaxCost) }

// Acquire asks for admission. It never blocks and, when it admits, does not allocate. In shadow mode everyone is admitted,
// and what enforce would have done is counted.
func (c *Controller) Acquire(p *Permit, r Request) State { return c.acquire(p, r, false) }

// AcquireNow is Acquire for the child of a request that holds capacity already: it is admitted now or refused as
// fanout_skipped, since a child that waits for what its parent holds may wait for ever.
func (c *Controller) AcquireNow(p *Permit, r Request) State { return c.acquire(p, r, true) }

func (c *Controller) acquire(p *Permit, r Request, child bool) State {
	if c.off.Load() {
		*p = Permit{}
		return Admitted
	}
	now := c.clock()
	c.mu.Lock()
	state := c.acquireLocked(p, r, child, now)
	c.mu.Unlock()
	return state
}

func (c *Controller) acquireLocked(p *Permit, r Request, child bool, now int64) State {
	*p = Permit{}               // the fields in place: a literal would be made elsewhere and copied
	if c.settings.Mode == Off { // since the look at off
		return Admitted
	}
	c.advanceLocked(now)
	l := c.lanes.get(r.Lane, c.now)
	if !child { // a child runs in its parent's lane, whose weight is not its to say
		l.weight = min(max(cmp.Or(r.Weight, 1), leastWeight), mostWeight)
		if r.MaxConcurrent != l.most {
			c.capLocked(l, r.MaxConcurrent)
		}
	}
	p.c, p.lane, p.cost, p.epoch = c, l, clampCost(r.Cost), c.epoch
	p.flow = c.lanes.flow(l, c.levelLocked(r.Level), c.now)
	p.class, p.population, p.priced = r.Class, r.Class.population(), p.cost
	p.tokens, p.forward, p.forwarded = r.Tokens, r.Forward, notForwarded
	p.arrived, p.started = c.now, c.now
	verdict, reason := c.decideLocked(p, r, child)
	if child {
		c.countProbeLocked(verdict == Admitted)
	}
	if c.settings.Mode != Enforce {
		c.shadowLocked(p, r, verdict)
		return Admitted
	}
	switch verdict {
	case Admitted:
		c.goAheadLocked(p.flow)
		c.admitLocked(p)
		c.holdLocked(p)
	case Waiting:
		c.enqueueLocked(p, r)
		p.stage, p.ready = stageWaiting, make(chan struct{})
		c.afterEnqueueLocked(p)
		if p.stage == stageActive {
			return Admitted
		}
	case Refused:
		p.stage, p.reason = stageEnded, reason
		c.counts.rejected++
	}
	return verdict
}

// decideLocked is what enforce mode does with a newcomer.
func (c *Controller) decideLocked(p *Permit, r Request, child bool) (State, Reason) {
	switch {
	case c.shutdown:
		return Refused, ShutDown
	case p.cost <= c.settings.MaxLimit && c.passesLocked(p.flow, p.cost):
		return Admitted, ""
	case child:
		return Refused, FanoutSkipped
	case p.cost > c.settings.MaxLimit:
		return Refused, Oversized
	case !c.roomLocked(p.lane, p.cost):
		return Refused, c.becauseLocked(p.lane, QueueFull)
	case r.MaxWait < 0:
		return Refused, c.becauseLocked(p.lane, Deadline)
	}
	return Waiting, ""
}

// becauseLocked is why a request of a lane that could not be let in is refused: a maxConcurrent, where that is what it waited for.
func (c *Controller) becauseLocked(l *lane, otherwise Reason) Reason {
	switch {
	case c.laneFullLocked(l):
		return TenantConcurrency
	case c.fullLocked():
		return Concurrency
	}
	return otherwise
}

// capLocked puts a lane's maxConcurrent into force. Of the tenants that share the overflow lane the strictest holds for all.
func (c *Controller) capLocked(l *lane, most int) {
	if l == c.lanes.overflow && l.most > 0 && (most == 0 || most > l.most) {
		return
	}
	l.most = most
	if l.queued > 0 {
		c.rankLocked(l)
		c.dispatchLocked()
	}
}

// shadowLocked lets a request go and keeps the virtual decision: in held, in the queue, or nowhere.
func (c *Controller) shadowLocked(p *Permit, r Request, verdict State) {
	c.admitLocked(p)
	switch verdict {
	case Admitted:
		c.counts.wouldAdmit++
		c.goAheadLocked(p.flow)
		c.holdLocked(p)
	case Waiting:
		c.counts.wouldQueue++
		c.enqueueLocked(p, r)
		c.afterEnqueueLocked(p)
	case Refused:
		c.counts.wouldReject++
	}
}

// WouldWait reports whether a request of a cost would find no place now, whoever asks.
func (c *Controller) WouldWait(cost int) bool {
	now := c.clock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advanceLocked(now)
	return !c.fitsLocked(clampCost(cost))
}

func (c *Controller) placeLocked(cost int) int {
	return c.settings.place(cost, c.state.limit, c.wholeLimitLocked())
}

// wholeLimitLocked is the limit of all replicas together, as far as this one knows.
func (c *Controller) wholeLimitLocked() float64 {
	switch m := &c.member; {
	case m.inForce(c.now):
		return m.whole
	case m.on:
		return float64(c.state.limit) * float64(m.members)
	}
	return float64(c.state.limit) * float64(c.settings.Replicas)
}

// fitsLocked reports whether a request of a cost can be let in now.
func (c *Controller) fitsLocked(cost int) bool {
	return c.held.cost+c.placeLocked(cost) <= c.state.limit && !c.fullLocked()
}

// passesLocked reports whether a newcomer may go ahead of everyone who waits, in whichever flow. Nobody who waits fits
// (the last dispatch saw to that), so that capacity they cannot use is at stake, not their turn. A newcomer behind its own
// flow, behind a reservation, or far ahead in its share has to queue, and so has one whose lane is at its maxConcurrent.
func (c *Controller) passesLocked(f *flow, cost int) bool {
	switch {
	case !c.fitsLocked(cost) || c.laneFullLocked(f.lane) || c.retry.holds(c.now):
		return false
	case c.ranked == 0:
		return true
	case f.count > 0 || c.reserved != nil:
		return false
	case f.level.ranked == 0:
		return true
	}
	return c.mayPassLocked(max(f.virtual(c.now), f.level.virtual), f.level.first(c.now))
}

// mayPassLocked reports whether a flow at key may go before the flow of its level that is furthest behind, whose head does not
// fit. It need not be level with it, or capacity would lie idle, but has to be within what the whole limit does in one service
// time: a flow deeper in debt would go on living on gaps that the others cannot use.
func (c *Controller) mayPassLocked(key float64, first *flow) bool {
	return key <= first.key+float64(c.state.limit)*c.secondsPerCostLocked()
}

// goAheadLocked lifts the flow of a newcomer that is let in at once, and accounts for those it goes ahead of. It has a right to
// that when its level is served before theirs, or within the level when it has had less than the flow furthest behind; else the
// head that is due has been passed over.
func (c *Controller) goAheadLocked(f *flow) {
	key := f.lift(c.now)
	if c.ranked == 0 {
		return
	}
	first := c.firstLocked()
	right := key < first.key
	if first.level != f.level {
		right = c.beforeLocked(f.level, first.level)
	}
	if !right {
		c.markPassedLocked(first.head)
	}
}

// roomLocked reports whether the queue takes one more: the lane's own, or with lanes off the shared one.
func (c *Controller) roomLocked(l *lane, cost int) bool {
	q := c.waiting
	if c.settings.VirtualLanes {
		q = tally{l.queued, l.queuedCost}
	}
	return q.count < c.settings.MaxQueueCount && q.cost+cost <= c.settings.MaxQueueCost
}

// admitLocked counts a request as running.
func (c *Controller) admitLocked(p *Permit) {
	c.lanes.hold(p.lane)
	c.runLocked(p)
}

func (c *Controller) runLocked(p *Permit) {
	p.stage, p.started = stageActive, c.now
	p.place = c.placeLocked(p.cost)
	c.active.add(p.place)
	p.flow.level.active.add(p.place)
	p.lane.active++
	if p.forward {
		c.forwardLocked(p, c.now)
	}
	c.counts.admitted++
}

// holdLocked charges a request to its flow and to the limit. The flow was lifted when the request came, or the first of those
// that it waited with, and is not again here: it may be behind virtual time, because its last request used less than it was
// charged ahead.
func (c *Controller) holdLocked(p *Permit) {
	p.held = true
	f := p.flow
	v := f.level
	c.held.add(p.place)
	v.held.add(p.place)
	v.follow(f.virtual(c.now), c.now)
	f.start(p, c.now, c.secondsPerCostLocked())
	v.rate += float64(p.cost) * p.perWeight
	p.lane.held++
	c.rerankLocked(f)
}

// rerankLocked moves a flow whose virtual time has changed, or whose lane has more or less in flight than before.
func (c *Controller) rerankLocked(f *flow) {
	if f.lane.queued == 0 {
		return
	}
	c.rankLocked(f.lane)
	if f.ranked {
		f.level.order.fix(f, f.virtual(c.now))
	}
}

// repriceLocked changes what a running request counts for.
func (c *Controller) repriceLocked(p *Permit, cost int) {
	f := p.flow
	place := c.placeLocked(cost)
	if cost >= p.cost { // the limit may have fallen since its place was given
		place = max(place, p.place)
	} else {
		place = min(cost, p.place)
	}
	d := place - p.place
	c.active.cost += d
	f.level.active.cost += d
	switch {
	case p.held:
		f.level.rate += float64(cost-p.cost) * p.perWeight
		f.reprice(p, cost, c.now)
		c.heldCostLocked(f, d)
	case p.epoch != c.epoch:
		c.heldCostLocked(f, d)
	case p.queued:
		d := cost - p.cost
		f.cost += d
		f.lane.queuedCost += d
		f.level.waiting.cost += d
		c.waiting.cost += d
	}
	p.cost, p.place = cost, place
	if p.queued && f.ranked && f.head == p {
		f.level.order.fix(f, f.key)
	}
}

func (c *Controller) heldCostLocked(f *flow, d int) {
	c.held.cost += d
	f.level.held.cost += d
}

// releaseLocked gives back what a running request holds.
func (c *Controller) releaseLocked(p *Permit) {
	p.stage = stageEnded
	c.stopExpectingLocked(p)
	c.active.sub(p.place)
	p.flow.level.active.sub(p.place)
	p.lane.active--
	switch {
	case p.queued:
		c.leaveLocked(p)
	case p.held:
		p.held = false
		c.unholdLocked(p)
		c.settleLocked(p)
	case p.epoch != c.epoch:
		c.unholdLocked(p)
		c.rerankLocked(p.flow)
	}
	c.lanes.drop(p.lane, c.now)
}

func (c *Controller) unholdLocked(p *Permit) {
	c.held.sub(p.place)
	p.flow.level.held.sub(p.place)
	p.lane.held--
}

// settleLocked replaces what the flow was charged ahead by what the request used, and learns from it for the next ones.
func (c *Controller) settleLocked(p *Permit) {
	f := p.flow
	f.finish(p, c.now)
	f.level.rate -= float64(p.cost) * p.perWeight
	if f.level.held.count == 0 {
		f.level.rate = 0
	}
	const keep = 1 - 1.0/64
	c.work = c.work*keep + p.used/p.perWeight
	c.workCost = c.workCost*keep + float64(p.charged)
	c.rerankLocked(f)
}

// secondsPerCostLocked is how long a unit of cost has lately been held; a second before anything is known.
func (c *Controller) secondsPerCostLocked() float64 {
	if c.workCost == 0 {
		return 1
	}
	return c.work / c.workCost
}
