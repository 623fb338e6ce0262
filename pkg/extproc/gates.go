package extproc

import (
	"github.com/headgate/headgate/pkg/budget"
	"github.com/headgate/headgate/pkg/budget/memory"
)

// gate is one check on the way to the upstream.
type gate struct {
	// pass lets the exchange through, holding what it needs; or is pending until something happens; or refuses.
	pass func(*exchange) (pending bool, refusal *verdict)
	// would is what pass would say now, without holding or counting anything: for exchanges that are only observed.
	// nil is a gate that never refuses those.
	would func(*exchange) *verdict
}

// gates are all of them, in their order. The first four look at the headers only, before any byte of the body is read.
// Bytes come after the lane: what only one route cluster needs is never waited for while holding what all share. The
// fence comes last, immediately before forwarding.
var gates = []gate{
	{(*exchange).pressureGate, (*exchange).underPressure},
	{(*exchange).sizeGate, (*exchange).oversized},
	{(*exchange).leaseSyntaxGate, nil},
	{(*exchange).declaredGate, nil},
	{(*exchange).evidenceGate, nil},
	{(*exchange).messageGate, (*exchange).overMessageLimit},
	{(*exchange).laneGate, (*exchange).wouldLackLane},
	{(*exchange).bytesGate, (*exchange).wouldLackBytes},
	{(*exchange).fenceGate, nil},
}

// pressureGate sheds while memory is critical, but for the trickle that lets a garbage-collected process recover.
func (x *exchange) pressureGate() (bool, *verdict) {
	switch {
	case x.underPressure() == nil:
		return false, nil
	case x.server.shed():
		return false, x.shed(budget.ResourcePressure, x.server.pressure().RetryAfter())
	}
	x.reservation.trickle = true
	return false, nil
}

func (x *exchange) underPressure() *verdict {
	if x.facts.parent != nil || x.server.pressure().Severity < memory.Critical {
		return nil
	}
	return newVerdict(resourcePressure, 0)
}

// sizeGate refuses what declares too much.
func (x *exchange) sizeGate() (bool, *verdict) {
	return false, x.countShed(x.oversized())
}

// countShed counts a refusal that byte admission knows but did not decide.
func (x *exchange) countShed(v *verdict) *verdict {
	if v != nil && v.reason == bodyExceedsBudget {
		x.server.bytes.Shed(budget.BodyExceedsBudget)
	}
	return v
}

func (x *exchange) oversized() *verdict {
	if x.facts.conflict {
		return newVerdict(invalidContentLength, 0)
	}
	return x.tooLarge(max(x.body.declared, x.body.seen))
}

// tooLarge refuses bodies above the hard maximum, which holds for everybody, and those that no empty budget could hold.
func (x *exchange) tooLarge(bytes int64) *verdict {
	switch {
	case bytes > int64(x.policy.config.Bytes.HardMaxBody):
		return newVerdict(payloadTooLarge, 0)
	case x.exempt() || bytes < int64(x.policy.config.Bytes.LargeBody) || bytes-x.reservation.base <= x.server.bytes.Budget().Bytes:
		return nil
	case x.reservation.held() && bytes <= x.reservation.bytes():
		return nil // a budget that has shrunk takes nothing back
	}
	return newVerdict(bodyExceedsBudget, 0)
}

// evidenceGate is pending while more of the body could change the decision.
func (x *exchange) evidenceGate() (bool, *verdict) { return !x.evidenceIsIn(), nil }

// evidenceIsIn reports whether waiting for more of the body could not change the decision, or has taken long enough.
func (x *exchange) evidenceIsIn() bool {
	return x.headersSuffice || x.responded || x.idled ||
		x.plan.completes(&x.body, int64(x.policy.config.Decision.Window))
}

// messageGate holds the opt-in cap on messages.
func (x *exchange) messageGate() (bool, *verdict) { return false, x.overMessageLimit() }

func (x *exchange) overMessageLimit() *verdict {
	if x.body.tooManyMessages(x.policy.config.Bytes.Structure) {
		return newVerdict(messageLimit, 0)
	}
	return nil
}

// scanMatters reports whether what the scan may yet find changes anything: the cap on messages and the model hold to the end of
// a body, and the evidence window is read for the price whenever the decision was taken.
func (x *exchange) scanMatters() bool {
	return x.lease.byBody || x.policy.config.Bytes.Structure.HardMaxMessages > 0 || x.body.seen < int64(x.policy.config.Decision.Window)
}
