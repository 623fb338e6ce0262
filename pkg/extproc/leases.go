package extproc

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/headgate/headgate/pkg/extproc/wire"
	"github.com/headgate/headgate/pkg/lease"
)

// leaseHold is what the exchange knows of its session's lease, and what of it is renewed while the exchange lasts.
type leaseHold struct {
	caller     *lease.Refusal // of who calls: its API key is nobody's
	owner      lease.Owner
	generation int64
	model      string // that the connection was last found to serve
	byBody     bool   // which connections may serve the request depends on the model that its body names
	fence      lease.Fence
	fenced     bool          // fence holds an answer
	keep       *lease.Keep   // renewal while in flight, nil where there is none
	lost       chan struct{} // closed when the lease was found lost in mid-response
}

// leaseGoverns reports whether the route cluster looks at leases at all.
func (x *exchange) leaseGoverns() bool {
	return x.settings.Lease.Mode != lease.ModeOff && x.settings.Lease.Mode != ""
}

// needsLease reports whether this request must prove a lease of its own.
func (x *exchange) needsLease() bool {
	return x.settings.Lease.Mode == lease.ModeRequired || (x.leaseGoverns() && x.facts.caller.Managed)
}

// identifyCaller finds out who calls, where leases have to know. Elsewhere nobody has a use for the owner,
// which is a secret between the client and us: it goes no further.
func (x *exchange) identifyCaller(m *wire.Message) {
	switch {
	case x.leaseGoverns():
		x.facts.caller, x.lease.caller = x.policy.principalOf(m)
		x.lease.byBody = x.facts.model == "" && x.server.leases.ListsModels(x.settings.Lease.Pool)
	case x.facts.leaseOwner != "":
		x.facts.remove = appendOnce(x.facts.remove, lease.OwnerHeader)
	}
}

// leaseSyntaxGate checks on arrival what can be checked without the store.
func (x *exchange) leaseSyntaxGate() (bool, *verdict) {
	if x.lease.caller != nil {
		return false, leaseVerdict(x.lease.caller)
	}
	if !x.needsLease() {
		return false, nil
	}
	if x.facts.parent != nil {
		return false, leaseVerdict(&lease.Refusal{Reason: lease.UnsupportedRoute})
	}
	var refusal *lease.Refusal
	x.lease.owner, x.lease.generation, refusal = lease.CheckSyntax(x.facts.leaseOwner, x.facts.leaseGen)
	return false, leaseVerdict(refusal)
}

// renew keeps the lease alive while the exchange lasts. A lease that is lost all the same is counted by its service; the
// response is cut only where the configuration says so.
func (l *leaseHold) renew(leases *lease.Service) {
	lost := make(chan struct{})
	if l.keep = leases.Keep(l.fence, func(lease.EndReason) { close(lost) }); l.keep != nil && leases.CutOnLost() {
		l.lost = lost
	}
}

// renewal is the call that renews the lease.
func (l *leaseHold) renewal(caller lease.Identity) lease.Ask {
	return lease.Ask{Pool: l.fence.Pool, Owner: l.owner, Generation: l.generation, Identity: caller}
}

// renewOnce renews in the background the lease of an exchange that is let go as soon as it is decided, as drain does for those
// that are in flight when it begins to let go.
func (s *Server) renewOnce(a lease.Ask) {
	s.background.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
		defer cancel()
		if _, refusal := s.leases.Renew(ctx, a); refusal != nil {
			s.log.Warn("could not renew the lease of an exchange that is let go", "pool", a.Pool, "reason", refusal.Reason)
		}
	})
}

// mutate sends the request to the bound connection and lets the upstream fence too. The owner is a secret between the
// client and us.
func (l *leaseHold) mutate(m *wire.Mutation) {
	if !l.fenced {
		return
	}
	m.Remove = append(m.Remove, lease.OwnerHeader, lease.GenerationHeader, lease.ConnectionHeader)
	if l.fence.Unchecked {
		return
	}
	m.ClearRouteCache = true
	m.Set = append(m.Set, wire.Header{Name: lease.ConnectionHeader, Value: l.fence.Connection})
	if l.fence.Token > 0 { // the client's generation does not change when its lease moves, so it is no fencing token
		m.Set = append(m.Set, wire.Header{Name: lease.GenerationHeader, Value: strconv.FormatInt(l.fence.Token, 10)})
	}
}

// answered puts a connection into cooldown when its upstream said that it wants no requests. What Envoy answered itself says
// nothing about the connection, and without response.code_details nobody knows who answered.
func (l *leaseHold) answered(x *exchange, m *wire.Message, a answer) {
	if !l.fenced || l.fence.Unchecked {
		return
	}
	if !a.byUpstream {
		if !a.byProxy {
			x.server.noCodeDetails.Do(func() {
				x.server.log.Warn("Envoy does not send the response attribute " + codeDetails + ": no connection goes into cooldown")
			})
		}
		return
	}
	retryAfter, _ := m.Header("retry-after")
	date, _ := m.Header("date")
	cooldown := x.server.leases.CooldownFor(lease.Answered{
		Pool: l.fence.Pool, Connection: l.fence.Connection, Leased: l.fence.Token > 0, Status: a.status,
		RetryAfter: string(retryAfter), Date: string(date),
	})
	if cooldown > 0 {
		x.server.coolDown(l.fence.Pool, l.fence.Connection, cooldown)
	}
}

// IdentifyRequest finds who calls the lease API, in the order of the sources, as for a request through Envoy. Of those
// only headers reach it: the API key and, where nobody but Envoy can reach the API (it listens on loopback or a unix
// socket), what Envoy's own authentication sets. A key that is not known ends the search.
func (s *Server) IdentifyRequest(r *http.Request) (lease.Identity, *lease.Refusal) {
	p := s.policy.Load()
	for _, source := range p.principals {
		switch name := strings.TrimSpace(r.Header.Get(source.Header)); {
		case source.APIKey && lease.APIKey(r.Header.Get("Authorization"), r.Header.Get("X-Api-Key")) != "":
			return s.leases.IdentifyRequest(r)
		case source.Header != "" && name != "" && s.apiIsLocal.Load():
			return s.leases.Identify(name), nil
		}
	}
	return lease.Identity{}, &lease.Refusal{Reason: lease.AuthenticationRequired}
}

// release ends the renewal. The lease itself outlives the exchange.
func (l *leaseHold) release() {
	l.keep.Stop()
	l.keep, l.lost = nil, nil
}

// storeTimeout bounds what is asked of the store in the background; no exchange waits for it.
const storeTimeout = time.Second

// coolDown notes in the background that a connection is in cooldown.
func (s *Server) coolDown(pool, connection string, d time.Duration) {
	s.background.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
		defer cancel()
		if refusal := s.leases.SetCooldown(ctx, pool, connection, d); refusal != nil {
			s.log.Warn("could not note that a connection is in cooldown", "pool", pool, "connection", connection, "reason", refusal.Reason)
		}
	})
}
