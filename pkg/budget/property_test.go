package budget

import (
	"cmp"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/headgate/headgate/pkg/budget/memory"
	"github.com/headgate/headgate/pkg/budget/size"
)

// Whatever happens in whatever order, the package's invariants hold after every step, and in the end nothing is left.
func TestInvariantsHoldInAnyOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rapid.Check(inBubble{t}, func(t *rapid.T) {
			w := newWorld(t)
			t.Repeat(map[string]func(*rapid.T){
				"acquire": w.acquire, "growth": w.growth, "shrink": w.shrink, "release": w.release, "cancel": w.cancel,
				"result": w.result, "configure": w.configure, "budget": w.budget, "pressure": w.setPressure, "time": w.passTime,
				"": w.check,
			})
			w.finish(t)
		})
	})
}

// inBubble hides that it is a *testing.T, whose deadline may not be read in a bubble.
type inBubble struct{ rapid.TB }

// world is a controller and all that was got from it.
type world struct {
	c        *Controller
	pressure memory.Pressure
	holds    []*Hold   // handed over and not released
	waiters  []*Waiter // in the order of their arrival; those that have ended leave when their result is taken
}

func newWorld(t *rapid.T) *world {
	w := &world{}
	w.c = New(DefaultSettings(), memory.Budget{Bytes: 100}, func() memory.Pressure { return w.pressure })
	guardBudget(w.c, t.Fatalf)
	return w
}

func (w *world) acquire(t *rapid.T) {
	a := Request{
		Key:       rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "key"),
		Bytes:     rapid.Int64Range(0, 60).Draw(t, "bytes"),
		MaxWait:   time.Duration(rapid.IntRange(0, 300).Draw(t, "wait")) * time.Millisecond,
		Structure: rapid.Bool().Draw(t, "structure"),
	}
	w.c.mu.Lock()
	idle := w.c.queue.empty() && w.pressure.Severity < memory.Critical && w.c.roomLocked(a.Bytes) && w.c.slotLocked(w.pressure)
	key := w.c.accounts.join(cmp.Or(a.Key, anonymous))
	idle = idle && !w.c.barredLocked(key, a.Bytes)
	w.c.accounts.leave(key)
	w.c.mu.Unlock()
	h, waiter, refusal := w.c.Acquire(a)
	if idle && h == nil {
		t.Fatalf("Acquire(%+v) = %v, %+v although it fits and nobody waits", a, waiter, refusal)
	}
	switch {
	case h != nil && waiter == nil && refusal == nil:
		w.holds = append(w.holds, h)
	case h == nil && waiter != nil && refusal == nil:
		w.waiters = append(w.waiters, waiter)
	case h == nil && waiter == nil && refusal != nil:
	default:
		t.Fatalf("Acquire = %v, %v, %v: not exactly one", h, waiter, refusal)
	}
}

func (w *world) growth(t *rapid.T) {
	h := pickOne(t, w.holds)
	total := h.Bytes() + rapid.Int64Range(-5, 40).Draw(t, "more")
	waiter, refusal := h.Grow(total, 100*time.Millisecond)
	switch {
	case waiter != nil:
		w.waiters = append(w.waiters, waiter)
	case refusal == nil && h.Bytes() < total:
		t.Fatalf("grown to %d, want at least %d", h.Bytes(), total)
	}
}

func (w *world) shrink(t *rapid.T) {
	h := pickOne(t, w.holds)
	h.Shrink(rapid.Int64Range(-1, 60).Draw(t, "total"))
}

func (w *world) release(t *rapid.T) {
	h := pickOne(t, w.holds)
	h.Release()
	h.Release()
	w.holds = without(w.holds, h)
}

func (w *world) cancel(t *rapid.T) {
	waiter := pickOne(t, w.waiters)
	waiter.Cancel()
	waiter.Cancel()
	if h, refusal := waiter.Result(); h != nil {
		t.Fatalf("cancelled waiter has %v, %v", h, refusal)
	}
	w.waiters = without(w.waiters, waiter)
}

func (w *world) result(t *rapid.T) {
	waiter := pickOne(t, w.waiters)
	if !ended(waiter) {
		return
	}
	w.waiters = without(w.waiters, waiter)
	h, refusal := waiter.Result()
	if h != nil && refusal != nil || h == nil && refusal == nil && waiter.grows == nil {
		t.Fatalf("result is %v, %v; want one of them", h, refusal)
	}
	if h != nil && waiter.grows == nil {
		w.holds = append(w.holds, h)
	}
}

func (w *world) configure(t *rapid.T) {
	s := DefaultSettings()
	if n := rapid.IntRange(0, 4).Draw(t, "slots"); n > 0 {
		s.HeavySlots = &n
	}
	if n := rapid.IntRange(0, 3).Draw(t, "headroom"); n > 0 {
		s.HealthyHeadroom = &n
	}
	s.Queue.MaxQueuedBytes = size.Bytes(rapid.IntRange(0, 300).Draw(t, "valve"))
	w.c.Configure(s)
}

func (w *world) budget(t *rapid.T) {
	w.c.SetBudget(memory.Budget{Bytes: rapid.Int64Range(20, 120).Draw(t, "budget")})
}

func (w *world) setPressure(t *rapid.T) {
	w.pressure.Severity = rapid.SampledFrom([]memory.Severity{memory.Normal, memory.Normal, memory.High, memory.Critical}).Draw(t, "severity")
	w.pressure.Healthy = rapid.Bool().Draw(t, "healthy")
	w.c.Wake()
}

