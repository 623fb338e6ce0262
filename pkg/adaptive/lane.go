package adaptive

import (
	"slices"
	"time"
)

// laneIdle is how long a lane without waiters and without anything in flight is remembered, debts included.
const laneIdle = int64(60 * time.Second)

// lane is one tenant: its flows, one for each level at which it asked for something, and what they have in common.
type lane struct {
	id     string
	weight float64
	flows  *flow // the level that was used first comes first
	refs   int   // waiters and permits in flight; at 0 the lane may be evicted
	most   int   // requests that may run at once, as the last one said; 0 leaves it to the settings

	active, held int // permits that run, and those of them that the scheduler has let in (see Controller)
	queued       int // waiters at all levels
	queuedCost   int

	answers answers

	// Place among the idle lanes, longest idle first.
	idleSince          int64
	idlePrev, idleNext *lane
	idle               bool
}

// at is the lane's flow at a level, nil where it has none yet.
func (l *lane) at(v *priorityLevel) *flow {
	for f := l.flows; f != nil; f = f.next {
		if f.level == v {
			return f
		}
	}
	return nil
}

// worked is the work by weight since the lane exists, the cost that runs, and that of those who wait for the limit.
func (l *lane) worked(now int64) (work, running, waiting float64) {
	for f := l.flows; f != nil; f = f.next {
		f.accrue(now)
		work += f.spent + max(0, f.accrued)
		running += f.rate * l.weight
		if f.ranked {
			waiting += float64(f.cost)
		}
	}
	return work, running, waiting
}

// prune forgets the flows of levels that are no more.
func (l *lane) prune(levels []*priorityLevel) {
	for at := &l.flows; *at != nil; {
		if f := *at; !slices.Contains(levels, f.level) {
			*at = f.next
			continue
		}
		at = &(*at).next
	}
}

func seconds(ns int64) float64 { return float64(ns) * 1e-9 }

// lanes finds lanes by name and forgets the ones idle for long.
type lanes struct {
	byID     map[string]*lane
	overflow *lane // shared by newcomers while all lanes are busy at the cap
	max      int
	// Idle lanes in the order they became idle.
	oldest, newest *lane
}

// get finds the tenant's lane, or makes one: evicting what has been idle too long, at the cap the longest idle, and when
// all are busy handing out the overflow lane.
func (ls *lanes) get(id string, now int64) *lane {
	if id == "" {
		id = defaultLane
	}
	if l, ok := ls.byID[id]; ok {
		return l
	}
	ls.evict(now)
	if len(ls.byID) >= ls.max {
		if ls.oldest == nil {
			if ls.overflow == nil {
				ls.overflow = &lane{id: overflowLane, weight: 1}
			}
			return ls.overflow
		}
		ls.forget(ls.oldest)
	}
	l := &lane{id: id, weight: 1}
	ls.byID[id] = l
	ls.park(l, now)
	return l
}

// flow finds a lane's flow at a level, or makes one.
func (ls *lanes) flow(l *lane, v *priorityLevel, now int64) *flow {
	if f := l.at(v); f != nil {
		return f
	}
	f := &flow{lane: l, level: v, since: now}
	at := &l.flows
	for *at != nil {
		at = &(*at).next
	}
	*at = f
	return f
}

// peek is get without consequences; a tenant that has no lane sees an empty one.
func (ls *lanes) peek(id string) *lane {
	if id == "" {
		id = defaultLane
	}
	if l, ok := ls.byID[id]; ok {
		return l
	}
	return &lane{id: id}
}

func (ls *lanes) each(f func(*lane)) {
	for _, l := range ls.byID {
		f(l)
	}
	if ls.overflow != nil {
		f(ls.overflow)
	}
}

// evict forgets the lanes that have been idle for long enough.
func (ls *lanes) evict(now int64) {
	for ls.oldest != nil && now-ls.oldest.idleSince >= laneIdle {
		ls.forget(ls.oldest)
	}
}

func (ls *lanes) forget(l *lane) {
	ls.unpark(l)
	delete(ls.byID, l.id)
}

// hold marks a lane as busy on behalf of one more permit.
func (ls *lanes) hold(l *lane) {
	if l.idle {
		ls.unpark(l)
	}
	l.refs++
}

// drop undoes one hold.
func (ls *lanes) drop(l *lane, now int64) {
	l.refs--
	if l.refs > 0 {
		return
	}
	for f := l.flows; f != nil; f = f.next {
		f.idle()
	}
	if l == ls.overflow {
		l.most = 0
	} else {
		ls.park(l, now)
	}
}

func (ls *lanes) park(l *lane, now int64) {
	l.idle, l.idleSince = true, now
	l.idlePrev, l.idleNext = ls.newest, nil
	if ls.newest != nil {
		ls.newest.idleNext = l
	} else {
		ls.oldest = l
	}
	ls.newest = l
}

func (ls *lanes) unpark(l *lane) {
	if l.idlePrev != nil {
		l.idlePrev.idleNext = l.idleNext
	} else {
		ls.oldest = l.idleNext
	}
	if l.idleNext != nil {
		l.idleNext.idlePrev = l.idlePrev
	} else {
		ls.newest = l.idlePrev
	}
	l.idlePrev, l.idleNext, l.idle = nil, nil, false
}
