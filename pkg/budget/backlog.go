package budget

// Backlog is what arrived of a heavy body while its exchange waits for something other than the budget. It counts against
// Queue.MaxQueuedBytes like the bytes of waiters, and reserves nothing. One goroutine uses it.
type Backlog struct {
	c       *Controller
	entry   valveEntry
	refused chan struct{} // closed when the bytes may no longer wait
	refusal *Refusal
}

// Backlog begins to count bytes that wait under a fairness key. Exactly one result is non-nil.
func (c *Controller) Backlog(key string, bytes int64) (*Backlog, *Refusal) {
	if key == "" {
		key = anonymous
	}
	b := &Backlog{c: c, refused: make(chan struct{})}
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.dispatchAfterEvictionsLocked(c.queue.valve.evictions)
	if !c.queue.valve.enter(&b.entry, key, bytes, int64(c.settings.Queue.MaxQueuedBytes), b.evictLocked) {
		return nil, b.refuseLocked()
	}
	return b, nil
}

// Grow raises what is counted to total bytes, or refuses the exchange when too much waits already.
func (b *Backlog) Grow(total int64) *Refusal {
	c := b.c
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.dispatchAfterEvictionsLocked(c.queue.valve.evictions)
	switch {
	case b.refusal != nil:
		return b.refusal
	case b.entry.key == nil || total <= b.entry.bytes:
		return nil
	case !c.queue.valve.grow(&b.entry, total-b.entry.bytes, int64(c.settings.Queue.MaxQueuedBytes)):
		return b.refuseLocked()
	}
	return nil
}

// Refused is closed when the bytes may no longer wait; Refusal says why.
func (b *Backlog) Refused() <-chan struct{} { return b.refused }

// Refusal returns why the bytes may no longer wait, nil while they may.
func (b *Backlog) Refusal() *Refusal {
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	return b.refusal
}

// Release stops counting. It may be called more than once.
func (b *Backlog) Release() {
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	b.c.queue.valve.leave(&b.entry)
}

func (b *Backlog) refuseLocked() *Refusal {
	b.refusal = b.c.refuseLocked(QueuedBytesBudget, false, b.c.settings.Queue.MaxWait)
	return b.refusal
}

// evictLocked makes room for a key that has less waiting.
func (b *Backlog) evictLocked() {
	b.refuseLocked()
	b.c.queue.valve.leave(&b.entry)
	close(b.refused)
}
