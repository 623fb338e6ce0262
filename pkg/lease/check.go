package lease

import (
	"context"
	"net/http"
	"strconv"
	"strings"
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
	Generation int64
	Moved      bool // the lease was moved to this connection just now

	owner     Owner
	principal string
	asked     time.Time     // before the store was asked
	validFor  time.Duration // what was left of the lease then
	holdLeft  time.Duration // what is left until it has been held for as long as it may
}

// Check is the fence: one round trip, two when the lease has to move because its connection rests or is not eligible any
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
	found, err := v.lookUp(ctx, p, a.Owner, a.Generation, principal)
	if err != nil {
		return s.unchecked("check", v, p, err)
	}
	switch found.status {
	case "NONE":
		return Fence{}, s.refused("check", p.name, refuse(LeaseRequired))
	case "STALE":
		return Fence{}, s.refused("check", p.name, refuse(FenceStale))
	}
	l := found.lease(p)
	if a.Pin != "" && a.Pin != l.Connection {
		return Fence{}, s.refused("check", p.name, refuse(ConnectionMismatch))
	}
	why := p.eligible(a.Identity, a.Model, l.Connection)
	if why == "" && found.status == "RESTING" {
		why = HealthOrCooldown
		if a.Pin != "" { // the client wants this one and no other: it can only wait
			rest := time.Duration(found.rests-found.now) * time.Millisecond
			return Fence{}, s.refused("check", p.name, refuseFor(EligibilityUnavailable, rest, 0))
		}
	}
	if why != "" {
		return s.moveAway(ctx, v, p, a, why)
	}
	s.observer.answer("check", p.name, found.status)
	return newFence(v, p, a, principal, asked, l), nil
}

// lookUp reads and judges a lease.
func (v *view) lookUp(ctx context.Context, p *pool, o Owner, generation int64, principal string) (judged, error) {
	answer, err := v.store.read(ctx, p.name, v.store.scripts.check, []string{p.keys.owner(o), p.keys.pool})
	if err != nil {
		return judged{}, err
	}
	return judge(answer, o, generation, principal)
}

func newFence(v *view, p *pool, a FenceAsk, principal string, asked time.Time, l Lease) Fence {
	held := l.ExpiresAt.Add(-l.validFor).Sub(l.AcquiredAt)
	return Fence{
		Pool: p.name, Connection: l.Connection, Cluster: p.byID[l.Connection].Cluster, Generation: l.Generation,
		owner: a.Owner, principal: principal, asked: asked, validFor: l.validFor, holdLeft: v.settings.MaxHold - held,
	}
}

