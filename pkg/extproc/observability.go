package extproc

import "github.com/headgate/headgate/pkg/extproc/wire"

// observe follows an exchange in observability mode: Envoy ignores every answer, so none is sent, nothing is held, and
// what would have been refused is counted.
func (x *exchange) observe(first *wire.Message) error {
	counted := false
	for m := first; ; {
		if m.Phase == wire.RequestBody {
			x.body.add(m)
			if x.plan.ends(m) {
				x.body.end()
			}
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

// wouldReject tries the gates without holding anything.
func (x *exchange) wouldReject() {
	for _, gate := range gates {
		if gate.would == nil {
			continue
		}
		if v := gate.would(x); v != nil {
			x.server.observe.WouldReject(x.facts.cluster, v.Reason)
			return
		}
	}
}
