package extproc

import (
	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/budget"
	"github.com/headgate/headgate/pkg/extproc/wire"
)

// observe follows an exchange in observability mode: Envoy ignores every answer, so none is sent, nothing is held, and
// what would have been refused is counted.
func (x *exchange) observe(first *wire.Message) error {
	counted := false
	for m := first; ; {
		if m.Phase == wire.RequestBody {
			x.body.add(m)
		}
		m.Free()
		if !counted && (x.evidenceIsIn() || m.Phase > wire.RequestBody) {
			counted = true
			x.wouldReject()
		}
		next := <-x.inbox.next()
		if err := next.end(); err != nil {
			return normalEnd(err)
		}
		m = next.message
	}
}

// wouldReject looks at the gates without holding anything.
func (x *exchange) wouldReject() {
	reason := ""
	switch bytes := x.body.bytes(); {
	case x.server.pressure().Severity == budget.Critical:
		reason = string(budget.ResourcePressure)
	case x.tooLarge(max(bytes, x.body.declared)) != nil:
		reason = "payload_too_large"
	case bytes >= int64(x.policy.config.Bytes.LargeBody) && bytes > x.server.bytes.Budget().Bytes:
		reason = string(budget.BodyExceedsBudget)
	case x.settings.Lanes.Mode == adaptive.Enforce:
		if lanes := x.server.lanes.Controller(x.facts.cluster).Totals(); lanes.ActiveCost+x.body.cost() > lanes.CurrentLimit {
			reason = "admission_queue_full" // it would wait at the least
		}
	}
	if reason != "" {
		x.server.observe.WouldReject(x.facts.cluster, reason)
	}
}
