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
	Outcome    string // ACQUIRED, REUSED, RENEWED, RELEASED, INVALIDATED, MOVED, VALID, COOLDOWN
	Pool       string
	Connection string
	Generation int64
	AcquiredAt time.Time
	RenewedAt  time.Time
	ExpiresAt  time.Time

	token     int64  // fencing token on the connection
	model     string // it was acquired for
	owner     Owner
	principal string

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
	c := call{script: v.store.scripts.acquire, keys: p.keys.attempt(attempt), write: true, confirm: true,
		args: acquireArgs(v, p, a, attempt, model, candidates)}
	start := time.Now()
	r, err := v.store.do(ctx, p, &c)
	if err != nil {
		if c.sent && r.status != "REUSED" {
			s.abandon(abandoned{view: v, pool: p, owner: a.Owner, attempt: attempt})
		}
		return Lease{}, s.unavailable("acquire", p.name, err)
	}
	switch r.status {
	case "ACQUIRED", "REUSED":
		l := leaseOf(p, r)
		v.store.shard(p).saw(l.token)
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
		return Lease{}, s.refused("acquire", p.name, refuseFor(CapacityUnavailable, r.until(1), int(r.int(0))))
	case "ELIGIBILITY":
		return Lease{}, s.refused("acquire", p.name, refuseFor(EligibilityUnavailable, r.until(1), 0))
	case "STALE":
		return Lease{}, s.refused("acquire", p.name, refuse(FenceStale))
	default:
		return Lease{}, s.refused("acquire", p.name, refuse(ServiceUnavailable))
	}
}

// maxOutlive bounds the wait of outlive, for a store whose clock was set back.
const maxOutlive = 100 * time.Millisecond

// outlive waits, a millisecond as a rule, until the store's clock has passed a number before anybody sees it. A store that
// then loses everything begins again at its clock, above every number that was ever handed out; without the wait, acquires
// that come faster than one a millisecond would count ahead of the clock.
func outlive(ctx context.Context, number, now int64) {
	ahead := time.Duration(number+1-now) * time.Millisecond
	if ahead > maxOutlive { // the clock was set back: no wait is long enough
		return
	}
	select {
	case <-time.After(ahead):
	case <-ctx.Done(): // the lease is valid all the same
	}
}

func acquireArgs(v *view, p *pool, a Ask, attempt, model string, candidates []string) []any {
	args := []any{string(a.Owner), principalID(a.Identity.Principal), attempt, v.ttl.Milliseconds(), v.settings.MaxHold.Milliseconds(),
		v.store.shard(p).highest.Load(), v.settings.History, model}
	return appendAll(args, candidates)
}

func appendAll(args []any, connections []string) []any {
	for _, c := range connections {
		args = append(args, c)
	}
	return args
}

// Renew extends the lease. Every mismatch is LEASE_FENCE_STALE.
func (s *Service) Renew(ctx context.Context, a Ask) (Lease, *Refusal) {
	return s.act("renew", a, func(v *view, p *pool) (reply, error) {
		return v.store.confirmed(ctx, p, v.store.scripts.renew, renewArgs(v, a.Owner, a.Generation, principalID(a.Identity.Principal))...)
	})
}

func renewArgs(v *view, o Owner, generation int64, principal string) []any {
	return []any{string(o), generation, principal, v.ttl.Milliseconds(), v.settings.MaxHold.Milliseconds(), v.settings.History}
}

// Release ends the lease; a repeat gets the same answer until somebody else's lease ends on its connection, for at most a
// day. Every mismatch is LEASE_FENCE_STALE.
func (s *Service) Release(ctx context.Context, a Ask, reason EndReason) (Lease, *Refusal) {
	l, refusal := s.act("release", a, func(v *view, p *pool) (reply, error) {
		return v.store.confirmed(ctx, p, v.store.scripts.release, string(a.Owner), a.Generation, principalID(a.Identity.Principal),
			string(reason), v.settings.History)
	})
	if refusal == nil {
		s.keepers.ended(leaseKey{a.Pool, a.Owner, a.Generation})
	}
	return l, refusal
}

// Status returns the live lease, its connection included. Every mismatch is LEASE_FENCE_STALE.
func (s *Service) Status(ctx context.Context, a Ask) (Lease, *Refusal) {
	return s.act("status", a, func(v *view, p *pool) (reply, error) {
		args := checkArgs(a.Owner, a.Generation, principalID(a.Identity.Principal))
		if v.store.replicas == 0 {
			return v.store.read(ctx, p, v.store.scripts.check, args...)
		}
		args[len(args)-1] = "1" // a write that replicas can confirm
		return v.store.confirmed(ctx, p, v.store.scripts.check, args...)
	})
}

// act runs an action on an existing lease.
func (s *Service) act(action string, a Ask, run func(*view, *pool) (reply, error)) (Lease, *Refusal) {
	v := s.view()
	p, refusal := v.pool(a.Pool)
	if refusal != nil {
		return Lease{}, s.refused(action, p.label(), refusal)
	}
	r, err := run(v, p)
	if err != nil {
		return Lease{}, s.unavailable(action, p.name, err)
	}
	if !r.granted() {
		return Lease{}, s.refused(action, p.name, refuse(FenceStale))
	}
	l := leaseOf(p, r)
	v.store.shard(p).saw(l.token)
	s.observer.answer(action, p.name, r.status)
	return l, nil
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
