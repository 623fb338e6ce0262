package adaptive

// flow is what one lane has at one priority level: a queue, first come first served, and an account.
//
// The account is in cost-seconds divided by the lane's weight. base is settled. prepaid is what was charged in advance for
// the requests in flight, accrued what those have really used so far; the larger of the two counts, so that a request
// that outlasts its estimate is paid for while it runs and not in one lump when it ends.
type flow struct {
	lane  *lane
	level *priorityLevel
	next  *flow // of the lane, at another level

	head, tail *Permit // waiters
	count      int     // waiters
	cost       int     // their cost

	base    float64
	prepaid float64
	accrued float64
	spent   float64 // all that was ever used and is in base
	rate    float64 // what accrued grows by per second
	since   int64   // accrued is up to here

	// Place among the flows of the level (see order).
	ranked   bool // in the order: someone waits, and the lane is below its maxConcurrent
	key      float64
	headCost int
	slot     int
}

// virtual is the flow's virtual time at now: the work it has had, or been charged for ahead, per unit of weight.
func (f *flow) virtual(now int64) float64 {
	f.accrue(now)
	return f.base + max(f.prepaid, f.accrued)
}

func (f *flow) accrue(now int64) {
	if now > f.since {
		f.accrued += f.rate * seconds(now-f.since)
		f.since = now
	}
}

// lift brings a flow that comes back from idling up to its level's virtual time: no credit is saved. A flow that is ahead of
// it keeps its debt.
func (f *flow) lift(now int64) float64 {
	key := f.virtual(now)
	if v := f.level.virtual; key < v {
		f.base += v - key
		return v
	}
	return key
}

// start charges a permit ahead and begins to meter it.
func (f *flow) start(p *Permit, now int64, secondsPerCost float64) {
	f.accrue(now)
	p.perWeight = 1 / f.lane.weight
	p.estimate = float64(p.cost) * secondsPerCost * p.perWeight
	p.charged, p.used, p.since = p.cost, 0, now
	f.prepaid += p.estimate
	f.rate += float64(p.cost) * p.perWeight
}

// reprice meters a running permit at another cost from now on.
func (f *flow) reprice(p *Permit, cost int, now int64) {
	f.accrue(now)
	p.meter(now)
	f.rate += float64(cost-p.cost) * p.perWeight
}

// finish closes a permit's account: what it was charged ahead is replaced by what it used.
func (f *flow) finish(p *Permit, now int64) {
	f.accrue(now)
	p.meter(now)
	f.prepaid -= p.estimate
	f.accrued -= p.used
	f.base += p.used
	f.spent += p.used
	f.rate -= float64(p.cost) * p.perWeight
}

// idle clears what rounding has left of an account with nothing in flight; the debt stays in base.
func (f *flow) idle() { f.prepaid, f.accrued, f.rate = 0, 0, 0 }

// enqueue appends a waiter.
func (f *flow) enqueue(p *Permit) {
	p.prev, p.next = f.tail, nil
	if f.tail != nil {
		f.tail.next = p
	} else {
		f.head = p
	}
	f.tail = p
	f.count++
	f.cost += p.cost
}

// dequeue takes out a waiter, wherever it stands.
func (f *flow) dequeue(p *Permit) {
	if p.prev != nil {
		p.prev.next = p.next
	} else {
		f.head = p.next
	}
	if p.next != nil {
		p.next.prev = p.prev
	} else {
		f.tail = p.prev
	}
	p.prev, p.next = nil, nil
	f.count--
	f.cost -= p.cost
}
