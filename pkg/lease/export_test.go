package lease

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// SetTTL puts a time to live into force that settings do not allow, for tests on a real clock.
func (s *Service) SetTTL(ttl time.Duration) {
	v := *s.view()
	v.ttl = ttl
	s.current.Store(&v)
}

// Client is the store's client.
func (s *Service) Client() redis.UniversalClient { return s.view().store.client }

// Pause opens no breaker, it only says whether one is open.
func (s *Service) BreakerState(pool string) string {
	return s.view().store.breaker(pool).State().String()
}

// SweepNow writes down what has expired.
func (s *Service) SweepNow(ctx context.Context) {
	v := s.view()
	for _, name := range v.poolNames {
		s.sweep(ctx, v, v.pools[name])
	}
}

// StoreKeys are the keys of an owner in a pool.
func (s *Service) StoreKeys(pool string, o Owner) (owner, ended, fields, events string) {
	k := s.view().pools[pool].keys
	return k.owner(o), k.ended(o), k.pool, k.events
}

// ValidFor is what was left of the lease when the store answered.
func (l Lease) ValidFor() time.Duration { return l.validFor }

// KeptLeases is the number of leases that are renewed at the moment.
func (s *Service) KeptLeases() int {
	s.keepers.mu.Lock()
	defer s.keepers.mu.Unlock()
	return len(s.keepers.byLease)
}
