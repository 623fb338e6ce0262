package budget

import (
	"time"

	"github.com/headgate/headgate/pkg/budget/memory"
)

// maxGrowth bounds what a growing hold reserves ahead of the bytes that arrived.
const maxGrowth = 4 << 20

// Hold is a live reservation: a slot and bytes of the budget. Whoever has it releases it, once the request's body no
// longer occupies memory. One goroutine grows and shrinks it; Release may come from any.
type Hold struct {
	c        *Controller
	account  *account  // of its key
	since    time.Time // when it was granted
	headroom bool      // in a headroom slot
	place    node[Hold]

	trickle bool // let through although the pressure was critical

	needed   int64   // what its body is known to need
	bytes    int64   // what is reserved, at least needed
	growth   *Waiter // pending growth
	released bool
}

// Bytes returns what is reserved; 0 after Release.
func (h *Hold) Bytes() int64 {
	h.c.mu.Lock()
	defer h.c.mu.Unlock()
	return h.bytes
}

// TryGrow raises the reservation to at least total bytes if there is room now, whoever waits. While nobody waits it
// doubles the reservation, by at most 4 MiB and not beyond HardMaxBody, so that a body of many chunks seldom grows it;
// otherwise it takes exactly total. A released hold does not grow.
func (h *Hold) TryGrow(total int64) bool {
	h.c.mu.Lock()
	defer h.c.mu.Unlock()
	return h.tryGrowLocked(total)
}

// Grow raises the reservation to at least total bytes, or waits for it at most maxWait and the wait that the pressure
// allows. Both results are nil when it grew at once. While it waits, only the missing bytes are charged to the queue and
// the hold keeps what it has. A hold has one growth at a time: a pending one is cancelled. On a released hold the waiter is
// cancelled from the start.
func (h *Hold) Grow(total int64, maxWait time.Duration) (*Waiter, *Refusal) {
	c := h.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if h.released {
		w := &Waiter{c: c, done: make(chan struct{})}
		close(w.done)
		return w, nil
	}
	h.cancelGrowthLocked()
	c.dispatchLocked()
	if h.tryGrowLocked(total) {
		return nil, nil
	}
	p := c.pressure()
	switch {
	case p.Severity >= memory.Critical && !h.trickle:
		return nil, c.refuseLocked(ResourcePressure, false, 0)
	case total > c.budget.Bytes:
		return nil, c.refuseLocked(BodyExceedsBudget, false, 0)
	}
	return c.waitLocked(&Waiter{
		c: c, key: h.account.key, account: h.account, bytes: total - h.bytes, grows: h, bound: c.boundLocked(p, true, maxWait),
	})
}

// Shrink gives back what is reserved above total.
func (h *Hold) Shrink(total int64) {
	h.c.mu.Lock()
	defer h.c.mu.Unlock()
	if total = max(total, 0); total < h.bytes {
		h.needLocked(min(h.needed, total))
		h.resizeLocked(total)
		h.c.dispatchLocked()
	}
}

// Release gives everything back and cancels a pending growth. It may be called more than once.
func (h *Hold) Release() {
	h.c.mu.Lock()
	defer h.c.mu.Unlock()
	if !h.released {
		h.releaseLocked()
		h.c.dispatchLocked()
	}
}

func (h *Hold) tryGrowLocked(total int64) bool {
	c := h.c
	switch {
	case h.released:
		return false
	case total <= h.bytes:
		h.needLocked(max(h.needed, total))
		return true
	}
	h.needLocked(max(h.needed, min(total, h.bytes)))
	c.makeRoomLocked(total - h.bytes)
	if !c.roomLocked(total - h.bytes) {
		return false
	}
	ahead := min(h.bytes+min(h.bytes, maxGrowth), int64(c.settings.HardMaxBody))
	h.needLocked(total)
	if ahead > total && c.queue.empty() && c.roomLocked(ahead-h.bytes) {
		total = ahead
	}
	h.resizeLocked(total)
	return true
}

// needLocked records what the body needs; what is reserved beyond it goes back as soon as somebody lacks bytes.
func (h *Hold) needLocked(bytes int64) {
	h.c.ahead -= h.aheadLocked()
	h.needed = bytes
	h.c.ahead += h.aheadLocked()
}

func (h *Hold) aheadLocked() int64 { return max(0, h.bytes-h.needed) }

func (h *Hold) cancelGrowthLocked() {
	if w := h.growth; w != nil {
		h.c.queue.remove(w)
		w.endLocked()
	}
}

func (h *Hold) releaseLocked() {
	h.cancelGrowthLocked()
	h.needLocked(0)
	h.resizeLocked(0)
	h.released = true
	h.c.live.remove(&h.place)
	h.c.accounts.leave(h.account)
	*h.c.slotsLocked(h)--
}

// resizeLocked is the one place where reserved bytes change.
func (h *Hold) resizeLocked(bytes int64) {
	c := h.c
	c.ahead -= h.aheadLocked()
	c.inflight += bytes - h.bytes
	c.accounts.hold(h.account, bytes-h.bytes)
	h.bytes = bytes
	c.ahead += h.aheadLocked()
	if c.onChange != nil {
		c.onChange(c.inflight, c.budget.Bytes)
	}
}
