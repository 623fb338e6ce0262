package adaptive

// TryAcquire answers, target by target, whether a request of this cluster would be admitted now. What an earlier target
// would take is taken for the later ones, and nothing is held afterwards: it is a look, which touches neither the
// adaptation nor the queue and makes no lanes. Without virtual lanes, or outside enforce mode, everyone may go ahead.
func (c *Controller) TryAcquire(rs []Request) []bool {
	free := make([]bool, len(rs))
	now := c.clock()
	c.mu.Lock()
	defer c.mu.Unlock()
	probing := c.settings.VirtualLanes && c.settings.Mode == Enforce
	if probing {
		c.advanceLocked(now)
	}
	before := c.held
	for i, r := range rs {
		if !probing {
			free[i] = true
			continue
		}
		cost := clampCost(r.Cost)
		l := c.lanes.peek(r.Lane)
		l.held += taken(rs[:i], free, r.Lane)
		free[i] = !c.shutdown && c.passesLocked(c.peekLocked(l, r.Level), cost)
		l.held -= taken(rs[:i], free, r.Lane)
		if free[i] {
			c.held.add(c.placeLocked(cost))
		}
		c.countProbeLocked(free[i])
	}
	c.held = before
	return free
}

// peekLocked is a lane's flow at a level, without consequences; one that does not exist is empty.
func (c *Controller) peekLocked(l *lane, level string) *flow {
	v := c.levelLocked(level)
	if f := l.at(v); f != nil {
		return f
	}
	return &flow{lane: l, level: v}
}

// taken is how many of the targets of a lane may go ahead.
func taken(rs []Request, free []bool, lane string) (n int) {
	for i, r := range rs {
		if free[i] && r.Lane == lane {
			n++
		}
	}
	return n
}

func (c *Controller) countProbeLocked(free bool) {
	c.counts.probed++
	if !free {
		c.counts.skipped++
	}
}
