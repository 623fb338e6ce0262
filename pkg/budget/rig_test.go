package budget

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/pkg/budget/memory"
	"github.com/headgate/headgate/pkg/budget/size"
)

const (
	kib = 1 << 10
	mib = 1 << 20

	long = time.Hour // a caller's bound that never matters
)

// rig plays one controller scenario in virtual time. What a scenario still holds at its end is let go, and then nothing
// may be left.
type rig struct {
	t        *testing.T
	c        *Controller
	pressure memory.Pressure
	holds    []*Hold
	waiters  []*Waiter
}

// scenario is the start of a rig. The zero value is a budget of 8 MiB under high pressure, so that queue.maxWait is
// the wait, on an unhealthy memory ratio, so that headroom is closed.
type scenario struct {
	budget   int64
	settings func(*Settings)
	pressure *memory.Pressure
}

func (s scenario) play(t *testing.T, play func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, pressure: memory.Pressure{Severity: memory.High}}
		if s.pressure != nil {
			r.pressure = *s.pressure
		}
		if s.budget == 0 {
			s.budget = 8 * mib
		}
		settings := DefaultSettings()
		if s.settings != nil {
			s.settings(&settings)
		}
		r.c = New(settings, memory.Budget{Bytes: s.budget, Source: memory.SourceCgroup, Ceiling: 32 * s.budget}, func() memory.Pressure {
			return r.pressure
		})
		guardBudget(r.c, t.Errorf)
		play(r)
		r.end()
	})
}

// guardBudget fails as soon as a reservation exceeds the budget, even inside a call.
func guardBudget(c *Controller, errorf func(string, ...any)) {
	var before int64
	c.onChange = func(inflight, budget int64) {
		if inflight > before && inflight > budget || inflight < 0 {
			errorf("inflight bytes went from %d to %d of %d", before, inflight, budget)
		}
		before = inflight
	}
}

func (r *rig) end() {
	r.t.Helper()
	for _, w := range r.waiters {
		w.Cancel()
	}
	for _, h := range r.holds {
		h.Release()
		h.Release()
	}
	s := r.c.Snapshot()
	if s.ActiveHeavy != 0 || s.ActiveHealthyHeadroom != 0 || s.InflightBytes != 0 || s.Waiting != 0 ||
		s.QueuedBytes != 0 || len(s.Lanes) != 0 {
		r.t.Errorf("left behind: %+v", s)
	}
}

func (r *rig) admit(a Request) *Hold {
	r.t.Helper()
	h, w, refusal := r.c.Acquire(a)
	if h == nil || w != nil || refusal != nil {
		r.t.Fatalf("Acquire(%+v) = %v, %v, %v; want a hold; state %+v", a, h, w, refusal, r.c.Snapshot())
	}
	r.holds = append(r.holds, h)
	return h
}

func (r *rig) wait(a Request) *Waiter {
	r.t.Helper()
	h, w, refusal := r.c.Acquire(a)
	if h != nil || w == nil || refusal != nil {
		r.t.Fatalf("Acquire(%+v) = %v, %v, %v; want a waiter; state %+v", a, h, w, refusal, r.c.Snapshot())
	}
	r.waiters = append(r.waiters, w)
	return w
}

func (r *rig) refuse(a Request, want Refusal) {
	r.t.Helper()
	h, w, refusal := r.c.Acquire(a)
	if h != nil || w != nil || refusal == nil {
		r.t.Fatalf("Acquire(%+v) = %v, %v, %v; want a refusal; state %+v", a, h, w, refusal, r.c.Snapshot())
	}
	if *refusal != want {
		r.t.Errorf("Acquire(%+v) refused with %+v, want %+v", a, *refusal, want)
	}
}

// grow makes h wait to grow.
func (r *rig) grow(h *Hold, total int64) *Waiter {
	r.t.Helper()
	w, refusal := h.Grow(total, long)
	if w == nil || refusal != nil {
		r.t.Fatalf("Grow(%d) from %d = %v, %v; want a waiter", total, h.Bytes(), w, refusal)
	}
	r.waiters = append(r.waiters, w)
	return w
}

func ended(w *Waiter) bool {
	synctest.Wait()
	select {
	case <-w.Done():
		return true
	default:
		return false
	}
}

func (r *rig) granted(ws ...*Waiter) *Hold {
	r.t.Helper()
	var last *Hold
	for i, w := range ws {
		if !ended(w) {
			r.t.Fatalf("waiter %d still waits; state %+v", i, r.c.Snapshot())
		}
		h, refusal := w.Result()
		if h == nil || refusal != nil {
			r.t.Fatalf("waiter %d got %v, %+v; want a hold", i, h, refusal)
		}
		r.holds = append(r.holds, h)
		last = h
	}
	return last
}

func (r *rig) refused(w *Waiter, want Refusal) {
	r.t.Helper()
	if !ended(w) {
		r.t.Fatalf("still waits; want %+v; state %+v", want, r.c.Snapshot())
	}
	if h, refusal := w.Result(); h != nil || refusal == nil || *refusal != want {
		r.t.Errorf("got %v, %+v; want %+v", h, refusal, want)
	}
}

func (r *rig) waits(ws ...*Waiter) {
	r.t.Helper()
	for i, w := range ws {
		if ended(w) {
			h, refusal := w.Result()
			r.t.Fatalf("waiter %d has ended: %v, %+v; want it to wait", i, h, refusal)
		}
	}
}

func (r *rig) inflight(want int64) {
	r.t.Helper()
	if got := r.c.Snapshot().InflightBytes; got != want {
		r.t.Errorf("%d bytes in flight, want %d", got, want)
	}
}

func (r *rig) queued(waiting int, bytes int64) {
	r.t.Helper()
	if s := r.c.Snapshot(); s.Waiting != waiting || s.QueuedBytes != bytes {
		r.t.Errorf("%d waiting with %d bytes, want %d with %d", s.Waiting, s.QueuedBytes, waiting, bytes)
	}
}

func (r *rig) sheds(want map[Reason]int64) {
	r.t.Helper()
	s := r.c.Snapshot()
	var total int64
	for reason, n := range want {
		total += n
		if s.ShedsByReason[reason] != n {
			r.t.Errorf("%d sheds of %s, want %d", s.ShedsByReason[reason], reason, n)
		}
	}
	if s.ShedTotal != total || len(s.ShedsByReason) != len(want) {
		r.t.Errorf("sheds are %v, want %v", s.ShedsByReason, want)
	}
}

func (r *rig) setPressure(p memory.Pressure) {
	r.pressure = p
	r.c.Wake()
}

func (r *rig) setBudget(bytes int64) {
	r.c.SetBudget(memory.Budget{Bytes: bytes, Source: memory.SourceCgroup})
}

// request is one of key for bytes, with all the time in the world.
func request(key string, bytes int64) Request { return Request{Key: key, Bytes: bytes, MaxWait: long} }

func slots(n int) func(*Settings) { return func(s *Settings) { s.HeavySlots = &n } }

// both applies several changes of settings.
func both(changes ...func(*Settings)) func(*Settings) {
	return func(s *Settings) {
		for _, change := range changes {
			change(s)
		}
	}
}

func maxWait(d time.Duration) func(*Settings) { return func(s *Settings) { s.Queue.MaxWait = d } }
func maxQueued(n size.Bytes) func(*Settings)  { return func(s *Settings) { s.Queue.MaxQueuedBytes = n } }

// seconds is a Retry-After.
func seconds(n int) time.Duration { return time.Duration(n) * time.Second }
