package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sony/gobreaker/v2"
)

const (
	breakerFailures = 5                      // consecutive failures that open a pool's breaker
	breakerPause    = 500 * time.Millisecond // how long it stays open before one call may try
)

// store runs scripts on a Redis, real or embedded.
type store struct {
	kind     string // embedded, single, sentinel, cluster
	client   redis.UniversalClient
	scripts  *scripts
	timeout  time.Duration // of one call
	replicas int           // that must confirm an acquire
	grace    time.Duration // keys live this much longer than what they say; see the package comment
	log      *slog.Logger
	observer Observer
	stop     func() // ends what the kind needs beside its client
	closing  sync.Once
	closeErr error

	mu       sync.Mutex
	breakers map[string]*breaker
	eviction string // policy of the server, as far as it is known
}

// breaker guards one pool: a pool is a shard, and the failure of one says nothing about the others.
type breaker struct {
	*gobreaker.CircuitBreaker[any]
	mu       sync.Mutex
	lastOpen time.Time // when it was last not closed
	lastErr  error
	answered bool // ever
}

// call runs a script for a pool. Errors wrap errUnavailable, or the caller's context error when it was the caller who
// gave up.
func (s *store) call(ctx context.Context, pool string, sc *script, keys []string, args ...any) (reply, error) {
	v, err := s.read(ctx, pool, sc, keys, args...)
	if err != nil {
		return reply{}, err
	}
	return parseReply(v)
}

// read is call for a script whose answer has a shape of its own.
func (s *store) read(ctx context.Context, pool string, sc *script, keys []string, args ...any) (any, error) {
	return s.guard(ctx, pool, sc.name, s.timeout, func(ctx context.Context) (any, error) {
		return sc.Run(ctx, s.client, keys, args...).Result()
	})
}

// guard runs f under the pool's breaker and a deadline, and counts it.
func (s *store) guard(ctx context.Context, pool, name string, timeout time.Duration, f func(context.Context) (any, error)) (any, error) {
	b := s.breaker(pool)
	start := time.Now()
	ctx, span := traceCall(ctx, name)
	v, err := b.Execute(func() (any, error) {
		callCtx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		v, err := f(callCtx)
		if err != nil && ctx.Err() != nil {
			return nil, &callerGone{ctx.Err()}
		}
		b.note(err)
		return v, err
	})
	s.observer.call(name, time.Since(start), err)
	endCall(span, err)
	if err != nil {
		return nil, failed(name, err)
	}
	return v, nil
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

func (s *store) breaker(pool string) *breaker {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.breakers[pool]; b != nil {
		return b
	}
	b := &breaker{}
	b.CircuitBreaker = gobreaker.NewCircuitBreaker[any](gobreaker.Settings{
		Name:         pool,
		Timeout:      breakerPause,
		ReadyToTrip:  func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= breakerFailures },
		IsSuccessful: func(err error) bool { return err == nil || isFull(err) },
		IsExcluded: func(err error) bool {
			var gone *callerGone
			return errors.As(err, &gone)
		},
		OnStateChange: func(_ string, from, to gobreaker.State) { s.stateChanged(b, pool, from, to) },
	})
	if s.breakers == nil {
		s.breakers = map[string]*breaker{}
	}
	s.breakers[pool] = b
	return b
}

func (s *store) stateChanged(b *breaker, pool string, from, to gobreaker.State) {
	b.mu.Lock()
	cause := b.lastErr
	if from == gobreaker.StateOpen || to == gobreaker.StateOpen {
		b.lastOpen = time.Now()
	}
	b.mu.Unlock()
	s.observer.breaker(pool, to.String())
	switch {
	case to == gobreaker.StateOpen && from == gobreaker.StateClosed:
		s.log.Warn("lease store fails, pausing its calls", "pool", pool, "store", s.kind, "error", cause)
	case to == gobreaker.StateClosed:
		s.log.Info("lease store works again", "pool", pool, "store", s.kind)
	}
}

// callConfirmed is call for an acquire that replicas must confirm: WAIT counts the writes of its own connection, so both
// travel on one. It answers the number of replicas too.
func (s *store) callConfirmed(ctx context.Context, pool string, sc *script, keys []string, args ...any) (r reply, confirmed bool, err error) {
	if s.replicas == 0 {
		r, err = s.call(ctx, pool, sc, keys, args...)
		return r, true, err
	}
	v, err := s.guard(ctx, pool, sc.name, 2*s.timeout, func(ctx context.Context) (any, error) {
		node, err := s.node(ctx, keys[0])
		if err != nil {
			return nil, err
		}
		v, n, err := evalAndWait(ctx, node, sc, s.replicas, s.timeout, keys, args)
		confirmed = n >= int64(s.replicas)
		return v, err
	})
	if err != nil {
		return reply{}, false, err
	}
	r, err = parseReply(v)
	return r, confirmed, err
}

// node is the client of the one server that owns the key.
func (s *store) node(ctx context.Context, key string) (*redis.Client, error) {
	switch c := s.client.(type) {
	case *redis.Client:
		return c, nil
	case *redis.ClusterClient:
		return c.MasterForKey(ctx, key)
	default:
		return nil, fmt.Errorf("client %T cannot wait for replicas", c)
	}
}

func evalAndWait(ctx context.Context, node *redis.Client, sc *script, replicas int, wait time.Duration, keys []string, args []any) (any, int64, error) {
	run := func(eval func(redis.Pipeliner) *redis.Cmd) (any, int64, error) {
		pipe := node.Pipeline()
		answer := eval(pipe)
		confirmed := pipe.Do(ctx, "WAIT", replicas, wait.Milliseconds())
		if _, err := pipe.Exec(ctx); answer.Err() != nil {
			return nil, 0, answer.Err()
		} else if err != nil {
			return nil, 0, err
		}
		n, err := confirmed.Int64()
		return answer.Val(), n, err
	}
	v, n, err := run(func(p redis.Pipeliner) *redis.Cmd { return sc.EvalSha(ctx, p, keys, args...) })
	if err != nil && strings.HasPrefix(err.Error(), "NOSCRIPT") {
		v, n, err = run(func(p redis.Pipeliner) *redis.Cmd { return sc.Eval(ctx, p, keys, args...) })
	}
	return v, n, err
}

// close ends the client and what the kind runs beside it. It is idempotent.
func (s *store) close() error {
	s.closing.Do(func() {
		s.closeErr = s.client.Close()
		if s.stop != nil {
			s.stop()
		}
	})
	return s.closeErr
}

// isFull says that the server refuses to grow. It still works: only acquires need memory.
func isFull(err error) bool { return strings.Contains(err.Error(), "OOM command not allowed") }

// isUnavailable says that the store could not be asked, as opposed to the caller having gone.
func isUnavailable(err error) bool { return errors.Is(err, errUnavailable) }
