package budget

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate/headgate/pkg/budget/memory"
)

// anonymous is the fairness key of requests that name none.
const anonymous = "anonymous"

// Controller shares one byte budget, and optionally a number of slots, among heavy requests. Its methods never block on
// anything but a short lock. All are safe for concurrent use.
type Controller struct {
	pressure func() memory.Pressure

	mu       sync.Mutex
	settings Settings
	budget   memory.Budget
	inflight int64      // bytes of all live holds
	ahead    int64      // those of them that no body has needed yet
	live     list[Hold] // by the time they were granted, youngest last
	active   int        // live holds in ordinary slots
	headroom int        // live holds in headroom slots
	queue    queue
	accounts accounts
	sheds    map[Reason]int64

	lacked atomic.Int64 // when somebody last began or ceased to lack bytes, in Unix nanoseconds
	lacks  atomic.Int64 // how many wait now

	// onChange sees every change of the inflight bytes, under the lock. Tests set it.
	onChange func(inflight, budget int64)
}

// New returns a controller of budget b. pressure reports the current pressure; nil is always normal and healthy. It is
// called under the controller's lock: it must return at once and not call back. Whoever changes what it reports calls
// Wake afterwards.
func New(s Settings, b memory.Budget, pressure func() memory.Pressure) *Controller {
	if pressure == nil {
		pressure = func() memory.Pressure { return memory.Pressure{Healthy: true} }
	}
	return &Controller{
		pressure: pressure, settings: s, budget: b, sheds: make(map[Reason]int64), accounts: accounts{byKey: make(map[string]*account)},
	}
}

// Configure replaces the settings. Holds and waiters stay, with the deadlines they have; waiters that now fit are
// granted.
func (c *Controller) Configure(s Settings) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settings = s
	c.dispatchLocked()
}

// SetBudget replaces the budget. A larger one serves waiters at once. Under a smaller one nothing is granted until
// enough has drained, and waiters whose body can no longer fit are refused with BodyExceedsBudget.
func (c *Controller) SetBudget(b memory.Budget) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.budget = b
	for _, w := range c.queue.all() {
		if w.total() > b.Bytes {
			w.refuseLocked(BodyExceedsBudget)
		}
	}
	c.dispatchLocked()
}

// Budget returns the current budget.
func (c *Controller) Budget() memory.Budget {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.budget
}

// Wake looks at the queue again because the pressure changed: headroom may have opened, or waiting may have become
// pointless.
func (c *Controller) Wake() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dispatchLocked()
}

// Acquire reserves r.Bytes and a slot, both or neither. Exactly one result is non-nil: the hold when there is room, a
// waiter when it has to wait for some, or a refusal.
func (c *Controller) Acquire(r Request) (*Hold, *Waiter, *Refusal) {
	if r.Key == "" {
		r.Key = anonymous
	}
	r.Bytes = max(r.Bytes, 0)

	c.mu.Lock()
	defer c.mu.Unlock()
	account := c.accounts.join(r.Key)
	defer c.accounts.leave(account)
	p := c.pressure()
	slot := c.slotLocked(p)
	c.makeRoomLocked(r.Bytes)
	switch {
	case p.Severity >= memory.Critical && !r.Trickle:
		return nil, nil, c.refuseLocked(ResourcePressure, r.Structure, 0)
	case r.Bytes > c.budget.Bytes:
		return nil, nil, c.refuseLocked(BodyExceedsBudget, r.Structure, 0)
	case slot && (c.queue.empty() && c.roomLocked(r.Bytes) && !c.barredLocked(account, r.Bytes) || c.isGuaranteedLocked(account, r.Bytes)):
		h := c.admitLocked(account, r.Bytes)
		h.trickle = r.Trickle
		return h, nil, nil
	}
	w, refusal := c.waitLocked(&Waiter{
		c: c, key: r.Key, account: account, bytes: r.Bytes, structure: r.Structure, bound: c.boundLocked(p, slot, r.MaxWait),
	})
	return nil, w, refusal
}

// Shed counts a refusal that was decided elsewhere.
func (c *Controller) Shed(r Reason) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sheds[r]++
}

// Contended reports whether others lacked bytes at any time since then: whether somebody waits, or has waited or been
// refused. It takes no lock.
func (c *Controller) Contended(since time.Time) bool {
	return c.lacks.Load() > 0 || c.lacked.Load() >= since.UnixNano()
}