func (w *world) passTime(t *rapid.T) {
	time.Sleep(time.Duration(rapid.SampledFrom([]int{0, 1, 7, 30, 60, 90, 120, 10_000}).Draw(t, "ms")) * time.Millisecond)
	synctest.Wait()
}

// check compares the controller's counters with what can be counted, and its choices with the rules.
func (w *world) check(t *rapid.T) {
	c := w.c
	c.mu.Lock()
	defer c.mu.Unlock()
	var inflight int64
	live := 0
	for h := range c.live.all() {
		inflight += h.bytes
		live++
	}
	if inflight != c.inflight || live != c.active+c.headroom {
		t.Fatalf("counted %d bytes of %d holds, want %d of %d + %d", inflight, live, c.inflight, c.active, c.headroom)
	}
	mine := len(w.holds)
	for _, waiter := range w.waiters {
		if waiter.hold != nil && waiter.grows == nil {
			mine++
		}
	}
	if mine != live {
		t.Fatalf("%d holds are out, the controller knows %d", mine, live)
	}

	var queued int64
	waiting := c.queue.all()
	for _, waiter := range waiting {
		queued += waiter.bytes
		if waiter.passed > maxPassed {
			t.Fatalf("a waiter was passed over %d times, want at most %d", waiter.passed, maxPassed)
		}
	}
	if queued != c.queue.valve.bytes || len(waiting) != c.queue.waiting {
		t.Fatalf("counted %d waiters with %d bytes, want %d with %d", len(waiting), queued, c.queue.waiting, c.queue.valve.bytes)
	}
	if len(waiting) > 0 {
		w.checkFrontLocked(t, waiting[0])
	}
	w.checkFIFOLocked(t)
	w.checkAccountsLocked(t)
}

// checkAccountsLocked: each key's account says what its holds and waiters say, and no guarantee is more than a share once was.
func (w *world) checkAccountsLocked(t *rapid.T) {
	all := &w.c.accounts
	live, bytes, waiting := map[string]int{}, map[string]int64{}, map[string]int64{}
	for h := range w.c.live.all() {
		live[h.account.key]++
		bytes[h.account.key] += h.bytes
	}
	for _, waiter := range w.c.queue.all() {
		live[waiter.key]++
		if waiter.grows == nil {
			waiting[waiter.key] += waiter.bytes
		}
	}
	var unclaimed int64
	for name, a := range all.byKey {
		if a.live != live[name] || a.bytes != bytes[name] || a.waiting != waiting[name] {
			t.Fatalf("account of %s: %+v, want %d live, %d bytes, %d waiting", name, a, live[name], bytes[name], waiting[name])
		}
		if a.live == 0 && a.guarantee == 0 || a.guarantee < 0 || a.guarantee > 120/2 {
			t.Fatalf("account of %s is guaranteed %d", name, a.guarantee)
		}
		unclaimed += a.unclaimed()
		delete(live, name)
	}
	if unclaimed != all.unclaimed || len(live) > 0 {
		t.Fatalf("%d bytes unclaimed, want %d; no account for %v", all.unclaimed, unclaimed, live)
	}
}

// checkFrontLocked: what the waiter whose turn it is could use is never idle, and nobody waits under critical pressure.
func (w *world) checkFrontLocked(t *rapid.T, front *Waiter) {
	if w.pressure.Severity >= memory.Critical {
		t.Fatalf("%d wait under critical pressure", w.c.queue.waiting)
	}
	if front.grows == nil && w.c.barredLocked(front.account, front.bytes) {
		return // others are guaranteed it
	}
	if w.c.roomLocked(front.bytes) && (front.grows != nil || w.c.slotLocked(w.pressure)) {
		t.Fatalf("the front waits for %d bytes while %d of %d are taken", front.bytes, w.c.inflight, w.c.budget.Bytes)
	}
}

// checkFIFOLocked: within a key no reservation was granted while an earlier one still waits.
func (w *world) checkFIFOLocked(t *rapid.T) {
	stillWaits := map[string]bool{}
	for i, waiter := range w.waiters {
		switch {
		case waiter.grows != nil:
		case waiter.lane != nil:
			stillWaits[waiter.key] = true
		case waiter.hold != nil && stillWaits[waiter.key]:
			t.Fatalf("waiter %d of key %q was granted before an earlier one", i, waiter.key)
		}
	}
}

func (w *world) finish(t *rapid.T) {
	for _, waiter := range w.waiters {
		waiter.Cancel()
	}
	for _, h := range w.holds {
		h.Release()
	}
	s := w.c.Snapshot()
	if s.InflightBytes != 0 || s.ActiveHeavy != 0 || s.ActiveHealthyHeadroom != 0 || s.Waiting != 0 || s.QueuedBytes != 0 ||
		w.c.live.first != nil || len(w.c.queue.lanes) != 0 {
		t.Fatalf("left behind: %+v", s)
	}
	time.Sleep(mostGuarantee)
	synctest.Wait()
	if all := &w.c.accounts; len(all.byKey) != 0 || all.unclaimed != 0 || all.guaranteed.first != nil || all.timer != nil {
		t.Fatalf("accounts left behind: %+v", all)
	}
}

func pickOne[T any](t *rapid.T, from []*T) *T {
	if len(from) == 0 {
		t.SkipNow() // tells rapid that the action does not apply here
	}
	return from[rapid.IntRange(0, len(from)-1).Draw(t, "which")]
}

func without[T comparable](all []T, one T) []T {
	kept := make([]T, 0, len(all))
	for _, v := range all {
		if v != one {
			kept = append(kept, v)
		}
	}
	return kept
}
