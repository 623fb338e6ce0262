package lease

import (
	"context"
	"time"
)

// EndReason is why a lease ended.
type EndReason string

// All end reasons.
const (
	AuthorizationChanged EndReason = "AUTHORIZATION_CHANGED"
	ClientCancelled      EndReason = "CLIENT_CANCELLED"
	ConnectionIneligible EndReason = "CONNECTION_INELIGIBLE"
	HealthOrCooldown     EndReason = "HEALTH_OR_COOLDOWN"
	ManagedKeyRevoked    EndReason = "MANAGED_KEY_REVOKED"
	ModelIneligible      EndReason = "MODEL_INELIGIBLE"
	OwnerExit            EndReason = "OWNER_EXIT"
	QuotaUnavailable     EndReason = "QUOTA_UNAVAILABLE"
	TTLExpired           EndReason = "TTL_EXPIRED"
	MaxHold              EndReason = "MAX_HOLD"
)

// Lease is a lease as the store answered. All times are the store's.
type Lease struct {
	State      string // ACTIVE, RELEASED or INVALIDATED
	Outcome    string // ACQUIRED, REUSED, RENEWED, RELEASED, INVALIDATED, MOVED, VALID
	Pool       string
	Connection string
	Generation int64
	AcquiredAt time.Time
	RenewedAt  time.Time
	ExpiresAt  time.Time

	// validFor is what was left of it when the store answered; it is counted from before the store was asked.
	validFor time.Duration
}

// Ask names a lease: what a client sends and who it is.
type Ask struct {
	Pool       string
	Owner      Owner
	Generation int64
	Identity   Identity
}

// leaseOf reads the answer of a script that found a lease.
func leaseOf(p *pool, r reply) Lease {
	l := Lease{
		State: "ACTIVE", Outcome: r.status, Pool: p.name, Connection: r.text(0), Generation: r.int(1),
		AcquiredAt: time.UnixMilli(r.int(2)).UTC(), RenewedAt: time.UnixMilli(r.int(3)).UTC(), ExpiresAt: time.UnixMilli(r.int(4)).UTC(),
		validFor: time.Duration(r.int(4)-r.now) * time.Millisecond,
	}
	if r.status == "RELEASED" || r.status == "INVALIDATED" {
		l.State = r.status
	}
	return l
}

// Acquire binds the owner to a free connection that serves the model, or extends the lease it has. Refusals:
// LEASE_SCOPE_REQUIRED, LEASE_KEY_CONFIGURATION_INVALID, LEASE_NO_ELIGIBLE_CONNECTION, LEASE_FENCE_STALE,
// LEASE_CAPACITY_UNAVAILABLE, LEASE_ELIGIBILITY_UNAVAILABLE, LEASE_SERVICE_UNAVAILABLE. Generation is not looked at.
//
// When the store's answer does not come in time, what the store may have done is undone in the background.
func (s *Service) Acquire(ctx context.Context, a Ask, model string) (Lease, *Refusal) {
	v := s.view()
	p, refusal := v.pool(a.Pool)
	if refusal == nil {
		refusal = managedOnly(a.Identity)
	}
	if refusal != nil {
		return Lease{}, s.refused("acquire", p.label(), refusal)
	}
	candidates := p.candidates(a.Identity, model)
	if len(candidates) == 0 {
		return Lease{}, s.refused("acquire", p.name, refuse(NoEligibleConnection))
	}
	attempt := newAttempt()
	start := time.Now()
	r, confirmed, err := v.store.callConfirmed(ctx, p.name, v.store.scripts.acquire,
		[]string{p.keys.owner(a.Owner), p.keys.ended(a.Owner), p.keys.pool, p.keys.events, p.keys.attempt(attempt)},
		acquireArgs(v, a, attempt, candidates)...)
	if err != nil || (r.status == "ACQUIRED" && !confirmed) {
		s.abandon(abandoned{view: v, pool: p, owner: a.Owner, attempt: attempt})
		return Lease{}, s.unavailable("acquire", p.name, err)
	}
	switch r.status {
	case "ACQUIRED", "REUSED":
		l := leaseOf(p, r)
		if r.status == "ACQUIRED" {
			outlive(ctx, l.Generation, r.now)
		}
		if l.validFor <= time.Since(start) { // it took so long that nothing is left of it
			s.abandon(abandoned{view: v, pool: p, owner: a.Owner, attempt: attempt})
			return Lease{}, s.refused("acquire", p.name, refuse(ServiceUnavailable))
		}
		s.observer.answer("acquire", p.name, r.status)
		return l, nil
	case "CAPACITY":
		return Lease{}, s.refused("acquire", p.name, refuseFor(CapacityUnavailable, r.until(), int(r.int(0))))
	case "ELIGIBILITY":
		return Lease{}, s.refused("acquire", p.name, refuseFor(EligibilityUnavailable, r.until(), 0))
	case "STALE":
		return Lease{}, s.refused("acquire", p.name, refuse(FenceStale))
	default:
		return Lease{}, s.refused("acquire", p.name, refuse(ServiceUnavailable))
	}
}

