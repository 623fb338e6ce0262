package adaptive

import "time"

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

// Respond says that the response's headers are there. Unless FirstToken is going to follow, the cost drops to the
// generation cost now.
func (p *Permit) Respond(r Response) {
	c := p.c
	if c == nil {
		return
	}
	now := c.clock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.signal, c.headersAtOnce = r.Signal, r.AtOnce
	p.answer = r.Answer
	fromHeaders := r.Signal == FromHeaders && r.Answer == AnswerAccepted
	if r.Class == Whole || (!fromHeaders && (r.Unsampled || r.Answer != AnswerAccepted)) {
		p.unsampled = true
	}
	if r.Signal == FromHeaders || r.Unsampled || r.Answer != AnswerAccepted {
		c.firstByteLocked(p, now)
	}
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
	c.firstByteLocked(p, now)
	c.mu.Unlock()
}
