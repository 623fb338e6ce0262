package budget

import "time"

// Waiter is a place in the queue, of a new reservation or of a hold that needs to grow. Wait for Done and the client's
// end together; then call Result or Cancel.
type Waiter struct {
	c         *Controller
	key       string
	account   *account // of key, until the wait ends
	bytes     int64    // charged while waiting and when granted: a whole reservation, or what a growth adds
	grows     *Hold    // the hold that waits to grow; nil for a new reservation
	structure bool
	bound     time.Duration // how long it may wait, fixed when it began
	timer     *time.Timer
	done      chan struct{} // closed when the wait ends

	lane    *lane // nil once the wait has ended
	place   node[Waiter]
	entry   valveEntry
	passed  int // how often others were served before it because it did not fit
	hold    *Hold
	refusal *Refusal
	taken   bool // Result handed the hold over
}

// Done is closed when the wait is over: granted, refused or cancelled.
func (w *Waiter) Done() <-chan struct{} { return w.done }

// Result returns the outcome once Done is closed: the hold, which from then on is the caller's to release; or a refusal;
// or neither after Cancel. The hold of a growth is the hold that grew.
func (w *Waiter) Result() (*Hold, *Refusal) {
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	w.taken = w.hold != nil
	return w.hold, w.refusal
}

// Cancel leaves the queue because nobody is interested any more; it counts as no refusal. A grant that Result has not
// handed over is taken back and goes to the next waiter. After that, or a second time, Cancel does nothing.
func (w *Waiter) Cancel() {
	c := w.c
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case w.lane != nil:
		c.queue.remove(w)
		w.endLocked()
	case w.hold != nil && !w.taken:
		w.takeBackLocked()
	default:
		return
	}
	c.dispatchLocked()
}

// total is the whole reservation that the waiter's body would have.
func (w *Waiter) total() int64 {
	if w.grows != nil {
		return w.grows.bytes + w.bytes
	}
	return w.bytes
}

// expire is the deadline.
func (w *Waiter) expire() {
	c := w.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.lane == nil {
		return
	}
	w.refuseLocked(QueueTimeout)
	c.dispatchLocked()
}

// grantLocked gives w, which has left the queue, what it waited for.
func (w *Waiter) grantLocked() {
	if h := w.grows; h != nil {
		h.needLocked(h.bytes + w.bytes)
		h.resizeLocked(h.bytes + w.bytes)
		w.hold = h
	} else {
		w.hold = w.c.admitLocked(w.account, w.bytes)
	}
	w.endLocked()
}

// evictLocked makes room for a key that has fewer bytes waiting.
func (w *Waiter) evictLocked() { w.refuseLocked(QueuedBytesBudget) }

// refuseLocked sends w away from the queue.
func (w *Waiter) refuseLocked(r Reason) {
	w.c.queue.remove(w)
	w.refusal = w.c.refuseLocked(r, w.structure, w.bound)
	w.guaranteeLocked(r)
	w.endLocked()
}

// joinLocked counts w as waiting.
func (w *Waiter) joinLocked() {
	w.account.live++
	if w.grows == nil {
		w.account.waiting += w.bytes
	}
}

// leaveLocked ends what joinLocked began.
func (w *Waiter) leaveLocked() {
	if w.grows == nil {
		w.account.waiting -= w.bytes
	}
	w.c.accounts.leave(w.account)
}

// refuseNewLocked refuses w, which may not even wait.
func (w *Waiter) refuseNewLocked(r Reason) *Refusal {
	w.guaranteeLocked(r)
	w.leaveLocked()
	return w.c.refuseLocked(r, w.structure, w.bound)
}

// guaranteeLocked gives w's key a guarantee where the reason of w's refusal is the lack of bytes.
func (w *Waiter) guaranteeLocked(r Reason) {
	if w.grows == nil && (r == QueueTimeout || r == QueuedBytesBudget || r == InflightBytesBudget) {
		w.c.guaranteeLocked(w.account, w.bytes)
	}
}

// endLocked ends the wait of w, which has left the queue.
func (w *Waiter) endLocked() {
	w.leaveLocked()
	w.c.lacks.Add(-1)
	w.c.lacked.Store(time.Now().UnixNano())
	w.timer.Stop()
	if w.grows != nil {
		w.grows.growth = nil
	}
	close(w.done)
}

// takeBackLocked undoes a grant that was not handed over.
func (w *Waiter) takeBackLocked() {
	h := w.hold
	w.hold = nil
	switch {
	case h.released:
	case w.grows == nil:
		h.releaseLocked()
	default:
		h.needLocked(max(h.needed-w.bytes, 0))
		h.resizeLocked(max(h.bytes-w.bytes, 0))
	}
}
