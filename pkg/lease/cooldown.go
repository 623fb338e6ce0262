package lease

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Answered is an upstream's own answer to a request.
type Answered struct {
	Pool, Connection string // of the request's fence
	Leased           bool   // the request had a lease
	Status           int    // HTTP
	RetryAfter, Date string // values of these headers; empty where they are missing
}

// CooldownFor says how long a connection is to be in cooldown after an answer of its upstream, 0 for not at all: for its
// Retry-After, at most cooldown.max, or for cooldown.default. A Retry-After of 0 or in the past is none. Statuses about
// authentication count only for requests with a lease in a pool with gatewayAuth. While a connection is
// known to be in cooldown nothing adds to it.
func (s *Service) CooldownFor(a Answered) time.Duration {
	v := s.view()
	p := v.pools[a.Pool]
	c := v.settings.Cooldown
	switch {
	case p == nil || s.cooldowns.has(a.Pool, a.Connection):
		return 0
	case slices.Contains(c.Statuses, a.Status):
	case slices.Contains(c.AuthStatuses, a.Status) && a.Leased && p.gatewayAuth:
	default:
		return 0
	}
	if d, ok := ParseRetryAfter(a.RetryAfter, a.Date); ok && d > 0 {
		return min(d, c.Max)
	}
	return min(c.Default, c.Max)
}

// maxRetry is the longest Retry-After in seconds that is read as it stands.
const maxRetry = 24 * time.Hour

// ParseRetryAfter reads a Retry-After header: seconds, or a date, which counts from the answer's own Date header when it has
// one. It is false where the value is neither; the duration is never negative, and of seconds at most a day.
func ParseRetryAfter(value, date string) (time.Duration, bool) {
	value = strings.TrimSpace(value)
	if value == "" {
		return 0, false
	}
	if seconds, err := strconv.ParseInt(value, 10, 64); err == nil && seconds >= 0 {
		return time.Duration(min(seconds, int64(maxRetry/time.Second))) * time.Second, true
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

// SetCooldown puts a connection into cooldown; a longer one that is already set stays. Leases bound to it move at their next
// check, and nobody acquires it meanwhile. While this process knows the connection to be in cooldown it does nothing.
func (s *Service) SetCooldown(ctx context.Context, poolName, connection string, d time.Duration) *Refusal {
	v, p, refusal := s.poolWith(poolName, connection)
	if refusal != nil {
		return s.refused("cooldown", p.label(), refusal)
	}
	d = min(d, v.settings.Cooldown.Max)
	if d <= 0 || !s.cooldowns.begin(p.name, connection, d) {
		return nil
	}
	r, err := v.store.write(ctx, p, v.store.scripts.cooldown, connection, d.Milliseconds())
	if err != nil {
		s.cooldowns.forget(p.name, connection)
		return s.unavailable("cooldown", p.name, err)
	}
	s.observer.answer("cooldown", p.name, r.status)
	return nil
}

// EndCooldown ends a connection's cooldown, and says whether there was one.
func (s *Service) EndCooldown(ctx context.Context, poolName, connection string) (ended bool, _ *Refusal) {
	v, p, refusal := s.poolWith(poolName, connection)
	if refusal != nil {
		return false, s.refused("end cooldown", p.label(), refusal)
	}
	r, err := v.store.confirmed(ctx, p, v.store.scripts.cooldown, connection, 0)
	if err != nil {
		return false, s.unavailable("end cooldown", p.name, err)
	}
	s.cooldowns.forget(p.name, connection)
	s.observer.answer("end cooldown", p.name, r.status)
	return r.status == "ENDED", nil
}

// EndLease ends the lease on a connection, whoever holds it. Nobody: LEASE_REQUIRED.
func (s *Service) EndLease(ctx context.Context, poolName, connection string, why EndReason) (LeaseListing, *Refusal) {
	v := s.view()
	p, refusal := v.pool(poolName)
	if refusal != nil {
		return LeaseListing{}, s.refused("end", p.label(), refusal)
	}
	return s.end(ctx, v, p, connection, "", why)
}

// end ends the lease on a connection, of any generation where none is given.
func (s *Service) end(ctx context.Context, v *view, p *pool, connection, generation string, why EndReason) (LeaseListing, *Refusal) {
	r, err := v.store.confirmed(ctx, p, v.store.scripts.end, connection, generation, string(why), v.settings.History)
	if err != nil {
		return LeaseListing{}, s.unavailable("end", p.name, err)
	}
	if !r.granted() {
		return LeaseListing{}, s.refused("end", p.name, refuse(LeaseRequired))
	}
	l := leaseOf(p, r)
	s.keepers.ended(leaseKey{p.name, l.owner, l.Generation})
	s.observer.answer("end", p.name, r.status)
	return l.listing(), nil
}

// poolWith finds a pool that has the connection.
func (s *Service) poolWith(name, connection string) (*view, *pool, *Refusal) {
	v := s.view()
	p, refusal := v.pool(name)
	if refusal == nil && p.byID[connection].ID == "" {
		refusal = refuse(NoEligibleConnection)
	}
	return v, p, refusal
}

// cooldowns are those this process has set or is setting: what repeats them costs no call of the store.
type cooldowns struct {
	mu    sync.Mutex
	until map[[2]string]time.Time // by pool and connection
}

// begin notes a cooldown, and says whether there was none.
func (c *cooldowns) begin(pool, connection string, d time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.until[[2]string{pool, connection}].After(time.Now()) {
		return false
	}
	if c.until == nil {
		c.until = map[[2]string]time.Time{}
	}
	c.until[[2]string{pool, connection}] = time.Now().Add(d)
	return true
}

func (c *cooldowns) has(pool, connection string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.until[[2]string{pool, connection}].After(time.Now())
}

// forget is for a cooldown that the store does not know, or not any more.
func (c *cooldowns) forget(pool, connection string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.until, [2]string{pool, connection})
}
