package lease

import (
	"context"
	"sync"
)

const (
	maxBatch  = 128  // calls in one pipeline
	maxQueued = 8192 // calls that wait for a pipeline
)

// queue sends calls of one pool. Those that come while all connections are busy go together in one pipeline, so that more
// calls than the connections carry one by one wait for a round trip and do not fail.
type queue struct {
	send  func(context.Context, []*call) // in one round trip; leaves an answer in each
	lanes func() int                     // round trips that may be under way at once
	slots chan struct{}                  // connections of all queues of the store: a round trip holds one
	ctx   context.Context

	mu      sync.Mutex
	waiting []*queued
	running int // lanes
}

// queued is a call that somebody waits for.
type queued struct {
	*call
	ctx  context.Context
	done chan struct{} // closed when the answer is there
	out  bool          // it was taken out of the queue to be sent; guarded by queue.mu
}

// alone sends c at once and on this goroutine where no other call is under way, and says whether it has.
func (q *queue) alone(ctx context.Context, c *call) bool {
	q.mu.Lock()
	if q.running > 0 || len(q.waiting) > 0 {
		q.mu.Unlock()
		return false
	}
	select {
	case q.slots <- struct{}{}:
	default:
		q.mu.Unlock()
		return false
	}
	q.running++
	q.mu.Unlock()
	q.send(ctx, []*call{c})
	<-q.slots
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.running--; len(q.waiting) > 0 && q.running < max(q.lanes(), 1) {
		q.running++
		go q.lane()
	}
	return true
}

// do sends c and waits for its answer, until ctx ends or the breaker opens. The call is not c itself, which the caller may
// read whenever this returns.
func (q *queue) do(ctx context.Context, c *call, opened <-chan struct{}) error {
	mine := *c
	w := &queued{call: &mine, ctx: ctx, done: make(chan struct{})}
	q.mu.Lock()
	if len(q.waiting) >= maxQueued {
		q.mu.Unlock()
		return errBusy
	}
	q.waiting = append(q.waiting, w)
	if q.running < max(q.lanes(), 1) {
		q.running++
		go q.lane()
	}
	q.mu.Unlock()
	select {
	case <-w.done:
		*c = mine
		return c.err
	case <-opened:
		return q.left(w, c, errOpened)
	case <-ctx.Done():
		return q.left(w, c, ctx.Err())
	}
}

// left says how a call ended that its caller waits for no longer.
func (q *queue) left(w *queued, c *call, why error) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.out {
		c.sent = true
	} else if why == context.DeadlineExceeded { //nolint:errorlint // a context's own error
		return errBusy
	}
	return why
}

// lane sends until nothing waits.
func (q *queue) lane() {
	for {
		q.slots <- struct{}{}
		batch := q.take()
		if batch == nil {
			<-q.slots
			return
		}
		calls := make([]*call, len(batch))
		for i, w := range batch {
			calls[i] = w.call
		}
		q.send(q.ctx, calls)
		<-q.slots
		for _, w := range batch {
			close(w.done)
		}
	}
}

// take returns the next batch, nil when the lane is to end. Calls that nobody waits for any more are left out.
func (q *queue) take() []*queued {
	q.mu.Lock()
	defer q.mu.Unlock()
	var batch []*queued
	for len(q.waiting) > 0 && len(batch) < maxBatch && q.running <= max(q.lanes(), 1) {
		next := q.waiting[0]
		q.waiting[0], q.waiting = nil, q.waiting[1:]
		if next.ctx.Err() == nil {
			next.out = true
			batch = append(batch, next)
		}
	}
	if batch == nil {
		q.running--
	}
	return batch
}
