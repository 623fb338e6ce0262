package lease

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// attempt makes calls once, together. An answer of any of them shows that the store works.
func (s *store) attempt(ctx context.Context, sh *shard, calls []*call, replicas int) {
	timeout := s.timeout
	if replicas > 0 {
		timeout *= 2
	}
	s.attemptWithin(ctx, sh, calls, replicas, timeout)
}

// attemptWithin is attempt with a deadline of its own.
func (s *store) attemptWithin(caller context.Context, sh *shard, calls []*call, replicas int, timeout time.Duration) {
	ctx, cancel := context.WithTimeout(caller, timeout)
	defer cancel()
	began := time.Now()
	s.engine.run(ctx, calls, replicas, s.timeout)
	if caller.Err() != nil || s.ctx.Err() != nil { // the caller has gone, or all is closed: what came of it says nothing
		return
	}
	if sh.note(began, calls...) {
		_, cause := sh.breaker.now()
		s.observer.breaker(sh.pool, "open")
		s.log.Warn("lease store fails, pausing its calls", "pool", sh.pool, "store", s.kind, "error", cause)
		s.work.Go(func() { s.probe(sh) })
	}
}

// note tells the breaker what came of calls, and says whether it opened.
func (sh *shard) note(began time.Time, calls ...*call) (opens bool) {
	var failure error
	for _, c := range calls {
		if c.err == nil || isFull(c.err) {
			sh.breaker.succeeded()
			return false
		}
		if !errors.Is(c.err, errBusy) {
			failure = c.err
		}
	}
	return failure != nil && sh.breaker.failed(began, failure)
}

// probe calls an open breaker's store now and then until it answers. Each time is spread, so that many sidecars do not
// come back at once.
func (s *store) probe(sh *shard) {
	for pause := probeFirst; ; pause = min(2*pause, probeMost) {
		select {
		case <-s.ctx.Done():
			return
		case <-time.After(jitter(pause)):
		}
		sh.breaker.probing("half-open")
		s.observer.breaker(sh.pool, "half-open")
		// A write succeeds only where leases can work. It tells the store the highest number that this process has seen: a
		// server that took over may not know it.
		c := &call{script: s.scripts.probe, keys: sh.keys.both(), args: []any{sh.highest.Load()}}
		ctx, cancel := context.WithTimeout(s.ctx, s.timeout)
		s.engine.run(ctx, []*call{c}, 0, 0)
		cancel()
		if c.err == nil || isFull(c.err) {
			sh.breaker.close()
			s.observer.breaker(sh.pool, "closed")
			s.log.Info("lease store works again", "pool", sh.pool, "store", s.kind)
			return
		}
		sh.breaker.probing("open")
		s.observer.breaker(sh.pool, "open")
	}
}

// direct makes one call once, whatever the breaker says.
func (s *store) direct(p *pool, c *call, timeout time.Duration) error {
	sh := s.shard(p)
	if s.slots != nil {
		s.slots <- struct{}{}
		defer func() { <-s.slots }()
	}
	s.attemptWithin(s.ctx, sh, []*call{c}, 0, timeout)
	return c.err
}

// jitter is half to all of d.
func jitter(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return d/2 + rand.N(d/2+1)
}
