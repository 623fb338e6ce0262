package adaptive

import "math"

// Level is a priority level: a class of requests with a guaranteed share of a cluster.
type Level struct {
	Name  string `yaml:"name" doc:"Name of the level, as the sources give it: 1 to 32 lower-case letters, digits, - and _."`
	Share int    `yaml:"share" min:"1" max:"1000" doc:"Guaranteed part of a cluster's limit and of its maxConcurrent, relative to the sum of all levels' shares."`
}

// priorityLevel is a Level at work: the flows of its requests, which share fairly what it gets, and what it holds. Levels share the
// cluster as those of Kubernetes' API Priority and Fairness do: each is guaranteed its part, and what one does not use is lent to
// the others until they want it back.
type priorityLevel struct {
	name  string
	rank  int     // 0 is the highest
	share float64 // guaranteed part, in (0,1]

	order   *order // made when someone first waits
	ranked  int    // flows in it
	virtual float64
	rate    float64 // weighted cost that is held; the flows' rates together

	active, held tally // as those of the controller
	waiting      tally
}

// levelsOf makes the levels of the settings, the highest first. Those that are known by their names go on.
func levelsOf(s Settings, known []*priorityLevel) []*priorityLevel {
	if len(s.Levels) == 0 {
		s.Levels = []Level{{Share: 1}}
	}
	sum := 0
	for _, l := range s.Levels {
		sum += l.Share
	}
	levels := make([]*priorityLevel, len(s.Levels))
	for i, l := range s.Levels {
		v := levelNamed(known, l.Name)
		if v == nil {
			v = &priorityLevel{name: l.Name}
		}
		v.rank, v.share = i, float64(l.Share)/float64(sum)
		levels[i] = v
	}
	return levels
}

func levelNamed(levels []*priorityLevel, name string) *priorityLevel {
	for _, v := range levels {
		if v.name == name {
			return v
		}
	}
	return nil
}

// levelLocked finds a level; one that does not exist, or not any more, is the lowest.
func (c *Controller) levelLocked(name string) *priorityLevel {
	if len(c.levels) > 1 {
		if v := levelNamed(c.levels, name); v != nil {
			return v
		}
	}
	return c.levels[len(c.levels)-1]
}

// useLocked is how much of its guaranteed part a level holds: of the limit or of maxConcurrent, whichever is more (as the
// dominant share of Ghodsi et al., 2011). Below 1 the guarantee is not used up.
func (c *Controller) useLocked(v *priorityLevel) float64 {
	use := float64(v.held.cost) / float64(c.state.limit)
	if most := c.part.MaxConcurrent; most > 0 {
		use = max(use, float64(v.held.count)/float64(most))
	}
	return use / v.share
}

// beforeLocked reports whether level v is served before level w: those with something left of their guaranteed part in the order
// of their ranks, then the one that has gone least beyond it.
func (c *Controller) beforeLocked(v, w *priorityLevel) bool {
	a, b := c.useLocked(v), c.useLocked(w)
	if below := a < 1; below != (b < 1) {
		return below
	} else if below || a == b {
		return v.rank < w.rank
	}
	return a < b
}

// firstLocked is the flow that is due: of the level that is served next, the one furthest behind. It is nil when nobody waits who
// may be served.
func (c *Controller) firstLocked() *flow {
	var due *priorityLevel
	for _, v := range c.levels {
		if v.ranked > 0 && (due == nil || c.beforeLocked(v, due)) {
			due = v
		}
	}
	if due == nil {
		return nil
	}
	return due.first(c.now)
}

// first is the flow furthest behind.
func (v *priorityLevel) first(now int64) *flow { return v.within(math.MaxInt, now) }

// within is the flow furthest behind among those whose head costs at most free. The key of a flow whose requests outlast what
// they were charged grows with time; it is brought up to date only here.
func (v *priorityLevel) within(free int, now int64) *flow {
	for v.ranked > 0 {
		f := v.order.firstWithin(free)
		if f == nil {
			return nil
		}
		key := f.virtual(now)
		if key <= f.key {
			return f
		}
		v.order.fix(f, key)
	}
	return nil
}

// follow moves virtual time on to a flow that is served while others wait: to its key or to that of the flow furthest behind,
// whichever is less, so that a flow served out of turn does not take the others' arrears away.
func (v *priorityLevel) follow(key float64, now int64) {
	if v.ranked > 0 {
		v.virtual = max(v.virtual, min(key, v.first(now).key))
	}
}

// rankLocked brings a lane's flows into their orders, or out of them: those with waiters are there while the lane has not reached
// its maxConcurrent.
func (c *Controller) rankLocked(l *lane) {
	full := c.laneFullLocked(l)
	for f := l.flows; f != nil; f = f.next {
		switch want := f.count > 0 && !full; {
		case want == f.ranked:
		case want:
			if f.level.order == nil {
				f.level.order = newOrder()
			}
			f.level.order.push(f, f.lift(c.now))
			f.level.ranked++
			c.ranked++
			f.ranked = true
		default:
			c.unrankLocked(f)
		}
	}
}

func (c *Controller) unrankLocked(f *flow) {
	f.level.order.remove(f)
	f.level.ranked--
	c.ranked--
	f.ranked = false
	if c.reserved != nil && c.reserved.flow == f {
		c.reserved = nil // nothing is saved for a lane that may not use it
	}
}

// laneFullLocked reports whether a lane has reached its maxConcurrent.
func (c *Controller) laneFullLocked(l *lane) bool {
	most := l.most
	if most == 0 {
		most = c.settings.TenantMaxConcurrent
	}
	return most > 0 && l.held >= c.settings.concurrent(most)
}

// fullLocked reports whether the cluster has reached its maxConcurrent.
func (c *Controller) fullLocked() bool {
	most := c.part.MaxConcurrent
	return most > 0 && c.held.count >= most
}

// starvedLocked reports whether someone waits whom the limit holds back, and not a maxConcurrent.
func (c *Controller) starvedLocked() bool { return c.ranked > 0 && !c.fullLocked() }

// relevelLocked puts the levels of new settings into force. Who waits at a level that is no more goes to the end of the lowest;
// what runs there is accounted for where it began.
func (c *Controller) relevelLocked() {
	old := c.levels
	c.levels = levelsOf(c.settings, old)
	c.eachWaiterLocked(func(p *Permit) {
		if levelNamed(c.levels, p.flow.level.name) == p.flow.level {
			return
		}
		c.unqueueLocked(p)
		p.flow = c.lanes.flow(p.lane, c.levels[len(c.levels)-1], c.now)
		c.queueLocked(p)
	})
	c.lanes.each(func(l *lane) {
		l.prune(c.levels)
		c.rankLocked(l)
	})
}
