package lease

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// SetTTL puts a time to live into force that settings do not allow, for tests on a real clock.
func (s *Service) SetTTL(ttl time.Duration) {
	v := *s.view()
	v.ttl = ttl
	s.current.Store(&v)
}

// Client is the client of a store that is a Redis.
func (s *Service) Client() redis.UniversalClient {
	return s.engine().(*remote).client
}

func (s *Service) engine() engine {
	e := s.view().store.engine
	if i, ok := e.(*interposed); ok {
		e = i.engine
	}
	return e
}

// BreakerState is the state of a pool's breaker.
func (s *Service) BreakerState(pool string) string {
	v := s.view()
	state, _ := v.store.shard(v.pools[pool]).breaker.now()
	return state
}

// SweepNow writes down what has expired.
func (s *Service) SweepNow(ctx context.Context) {
	v := s.view()
	for _, name := range v.poolNames {
		s.sweep(ctx, v, v.pools[name])
	}
}

// StoreKeys are the keys of a pool.
func (s *Service) StoreKeys(pool string) (leases, events string) {
	k := s.view().pools[pool].keys
	return k.pool, k.events
}

// ValidFor is what was left of the lease when the store answered.
func (l Lease) ValidFor() time.Duration { return l.validFor }

// Token is the fencing token on the lease's connection.
func (l Lease) Token() int64 { return l.token }

// KeptLeases is the number of leases that are renewed at the moment.
func (s *Service) KeptLeases() int {
	s.keepers.mu.Lock()
	defer s.keepers.mu.Unlock()
	return len(s.keepers.byLease)
}

// Interposed has every call of the store pass before, which may fail it, and after, which sees and may change its answer.
func (o Options) Interposed(before func(script string, args []any) error, after func(script string, value any, err error) error) Options {
	o.wrap = func(e engine) engine { return &interposed{e, before, after} }
	return o
}

type interposed struct {
	engine
	before func(string, []any) error
	after  func(string, any, error) error
}

func (i *interposed) run(ctx context.Context, calls []*call, replicas int, wait time.Duration) {
	for _, c := range calls {
		if i.before != nil {
			if c.err = i.before(c.script.name, c.args); c.err != nil {
				continue
			}
		}
		i.engine.run(ctx, []*call{c}, replicas, wait)
		if i.after != nil {
			c.err = i.after(c.script.name, c.value, c.err)
		}
	}
}

// Forget takes a pool's data out of the store, as a loss of it does.
func (s *Service) Forget(pool string) {
	v := s.view()
	keys := v.pools[pool].keys.both()
	switch e := s.engine().(type) {
	case *embedded:
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.data.hashes, keys[0])
		delete(e.data.streams, keys[1])
	case *remote:
		e.client.Del(context.Background(), keys...)
	}
}

// Fields are the fields of a pool's hash.
func (s *Service) Fields(pool string) map[string]string {
	v := s.view()
	key := v.pools[pool].keys.pool
	switch e := s.engine().(type) {
	case *embedded:
		e.mu.Lock()
		defer e.mu.Unlock()
		fields := map[string]string{}
		if h := e.data.hashes[key]; h != nil {
			for name, value := range h.fields {
				fields[name] = value
			}
		}
		return fields
	case *remote:
		return e.client.HGetAll(context.Background(), key).Val()
	}
	return nil
}

// SetField writes a field of a pool's hash.
func (s *Service) SetField(pool, field, value string) {
	key := s.view().pools[pool].keys.pool
	switch e := s.engine().(type) {
	case *embedded:
		e.mu.Lock()
		defer e.mu.Unlock()
		e.data.set(key, field, value)
	case *remote:
		e.client.HSet(context.Background(), key, field, value)
	}
}

// Expire lets a live lease run out at once.
func (s *Service) Expire(l Lease) {
	field := "c:" + l.Connection
	past := fmt.Sprintf("%016d", l.AcquiredAt.UnixMilli()-1)
	s.SetField(l.Pool, field, past+s.Field(l.Pool, field)[len(past):])
}

// Field is one field of a pool's hash.
func (s *Service) Field(pool, field string) string {
	key := s.view().pools[pool].keys.pool
	switch e := s.engine().(type) {
	case *embedded:
		e.mu.Lock()
		defer e.mu.Unlock()
		if h := e.data.hashes[key]; h != nil {
			return h.fields[field]
		}
	case *remote:
		return e.client.HGet(context.Background(), key, field).Val()
	}
	return ""
}

// Size is how many keys the store has, and how many fields and bytes they hold.
type Size struct{ Keys, Fields, Bytes int64 }

// StoreSize measures the store after a sweep.
func (s *Service) StoreSize(ctx context.Context) (size Size, err error) {
	s.SweepNow(ctx)
	switch e := s.engine().(type) {
	case *embedded:
		e.mu.Lock()
		defer e.mu.Unlock()
		size.Keys = int64(len(e.data.hashes) + len(e.data.streams) + len(e.data.marks))
		for _, h := range e.data.hashes {
			size.Fields += int64(len(h.fields))
			for name, value := range h.fields {
				size.Bytes += int64(len(name) + len(value))
			}
		}
		for _, one := range e.data.streams {
			for _, e := range one.entries {
				size.Bytes += int64(len(e.id) + len(strings.Join(e.values, "")))
			}
		}
	case *remote:
		if size.Keys, err = e.client.DBSize(ctx).Result(); err != nil {
			return size, err
		}
		keys := e.client.Scan(ctx, 0, "*", 1000).Iterator()
		for keys.Next(ctx) {
			size.Fields += e.client.HLen(ctx, keys.Val()).Val() // 0 for what is no hash
			size.Bytes += e.client.MemoryUsage(ctx, keys.Val(), 0).Val()
		}
		err = keys.Err()
	}
	return size, err
}

// End ends the lease on a connection with the exact generation.
func (s *Service) End(ctx context.Context, pool, connection string, generation int64, why EndReason) *Refusal {
	v := s.view()
	_, refusal := s.end(ctx, v, v.pools[pool], connection, strconv.FormatInt(generation, 10), why)
	return refusal
}

// Healthy is nil when every pool's store answers, and has for a while. It does not ask the store.
func (s *Service) Healthy(context.Context) error {
	v := s.view()
	var errs []error
	for _, name := range v.poolNames {
		if err := v.store.shard(v.pools[name]).breaker.healthy(); err != nil {
			errs = append(errs, fmt.Errorf("lease store of pool %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// MaxGeneration is for the tests of the generation header.
const MaxGeneration = maxGeneration

// ParseGeneration is parseGeneration.
func ParseGeneration(header string) (int64, *Refusal) { return parseGeneration(header) }
