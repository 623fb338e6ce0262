package extproc

import (
	"cmp"
	"time"

	"github.com/headgate/headgate/pkg/adaptive"
)

// anonymousLane names, outside the process, the lane of requests without a tenant.
const anonymousLane = "_default"

// noWait is a bound on the wait that refuses instead of waiting.
const noWait = -1

// permit is the exchange's place in its route cluster's lanes.
type permit struct {
	adaptive  adaptive.Permit
	wait      <-chan struct{} // closed when the wait is over; nil when there is none
	requested bool
	held      bool // admitted, and to be given back with release
	begun     bool // forwarding began with the admission

	witness   string       // under which the witness finds this permit; "" while it is not looked for
	sightings *sightings   // of the cluster, while held
	headers   headerSample // of a stream whose first token the headers are taken for
	body      bool         // the first message of the response body is the first token
	unsampled bool         // how long a stream of frames lasts is not latency
	cost      int
	priced    int64 // bytes that the cost is for
}

func (p *permit) waiting() bool { return p.wait != nil }

// granted is readable when a wait for the lane is over.
func (p *permit) granted() <-chan struct{} { return p.wait }

// laneGate admits the exchange to its route cluster, and is pending while it waits for that. A child request of a fan-out is
// admitted or refused at once.
func (x *exchange) laneGate() (pending bool, _ *verdict) {
	switch {
	case x.settings.Lanes.Mode == adaptive.Off:
		return false, nil
	case !x.permit.requested:
		if v := x.requestLane(); v != nil {
			return false, v
		}
	}
	return x.permit.waiting(), nil
}

// requestLane asks for the permit, or begins to wait for it.
func (x *exchange) requestLane() *verdict {
	p := &x.permit
	p.requested = true
	p.cost, p.priced = x.body.cost(), x.body.bytes()
	p.begun = !x.leaseGoverns() && x.need() == 0
	p.unsampled = x.facts.upgrade
	request := adaptive.Request{
		Lane: x.laneName(), Weight: x.facts.tenant.weight, MaxConcurrent: x.facts.tenant.most, Level: x.facts.level, Cost: p.cost, Class: x.class(answer{}), Tokens: x.body.tokens(),
		MaxWait: cmp.Or(x.waitLeft(), noWait), Forward: p.begun,
	}
	if x.facts.parent != nil {
		request.Weight = 0 // the lane is its parent's, and so is the weight
	}
	lanes := x.server.lanes.Controller(x.facts.cluster)
	var state adaptive.State
	if x.facts.parent != nil {
		state = lanes.AcquireNow(&p.adaptive, request)
	} else {
		state = lanes.Acquire(&p.adaptive, request)
	}
	if state == adaptive.Waiting {
		x.tracing.laneEvent("wait")
		p.wait = p.adaptive.Ready()
		return x.queueBytes()
	}
	return x.endLaneWait()
}

// endLaneWait takes in the answer of the lanes, at once or after a wait.
func (x *exchange) endLaneWait() *verdict {
	p := &x.permit
	p.wait = nil
	if reason := p.adaptive.Reason(); reason != "" {
		return newVerdict(laneReason(reason), 0)
	}
	p.held = true
	p.sightings = x.server.witnesses.of(x.facts.cluster)
	p.headers.beside = int(p.sightings.headers.running.Add(1))
	if p.unsampled {
		p.adaptive.NoSample()
	}
	p.raise(&x.body) // what arrived while it waited
	x.tracing.laneEvent("grant")
	return nil
}

// wouldLackLane is laneGate for an exchange that only watches: it holds nothing.
func (x *exchange) wouldLackLane() *verdict {
	if x.settings.Lanes.Mode != adaptive.Enforce {
		return nil
	}
	if x.server.lanes.Controller(x.facts.cluster).WouldWait(x.body.cost()) {
		return newVerdict(admissionQueueFull, 0) // it would wait at the least
	}
	return nil
}

// laneName is the opaque name of the tenant's lane: a child request of a fan-out runs in that of its parent.
func (x *exchange) laneName() string {
	if p := x.facts.parent; p != nil {
		return p.Lane
	}
	return x.facts.tenant.name
}

func (p *permit) waited() time.Duration { return p.adaptive.Waited() }

// forwardLane starts the latency sample and arranges for the first token to be seen.
func (x *exchange) forwardLane() {
	p := &x.permit
	if !p.held {
		return
	}
	if !p.begun {
		p.adaptive.Forwarded()
	}
	x.expectWitness()
}

// releaseLane gives the place back, and ends what looked for the first token.
func (x *exchange) releaseLane() {
	p := &x.permit
	if s := p.sightings; s != nil {
		x.endWitness()
		x.endHeaders()
		s.headers.running.Add(-1)
		p.sightings = nil
	}
	p.release(x.outcome)
}

// endHeaders looks at how long the headers of a stream took.
func (x *exchange) endHeaders() {
	p := &x.permit
	if p.headers.took == 0 || x.outcome != adaptive.OK || !p.sightings.headers.add(p.headers, x.sinceForwarded()) {
		return
	}
	if p.sightings.headers.atOnce.Load() {
		x.server.log.Warn("response headers come at once: the limit sees neither the first token nor load; have Envoy call the witness, or send the response body",
			"cluster", x.facts.cluster, "firstToken", x.settings.Lanes.FirstToken)
		return
	}
	x.server.log.Info("response headers do not come at once any more", "cluster", x.facts.cluster)
}

// sinceForwarded is how long ago the upstream got the request.
func (x *exchange) sinceForwarded() time.Duration {
	return time.Since(x.timing.began) - x.timing.admitted
}

// raiseStep is how many bytes of growth are worth a new price.
const raiseStep = 64 << 10

// raise prices a body that is more than what it was admitted for: it has grown, or a scan that still goes on has found
// more in it. That never waits.
func (p *permit) raise(b *body) {
	if !p.held || (b.bytes() < p.priced+raiseStep && !b.scans) {
		return
	}
	p.priced = b.bytes()
	if cost := b.cost(); cost > p.cost {
		p.cost = cost
		p.adaptive.Raise(cost)
	}
}

// firstBody is the first message of the response body.
func (p *permit) firstBody() {
	if p.held && p.body {
		p.body = false
		p.adaptive.FirstToken()
	}
}

// release gives the place back, whichever state it is in.
func (p *permit) release(o adaptive.Outcome) {
	switch {
	case p.wait != nil:
		p.adaptive.Cancel()
	case p.held:
		p.adaptive.Done(o)
	}
	p.wait, p.held = nil, false
}

// parentToken makes the token that a gateway upstream puts on the requests it turns this one into; "" where requests are
// nested as deeply as allowed.
func (x *exchange) parentToken() string {
	parent := adaptive.Parent{Lane: x.laneName(), Cluster: x.facts.cluster, Depth: 1}
	if p := x.facts.parent; p != nil {
		parent.Depth = p.Depth + 1
	}
	return x.policy.parents.Issue(parent)
}