// moveAway moves the lease to a free eligible connection; when there is none the lease ends.
func (s *Service) moveAway(ctx context.Context, v *view, p *pool, a FenceAsk, why EndReason) (Fence, *Refusal) {
	candidates := p.candidates(a.Identity, a.Model)
	ask := Ask{Pool: a.Pool, Owner: a.Owner, Generation: a.Generation, Identity: a.Identity}
	asked := time.Now()
	r, err := v.store.call(ctx, p.name, v.store.scripts.transition, p.endKeys(a.Owner),
		transitionArgs(v, ask, "away", why, candidates)...)
	if err != nil {
		return s.unchecked("check", v, p, err)
	}
	switch r.status {
	case "NONE":
		return Fence{}, s.refused("check", p.name, refuse(LeaseRequired))
	case "STALE":
		return Fence{}, s.refused("check", p.name, refuse(FenceStale))
	case "UNAVAILABLE":
		if len(candidates) == 0 {
			return Fence{}, s.refused("check", p.name, refuse(NoEligibleConnection))
		}
		return Fence{}, s.refused("check", p.name, refuseFor(EligibilityUnavailable, r.until(), 0))
	}
	f := newFence(v, p, a, principalID(a.Identity.Principal), asked, leaseOf(p, r))
	f.Moved = r.status == "MOVED"
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

// Unmanaged picks the first connection that no live lease holds and that does not rest, in one round trip. A pinned
// connection is the only candidate. Refusals: LEASE_CONNECTION_MISMATCH (the pinned one is leased),
// LEASE_NO_ELIGIBLE_CONNECTION, LEASE_CAPACITY_UNAVAILABLE, LEASE_ELIGIBILITY_UNAVAILABLE, LEASE_SERVICE_UNAVAILABLE.
func (s *Service) Unmanaged(ctx context.Context, a UnmanagedAsk) (Fence, *Refusal) {
	v := s.view()
	p, refusal := v.pool(a.Pool)
	if refusal != nil {
		return Fence{}, s.refused("unmanaged", "", refusal)
	}
	var candidates []string
	var fields []any
	for _, c := range p.candidates(Identity{}, a.Model) {
		if a.Pin == "" || a.Pin == c {
			candidates = append(candidates, c)
			fields = append(fields, "c:"+c, "r:"+c)
		}
	}
	if len(candidates) == 0 {
		return Fence{}, s.refused("unmanaged", p.name, refuse(NoEligibleConnection))
	}
	answer, err := v.store.read(ctx, p.name, v.store.scripts.free, []string{p.keys.pool}, fields...)
	if err != nil {
		return s.unchecked("unmanaged", v, p, err)
	}
	connection, refusal, err := free(answer, candidates)
	if err != nil {
		return s.unchecked("unmanaged", v, p, err)
	}
	if refusal != nil {
		if a.Pin != "" && refusal.Reason == CapacityUnavailable {
			refusal = refuse(ConnectionMismatch)
		}
		return Fence{}, s.refused("unmanaged", p.name, refusal)
	}
	s.observer.answer("unmanaged", p.name, "FREE")
	return Fence{Pool: p.name, Connection: connection, Cluster: p.byID[connection].Cluster}, nil
}

// maxRest bounds what an upstream can ask for.
const maxRest = 24 * time.Hour

// Cooldown says how long a connection is to rest after an upstream's answer, 0 for not at all. It rests after 401, 402,
// 403 and 429; a Retry-After (seconds or a date; dates are taken against the answer's own Date header when it has one)
// wins over the configured time.
func (s *Service) Cooldown(status int, retryAfter, date string) time.Duration {
	switch status {
	case http.StatusUnauthorized, http.StatusPaymentRequired, http.StatusForbidden, http.StatusTooManyRequests:
	default:
		return 0
	}
	if d, ok := ParseRetryAfter(retryAfter, date); ok {
		return min(d, maxRest)
	}
	return min(s.view().settings.Cooldown, maxRest)
}

// ParseRetryAfter reads a Retry-After header: seconds, or a date, which counts from the answer's own Date header when it has
// one. It is false where the value is neither; the duration is never negative, and of seconds at most a day.
func ParseRetryAfter(value, date string) (time.Duration, bool) {
	value = strings.TrimSpace(value)
	if value == "" {
		return 0, false
	}
	if seconds, err := strconv.ParseInt(value, 10, 64); err == nil && seconds >= 0 {
		return time.Duration(min(seconds, int64(maxRest/time.Second))) * time.Second, true
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0, false
	}
	now := time.Now()
	if sent, err := http.ParseTime(strings.TrimSpace(date)); err == nil {
		now = sent
	}
	return max(at.Sub(now), 0), true
}

// Rest lets a connection rest; a longer rest that is already set stays. Leases bound to it move at their next check, and
// nobody acquires it meanwhile.
func (s *Service) Rest(ctx context.Context, poolName, connection string, d time.Duration) *Refusal {
	v := s.view()
	p, refusal := v.pool(poolName)
	if refusal != nil {
		return s.refused("rest", "", refusal)
	}
	if p.byID[connection].ID == "" {
		return s.refused("rest", p.name, refuse(NoEligibleConnection))
	}
	if d <= 0 {
		return nil
	}
	_, err := v.store.call(ctx, p.name, v.store.scripts.rest, []string{p.keys.pool}, connection, min(d, maxRest).Milliseconds())
	if err != nil {
		return s.unavailable("rest", p.name, err)
	}
	s.observer.answer("rest", p.name, "RESTING")
	return nil
}
