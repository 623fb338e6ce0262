package lease

import (
	"context"
	"crypto/rand"
	"strconv"
	"time"
)

const (
	maxAbandoned   = 256                    // acquires waiting to be undone; more are left to their expiry
	abandonTries   = 6                      // calls of the store for one of them
	abandonPause   = 100 * time.Millisecond // after the first failed try, doubling
	abandonTimeout = time.Second            // of one try: nobody waits for it
)

// abandoned is an acquire whose answer nobody waited for.
type abandoned struct {
	view    *view
	pool    *pool
	owner   Owner
	attempt string
}

// newAttempt names one attempt to acquire. It never leaves the sidecar and the store.
func newAttempt() string { return rand.Text() }

// abandon has an acquire undone in the background. When too many wait, its lease is left to expire.
func (s *Service) abandon(a abandoned) {
	select {
	case s.abandons <- a:
	default:
		s.observer.answer("abandon", a.pool.name, "DROPPED")
	}
}

func (s *Service) abandonLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case a := <-s.abandons:
			s.undo(ctx, a)
		}
	}
}

// undo calls the store past its breaker: until the acquire is undone somebody's connection is taken.
func (s *Service) undo(ctx context.Context, a abandoned) {
	st := a.view.store
	pause := abandonPause
	for range abandonTries {
		c := call{script: st.scripts.abandon, keys: a.pool.keys.attempt(a.attempt), whole: true,
			args: []any{string(a.owner), a.attempt, a.view.settings.History}}
		start := time.Now()
		err := st.direct(a.pool, &c, max(abandonTimeout, st.timeout))
		s.observer.call(c.script.name, time.Since(start), err)
		if err == nil {
			s.observer.answer("abandon", a.pool.name, "ABANDONED")
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(jitter(pause)):
			pause *= 2
		}
	}
	s.observer.answer("abandon", a.pool.name, string(ServiceUnavailable))
}

// revoke ends, in the background, the leases of principals that a new configuration does not know as managed any more.
// Their requests are refused by now anyway; this frees their connections before the leases expire.
func (s *Service) revoke(old, now *view) {
	gone := map[string]bool{}
	for _, p := range old.configured {
		if p.managed() && !now.principals.byID[p.ID].identity.Managed {
			gone[principalID(p.ID)] = true
		}
	}
	if len(gone) == 0 || old.store != now.store {
		return
	}
	s.work.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), storeLinger)
		defer cancel()
		for _, name := range now.poolNames {
			s.revokeIn(ctx, now, now.pools[name], gone)
		}
	})
}

func (s *Service) revokeIn(ctx context.Context, v *view, p *pool, gone map[string]bool) {
	contents, err := v.store.contents(ctx, p, 0)
	if err != nil {
		s.log.Warn("leases of revoked keys are left to expire", "pool", p.name, "error", err)
		return
	}
	for _, h := range contents.held {
		if gone[h.principal] {
			_, _ = s.end(ctx, v, p, h.Connection, strconv.FormatInt(h.Generation, 10), ManagedKeyRevoked) // counted; else it expires
		}
	}
}

const (
	lookEvery   = 500 * time.Millisecond // at a store that has not answered yet
	heldEvery   = time.Second            // at the leases of exchanges in flight
	sweepEvery  = 5 * time.Second
	policyEvery = time.Minute // how often eviction settings are looked at
)

// watch sweeps the pools, looks at the leases of exchanges in flight, calls a store that has not answered yet and looks at
// its eviction policy.
func (s *Service) watch(ctx context.Context) {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	var swept, looked, policy time.Time
	for {
		v := s.view()
		sweep, held := time.Since(swept) >= sweepEvery, time.Since(looked) >= heldEvery
		for _, name := range v.poolNames {
			p := v.pools[name]
			if sweep || v.store.shard(p).breaker.unknown() {
				s.sweep(ctx, v, p)
			}
			if held {
				s.lookAtHeld(ctx, v, p)
			}
		}
		now := time.Now()
		if sweep {
			swept = now
		}
		if held {
			looked = now
		}
		if now.Sub(policy) >= policyEvery && v.store.checkEviction(ctx) {
			policy = now
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// maxPages bounds what one sweep goes through: a pool has at most four fields for each connection.
const maxPages = 8 * maxConnections / 200

// sweep removes what is over from a pool.
func (s *Service) sweep(ctx context.Context, v *view, p *pool) {
	cursor := "0"
	var active, cooling, expired int64
	for range maxPages {
		r, err := v.store.write(ctx, p, v.store.scripts.sweep, cursor, v.settings.MaxHold.Milliseconds(),
			v.store.shard(p).highest.Load(), v.settings.History)
		if err != nil {
			return
		}
		active, cooling, expired = active+r.int(1), cooling+r.int(2), expired+r.int(3)
		if cursor = r.text(0); cursor == "0" || cursor == "" {
			break
		}
	}
	s.observer.pool(p.name, active, cooling, expired)
}