// maxOutlive bounds the wait of outlive, for a store whose clock was set back.
const maxOutlive = 100 * time.Millisecond

// outlive waits, a millisecond as a rule, until the store's clock has passed a generation before anybody sees it. A store
// that then loses everything begins again at its clock, above every generation that was ever handed out; without the wait,
// acquires that come faster than one a millisecond would count ahead of the clock.
func outlive(ctx context.Context, generation, now int64) {
	ahead := time.Duration(generation+1-now) * time.Millisecond
	select {
	case <-time.After(min(ahead, maxOutlive)):
	case <-ctx.Done(): // the lease is valid all the same
	}
}

func acquireArgs(v *view, a Ask, attempt string, candidates []string) []any {
	args := []any{string(a.Owner), principalID(a.Identity.Principal), attempt, v.ttl.Milliseconds(),
		v.settings.MaxHold.Milliseconds(), v.store.grace.Milliseconds(), v.settings.History}
	for _, c := range candidates {
		args = append(args, c)
	}
	return args
}

// until is the time from the store's clock to the moment named after a count, in an answer that says when to come back.
func (r reply) until() time.Duration { return time.Duration(r.int(1)-r.now) * time.Millisecond }

// Renew extends the lease. Every mismatch is LEASE_FENCE_STALE.
func (s *Service) Renew(ctx context.Context, a Ask) (Lease, *Refusal) {
	v := s.view()
	return s.act(ctx, v, "renew", a, func(p *pool) (*script, []string, []any) {
		return v.store.scripts.renew, []string{p.keys.owner(a.Owner), p.keys.pool, p.keys.events},
			renewArgs(v, a.Owner, a.Generation, principalID(a.Identity.Principal))
	})
}

func renewArgs(v *view, o Owner, generation int64, principal string) []any {
	return []any{string(o), generation, principal, v.ttl.Milliseconds(), v.settings.MaxHold.Milliseconds(),
		v.store.grace.Milliseconds(), v.settings.History}
}

// Release ends the lease; a repeat gets the same answer for a day. Every mismatch is LEASE_FENCE_STALE.
func (s *Service) Release(ctx context.Context, a Ask, reason EndReason) (Lease, *Refusal) {
	v := s.view()
	return s.act(ctx, v, "release", a, func(p *pool) (*script, []string, []any) {
		return v.store.scripts.release, p.endKeys(a.Owner),
			[]any{string(a.Owner), a.Generation, principalID(a.Identity.Principal), string(reason), v.settings.History}
	})
}

