package budget

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

// TestANoisyKeyDoesNotStarveAQuietOne: bodies of 1 MiB that stay for 3 to 7 s in a budget of 32 MiB, so that 6.4 a second fit. A
// quiet key asks for one a second, well under its half, beside one that asks for more than fits.
func TestANoisyKeyDoesNotStarveAQuietOne(t *testing.T) {
	t.Parallel()
	for _, rate := range []int{12, 25, 100} {
		t.Run(fmt.Sprintf("%d a second", rate), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := New(DefaultSettings(), Budget{Bytes: 32 * mib}, func() Pressure { return Pressure{Severity: High, Healthy: true} })
				const length, start = 2 * time.Minute, 10*time.Second + 333*time.Microsecond
				served := map[string]int{}
				asked := map[string]int{}
				done := make(chan string, 1)
				one := func(key string) {
					h, w, refusal := c.Acquire(Ask{Key: key, Bytes: mib, MaxWait: 8 * time.Second})
					if w != nil {
						<-w.Done()
						h, refusal = w.Result()
					}
					if refusal != nil {
						done <- key + " " + string(refusal.Reason)
						return
					}
					done <- key
					time.Sleep(time.Duration(3+4*rand.Float64()) * time.Second)
					h.Release()
				}
				every := func(key string, from, gap time.Duration) {
					time.Sleep(from)
					for at := from; at < length; at += gap {
						go one(key)
						time.Sleep(gap)
					}
				}
				asked["noisy"] = int(length / (time.Second / time.Duration(rate)))
				asked["quiet"] = int((length - start) / (time.Second + 7*time.Millisecond))
				go every("noisy", 0, time.Second/time.Duration(rate))
				go every("quiet", start, time.Second+7*time.Millisecond)
				over := time.After(length + time.Minute)
				for running := true; running; {
					select {
					case key := <-done:
						served[key]++
					case <-over:
						running = false
					}
				}
				if share := float64(served["quiet"]) / float64(asked["quiet"]); share < 0.9 {
					t.Errorf("quiet: %d of %d served (%.2f), want 0.9 at least; all: %v",
						served["quiet"], asked["quiet"], share, served)
				}
				if least := int(length/time.Second) * 4; served["noisy"] < least {
					t.Errorf("noisy: %d served, want %d at least: the budget must not lie idle", served["noisy"], least)
				}
			})
		})
	}
}

// TestBacklogsAreUnderTheValve: what waits for a lane counts like what waits for bytes, and the largest key gives way.
func TestBacklogsAreUnderTheValve(t *testing.T) {
	t.Parallel()
	c := New(DefaultSettings(), Budget{Bytes: 32 * mib}, nil)
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
	c := New(DefaultSettings(), Budget{Bytes: 8 * mib}, nil)
	grower, _, _ := c.Acquire(Ask{Bytes: 2 * mib})
	if !grower.TryGrow(2*mib + 1) {
		t.Fatal("no growth in an empty budget")
	}
	if got := grower.Bytes(); got != 4*mib {
		t.Fatalf("%d bytes reserved, want 4 MiB: doubled", got)
	}
	other, _, refusal := c.Acquire(Ask{Bytes: 5 * mib})
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