// roomLocked reports whether bytes more fit the budget. After the budget shrank, what is left may be negative.
func (c *Controller) roomLocked(bytes int64) bool {
	return bytes <= c.budget.Bytes-c.inflight
}

// makeRoomLocked takes back what was reserved ahead of the bytes that arrived, where bytes more do not fit without it: it
// was for times in which nobody needs it.
func (c *Controller) makeRoomLocked(bytes int64) {
	if c.roomLocked(bytes) || c.ahead == 0 {
		return
	}
	for h := range c.live.all() {
		h.resizeLocked(min(h.bytes, h.needed))
	}
}

// slotLocked reports whether one more request may be in flight.
func (c *Controller) slotLocked(p memory.Pressure) bool {
	return c.ordinarySlotLocked() || p.Healthy && c.headroom < c.headroomSlotsLocked()
}

func (c *Controller) ordinarySlotLocked() bool {
	return c.settings.HeavySlots == nil || c.active < *c.settings.HeavySlots
}

func (c *Controller) headroomSlotsLocked() int {
	if c.settings.HealthyHeadroom != nil {
		return *c.settings.HealthyHeadroom
	}
	return *c.settings.HeavySlots
}

// boundLocked is how long a request may wait from now. Calm shortens only the wait for bytes: those come back soon, or the
// budget is too small for the load, while a slot is held as long as its request is.
func (c *Controller) boundLocked(p memory.Pressure, slot bool, most time.Duration) time.Duration {
	bound := c.settings.Queue.MaxWait
	if p.Severity == memory.Normal && slot {
		bound = min(bound, c.settings.Queue.CalmWait)
	}
	return max(0, min(bound, most))
}

// waitLocked queues w, or refuses it when it may not wait.
func (c *Controller) waitLocked(w *Waiter) (*Waiter, *Refusal) {
	defer c.dispatchAfterEvictionsLocked(c.queue.valve.evictions)
	c.lacked.Store(time.Now().UnixNano())
	w.joinLocked()
	switch {
	case w.bound == 0:
		return nil, w.refuseNewLocked(InflightBytesBudget)
	case !c.queue.valve.enter(&w.entry, w.key, w.bytes, int64(c.settings.Queue.MaxQueuedBytes), w.evictLocked):
		return nil, w.refuseNewLocked(QueuedBytesBudget)
	}
	w.done = make(chan struct{})
	w.timer = time.AfterFunc(w.bound, w.expire)
	c.queue.push(w)
	c.lacks.Add(1)
	if w.grows != nil {
		w.grows.growth = w
	}
	return w, nil
}

// dispatchAfterEvictionsLocked serves those who had stood behind somebody that had to give way.
func (c *Controller) dispatchAfterEvictionsLocked(before int64) {
	if c.queue.valve.evictions > before {
		c.dispatchLocked()
	}
}

// dispatchLocked grants waiters what is free, as long as the next fits; under critical pressure it sends all away.
func (c *Controller) dispatchLocked() {
	if c.queue.empty() {
		return
	}
	p := c.pressure()
	if p.Severity >= memory.Critical {
		for _, w := range c.queue.all() {
			w.refuseLocked(ResourcePressure)
		}
		return
	}
	fits := func(w *Waiter) bool {
		return c.roomLocked(w.bytes) && (w.grows != nil || c.slotLocked(p))
	}
	barred := func(w *Waiter) bool { return w.grows == nil && c.barredLocked(w.account, w.bytes) }
	for w := c.queue.next(fits, barred); w != nil; w = c.queue.next(fits, barred) {
		w.grantLocked()
	}
}

// admitLocked makes a hold of bytes, which must fit, in the slot that must be free.
func (c *Controller) admitLocked(account *account, bytes int64) *Hold {
	account.live++
	h := &Hold{c: c, account: account, since: time.Now(), headroom: !c.ordinarySlotLocked()}
	h.place.of = h
	c.live.pushBack(&h.place)
	*c.slotsLocked(h)++
	h.needed = bytes
	h.resizeLocked(bytes)
	return h
}

// slotsLocked is the counter of h's kind of slot.
func (c *Controller) slotsLocked(h *Hold) *int {
	if h.headroom {
		return &c.headroom
	}
	return &c.active
}
