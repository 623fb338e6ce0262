package adaptive

import (
	"cmp"
	"slices"
)

// dispatchLocked lets waiters in until nobody who waits fits.
func (c *Controller) dispatchLocked() {
	for c.waiting.count > 0 && !c.retry.holds(c.now) {
		p := c.pickLocked()
		if p == nil {
			return
		}
		c.grantLocked(p)
	}
}

// pickLocked is who goes next: the head that is reserved for; else the head of the lane furthest behind; else, when that
// one does not fit, the furthest behind of those that do, and at last someone further back in the first lane. Whoever
// goes out of turn passes over the first lane's head.
func (c *Controller) pickLocked() *Permit {
	if c.reserved != nil {
		if c.fitsLocked(c.reserved.cost) {
			return c.reserved
		}
		return nil
	}
	first := c.firstLocked()
	if c.fitsLocked(first.head.cost) {
		return first.head
	}
	free := c.state.limit - c.held.cost
	var p *Permit
	if l := c.freshLocked(func() *lane { return c.order.firstWithin(free) }); l != nil && c.mayPassLocked(l.key, first) {
		p = l.head
	} else {
		p = behindHead(first, free)
	}
	if p != nil {
		c.markPassedLocked(first.head)
	}
	return p
}

func (c *Controller) markPassedLocked(head *Permit) {
	if head.passed++; head.passed >= passLimit && c.reserved == nil {
		c.reserved = head
	}
}

// firstLocked is the lane furthest behind.
func (c *Controller) firstLocked() *lane { return c.freshLocked(c.order.first) }

// freshLocked asks for a lane until the answer's key is current: the key of a lane whose requests outlast what they were
// charged grows with time, and is brought up to date only here.
func (c *Controller) freshLocked(ask func() *lane) *lane {
	for {
		l := ask()
		if l == nil {
			return nil
		}
		key := l.virtual(c.now)
		if key <= l.key {
			return l
		}
		c.order.fix(l, key)
	}
}

// behindHead is the first of a lane's waiters behind its head that costs at most free, if it is not too far back.
func behindHead(l *lane, free int) *Permit {
	p := l.head.next
	for range lookPast {
		if p == nil || p.cost <= free {
			return p
		}
		p = p.next
	}
	return nil
}

// enqueueLocked puts a request at the end of its lane; in shadow mode a running one, virtually.
func (c *Controller) enqueueLocked(p *Permit, r Request) {
	l := p.lane
	if p.stage != stageActive {
		c.lanes.hold(l)
	}
	if c.order == nil {
		c.order = newOrder()
	}
	wait := int64(c.settings.MaxWait)
	if r.MaxWait > 0 {
		wait = min(wait, int64(r.MaxWait))
	}
	c.seq++
	p.seq, p.deadline, p.queued = c.seq, c.now+wait, true
	l.enqueue(p)
	c.waiting.add(p.cost)
	if l.count == 1 {
		c.order.push(l, l.lift(c.now, c.virtual))
	}
	c.deadlines.add(p, c.now)
	c.armLocked(min(p.deadline, c.window.end, c.nextExpectedLocked(), c.retry.next(c.now)))
}

// afterEnqueueLocked lets a newcomer past its own lane's head, if a dispatch would.
func (c *Controller) afterEnqueueLocked(p *Permit) {
	if p.lane.count > 1 && c.fitsLocked(p.cost) {
		c.dispatchLocked()
	}
}

// leaveLocked takes a waiter out of everything that waiting put it into.
func (c *Controller) leaveLocked(p *Permit) {
	l := p.lane
	head := l.head == p
	l.dequeue(p)
	p.queued = false
	c.waiting.sub(p.cost)
	c.deadlines.remove(p)
	if c.reserved == p {
		c.reserved = nil
	}
	switch {
	case l.count == 0:
		c.order.remove(l)
	case head:
		c.order.fix(l, l.virtual(c.now))
	}
}

// grantLocked lets a waiter in.
func (c *Controller) grantLocked(p *Permit) {
	c.followLocked(p.lane.virtual(c.now)) // before it leaves: it may be the last to wait
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
			c.refuseWaiterLocked(p, Deadline)
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
		for p := l.head; p != nil; p = p.next {
			waiters = append(waiters, p)
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
