package adaptive

import "time"

// laneIdle is how long a lane without waiters and without anything in flight is remembered, debts included.
const laneIdle = int64(60 * time.Second)

// lane is one tenant's queue and its account.
//
// The account is in cost-seconds divided by the lane's weight. base is settled. prepaid is what was charged in advance for
// the requests in flight, accrued what those have really used so far; the larger of the two counts, so that a request
// that outlasts its estimate is paid for while it runs and not in one lump when it ends.
type lane struct {
	id         string
	head, tail *Permit // waiters, first come first served
	count      int     // waiters
	cost       int     // their cost
	refs       int     // waiters and permits in flight; at 0 the lane may be evicted

	answers answers

	weight  float64
	base    float64
	prepaid float64
	accrued float64
	rate    float64 // what accrued grows by per second
	since   int64   // accrued is up to here

	// Place among the lanes with waiters (see order).
	key      float64
	headCost int
	slot     int

	// Place among the idle lanes, longest idle first.
	idleSince          int64
	idlePrev, idleNext *lane
	idle               bool
}

// virtual is the lane's virtual time at now: the work it has had, or been charged for ahead, per unit of weight.
func (l *lane) virtual(now int64) float64 {
	l.accrue(now)
	return l.base + max(l.prepaid, l.accrued)
}

func (l *lane) accrue(now int64) {
	if now > l.since {
		l.accrued += l.rate * seconds(now-l.since)
		l.since = now
	}
}

// lift brings a lane that comes back from idling up to the controller's virtual time: no credit is saved. A lane that is
// ahead of it keeps its debt.
func (l *lane) lift(now int64, virtual float64) float64 {
	key := l.virtual(now)
	if key < virtual {
		l.base += virtual - key
		return virtual
	}
	return key
}

// start charges a permit ahead and begins to meter it.
func (l *lane) start(p *Permit, now int64, secondsPerCost float64) {
	l.accrue(now)
	p.perWeight = 1 / l.weight
	p.estimate = float64(p.cost) * secondsPerCost * p.perWeight
	p.charged, p.used, p.since = p.cost, 0, now
	l.prepaid += p.estimate
	l.rate += float64(p.cost) * p.perWeight
}

// reprice meters a running permit at another cost from now on.
func (l *lane) reprice(p *Permit, cost int, now int64) {
	l.accrue(now)
	p.meter(now)
	l.rate += float64(cost-p.cost) * p.perWeight
}

// finish settles a permit: what it was charged ahead is replaced by what it used.
func (l *lane) finish(p *Permit, now int64) {
	l.accrue(now)
	p.meter(now)
	l.prepaid -= p.estimate
	l.accrued -= p.used
	l.base += p.used
	l.rate -= float64(p.cost) * p.perWeight
}

// enqueue appends a waiter.
func (l *lane) enqueue(p *Permit) {
	p.prev, p.next = l.tail, nil
	if l.tail != nil {
		l.tail.next = p
	} else {
		l.head = p
	}
	l.tail = p
	l.count++
	l.cost += p.cost
}

// dequeue takes out a waiter, wherever it stands.
func (l *lane) dequeue(p *Permit) {
	if p.prev != nil {
		p.prev.next = p.next
	} else {
		l.head = p.next
	}
	if p.next != nil {
		p.next.prev = p.prev
	} else {
		l.tail = p.prev
	}
	p.prev, p.next = nil, nil
	l.count--
	l.cost -= p.cost
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
				ls.overflow = &lane{id: overflowLane, weight: 1, since: now}
			}
			return ls.overflow
		}
		ls.forget(ls.oldest)
	}
	l := &lane{id: id, weight: 1, since: now}
	ls.byID[id] = l
	ls.park(l, now)
	return l
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

// drop undoes one hold. An idle lane has nothing in flight: what rounding left of that goes, the debt stays in base.
func (ls *lanes) drop(l *lane, now int64) {
	l.refs--
	if l.refs > 0 {
		return
	}
	l.prepaid, l.accrued, l.rate = 0, 0, 0
	if l != ls.overflow {
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
