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
		free[i] = !c.shutdown && c.passesLocked(c.lanes.peek(r.Lane), cost)
		if free[i] {
			c.held.add(c.placeLocked(cost))
		}
		c.countProbeLocked(free[i])
	}
	c.held = before
	return free
}

func (c *Controller) countProbeLocked(free bool) {
	c.counts.probed++
	if !free {
		c.counts.skipped++
	}
}
