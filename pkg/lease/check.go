package lease

import (
	"context"
	"slices"
	"time"
)

// FenceAsk is what a request presents, checked last before it is forwarded.
type FenceAsk struct {
	Pool       string
	Owner      Owner
	Generation int64
	Identity   Identity
	Pin        string // the connection header the client sent; empty is none
	Model      string // of the request; empty is unknown, which every connection serves
}

// Fence is where a request goes and what it carries.
type Fence struct {
	// Unchecked says that the store could not be asked and onStoreError is allow: nothing below is set but the pool, and
	// the owner, generation and connection headers of the client are to be removed.
	Unchecked  bool
	Pool       string
	Connection string // value of the connection header
	Cluster    string // Envoy cluster of the connection; may be empty
	Generation int64  // of the lease, as the client knows it
	// Token is the fencing token for the upstream: of all tokens that a connection is sent, a newer lease's is larger. It is
	// drawn when a lease begins and whenever it moves; 0 for a request without a lease.
	Token int64
	Moved bool // the lease was moved to this connection just now

	owner     Owner
	principal string
	asked     time.Time     // before the store was asked
	validFor  time.Duration // what was left of the lease then
	holdLeft  time.Duration // what is left until it has been held for as long as it may
}

// Check is the fence: one round trip, two when the lease has to move because its connection is in cooldown or not eligible any
// more. Refusals: LEASE_REQUIRED, LEASE_FENCE_STALE, LEASE_CONNECTION_MISMATCH, LEASE_NO_ELIGIBLE_CONNECTION,
// LEASE_ELIGIBILITY_UNAVAILABLE, LEASE_SERVICE_UNAVAILABLE.
func (s *Service) Check(ctx context.Context, a FenceAsk) (Fence, *Refusal) {
	v := s.view()
	p, refusal := v.pool(a.Pool)
	if refusal != nil {
		return Fence{}, s.refused("check", "", refusal)
	}
	principal := principalID(a.Identity.Principal)
	asked := time.Now()
	r, err := v.store.read(ctx, p, v.store.scripts.check, checkArgs(a.Owner, a.Generation, principal)...)
	if err != nil {
		return s.unchecked("check", v, p, err)
	}
	switch r.status {
	case "NONE":
		return Fence{}, s.refused("check", p.name, refuse(LeaseRequired))
	case "STALE":
		return Fence{}, s.refused("check", p.name, refuse(FenceStale))
	}
	l := leaseOf(p, r)
	f := s.fence(v, p, a, principal, asked, l)
	if a.Pin != "" && a.Pin != l.Connection {
		return Fence{}, s.refused("check", p.name, refuse(ConnectionMismatch))
	}
	why := p.eligible(a.Identity, l.model, a.Model, l.Connection)
	if why == "" && r.status == "COOLDOWN" {
		why = HealthOrCooldown
		if a.Pin != "" { // the client wants this one and no other: it can only wait
			return Fence{}, s.refused("check", p.name, refuseFor(EligibilityUnavailable, r.until(2), 0))
		}
	}
	if why != "" {
		return s.moveAway(ctx, v, p, a, l.model, why)
	}
	s.cooldowns.forget(p.name, l.Connection)
	s.observer.answer("check", p.name, r.status)
	return f, nil
}

func checkArgs(o Owner, generation int64, principal string) []any {
	return []any{string(o), generation, principal, "0"}
}

// fence is the fence of a lease that the store has found, and what renewals in flight learn from it.
func (s *Service) fence(v *view, p *pool, a FenceAsk, principal string, asked time.Time, l Lease) Fence {
	v.store.shard(p).saw(l.token)
	s.keepers.learn(leaseKey{p.name, a.Owner, l.Generation}, l.token)
	held := l.ExpiresAt.Add(-l.validFor).Sub(l.AcquiredAt)
	return Fence{
		Pool: p.name, Connection: l.Connection, Cluster: p.byID[l.Connection].Cluster, Generation: l.Generation, Token: l.token,
		owner: a.Owner, principal: principal, asked: asked, validFor: l.validFor, holdLeft: v.settings.MaxHold - held,
	}
}

