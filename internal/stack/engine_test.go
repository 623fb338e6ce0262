package stack

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestEngineUnderLoad: one request at a time is fast, many take longer each, and those beyond the slots wait for one.
func TestEngineUnderLoad(t *testing.T) {
	firstAndLast := func(n int) (first, last time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			e := newEngine()
			began := time.Now()
			var mu sync.Mutex
			var all sync.WaitGroup
			for range n {
				all.Go(func() {
					e.generate(t.Context(), 1000, 32, func(i int) bool {
						mu.Lock()
						defer mu.Unlock()
						if i == 0 {
							last = max(last, time.Since(began))
							if first == 0 {
								first = time.Since(began)
							}
						}
						return true
					})
				})
			}
			all.Wait()
		})
		return first, last
	}
	if first, _ := firstAndLast(1); first > 100*time.Millisecond {
		t.Errorf("alone the first token came after %v, want at most 100 ms", first)
	}
	_, full := firstAndLast(8)
	_, over := firstAndLast(32)
	if full > time.Second || over < 4*full/2 {
		t.Errorf("last first token of 8 after %v, of 32 after %v; want under 1 s, and several times that", full, over)
	}
}

// TestEngineGivesSlotsBack: a client that leaves, waiting or running, holds nothing.
func TestEngineGivesSlotsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine()
		ctx, leave := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() { e.generate(ctx, 10, 1000, func(int) bool { return true }) })
		}
		time.Sleep(time.Second)
		if n := len(e.slots); n != cap(e.slots) {
			t.Errorf("%d run, want %d", n, cap(e.slots))
		}
		leave()
		all.Wait()
		if n := len(e.slots); n != 0 {
			t.Errorf("%d run after all have left, want 0", n)
		}
	})
}
