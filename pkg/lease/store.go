package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// store calls scripts on an engine. A call that fails is tried again for as long as the store may only have hiccuped, and
// none is made while the store is known to be away.
type store struct {
	kind     string // embedded, single, sentinel, cluster
	engine   engine
	scripts  *scripts
	timeout  time.Duration // of one attempt of one call
	replicas int           // that must confirm what clients are told
	slots    chan struct{} // one for each connection; nil for the embedded store
	log      *slog.Logger
	observer Observer

	ctx      context.Context // of the work in the background
	cancel   context.CancelFunc
	work     sync.WaitGroup
	closing  sync.Once
	closeErr error

	mu       sync.Mutex
	shards   map[string]*shard
	eviction string // policy of the server, as far as it is known
}

// shard is a pool's part of the store: the failure of one says nothing about the others.
type shard struct {
	pool          string
	breaker       *breaker
	reads, writes *queue
	highest       atomic.Int64 // highest generation or token that this process has seen
	keys          keys
}

func newStore(kind string, e engine, sc *scripts, timeout time.Duration, out observedLog) *store {
	s := &store{kind: kind, engine: e, scripts: sc, timeout: timeout, log: out.log, observer: out.observer, shards: map[string]*shard{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// shard returns the part of a pool.
func (s *store) shard(p *pool) *shard {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sh := s.shards[p.name]; sh != nil {
		return sh
	}
	sh := &shard{pool: p.name, breaker: newBreaker(), keys: p.keys}
	lanes := func() int {
		if sh.breaker.failing() { // one at a time until it answers
			return 1
		}
		return (cap(s.slots) + 1) / 2
	}
	sh.reads = &queue{lanes: lanes, slots: s.slots, ctx: s.ctx, send: func(ctx context.Context, calls []*call) { s.attempt(ctx, sh, calls, 0) }}
	sh.writes = &queue{lanes: lanes, slots: s.slots, ctx: s.ctx, send: func(ctx context.Context, calls []*call) { s.attempt(ctx, sh, calls, s.replicas) }}
	s.shards[p.name] = sh
	return sh
}

// saw remembers a generation or token.
func (sh *shard) saw(n int64) {
	for {
		old := sh.highest.Load()
		if n <= old || n > maxGeneration || sh.highest.CompareAndSwap(old, n) {
			return
		}
	}
}

var (
	// errUnavailable is wrapped by every error of the store.
	errUnavailable = errors.New("lease store unavailable")
	// errPaused says that the breaker is open: the store was not called.
	errPaused = errors.New("calls are paused")
	// errOpened says that the breaker opened while the call waited for an answer.
	errOpened = errors.New("calls were paused meanwhile")
	// errBusy says that the call found no connection in time. It says nothing about the store.
	errBusy = errors.New("too many calls at once")
	// errUnconfirmed says that the call was made, but too few replicas have it.
	errUnconfirmed = errors.New("too few replicas have confirmed it")
)

// read runs a script that changes nothing.
func (s *store) read(ctx context.Context, p *pool, sc *script, args ...any) (reply, error) {
	return s.do(ctx, p, &call{script: sc, keys: p.keys.both()[:1], args: args})
}

// write runs a script that changes something.
func (s *store) write(ctx context.Context, p *pool, sc *script, args ...any) (reply, error) {
	return s.do(ctx, p, &call{script: sc, keys: p.keys.both(), args: args, write: true})
}

// confirmed is write for what a client is told: with errUnconfirmed the reply is there too.
func (s *store) confirmed(ctx context.Context, p *pool, sc *script, args ...any) (reply, error) {
	return s.do(ctx, p, &call{script: sc, keys: p.keys.both(), args: args, write: true, confirm: true})
}

// do counts a call and makes it. Errors wrap errUnavailable, or are the caller's context error when it was the caller who
// gave up.
func (s *store) do(ctx context.Context, p *pool, c *call) (r reply, err error) {
	sh := s.shard(p)
	start := time.Now()
	ctx, span := traceCall(ctx, c.script.name)
	if err = s.patiently(ctx, sh, c); err == nil {
		r, err = parseReply(c.value)
	}
	if err == nil && c.confirm && s.replicas > 0 && !c.confirmed && r.granted() {
		err = errUnconfirmed
	}
	s.observer.call(c.script.name, time.Since(start), err)
	endCall(span, err)
	if err != nil {
		return r, failed(c.script.name, err)
	}
	return r, nil
}

const (
	retryPause = 5 * time.Millisecond // before the second retry, doubling; the first comes at once
	retryMost  = 50 * time.Millisecond
)

// patiently makes attempts until one succeeds, the breaker opens, the caller leaves, or so much time has passed that the
// breaker would have opened.
func (s *store) patiently(caller context.Context, sh *shard, c *call) error {
	if s.slots == nil {
		s.engine.run(caller, []*call{c}, 0, 0)
		sh.note(time.Now(), c)
		return c.err
	}
	opened, ok := sh.breaker.pass()
	if !ok {
		return errPaused
	}
	through := sh.reads
	if c.write {
		through = sh.writes
	}
	if through.alone(caller, c) && (c.err == nil || !worthRetrying(c.err)) { // as a rule
		return c.err
	}
	ctx, cancel := context.WithTimeout(caller, breakerAfter+2*s.timeout)
	defer cancel()
	for pause := time.Duration(0); ; pause = min(max(2*pause, retryPause), retryMost) {
		err := through.do(ctx, c, opened)
		switch {
		case err == nil:
			return nil
		case caller.Err() != nil:
			return &callerGone{caller.Err()}
		case ctx.Err() != nil, !worthRetrying(err):
			return err
		}
		select {
		case <-opened:
			return errors.Join(errOpened, err)
		case <-ctx.Done():
			return err
		case <-time.After(jitter(pause)):
		}
	}
}

// close ends the client and all work. It is idempotent.
func (s *store) close() error {
	s.closing.Do(func() {
		s.cancel()
		s.work.Wait()
		s.closeErr = s.engine.close()
	})
	return s.closeErr
}

// callerGone marks a call that its caller ended: it says nothing about the store.
type callerGone struct{ cause error }

func (e *callerGone) Error() string { return e.cause.Error() }
func (e *callerGone) Unwrap() error { return e.cause }

// failed wraps the error of a call.
func failed(name string, err error) error {
	var gone *callerGone
	if errors.As(err, &gone) {
		return fmt.Errorf("lease %s: %w", name, err)
	}
	return fmt.Errorf("lease %s: %w: %w", name, errUnavailable, err)
}

// worthRetrying is false for answers that a repetition would not change, and for a store that has enough to do.
func worthRetrying(err error) bool {
	return !isFull(err) && !errors.Is(err, errBusy) && !errors.Is(err, errOpened) && !strings.HasPrefix(err.Error(), "NOPERM")
}

// isFull says that the server refuses to grow. It still works: only acquires need memory.
func isFull(err error) bool { return strings.Contains(err.Error(), "OOM command not allowed") }

// isUnavailable says that the store could not be asked, as opposed to the caller having gone.
func isUnavailable(err error) bool { return errors.Is(err, errUnavailable) }

// isPaused says that the breaker did not let the call through.
func isPaused(err error) bool { return errors.Is(err, errPaused) }
