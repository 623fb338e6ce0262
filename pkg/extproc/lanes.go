package extproc

import (
	"cmp"
	"time"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/extproc/wire"
)

// anonymousLane names, outside the process, the lane of requests without a tenant.
const anonymousLane = "_default"

// noWait is a bound on the wait that refuses instead of waiting.
const noWait = -1

// permit is the exchange's place in its route cluster's lanes.
type permit struct {
	adaptive adaptive.Permit
	wait     <-chan struct{} // closed when the wait is over; nil when there is none
	held     bool            // admitted, and to be settled with release
	begun    bool            // forwarding began with the admission

	unsampled bool // how long a stream of frames lasts is not latency
	cost      int
	priced    int64 // bytes that the cost is for
}

// laneGate admits the exchange to its route cluster. A child request of a fan-out is admitted or refused at once. Where
// the upstream has answered already, there is nothing left to protect.
func (x *exchange) laneGate() exit {
	if x.settings.Lanes.Mode == adaptive.Off || x.responded {
		return exit{}
	}
	x.permit.cost, x.permit.priced = x.body.cost(), x.body.bytes()
	request := adaptive.Request{
		Lane: x.laneName(), Weight: x.facts.tenant.weight, Cost: x.permit.cost,
		MaxWait: cmp.Or(x.waitLeft(), noWait), Forward: !x.leaseGoverns(),
	}
	lanes := x.server.lanes.Controller(x.facts.cluster)
	var state adaptive.State
	if x.facts.parent != nil {
		state = lanes.AcquireNow(&x.permit.adaptive, request)
	} else {
		state = lanes.Acquire(&x.permit.adaptive, request)
	}
	x.permit.begun = request.Forward
	x.permit.unsampled = x.facts.upgrade || x.facts.grpc
	if state == adaptive.Waiting {
		x.tracing.laneEvent("wait")
		x.permit.wait = x.permit.adaptive.Ready()
		if end := x.until(func() bool { return x.permit.wait == nil }); end.kind != proceed {
			return end
		}
	} else if end := x.permit.settle(); end.kind != proceed {
		return end
	}
	x.permit.raise(&x.body) // what arrived while it waited
	x.tracing.laneEvent("grant")
	return exit{}
}

// laneName is the opaque name of the tenant's lane: a child request of a fan-out runs in that of its parent.
func (x *exchange) laneName() string {
	if p := x.facts.parent; p != nil {
		return p.Lane
	}
	return x.facts.tenant.name
}

// settle takes in the answer of the lanes, at once or after a wait.
func (p *permit) settle() exit {
	p.wait = nil
	if reason := p.adaptive.Reason(); reason != "" {
		return refusedBy(newVerdict(string(reason), 0))
	}
	p.held = true
	if p.unsampled {
		p.adaptive.NoSample()
	}
	return exit{}
}

func (p *permit) waited() time.Duration { return p.adaptive.Waited() }

// forwarded starts the latency sample.
func (p *permit) forwarded() {
	if p.held && !p.begun {
		p.adaptive.Forwarded()
	}
}

// raiseStep is how many bytes of growth are worth a new price.
const raiseStep = 64 << 10

// raise prices a body that has grown beyond what it was admitted for. That never waits.
func (p *permit) raise(b *body) {
	if p.held && b.bytes() >= p.priced+raiseStep {
		p.priced = b.bytes()
		p.cost = max(p.cost, b.cost())
		p.adaptive.Raise(p.cost)
	}
}

// firstByte ends the latency sample. The time to an error says nothing about the time that work takes.
func (p *permit) firstByte(code int) {
	if !p.held {
		return
	}
	if code >= 400 {
		p.adaptive.NoSample()
	}
	p.adaptive.FirstByte()
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

// statusOf reads the status of a response; 0 where there is none.
func statusOf(m *wire.Message) (code int) {
	value, _ := m.Header(":status")
	for _, c := range value {
		if c < '0' || c > '9' || code > 999 {
			return 0
		}
		code = code*10 + int(c-'0')
	}
	return code
}

// outcomeOf says what a response teaches the limit.
func outcomeOf(code int) adaptive.Outcome {
	switch {
	case code == 429 || code == 503:
		return adaptive.Overload
	case code == 408 || code == 504:
		return adaptive.Timeout
	case code >= 500:
		return adaptive.UpstreamError
	}
	return adaptive.OK
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
