package extproc

import (
	"time"

	"github.com/headgate/headgate/pkg/budget"
)

// arrivalGates look at the headers only, before any byte of the body is read.
var arrivalGates = []func(*exchange) *Verdict{
	(*exchange).pressureGate,
	(*exchange).sizeGate,
	(*exchange).charge,
	(*exchange).leaseSyntaxGate,
}

// evidenceGates pass once the evidence is in. Each may wait; the fence comes last, immediately before forwarding.
var evidenceGates = []func(*exchange) exit{
	(*exchange).structureGate,
	(*exchange).bytesGate,
	(*exchange).laneGate,
	(*exchange).leaseGate,
}

// bypasses reports a request with a valid parent token: it reserves nothing, since its parent does.
func (x *exchange) bypasses() bool { return x.facts.parent != nil }

// pressureGate sheds everything while memory is critical.
func (x *exchange) pressureGate() *Verdict {
	if x.bypasses() || x.server.pressure().Severity != budget.Critical {
		return nil
	}
	return x.shed(budget.ResourcePressure)
}

// sizeGate refuses what declares too much.
func (x *exchange) sizeGate() *Verdict {
	if x.facts.conflict {
		return newVerdict("invalid_content_length", 0)
	}
	return x.tooLarge(x.facts.declared)
}

// tooLarge holds for everybody, the bypass included.
func (x *exchange) tooLarge(bytes int64) *Verdict {
	if bytes > int64(x.policy.config.Bytes.HardMaxBody) {
		return newVerdict("payload_too_large", 0)
	}
	return nil
}

// charge reserves what the body is known to need by now: nothing for a light one, all of it or nothing for a heavy one.
// Where the budget is taken it leaves a wait behind, and answers are withheld until that is over.
func (x *exchange) charge() *Verdict {
	need := x.body.bytes()
	switch {
	case x.bypasses(), x.settled, x.byteAsk != nil, need < int64(x.policy.config.Bytes.LargeBody):
		return nil
	case x.hold != nil && need <= x.hold.Bytes():
		return nil // a budget that has shrunk admits nothing new, but takes nothing back
	case need > x.server.bytes.Budget().Bytes:
		return x.shed(budget.BodyExceedsBudget)
	case x.hold == nil:
		return x.reserve(budget.Ask{Bytes: need})
	case x.hold.TryGrow(need):
		x.tracing.bytesEvent("growth", need)
		return nil
	}
	ask, refusal := x.hold.Grow(need, x.waitLeft())
	x.waitForBytes(ask, need)
	return byteVerdict(refusal)
}

// reserve asks for a reservation, or begins to wait for one.
func (x *exchange) reserve(a budget.Ask) *Verdict {
	a.Key, a.MaxWait = x.facts.tenant.name, x.waitLeft()
	hold, ask, refusal := x.server.bytes.Acquire(a)
	if hold != nil {
		x.hold = hold
		x.tracing.bytesEvent("grant", a.Bytes)
		x.clock.excused() // until now nobody went short for the upload's pauses
	}
	x.waitForBytes(ask, a.Bytes)
	return byteVerdict(refusal)
}

// waitForBytes begins a wait, where there is one.
func (x *exchange) waitForBytes(ask *budget.Waiter, bytes int64) {
	if ask != nil {
		x.byteAsk, x.clock.asked = ask, time.Now()
		x.tracing.bytesEvent("wait", bytes)
	}
}

// bytesSettled is readable when a wait for bytes is over.
func (x *exchange) bytesSettled() <-chan struct{} {
	if x.byteAsk == nil {
		return nil
	}
	return x.byteAsk.Done()
}

// takeBytes takes in the end of a wait for bytes. More may have arrived meanwhile.
func (x *exchange) takeBytes() *Verdict {
	hold, refusal := x.byteAsk.Result()
	x.byteAsk = nil
	x.clock.byteWait += time.Since(x.clock.asked)
	if refusal != nil {
		return byteVerdict(refusal)
	}
	x.hold = hold
	x.tracing.bytesEvent("grant", hold.Bytes())
	x.clock.excused() // the pause was ours, not the upload's
	if v := x.charge(); v != nil {
		return v
	}
	x.shrink()
	return nil
}

// structureBytes is what a body costs that is light in bytes and heavy in structure.
const structureBytes = 256 << 10

// structureGate makes bodies heavy by what they contain.
func (x *exchange) structureGate() exit {
	s := x.policy.config.Bytes.Structure
	if x.body.tooManyMessages(s) {
		return refusedBy(newVerdict("message_limit", 0))
	}
	if x.bypasses() || x.settled || x.hold != nil || x.byteAsk != nil || !x.body.structureHeavy(s) {
		return exit{}
	}
	return refusedBy(x.reserve(budget.Ask{Bytes: structureBytes, Structure: true}))
}

// bytesGate waits until nothing is owed to the byte budget.
func (x *exchange) bytesGate() exit {
	return x.until(func() bool { return x.byteAsk == nil })
}

// shed refuses for a reason that byte admission counts.
func (x *exchange) shed(r budget.Reason) *Verdict {
	x.server.bytes.Shed(r)
	return newVerdict(string(r), 0)
}

func byteVerdict(r *budget.Refusal) *Verdict {
	if r == nil {
		return nil
	}
	return newVerdict(string(r.Reason), r.RetryAfter)
}
