package adaptive

import (
	"cmp"
	"slices"
)

// dispatchLocked lets waiters in until nobody who waits fits.
func (c *Controller) dispatchLocked() {
	for c.ranked > 0 && !c.fullLocked() && !c.retry.holds(c.now) {
		p := c.pickLocked()
		if p == nil {
			return
		}
		c.grantLocked(p)
	}
}

// pickLocked is who goes next: the head that is reserved for; else the head of the flow that is due; else, when that one does not
// fit, someone of its level who does, and at last someone of another level, the highest first. Whoever goes out of turn passes
// over the head that is due.
func (c *Controller) pickLocked() *Permit {
	if c.reserved != nil {
		if c.fitsLocked(c.reserved.cost) {
			return c.reserved
		}
		return nil
	}
	first := c.firstLocked()
	if first == nil || c.fitsLocked(first.head.cost) {
		return headOf(first)
	}
	p := c.gapLocked(first)
	for i := 0; p == nil && i < len(c.levels); i++ {
		if v := c.levels[i]; v != first.level && v.ranked > 0 {
			p = c.gapLocked(v.first(c.now))
		}
	}
	if p != nil {
		c.markPassedLocked(first.head)
	}
	return p
}

func headOf(f *flow) *Permit {
	if f == nil {
		return nil
	}
	return f.head
}

// gapLocked is who of a level fits into what is free: of its flows' heads that of the one furthest behind, and at last someone
// further back in the first flow, that of its level which is furthest behind.
func (c *Controller) gapLocked(first *flow) *Permit {
	free := c.state.limit - c.held.cost
	if f := first.level.within(free, c.now); f != nil && c.mayPassLocked(f.key, first) {
		return f.head
	}
	return behindHead(first, free)
}

func (c *Controller) markPassedLocked(head *Permit) {
	if head.passed++; head.passed >= passLimit && c.reserved == nil {
		c.reserved = head
	}
}

// behindHead is the first of a flow's waiters behind its head that costs at most free, if it is not too far back.
func behindHead(f *flow, free int) *Permit {
	p := f.head.next
	for range lookPast {
		if p == nil || p.cost <= free {
			return p
		}
		p = p.next
	}
	return nil
}

// enqueueLocked puts a request at the end of its flow; in shadow mode a running one, virtually.
func (c *Controller) enqueueLocked(p *Permit, r Request) {
	if p.stage != stageActive {
		c.lanes.hold(p.lane)
	}
	wait := int64(c.settings.MaxWait)
	if r.MaxWait > 0 {
		wait = min(wait, int64(r.MaxWait))
	}
	c.seq++
	p.seq, p.deadline, p.queued = c.seq, c.now+wait, true
	c.queueLocked(p)
	c.deadlines.add(p, c.now)
	c.armLocked(min(p.deadline, c.window.end, c.nextExpectedLocked(), c.retry.next(c.now)))
}

func (c *Controller) queueLocked(p *Permit) {
	p.flow.enqueue(p)
	p.lane.queued++
	p.lane.queuedCost += p.cost
	p.flow.level.waiting.add(p.cost)
	c.waiting.add(p.cost)
	c.rankLocked(p.lane)
}

// afterEnqueueLocked lets a newcomer past its own flow's head, if a dispatch would.
func (c *Controller) afterEnqueueLocked(p *Permit) {
	if p.flow.count > 1 && c.fitsLocked(p.cost) {
		c.dispatchLocked()
	}
}

// leaveLocked takes a waiter out of everything that waiting put it into.
func (c *Controller) leaveLocked(p *Permit) {
	c.unqueueLocked(p)
	p.queued = false
	c.deadlines.remove(p)
}

func (c *Controller) unqueueLocked(p *Permit) {
	f := p.flow
	head := f.head == p
	f.dequeue(p)
	p.lane.queued--
	p.lane.queuedCost -= p.cost
	f.level.waiting.sub(p.cost)
	c.waiting.sub(p.cost)
	if c.reserved == p {
		c.reserved = nil
	}
	switch {
	case !f.ranked:
	case f.count == 0:
		c.unrankLocked(f)
	case head:
		f.level.order.fix(f, f.virtual(c.now))
	}
}

// grantLocked lets a waiter in.
func (c *Controller) grantLocked(p *Permit) {
	p.flow.level.follow(p.flow.virtual(c.now), c.now) // before it leaves: it may be the last to wait
	c.leaveLocked(p)
	if p.stage == stageWaiting {
		c.runLocked(p)
		close(p.ready)
	}
	c.holdLocked(p)
}

// refuseWaiterLocked tells a waiter that has left the queue no.
func (c *Controller) refuseWaiterLocked(p *Permit, reason Reason) {
	p.stage, p.reason, p.started = stageEnded, reason, c.now
	c.counts.rejected++
	c.lanes.drop(p.lane, c.now)
	close(p.ready)
}

// expireLocked refuses those who have waited too long. A virtual waiter only leaves.
func (c *Controller) expireLocked() {
	for p := c.deadlines.expired(c.now); p != nil; p = c.deadlines.expired(c.now) {
		c.leaveLocked(p)
		if p.stage == stageWaiting {
			c.refuseWaiterLocked(p, c.becauseLocked(p.lane, Deadline))
		}
	}
}

// shrinkLocked refuses the last to come of those that the queue has no room for any more.
func (c *Controller) shrinkLocked() {
	type bound struct{ kept tally }
	kept := make(map[*lane]*bound)
	c.eachWaiterLocked(func(p *Permit) {
		var queue *lane // nil: the shared queue
		if c.settings.VirtualLanes {
			queue = p.lane
		}
		b := kept[queue]
		if b == nil {
			b = new(bound)
			kept[queue] = b
		}
		if b.kept.count < c.settings.MaxQueueCount && b.kept.cost+p.cost <= c.settings.MaxQueueCost {
			b.kept.add(p.cost)
			return
		}
		c.leaveLocked(p)
		if p.stage == stageWaiting {
			c.refuseWaiterLocked(p, QueueFull)
		}
	})
}

// eachWaiterLocked visits all waiters in the order they came; f may take out the one it is given.
func (c *Controller) eachWaiterLocked(f func(p *Permit)) {
	if c.waiting.count == 0 {
		return
	}
	waiters := make([]*Permit, 0, c.waiting.count)
	c.lanes.each(func(l *lane) {
		for f := l.flows; f != nil; f = f.next {
			for p := f.head; p != nil; p = p.next {
				waiters = append(waiters, p)
			}
		}
	})
	slices.SortFunc(waiters, func(a, b *Permit) int { return cmp.Compare(a.seq, b.seq) })
	for _, p := range waiters {
		f(p)
	}
}

// rewheelLocked makes the wheel wide enough for longer waits.
func (c *Controller) rewheelLocked() {
	longest := int64(c.settings.MaxWait)
	if c.waiting.count == 0 {
		c.deadlines.reset(longest, c.now)
		return
	}
	if longest/wheelSpan+1 <= c.deadlines.width {
		return // a wheel that is too wide only looks at more waiters per slot
	}
	c.expireLocked()
	c.deadlines.reset(longest, c.now)
	c.eachWaiterLocked(func(p *Permit) {
		p.afterDeadline, p.beforeDeadline = nil, nil
		c.deadlines.add(p, c.now)
	})
}
