package budget

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/pkg/budget/memory"
)

// load is one key's requests: bodies of 1 MiB, each held for as long as hold says once it is admitted.
type load struct {
	key       string
	from, gap time.Duration
	hold      func() time.Duration

	came, served int
}

// run plays loads against a budget for some time, under high pressure.
func run(t *testing.T, budget int64, length time.Duration, loads ...*load) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := New(DefaultSettings(), memory.Budget{Bytes: budget}, func() memory.Pressure { return memory.Pressure{Severity: memory.High, Healthy: true} })
		guardBudget(c, t.Errorf)
		var mu sync.Mutex
		var all sync.WaitGroup
		one := func(l *load) {
			h, w, _ := c.Acquire(Request{Key: l.key, Bytes: mib, MaxWait: 8 * time.Second})
			if w != nil {
				<-w.Done()
				h, _ = w.Result()
			}
			mu.Lock()
			l.came++
			if h != nil {
				l.served++
			}
			mu.Unlock()
			if h != nil {
				time.Sleep(l.hold())
				h.Release()
			}
		}
		for _, l := range loads {
			all.Go(func() {
				time.Sleep(l.from)
				for at := l.from; at < length; at += l.gap {
					all.Go(func() { one(l) })
					time.Sleep(l.gap)
				}
			})
		}
		all.Wait()
		time.Sleep(mostGuarantee)
		synctest.Wait()
		if s := c.Snapshot(); s.InflightBytes != 0 || s.Waiting != 0 || len(c.accounts.byKey) != 0 {
			t.Errorf("left behind: %+v, accounts %v", s, c.accounts.byKey)
		}
	})
}

func fixed(d time.Duration) func() time.Duration { return func() time.Duration { return d } }

// TestANoisyKeyDoesNotStarveAQuietOne: bodies of 1 MiB in a budget of 32 MiB that stay for 5 s, so that 6.4 a second fit. A
// quiet key asks for one a second, well under its half, beside one that asks for more than fits.
//
// Bodies that all stay equally long are the worst case: what a noisy key got at one moment comes back at one moment, so that
// for 3 of 5 s nothing at all comes back before a waiter's deadline of 2 s.
func TestANoisyKeyDoesNotStarveAQuietOne(t *testing.T) {
	t.Parallel()
	const often, seldom = time.Second + 7*time.Millisecond, 3*time.Second + 7*time.Millisecond
	for _, c := range []struct {
		name string
		gap  time.Duration // between the requests of the quiet key
		hold func() time.Duration
	}{
		{"for 3 to 7 s", often, func() time.Duration { return time.Duration((3 + 4*rand.Float64()) * float64(time.Second)) }},
		{"for 5 s", often, fixed(5 * time.Second)},
		{"for 5 s in the mean", often, func() time.Duration { return time.Duration(5 * rand.ExpFloat64() * float64(time.Second)) }},
		{"for 5 s, seldom", seldom, fixed(5 * time.Second)},
	} {
		for _, rate := range []time.Duration{12, 25, 100} {
			t.Run(fmt.Sprintf("%s, %d a second", c.name, rate), func(t *testing.T) {
				t.Parallel()
				noisy := &load{key: "noisy", gap: time.Second / rate, hold: c.hold}
				quiet := &load{key: "quiet", from: 10*time.Second + 333*time.Microsecond, gap: c.gap, hold: c.hold}
				const length = 4 * time.Minute
				run(t, 32*mib, length, noisy, quiet)
				if share := float64(quiet.served) / float64(quiet.came); share < 0.9 {
					t.Errorf("quiet: %d of %d served (%.2f), want 0.9 at least; noisy: %d of %d", quiet.served, quiet.came, share, noisy.served, noisy.came)
				}
				if least := int(length/time.Second) * 9 / 2; noisy.served < least {
					t.Errorf("noisy: %d served, want %d at least: the budget must not lie idle", noisy.served, least)
				}
				t.Logf("quiet %d of %d, noisy %d of %d", quiet.served, quiet.came, noisy.served, noisy.came)
			})
		}
	}
}

