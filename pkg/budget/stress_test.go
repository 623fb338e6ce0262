package budget

import (
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headgate/headgate/pkg/budget/memory"
	"github.com/headgate/headgate/pkg/budget/size"
)

// Given a limit of three, 200 workers that wait at most 1 ms, and random cancels at the moment of the grant, no slot and
// no byte is lost in 200 000 rounds together, and at no moment is more granted than there is.
func TestNothingIsLostUnderRandomCancels(t *testing.T) {
	for _, c := range []struct {
		name string
		hold time.Duration
	}{
		{"while requests take as long as the wait", time.Millisecond},
		{"while grants and cancels collide all the time", time.Microsecond},
	} {
		t.Run(c.name, func(t *testing.T) { stress(t, c.hold) })
	}
}

func stress(t *testing.T, hold time.Duration) {
	const workers, limit, bytes = 200, 3, 10
	rounds := 100_000
	if testing.Short() {
		rounds /= 20
	}
	s := DefaultSettings()
	slots(limit)(&s)
	c := New(s, memory.Budget{Bytes: limit*bytes + bytes/2}, func() memory.Pressure { return memory.Pressure{Severity: memory.High} })
	guardBudget(c, t.Errorf)

	var inFlight, granted, cancelled, refused atomic.Int64
	round := func(random *rand.Rand) {
		a := Request{Key: string(rune('a' + random.IntN(3))), Bytes: bytes, MaxWait: time.Millisecond}
		h, w, _ := c.Acquire(a)
		if w != nil {
			var refusal *Refusal
			h, refusal = await(w, random)
			switch {
			case refusal != nil:
				refused.Add(1)
			case h == nil:
				cancelled.Add(1)
			}
		}
		if h == nil {
			return
		}
		granted.Add(1)
		if n := inFlight.Add(1); n > limit {
			t.Errorf("%d in flight, want at most %d", n, limit)
		}
		h.TryGrow(bytes + random.Int64N(3))
		time.Sleep(hold)
		inFlight.Add(-1)
		h.Release()
	}
	start := time.Now()
	var wg sync.WaitGroup
	for id := range workers {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(id), 7))
			for range rounds / workers {
				round(random)
			}
		})
	}
	wg.Wait()
	t.Logf("%d granted, %d cancelled, %d refused in %v", granted.Load(), cancelled.Load(), refused.Load(), time.Since(start))
	if granted.Load() == 0 || cancelled.Load() == 0 {
		t.Errorf("%d granted, %d cancelled: the race was not run", granted.Load(), cancelled.Load())
	}
	checkFree(t, c, limit, bytes)
}

// await takes the result, or cancels after a random while that may be the moment of the grant or of the deadline.
func await(w *Waiter, random *rand.Rand) (*Hold, *Refusal) {
	patience := time.NewTimer(time.Duration(random.IntN(2000)) * time.Microsecond)
	defer patience.Stop()
	select {
	case <-w.Done():
		if random.IntN(4) == 0 {
			w.Cancel()
		}
	case <-patience.C:
		w.Cancel()
	}
	return w.Result()
}

// checkFree: the whole limit can be had at once, and one more waits.
func checkFree(t *testing.T, c *Controller, limit int, bytes int64) {
	t.Helper()
	if s := c.Snapshot(); s.InflightBytes != 0 || s.ActiveHeavy != 0 || s.Waiting != 0 || s.QueuedBytes != 0 {
		t.Fatalf("left behind: %+v", s)
	}
	for i := range limit {
		h, _, refusal := c.Acquire(request(string(rune('a'+i)), bytes)) // each within its fair share, whatever others are guaranteed
		if h == nil {
			t.Fatalf("acquire %d of %d: %+v", i+1, limit, refusal)
		}
		defer h.Release()
	}
	_, w, refusal := c.Acquire(request("a", bytes))
	if w == nil {
		t.Fatalf("acquire %d of %d: %+v; want it to wait", limit+1, limit, refusal)
	}
	w.Cancel()
}

// Given a hundred waiters for a long time, waiting costs no work: nothing polls.
func TestWaitingCostsNothing(t *testing.T) {
	t.Parallel()
	scenario{settings: maxWait(5 * time.Second)}.play(t, func(r *rig) {
		r.admit(request("x", 8*mib))
		looks := 0
		r.c.pressure = func() memory.Pressure { looks++; return r.pressure }
		for range 100 {
			r.wait(request("a", 1))
		}
		looks = 0
		time.Sleep(5*time.Second - 1)
		if looks != 0 {
			r.t.Errorf("the controller looked at the pressure %d times while all waited, want 0", looks)
		}
	})
}

// An uncontended reservation costs one allocation, its hold.
func TestUncontendedAllocations(t *testing.T) {
	c := New(DefaultSettings(), memory.Budget{Bytes: 8 * mib}, nil)
	a := request("a", 256*kib)
	got := testing.AllocsPerRun(1000, func() {
		h, _, _ := c.Acquire(a)
		h.TryGrow(a.Bytes + 1)
		h.Shrink(a.Bytes)
		h.Release()
	})
	if got > 1 {
		t.Errorf("%v allocations, want 1", got)
	}
}

func BenchmarkUncontended(b *testing.B) {
	c := New(DefaultSettings(), memory.Budget{Bytes: 2 << 30}, nil)
	a := request("a", 256*kib)
	b.ReportAllocs()
	for b.Loop() {
		h, _, _ := c.Acquire(a)
		h.Release()
	}
}

// BenchmarkFullValve is a newcomer that the valve refuses, next to as many keys as have something waiting.
func BenchmarkFullValve(b *testing.B) {
	for _, keys := range []int{16, 4096} {
		b.Run(strconv.Itoa(keys), func(b *testing.B) {
			s := DefaultSettings()
			s.Queue.MaxQueuedBytes = size.Bytes(keys * 10)
			c := New(s, memory.Budget{Bytes: 100}, func() memory.Pressure { return memory.Pressure{Severity: memory.High} })
			h, _, _ := c.Acquire(request("x", 100))
			var waiters []*Waiter
			for i := range keys {
				_, w, _ := c.Acquire(request(strconv.Itoa(i), 10))
				waiters = append(waiters, w)
			}
			b.ReportAllocs()
			for b.Loop() {
				c.Acquire(request("y", 10))
			}
			for _, w := range waiters {
				w.Cancel()
			}
			h.Release()
		})
	}
}

func BenchmarkUncontendedParallel(b *testing.B) {
	c := New(DefaultSettings(), memory.Budget{Bytes: 2 << 30}, nil)
	a := request("a", 256*kib)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			h, _, _ := c.Acquire(a)
			h.Release()
		}
	})
}

// BenchmarkHandOn is a release that grants a waiter, next to a thousand keys that wait too.
func BenchmarkHandOn(b *testing.B) {
	s := DefaultSettings()
	slots(1)(&s)
	c := New(s, memory.Budget{Bytes: 2 << 30}, func() memory.Pressure { return memory.Pressure{Severity: memory.High} })
	h, _, _ := c.Acquire(request("x", 1))
	var waiters []*Waiter
	for i := range 1000 {
		_, w, _ := c.Acquire(request(string(rune('A'+i)), 1))
		waiters = append(waiters, w)
	}
	b.ReportAllocs()
	for b.Loop() {
		_, w, _ := c.Acquire(request("x", 1))
		h.Release()
		h, _ = waiters[0].Result()
		waiters = append(waiters[1:], w)
	}
	for _, w := range waiters {
		w.Cancel()
	}
	h.Release()
}
