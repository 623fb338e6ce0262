package extproc

import "github.com/headgate/headgate/pkg/lease"

// model is the model that the request names, as far as is known by now: by its path, for APIs that name it there, else as the
// last member "model" of its JSON body. It is empty where none is known.
func (x *exchange) model() string {
	if x.facts.model != "" {
		return x.facts.model
	}
	name, known := x.body.scanner.Model()
	if known && len(name) == 0 {
		return unreadableModel
	}
	return string(name)
}

// wrongModel refuses a body that names, after the fence has been passed, a model that the connection does not serve: behind the
// evidence window, a second time, or where bodies follow their headers' answer. The upstream has a part of the body at the most.
func (x *exchange) wrongModel() *verdict {
	if !x.lease.fenced || x.lease.fence.Unchecked || !x.lease.byBody {
		return nil
	}
	name, known := x.body.scanner.Model()
	if !known || (len(name) > 0 && string(name) == x.lease.model) {
		return nil
	}
	if x.lease.model = x.model(); x.server.leases.Serves(x.lease.fence.Pool, x.lease.fence.Connection, x.lease.model) {
		return nil
	}
	return leaseVerdict(&lease.Refusal{Reason: lease.NoEligibleConnection})
}
