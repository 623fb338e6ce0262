package adaptive

import "time"

// Permit is one request's place at a controller, from asking to its end. Its storage belongs to the caller, who embeds it;
// the zero value is ready, it must not be copied, and it may be used again once it was refused or Done has returned.
// Every method may be called from any goroutine and does nothing when it comes too late.
type Permit struct {
	_ noCopy

	c          *Controller // nil: never asked, or lanes are off; everything is a no-op then
	lane       *lane
	flow       *flow   // of the lane, at the request's level
	prev, next *Permit // neighbours in the flow's queue
	// Neighbours in the slot of a wheel.
	beforeDeadline, afterDeadline *Permit

	ready  chan struct{} // made when the permit waits
	reason Reason
	stage  stage
	queued bool // in the flow's queue; in shadow mode an admitted permit may be
	held   bool // counted in held, metered in the flow
	passed uint8
	epoch  uint32 // see Controller.epoch

	cost    int // what its lane pays for now
	place   int // what it takes of the limit
	charged int // what the lane was charged ahead for
	priced  int // cost of the request, while cost may be that of its generation
	tokens  int64
	class   Class

	population population // that the latency at its end belongs to
	perWeight  float64
	estimate   float64 // charged ahead to the lane
	used       float64 // metered, up to since
	since      int64

	seq       uint64
	arrived   int64
	started   int64 // when it was admitted
	deadline  int64 // of the wait; later of the price
	forwarded int64 // when the latency sample began
	forward   bool  // forwarding starts with the admission
	generates bool  // the cost has dropped to that of the generation
	expected  bool  // the cost will drop at the deadline
	unsampled bool  // no latency sample, or none any more
	answer    Answer
}

// notForwarded is the start of a latency sample that has none.
const notForwarded = -1

type stage uint8

const (
	stageNone stage = iota
	stageWaiting
	stageActive
	stageEnded
)

// noCopy lets go vet find copies.
type noCopy struct{}

func (*noCopy) Lock()   {}
func (*noCopy) Unlock() {}

// Ready is closed when a waiting permit is settled; it is closed already when the permit never waited. Reason tells how
// it was settled.
func (p *Permit) Ready() <-chan struct{} {
	if p.c == nil {
		return closed()
	}
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	if p.ready == nil {
		return closed()
	}
	return p.ready
}

func closed() <-chan struct{} {
	ch := make(chan struct{})
	close(ch)
	return ch
}

// Reason is why the permit was refused; empty means that it was not.
func (p *Permit) Reason() Reason {
	if p.c == nil {
		return ""
	}
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	return p.reason
}

// Waited is how long the permit waited, so far or until it was settled.
func (p *Permit) Waited() time.Duration {
	if p.c == nil {
		return 0
	}
	now := p.c.clock()
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	if p.stage == stageWaiting {
		return time.Duration(max(0, now-p.arrived))
	}
	return time.Duration(p.started - p.arrived)
}

// Cancel leaves the queue because the client is gone: no refusal is counted. A permit that was granted in the meantime is
// handed on.
func (p *Permit) Cancel() { p.Done(Cancelled) }

// Raise lifts the cost when the body turns out larger than it was priced. Nothing waits for it: the request is already
// let in, the next ones pay. It does nothing after the first response byte, or for a lower cost.
func (p *Permit) Raise(cost int) {
	c := p.c
	if c == nil {
		return
	}
	now := c.clock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if cost = clampCost(cost); p.stage == stageActive && !p.generates && cost > p.cost {
		c.advanceLocked(now)
		c.repriceLocked(p, cost)
		p.priced = cost
		c.dispatchLocked() // not the room but the order may have changed
	}
}

// Forwarded says that the request leaves for the upstream now: its latency sample begins.
func (p *Permit) Forwarded() {
	c := p.c
	if c == nil {
		return
	}
	now := c.clock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.stage == stageActive {
		c.forwardLocked(p, now)
	}
}

// NoSample says that this exchange's latency means nothing: upgrades, CONNECT, bidirectional streams, and responses
// that are errors (a quick refusal is not a fast upstream).
func (p *Permit) NoSample() {
	c := p.c
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	p.unsampled = true
}

// meter brings used up to now.
func (p *Permit) meter(now int64) {
	if now > p.since {
		p.used += float64(p.cost) * p.perWeight * seconds(now-p.since)
		p.since = now
	}
}

// Done ends the exchange and gives everything back. An OK without a first byte before it was one whose response began
// and ended together, and is sampled here; a waiting permit leaves its queue. Only the first call counts.
func (p *Permit) Done(o Outcome) {
	c := p.c
	if c == nil {
		return
	}
	now := c.clock()
	c.mu.Lock()
	c.doneLocked(p, o, now)
	c.mu.Unlock()
}

func (c *Controller) doneLocked(p *Permit, o Outcome, now int64) {
	switch p.stage {
	case stageWaiting:
		c.advanceLocked(now)
		// Rolling a window may have granted it just now; then it is handed on.
		if p.stage == stageActive {
			c.releaseLocked(p)
		} else {
			c.leaveLocked(p)
			p.stage = stageEnded
			c.lanes.drop(p.lane, c.now)
			close(p.ready)
		}
		c.dispatchLocked()
	case stageActive:
		c.advanceLocked(now)
		c.learnLocked(p, o)
		c.releaseLocked(p)
		c.dispatchLocked()
	}
}
