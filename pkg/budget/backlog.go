package budget

// Backlog is what arrived of a heavy body while its exchange waits for something other than the budget. It counts against
// Queue.MaxQueuedBytes like the bytes of waiters, and reserves nothing. One goroutine uses it; Release may come from any.
type Backlog struct {
	c        *Controller
	key      string
	bytes    int64
	refused  chan struct{} // closed when the bytes may no longer wait
	refusal  *Refusal
	released bool
}

// Backlog begins to count bytes that wait under a fairness key. Exactly one result is non-nil.
func (c *Controller) Backlog(key string, bytes int64) (*Backlog, *Refusal) {
	if key == "" {
		key = Anonymous
	}
	b := &Backlog{c: c, key: key, refused: make(chan struct{})}
	if refusal := b.Grow(bytes); refusal != nil {
		return nil, refusal
	}
	return b, nil
}

// Grow raises what is counted to total bytes, or refuses the exchange when too much waits already.
func (b *Backlog) Grow(total int64) *Refusal {
	c := b.c
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case b.released || total <= b.bytes:
		return nil
	case total-b.bytes > int64(c.settings.Queue.MaxQueuedBytes)-c.queue.bytes:
		return c.refuseLocked(QueuedBytesBudget, false, c.settings.Queue.MaxWait)
	}
	c.queue.bytes += total - b.bytes
	b.bytes = total
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
	c := b.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if !b.released {
		b.released = true
		c.queue.bytes -= b.bytes
	}
}
