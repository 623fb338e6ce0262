package budget

import (
	"fmt"
	"testing"
	"time"

	"github.com/headgate/headgate/pkg/budget/memory"
)

// Given waiters of several keys, capacity goes to them in a fair order.
func TestQueueOrder(t *testing.T) {
	t.Parallel()
	one := scenario{settings: slots(1)}
	for _, c := range []struct {
		name  string
		start scenario
		play  func(r *rig)
	}{
		{"first in, first out within a key", one, func(r *rig) {
			h := r.admit(request("a", 1))
			first, second := r.wait(request("a", 1)), r.wait(request("a", 1))
			h.Release()
			h = r.granted(first)
			r.waits(second)
			h.Release()
			r.granted(second)
		}},
		{"keys take turns", one, func(r *rig) {
			h := r.admit(request("x", 1))
			a1, a2, b1 := r.wait(request("a", 1)), r.wait(request("a", 1)), r.wait(request("b", 1))
			for _, w := range []*Waiter{a1, b1, a2} {
				h.Release()
				h = r.granted(w)
			}
		}},
		{"a key that waits alone takes every turn", one, func(r *rig) {
			h := r.admit(request("x", 1))
			for range 3 {
				w := r.wait(request("a", 1))
				h.Release()
				h = r.granted(w)
			}
		}},
		{"one release serves several small ones", scenario{budget: 4 * mib}, func(r *rig) {
			h := r.admit(request("x", 4*mib))
			var ws []*Waiter
			for i := range 8 {
				ws = append(ws, r.wait(request(fmt.Sprint("key", i%3), 512*kib)))
			}
			h.Release()
			r.granted(ws...)
		}},
		{"a newcomer that fits does not pass a key that waits", scenario{budget: 10}, func(r *rig) {
			h := r.admit(request("x", 7))
			large, small := r.wait(request("a", 6)), r.wait(request("b", 3))
			r.waits(large, small)
			h.Release()
			r.granted(large, small)
		}},
		{"small ones pass a large head twice, then it is reserved for", scenario{budget: 10}, func(r *rig) {
			h6, h4 := r.admit(request("x", 6)), r.admit(request("x", 4))
			large := r.wait(request("a", 6))
			b, c, d := r.wait(request("b", 4)), r.wait(request("c", 4)), r.wait(request("d", 4))
			h4.Release()
			r.granted(b).Release()
			r.granted(c).Release()
			r.waits(large, d)
			h6.Release()
			r.granted(large, d)
		}},
		{"cancelling a reserved head frees what was kept for it", scenario{budget: 10}, func(r *rig) {
			r.admit(request("x", 6))
			h4 := r.admit(request("x", 4))
			large := r.wait(request("a", 6))
			b, c, d := r.wait(request("b", 4)), r.wait(request("c", 4)), r.wait(request("d", 2))
			h4.Release()
			r.granted(b).Release()
			r.granted(c).Release()
			r.waits(large, d)
			large.Cancel()
			r.granted(d)
			r.inflight(8)
		}},
		{"so does its deadline", scenario{budget: 10}, func(r *rig) {
			r.admit(request("x", 6))
			h4 := r.admit(request("x", 4))
			large := r.wait(Request{Key: "a", Bytes: 6, MaxWait: 40 * time.Millisecond})
			b, c, d := r.wait(request("b", 4)), r.wait(request("c", 4)), r.wait(request("d", 2))
			h4.Release()
			r.granted(b).Release()
			r.granted(c).Release()
			r.waits(d)
			time.Sleep(40 * time.Millisecond)
			r.refused(large, Refusal{QueueTimeout, seconds(2)})
			r.granted(d)
		}},
		{"a passed-over head keeps its turn", scenario{budget: 10}, func(r *rig) {
			r.admit(request("x", 6))
			h4 := r.admit(request("x", 4))
			a1, a2, b1 := r.wait(request("a", 5)), r.wait(request("a", 1)), r.wait(request("b", 3))
			h4.Release()
			r.granted(b1).Release()
			r.waits(a1, a2)
		}},
		{"a key with a thousand waiters delays another's by one service at most", scenario{budget: 10, settings: maxQueued(4 * mib)}, func(r *rig) {
			h := r.admit(request("a", 10))
			for range 1000 {
				r.wait(request("a", 10))
			}
			for range 10 {
				w := r.wait(request("b", 1))
				served := 0
				for ; !ended(w); served++ {
					h.Release()
					h = r.c.live.last.of // whoever was served
				}
				if served > 2 {
					r.t.Fatalf("b waited for %d services, want at most 2", served)
				}
				r.granted(w)
			}
			for _, w := range r.c.queue.all() {
				w.Cancel()
			}
			h.Release()
		}},
		{"idling earns no credit", one, func(r *rig) {
			h := r.admit(request("a", 1))
			for range 200 {
				r.wait(request("a", 1))
			}
			time.Sleep(time.Second)
			var b []*Waiter
			for range 100 {
				b = append(b, r.wait(request("b", 1)))
			}
			for range 100 {
				h.Release()
				h = r.c.live.last.of
			}
			served := 0
			for _, w := range b {
				if ended(w) {
					served++
				}
			}
			if served < 40 || served > 60 {
				r.t.Errorf("the newcomer got %d of 100 grants, want about half", served)
			}
		}},
		{"requests without a key are one key", scenario{budget: 10}, func(r *rig) {
			r.admit(request("", 10))
			for range 3 {
				r.wait(request("", 10))
			}
			s := r.c.Snapshot()
			if len(s.Lanes) != 1 || s.Lanes[0] != (LaneSnapshot{"anonymous", 3}) || s.QueuedBytes != 30 {
				r.t.Errorf("lanes %+v with %d bytes, want [{anonymous 3}] with 30", s.Lanes, s.QueuedBytes)
			}
		}},
		{"a key is known exactly while it has waiters", one, func(r *rig) {
			r.admit(request("a", 1))
			w1, w2 := r.wait(request("a", 1)), r.wait(request("a", 1))
			w1.Cancel()
			if n := len(r.c.Snapshot().Lanes); n != 1 {
				r.t.Errorf("%d lanes with one waiter left, want 1", n)
			}
			w2.Cancel()
			if n := len(r.c.queue.lanes); n != 0 {
				r.t.Errorf("%d lanes with no waiter left, want 0", n)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.start.play(t, func(r *rig) {
				c.play(r)
				for n := r.c.live.first; n != nil; n = n.next {
					r.holds = append(r.holds, n.of)
				}
			})
		})
	}
}

// Given a live hold whose body turns out longer, it takes what it needs from what is free.
func TestGrowth(t *testing.T) {
	t.Parallel()
	has := func(r *rig, h *Hold, want int64) {
		r.t.Helper()
		if h.Bytes() != want {
			r.t.Errorf("the hold has %d bytes, want %d", h.Bytes(), want)
		}
	}
	try := func(r *rig, h *Hold, total int64, want bool) {
		r.t.Helper()
		if got := h.TryGrow(total); got != want {
			r.t.Errorf("TryGrow(%d) = %v, want %v; %+v", total, got, want, r.c.Snapshot())
		}
	}
	for _, c := range []struct {
		name  string
		start scenario
		play  func(r *rig)
	}{
		{"doubles, in steps of at most 4 MiB", scenario{budget: 100 * mib}, func(r *rig) {
			h := r.admit(request("a", 256*kib))
			for _, want := range []int64{512 * kib, mib, 2 * mib, 4 * mib, 8 * mib, 12 * mib, 16 * mib} {
				try(r, h, h.Bytes()+1, true)
				has(r, h, want)
			}
			h.Shrink(13 * mib)
			r.inflight(13 * mib)
			h.Shrink(14 * mib)
			r.inflight(13 * mib)
		}},
		{"reserves nothing ahead of the hard maximum", scenario{budget: 100 * mib}, func(r *rig) {
			h := r.admit(request("a", 48*mib))
			try(r, h, 49*mib, true)
			has(r, h, 50*mib)
		}},
		{"a jump beyond the doubling is met", scenario{budget: 100 * mib}, func(r *rig) {
			h := r.admit(request("a", 256*kib))
			try(r, h, 10*mib, true)
			has(r, h, 10*mib)
		}},
		{"takes exactly what arrived when doubling does not fit", scenario{budget: 100}, func(r *rig) {
			h := r.admit(request("a", 60))
			try(r, h, 70, true)
			has(r, h, 70)
		}},
		{"takes exactly what arrived while others wait, and passes them", scenario{budget: 100}, func(r *rig) {
			h := r.admit(request("a", 20))
			w := r.wait(request("b", 90))
			try(r, h, 30, true)
			has(r, h, 30)
			r.waits(w)
		}},
		{"nothing to grow is always granted", scenario{budget: 100}, func(r *rig) {
			h := r.admit(request("a", 100))
			try(r, h, 100, true)
			w, refusal := h.Grow(50, 0)
			if w != nil || refusal != nil {
				r.t.Errorf("Grow to less = %v, %v; want neither", w, refusal)
			}
		}},
		{"waits for the missing bytes only, and keeps what it has", scenario{budget: 100}, func(r *rig) {
			h, other := r.admit(request("a", 60)), r.admit(request("b", 40))
			try(r, h, 70, false)
			w := r.grow(h, 70)
			r.queued(1, 10)
			r.inflight(100)
			other.Release()
			if got := r.granted(w); got != h {
				r.t.Errorf("the growth's hold is %p, want %p", got, h)
			}
			has(r, h, 70)
		}},
		{"its wait is bounded", scenario{budget: 100, settings: maxWait(300 * time.Millisecond)}, func(r *rig) {
			h := r.admit(request("a", 60))
			r.admit(request("b", 40))
			w := r.grow(h, 70)
			time.Sleep(300 * time.Millisecond)
			r.refused(w, Refusal{QueueTimeout, seconds(2)})
			has(r, h, 60)
		}},
		{"is refused at once when it may not wait, or never fits", scenario{budget: 100, settings: maxQueued(20)}, func(r *rig) {
			h := r.admit(request("a", 60))
			r.admit(request("b", 40))
			for _, c := range []struct {
				total int64
				wait  time.Duration
				want  Refusal
			}{
				{70, 0, Refusal{InflightBytesBudget, seconds(2)}},
				{81, long, Refusal{QueuedBytesBudget, seconds(2)}},
				{101, long, Refusal{Reason: BodyExceedsBudget}},
			} {
				if w, refusal := h.Grow(c.total, c.wait); w != nil || refusal == nil || *refusal != c.want {
					r.t.Errorf("Grow(%d, %v) = %v, %+v; want %+v", c.total, c.wait, w, refusal, c.want)
				}
			}
			r.setPressure(memory.Pressure{Severity: memory.Critical})
			if w, refusal := h.Grow(70, long); w != nil || refusal == nil || refusal.Reason != ResourcePressure {
				r.t.Errorf("Grow under critical pressure = %v, %+v", w, refusal)
			}
		}},
		{"goes before the new reservations of its key", scenario{budget: 100}, func(r *rig) {
			h, other := r.admit(request("a", 60)), r.admit(request("b", 40))
			w := r.wait(request("a", 40))
			growth := r.grow(h, 80)
			other.Release()
			r.granted(growth)
			r.waits(w)
		}},
		{"is not stopped by what is reserved for a large head", scenario{budget: 10}, func(r *rig) {
			h6, h4 := r.admit(request("x", 6)), r.admit(request("x", 4))
			large := r.wait(request("a", 8))
			b, c, d := r.wait(request("b", 4)), r.wait(request("c", 4)), r.wait(request("d", 1))
			growth := r.grow(h6, 7)
			h4.Release()
			h4 = r.granted(b)
			r.waits(growth) // x's turn comes after c's and d's
			h4.Release()
			r.granted(c).Release()
			r.granted(growth)
			r.waits(large, d)
			h6.Release()
			r.granted(large, d)
		}},
		{"finds room although a larger growth waits", scenario{budget: 100}, func(r *rig) {
			a, b := r.admit(request("a", 50)), r.admit(request("b", 40))
			growth := r.grow(a, 65)
			try(r, b, 45, true)
			r.waits(growth)
			b.Release()
			r.granted(growth)
		}},
		{"replaces a growth that waits", scenario{budget: 100}, func(r *rig) {
			h := r.admit(request("a", 60))
			other := r.admit(request("b", 40))
			first := r.grow(h, 90)
			second := r.grow(h, 70)
			if got, refusal := first.Result(); !ended(first) || got != nil || refusal != nil {
				r.t.Errorf("replaced growth: %v, %v; want neither", got, refusal)
			}
			r.queued(1, 10)
			other.Release()
			r.granted(second)
			has(r, h, 70)
		}},
		{"replaced, it lets those behind it proceed at once", scenario{budget: 100}, func(r *rig) {
			h := r.admit(request("a", 60))
			r.admit(request("b", 30))
			r.grow(h, 85)
			w := r.wait(request("c", 10))
			second := r.grow(h, 80)
			r.granted(w)
			r.waits(second)
		}},
		{"is first in, first out among the growths of its key", scenario{budget: 100}, func(r *rig) {
			a, b, other := r.admit(request("a", 40)), r.admit(request("a", 40)), r.admit(request("b", 20))
			w := r.wait(request("a", 5))
			first, second := r.grow(a, 50), r.grow(b, 45)
			other.Shrink(8)
			r.granted(first)
			r.waits(second, w)
		}},
		{"cancelled after the grant, it gives the increment back", scenario{budget: 100}, func(r *rig) {
			h, other := r.admit(request("a", 60)), r.admit(request("b", 40))
			growth, w := r.grow(h, 80), r.wait(request("c", 40))
			other.Release()
			r.waits(w)
			growth.Cancel()
			has(r, h, 60)
			r.granted(w)
		}},
		{"released while it waits, it is cancelled", scenario{budget: 100}, func(r *rig) {
			h := r.admit(request("a", 60))
			r.admit(request("b", 40))
			growth := r.grow(h, 80)
			h.Release()
			if got, refusal := growth.Result(); !ended(growth) || got != nil || refusal != nil {
				r.t.Errorf("growth of a released hold: %v, %v; want neither", got, refusal)
			}
			r.queued(0, 0)
			try(r, h, 61, false)
			late, refusal := h.Grow(61, long)
			if refusal != nil || !ended(late) {
				r.t.Errorf("late growth: %v, %v; want it cancelled", late, refusal)
			}
			late.Cancel()
			r.inflight(40)
			r.sheds(nil)
		}},
		{"needs no slot", scenario{budget: 100, settings: slots(2)}, func(r *rig) {
			a, b := r.admit(request("a", 60)), r.admit(request("b", 40))
			w, growth := r.wait(request("c", 5)), r.grow(a, 70)
			b.Shrink(20)
			r.granted(growth)
			r.waits(w)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.start.play(t, c.play)
		})
	}
}