// moveAway moves the lease to a free connection that is eligible for what it was acquired for and for the request; when
// there is none the lease ends.
func (s *Service) moveAway(ctx context.Context, v *view, p *pool, a FenceAsk, model string, why EndReason) (Fence, *Refusal) {
	candidates := p.candidates(a.Identity, model, a.Model)
	principal := principalID(a.Identity.Principal)
	asked := time.Now()
	args := []any{string(a.Owner), a.Generation, principal, string(why), v.settings.MaxHold.Milliseconds(),
		v.store.shard(p).highest.Load(), v.settings.History}
	r, err := v.store.confirmed(ctx, p, v.store.scripts.move, appendAll(args, candidates)...)
	if err != nil {
		return s.unchecked("check", v, p, err)
	}
	switch r.status {
	case "NONE":
		return Fence{}, s.refused("check", p.name, refuse(LeaseRequired))
	case "STALE":
		return Fence{}, s.refused("check", p.name, refuse(FenceStale))
	case "UNAVAILABLE":
		s.keepers.ended(leaseKey{p.name, a.Owner, a.Generation})
		if len(candidates) == 0 {
			return Fence{}, s.refused("check", p.name, refuse(NoEligibleConnection))
		}
		return Fence{}, s.refused("check", p.name, refuseFor(EligibilityUnavailable, r.until(1), 0))
	}
	l := leaseOf(p, r)
	f := s.fence(v, p, a, principal, asked, l)
	if f.Moved = r.status == "MOVED"; f.Moved {
		outlive(ctx, l.token, r.now)
	}
	if a.Pin != "" && a.Pin != f.Connection {
		return Fence{}, s.refused("check", p.name, refuse(ConnectionMismatch))
	}
	s.observer.answer("check", p.name, r.status)
	return f, nil
}

// unchecked answers for a store that could not be asked. A caller that has gone gets a refusal it will not read.
func (s *Service) unchecked(action string, v *view, p *pool, err error) (Fence, *Refusal) {
	if v.settings.OnStoreError == "allow" && isUnavailable(err) {
		if !isPaused(err) {
			s.log.Warn("lease store did not answer, request let through unchecked", "action", action, "pool", p.name, "error", err)
		}
		s.observer.answer(action, p.name, "ALLOWED")
		return Fence{Unchecked: true, Pool: p.name}, nil
	}
	return Fence{}, s.unavailable(action, p.name, err)
}

// UnmanagedAsk is a request of an unmanaged principal on a cluster whose lease mode is managed.
type UnmanagedAsk struct {
	Pool  string
	Pin   string // the connection header the client sent; empty is none
	Model string
}

// Unmanaged picks a connection that no live lease holds and that is not in cooldown, in one round trip; the last one of the
// pool that there is, where acquires take the first. A pinned connection is the only candidate, and whatever speaks against
// it is LEASE_CONNECTION_MISMATCH. Other refusals: LEASE_NO_ELIGIBLE_CONNECTION, LEASE_CAPACITY_UNAVAILABLE,
// LEASE_ELIGIBILITY_UNAVAILABLE, LEASE_SERVICE_UNAVAILABLE.
func (s *Service) Unmanaged(ctx context.Context, a UnmanagedAsk) (Fence, *Refusal) {
	v := s.view()
	p, refusal := v.pool(a.Pool)
	if refusal != nil {
		return Fence{}, s.refused("unmanaged", "", refusal)
	}
	candidates := p.candidates(Identity{}, a.Model)
	slices.Reverse(candidates)
	if a.Pin != "" {
		candidates = slices.DeleteFunc(candidates, func(c string) bool { return c != a.Pin })
	}
	if len(candidates) == 0 {
		return Fence{}, s.refused("unmanaged", p.name, refuseUnmanaged(a.Pin, refuse(NoEligibleConnection)))
	}
	r, err := v.store.read(ctx, p, v.store.scripts.free, appendAll(nil, candidates)...)
	if err != nil {
		return s.unchecked("unmanaged", v, p, err)
	}
	switch r.status {
	case "FREE":
	case "CAPACITY":
		return Fence{}, s.refused("unmanaged", p.name, refuseUnmanaged(a.Pin, refuseFor(CapacityUnavailable, r.until(1), int(r.int(0)))))
	default:
		return Fence{}, s.refused("unmanaged", p.name, refuseUnmanaged(a.Pin, refuseFor(EligibilityUnavailable, r.until(1), 0)))
	}
	connection := r.text(0)
	s.cooldowns.forget(p.name, connection)
	s.observer.answer("unmanaged", p.name, "FREE")
	return Fence{Pool: p.name, Connection: connection, Cluster: p.byID[connection].Cluster}, nil
}

// refuseUnmanaged keeps from whoever pins a connection without a lease what there is and who holds it.
func refuseUnmanaged(pin string, r *Refusal) *Refusal {
	if pin != "" {
		return refuse(ConnectionMismatch)
	}
	return r
}