// Status returns the live lease, its connection included. Every mismatch is LEASE_FENCE_STALE.
func (s *Service) Status(ctx context.Context, a Ask) (Lease, *Refusal) {
	v := s.view()
	p, refusal := v.pool(a.Pool)
	if refusal != nil {
		return Lease{}, s.refused("status", "", refusal)
	}
	found, err := v.lookUp(ctx, p, a.Owner, a.Generation, principalID(a.Identity.Principal))
	if err != nil {
		return Lease{}, s.unavailable("status", p.name, err)
	}
	if found.status == "NONE" || found.status == "STALE" {
		return Lease{}, s.refused("status", p.name, refuse(FenceStale))
	}
	s.observer.answer("status", p.name, found.status)
	return found.lease(p), nil
}

// Invalidate ends a lease whoever its principal is: the generation must be exact, a.Identity is not looked at.
func (s *Service) Invalidate(ctx context.Context, a Ask, reason EndReason) (Lease, *Refusal) {
	v := s.view()
	return s.act(ctx, v, "invalidate", a, func(p *pool) (*script, []string, []any) {
		return v.store.scripts.invalidate, p.endKeys(a.Owner),
			[]any{string(a.Owner), a.Generation, string(reason), v.settings.History}
	})
}

// Transition moves a lease to the named connection, generation and expiry unchanged; to the one it has already is no
// change. A connection that another lease holds is LEASE_CAPACITY_UNAVAILABLE, and the lease stays where it is.
func (s *Service) Transition(ctx context.Context, a Ask, connection string, reason EndReason) (Lease, *Refusal) {
	v := s.view()
	if p, _ := v.pool(a.Pool); p != nil && p.byID[connection].ID == "" {
		return Lease{}, s.refused("transition", p.name, refuse(NoEligibleConnection))
	}
	return s.act(ctx, v, "transition", a, func(p *pool) (*script, []string, []any) {
		return v.store.scripts.transition, p.endKeys(a.Owner), transitionArgs(v, a, "to", reason, []string{connection})
	})
}

func transitionArgs(v *view, a Ask, mode string, reason EndReason, to []string) []any {
	args := []any{string(a.Owner), a.Generation, principalID(a.Identity.Principal), mode, string(reason),
		v.store.grace.Milliseconds(), v.settings.History}
	for _, c := range to {
		args = append(args, c)
	}
	return args
}

// endKeys are the keys of everything that can end a lease.
func (p *pool) endKeys(o Owner) []string {
	return []string{p.keys.owner(o), p.keys.ended(o), p.keys.pool, p.keys.events}
}

// act runs an action on an existing lease.
func (s *Service) act(ctx context.Context, v *view, action string, a Ask, call func(*pool) (*script, []string, []any)) (Lease, *Refusal) {
	p, refusal := v.pool(a.Pool)
	if refusal != nil {
		return Lease{}, s.refused(action, p.label(), refusal)
	}
	sc, keys, args := call(p)
	r, err := v.store.call(ctx, p.name, sc, keys, args...)
	if err != nil {
		return Lease{}, s.unavailable(action, p.name, err)
	}
	switch r.status {
	case "NONE", "STALE":
		return Lease{}, s.refused(action, p.name, refuse(FenceStale))
	case "UNAVAILABLE":
		return Lease{}, s.refused(action, p.name, refuseFor(CapacityUnavailable, r.until(), int(r.int(0))))
	}
	s.observer.answer(action, p.name, r.status)
	return leaseOf(p, r), nil
}

// managedOnly refuses who may not have leases.
func managedOnly(id Identity) *Refusal {
	switch {
	case !id.Managed:
		return refuse(ScopeRequired)
	case len(id.Connections) == 0 || id.Principal == "":
		return refuse(KeyConfigurationInvalid)
	default:
		return nil
	}
}

func (s *Service) refused(action, pool string, r *Refusal) *Refusal {
	s.observer.answer(action, pool, string(r.Reason))
	return r
}

// unavailable refuses because the store did not answer, and logs why: the caller only learns that it did not. While the
// breaker is open nothing is logged but its opening.
func (s *Service) unavailable(action, pool string, err error) *Refusal {
	if err != nil && !isPaused(err) {
		s.log.Debug("lease store call failed", "action", action, "pool", pool, "error", err)
	}
	return s.refused(action, pool, refuse(ServiceUnavailable))
}