// TestEqualKeysKeepTheBudgetBusy: where all keys want more than their share, no guarantee lets the budget lie idle.
func TestEqualKeysKeepTheBudgetBusy(t *testing.T) {
	t.Parallel()
	for _, keys := range []int{2, 5, 10, 20} {
		t.Run(strconv.Itoa(keys), func(t *testing.T) {
			t.Parallel()
			var loads []*load
			for i := range keys {
				loads = append(loads, &load{
					key: strconv.Itoa(i), from: time.Duration(i) * 137 * time.Millisecond, gap: time.Second / 4, hold: fixed(5 * time.Second),
				})
			}
			run(t, 32*mib, 2*time.Minute, loads...)
			total, least, most := 0, math.MaxInt, 0
			for _, l := range loads {
				total, least, most = total+l.served, min(least, l.served), max(most, l.served)
			}
			if fit := 120 * 32 / 5; total < fit*9/10 {
				t.Errorf("%d keys: %d served, want nine tenths of the %d that fit", keys, total, fit)
			}
			if least*4 < most {
				t.Errorf("%d keys: one got %d and another %d, want neither four times the other", keys, least, most)
			}
			t.Logf("%d keys: %d served, %d to %d each", keys, total, least, most)
		})
	}
}

// TestGuarantees: a key that is refused under its fair share gets the next that becomes free, even where it does not wait
// then; a key above its share does not, whoever waits; and it ends.
func TestGuarantees(t *testing.T) {
	t.Parallel()
	// noisy holds all of 8 MiB, quiet has been refused one of them, and noisy waits for more.
	given := func(r *rig) []*Hold {
		var held []*Hold
		for range 8 {
			held = append(held, r.admit(request("noisy", mib)))
		}
		quiet := r.wait(request("quiet", mib))
		time.Sleep(2 * time.Second)
		r.refused(quiet, Refusal{QueueTimeout, 2 * time.Second})
		return held
	}
	t.Run("it bars who has more", func(t *testing.T) {
		scenario{}.play(t, func(r *rig) {
			held := given(r)
			noisy := r.wait(request("noisy", mib))
			held[0].Release()
			r.waits(noisy)
			r.admit(request("quiet", mib))
			r.waits(noisy)
			held[1].Release()
			r.granted(noisy)
		})
	})
	t.Run("it ends", func(t *testing.T) {
		scenario{settings: maxWait(time.Minute)}.play(t, func(r *rig) {
			var held []*Hold
			for range 8 {
				held = append(held, r.admit(request("noisy", mib)))
			}
			quiet := r.wait(Request{Key: "quiet", Bytes: mib, MaxWait: time.Second})
			time.Sleep(time.Second)
			r.refused(quiet, Refusal{QueueTimeout, 2 * time.Second})
			noisy := r.wait(request("noisy", mib))
			held[0].Release()
			time.Sleep(leastGuarantee - time.Millisecond)
			r.waits(noisy)
			time.Sleep(time.Millisecond)
			r.granted(noisy)
		})
	})
	t.Run("a key below its share gets it all the same", func(t *testing.T) {
		scenario{}.play(t, func(r *rig) {
			held := given(r)
			held[0].Release()
			r.admit(request("third", mib))
		})
	})
	t.Run("a body above a share is not starved", func(t *testing.T) {
		scenario{settings: maxQueued(64 * mib)}.play(t, func(r *rig) {
			held := given(r)
			large := r.wait(request("third", 8*mib))
			for _, h := range held {
				h.Release()
			}
			r.granted(large)
		})
	})
	t.Run("it is no more than a fair share", func(t *testing.T) {
		scenario{}.play(t, func(r *rig) {
			held := r.admit(request("noisy", 8*mib))
			w := r.wait(request("quiet", 4*mib))
			time.Sleep(2 * time.Second)
			r.refused(w, Refusal{QueueTimeout, 2 * time.Second})
			w = r.wait(request("quiet", 4*mib))
			time.Sleep(2 * time.Second)
			r.refused(w, Refusal{QueueTimeout, 4 * time.Second})
			if got := r.c.accounts.unclaimed; got != 4*mib {
				t.Errorf("%d bytes guaranteed, want the 4 MiB of a fair share", got)
			}
			held.Release()
		})
	})
}

