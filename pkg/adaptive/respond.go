package adaptive

import (
	"math"
	"time"
)

// Class is a population of responses with a latency of its own.
type Class uint8

// The two classes. The headers of a Whole response come when the answer is complete, those of a Stream with its first
// token or before it.
const (
	Stream Class = iota
	Whole
)

// Signal is where the first token of a response is seen.
type Signal string

// The signals. Many servers answer the headers at once, so that FromHeaders says little of them.
const (
	FromHeaders Signal = "headers" // the response headers
	FromWitness Signal = "witness" // a second filter that sees the first byte of the response body
	FromBody    Signal = "body"    // response body messages of the filter itself
)

// Answer is what the beginning of a response says about the upstream.
type Answer uint8

// The answers. Only the upstream speaks for the upstream: a proxy's own answer is AnswerProxyFailed.
const (
	AnswerAccepted    Answer = iota
	AnswerRefused            // the upstream's own 429 or 503, or its gRPC status 8 or 14
	AnswerFailed             // any other 5xx of the upstream, its 408, or a gRPC status that says the same
	AnswerProxyFailed        // the proxy reached no upstream, or lost it before the response began
)

// Response describes a response at its headers.
type Response struct {
	Class      Class
	Answer     Answer
	RetryAfter time.Duration // as the upstream asks for; 0 is not stated
	Signal     Signal        // of the cluster; with FromHeaders the call itself is the first token
	AtOnce     bool          // the cluster's headers come at once lately, whatever the cost and the load: they say nothing about either
	Unsampled  bool          // the cluster has a better signal, but no FirstToken call follows for this response
}

// Respond says that the response's headers are there. When they are all that will be seen of the first token, the cost drops to
// the generation cost: at once, or for a response whose first token is not looked for, when it is expected.
func (p *Permit) Respond(r Response) {
	c := p.c
	if c == nil {
		return
	}
	now := c.clock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.signal, c.headersAtOnce = r.Signal, r.AtOnce
	p.answer, p.class, p.population = r.Answer, r.Class, r.Class.population()
	if p.stage != stageActive {
		return
	}
	c.advanceLocked(now)
	switch {
	case r.Answer != AnswerAccepted:
		p.unsampled = true
		if r.Answer == AnswerRefused {
			c.retry.asked(p.lane, c.now, min(r.RetryAfter, c.settings.MaxWait))
		}
		c.generateLocked(p)
	case r.Class == Whole:
		c.generateLocked(p)
	case r.Signal == FromHeaders && r.AtOnce:
		p.population = wholes // all that can be compared is how long it takes to its end
		c.generateLocked(p)
	case r.Signal == FromHeaders:
		c.firstTokenLocked(p)
	case r.Unsampled:
		p.unsampled = true
		c.expectLocked(p)
	default:
		c.stopExpectingLocked(p) // a response taken for a whole answer streams, so that its first token will be seen
	}
	c.dispatchLocked()
}

// FirstToken says that the first byte of the response body is there: the latency is sampled, and the cost drops to the
// generation cost, so that a long stream does not hold the price of its prompt.
func (p *Permit) FirstToken() {
	c := p.c
	if c == nil {
		return
	}
	now := c.clock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.stage == stageActive {
		c.advanceLocked(now)
		c.firstTokenLocked(p)
		c.dispatchLocked()
	}
}

func (c *Controller) firstTokenLocked(p *Permit) {
	if p.class == Stream {
		c.sampleLocked(p, firstTokens)
	}
	c.generateLocked(p)
}

// generateLocked drops the cost to that of the generation.
func (c *Controller) generateLocked(p *Permit) {
	c.stopExpectingLocked(p)
	if p.generates {
		return
	}
	p.generates = true
	if cost := c.settings.generationCost(p.tokens); p.cost > cost {
		c.repriceLocked(p, cost)
	}
}

// expectLocked has the cost drop when the first token is expected of a request that was forwarded: after the time that streams
// of its cost lately took, in this window when none before it had any. Nothing is expected while no stream was seen.
func (c *Controller) expectLocked(p *Permit) {
	perCost := c.state.latency[firstTokens].short
	if perCost == 0 {
		perCost = c.window.fresh[firstTokens].mean()
	}
	if perCost == 0 {
		if p.class == Stream {
			c.generateLocked(p)
		}
		return
	}
	if p.queued || p.generates || p.expected || p.forwarded == notForwarded {
		return
	}
	p.deadline = p.forwarded + int64(min(perCost*c.curves[firstTokens].expected(p.priced), float64(longestExpected)))
	if p.deadline <= c.now {
		c.generateLocked(p)
		return
	}
	p.expected = true
	c.expected.add(p, c.now)
	if c.waiting.count > 0 {
		c.armLocked(p.deadline)
	}
}

// stopExpectingLocked is for a request whose first token has come, or will not come.
func (c *Controller) stopExpectingLocked(p *Permit) {
	if p.expected {
		p.expected = false
		c.expected.remove(p)
	}
}

// longestExpected bounds how long a first token is expected to take.
const longestExpected = 10 * time.Minute

// nextExpectedLocked is when the next first token is expected.
func (c *Controller) nextExpectedLocked() int64 {
	if c.expected.used == 0 {
		return math.MaxInt64
	}
	return c.expected.next()
}

// generatingLocked drops the cost of those whose first token is expected by now.
func (c *Controller) generatingLocked() {
	if c.expected.used == 0 {
		return
	}
	before := c.held.cost
	for p := c.expected.expired(c.now); p != nil; p = c.expected.expired(c.now) {
		c.generateLocked(p)
	}
	if c.held.cost < before {
		c.dispatchLocked()
	}
}
