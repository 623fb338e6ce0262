package lease

import (
	"context"
	"crypto/rand"
	"slices"
	"time"
)

const (
	maxAbandoned   = 256                    // acquires waiting to be undone; more are left to their expiry
	abandonTries   = 4                      // calls of the store for one of them
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

func (s *Service) undo(ctx context.Context, a abandoned) {
	st, k := a.view.store, a.pool.keys
	keys := append(a.pool.endKeys(a.owner), k.attempt(a.attempt))
	pause := abandonPause
	for range abandonTries {
		_, err := st.guard(ctx, a.pool.name, st.scripts.abandon.name, max(abandonTimeout, st.timeout), func(ctx context.Context) (any, error) {
			// Not by its hash: on a slow network the second round trip of a script that is not loaded yet is what counts.
			return st.scripts.abandon.Eval(ctx, st.client, keys, string(a.owner), a.attempt, a.view.settings.History).Result()
		})
		if err == nil {
			s.observer.answer("abandon", a.pool.name, "ABANDONED")
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
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
	held, _, err := s.read(ctx, v, p)
	if err != nil {
		s.log.Warn("leases of revoked keys are left to expire", "pool", p.name, "error", err)
		return
	}
	for _, h := range held {
		if gone[h.principal] {
			_, _ = s.Invalidate(ctx, Ask{Pool: p.name, Owner: h.owner, Generation: h.generation}, ManagedKeyRevoked) // counted; else it expires
		}
	}
}

const (
	probeEvery  = 500 * time.Millisecond // while a breaker is not closed, or the store has not answered yet
	sweepEvery  = 5 * time.Second
	policyEvery = time.Minute // how often eviction settings are looked at
)

// watch sweeps the pools, probes a store that does not answer and looks at its eviction policy.
func (s *Service) watch(ctx context.Context) {
	ticker := time.NewTicker(probeEvery)
	defer ticker.Stop()
	var swept, looked time.Time
	for {
		v := s.view()
		due := time.Since(swept) >= sweepEvery
		if due {
			swept = time.Now()
		}
		for _, name := range v.poolNames {
			if due || !v.store.breaker(name).settled() {
				s.sweep(ctx, v, v.pools[name])
			}
		}
		if time.Since(looked) >= policyEvery && v.store.checkEviction(ctx) {
			looked = time.Now()
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// sweep writes down expired leases. It doubles as the probe: it is a write, so it succeeds only where leases can work.
func (s *Service) sweep(ctx context.Context, v *view, p *pool) {
	r, err := v.store.call(ctx, p.name, v.store.scripts.sweep, []string{p.keys.pool, p.keys.events},
		v.settings.MaxHold.Milliseconds(), v.settings.History)
	if err == nil {
		s.observer.pool(p.name, r.int(0), r.int(1), r.int(2))
	}
}

// holder is one live lease of a pool, as its hash tells.
type holder struct {
	connection                     string
	owner                          Owner
	generation                     int64
	principal                      string
	acquiredAt, renewedAt, expires time.Time
}

// read lists the live leases of a pool and the connections that rest, with the end of their rest.
func (s *Service) read(ctx context.Context, v *view, p *pool) ([]holder, map[string]time.Time, error) {
	r, err := v.store.call(ctx, p.name, v.store.scripts.list, []string{p.keys.pool})
	if err != nil {
		return nil, nil, err
	}
	fields, _ := r.rest[0].([]any)
	var held []holder
	rests := map[string]time.Time{}
	for pair := range slices.Chunk(fields, 2) {
		if len(pair) == 2 {
			held = readField(text(pair[0]), text(pair[1]), r.now, held, rests)
		}
	}
	return held, rests, nil
}