// TestTheValveDecidesBeforeItEvicts: nobody is refused for a newcomer that may not wait all the same.
func TestTheValveDecidesBeforeItEvicts(t *testing.T) {
	t.Parallel()
	scenario{}.play(t, func(r *rig) {
		r.admit(request("x", 8*mib))
		first := r.wait(request("a", mib))
		second := r.wait(request("a", mib))
		third := r.wait(request("a", mib))
		// 2.5 MiB would need two of them, and after one a has no more than the newcomer.
		r.refuse(request("b", 5*mib/2), Refusal{QueuedBytesBudget, 2 * time.Second})
		r.waits(first, second, third)
		r.queued(3, 3*mib)
		b := r.wait(request("b", 3*mib/2))
		r.waits(first, second, b)
		r.refused(third, Refusal{QueuedBytesBudget, 2 * time.Second})
		r.queued(3, 7*mib/2)
	})
}

// TestBacklogsAreUnderTheValve: what waits for a lane counts like what waits for bytes, and the largest key gives way.
func TestBacklogsAreUnderTheValve(t *testing.T) {
	t.Parallel()
	c := New(DefaultSettings(), memory.Budget{Bytes: 32 * mib}, nil)
	var noisy []*Backlog
	for range 4 {
		b, refusal := c.Backlog("noisy", mib)
		if refusal != nil {
			t.Fatalf("4 backlogs of 1 MiB in a valve of 4 MiB: %+v", refusal)
		}
		noisy = append(noisy, b)
	}
	if _, refusal := c.Backlog("noisy", 1); refusal == nil || refusal.Reason != QueuedBytesBudget {
		t.Errorf("one byte more of the same key: %+v, want %s", refusal, QueuedBytesBudget)
	}
	quiet, refusal := c.Backlog("quiet", mib)
	if refusal != nil {
		t.Fatalf("another key finds the valve full of one: %+v, want it let in", refusal)
	}
	select {
	case <-noisy[3].Refused():
	default:
		t.Error("the latest of the key with most bytes still waits")
	}
	if refusal := noisy[3].Grow(2 * mib); refusal == nil {
		t.Error("a backlog that had to go grows")
	}
	if got := c.Snapshot().QueuedBytes; got != 4*mib {
		t.Errorf("%d bytes queued, want 4 MiB", got)
	}
	for _, b := range append(noisy, quiet) {
		b.Release()
		b.Release()
	}
	if got := c.Snapshot().QueuedBytes; got != 0 {
		t.Errorf("%d bytes queued after all is over, want 0", got)
	}
}

// TestGrowthAheadGoesBack: what was reserved ahead of a body is there for who needs it.
func TestGrowthAheadGoesBack(t *testing.T) {
	t.Parallel()
	c := New(DefaultSettings(), memory.Budget{Bytes: 8 * mib}, nil)
	grower, _, _ := c.Acquire(Request{Bytes: 2 * mib})
	if !grower.TryGrow(2*mib + 1) {
		t.Fatal("no growth in an empty budget")
	}
	if got := grower.Bytes(); got != 4*mib {
		t.Fatalf("%d bytes reserved, want 4 MiB: doubled", got)
	}
	other, _, refusal := c.Acquire(Request{Bytes: 5 * mib})
	if other == nil {
		t.Fatalf("5 of the 6 MiB that nobody needs: %+v, want them", refusal)
	}
	if got := grower.Bytes(); got != 2*mib+1 {
		t.Errorf("%d bytes reserved for a body of 2 MiB and a byte, want what it needs", got)
	}
	other.Release()
	grower.Release()
	if s := c.Snapshot(); s.InflightBytes != 0 || c.ahead != 0 {
		t.Errorf("%d bytes and %d ahead after all is over, want 0", s.InflightBytes, c.ahead)
	}
}
