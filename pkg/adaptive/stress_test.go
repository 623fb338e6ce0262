package adaptive

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A million operations on few cores, with cancels at the moment of the grant, resets of every phase, reloads, pressure and
// snapshots: the limit is never exceeded, and nothing is left.
func TestStress(t *testing.T) {
	operations := 1_000_000
	if testing.Short() {
		operations = 50_000
	}
	const workers, costMost, limit = 64, 4, 40
	s := limited(limit, 16, 64)
	s.VirtualLanes, s.MaxWait, s.Window = true, time.Millisecond, time.Millisecond
	s.MaxLimit = limit
	r := NewRegistry(func(string) Settings { return s }, 5)
	c := r.Controller("cluster")
	var left, running, peak atomic.Int64
	left.Store(int64(operations))
	var wg sync.WaitGroup
	for worker := range workers {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(worker)))
			for left.Add(-1) >= 0 {
				exchange(c, rng, worker, costMost, &running, &peak)
			}
		})
	}
	stop := make(chan struct{})
	var meddling sync.WaitGroup
	meddling.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			next := s
			next.MaxQueueCount = 4 + i%20
			next.MaxWait = time.Duration(1+i%3) * time.Millisecond
			if err := r.Configure(func(string) Settings { return next }); err != nil {
				t.Error(err)
			}
			r.Observe(Severity(i % 3))
			r.Snapshot()
			time.Sleep(time.Millisecond)
		}
	})
	wg.Wait()
	close(stop)
	meddling.Wait()
	if got := peak.Load(); got > limit {
		t.Errorf("cost %d ran at once, the limit is %d", got, limit)
	}
	rig{t, c}.empty()
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.lanes.byID); n > 5 {
		t.Errorf("%d lanes, at most 5", n)
	}
}

// exchange is one random life of a request.
func exchange(c *Controller, rng *rand.Rand, worker, costMost int, running, peak *atomic.Int64) {
	var p Permit
	cost := 1 + rng.IntN(costMost)
	request := Request{Lane: string(rune('a' + rng.IntN(8))), Cost: cost, Weight: float64(1 + worker%3)}
	var state State
	if rng.IntN(10) == 0 {
		state = c.AcquireNow(&p, request)
	} else {
		state = c.Acquire(&p, request)
	}
	switch state {
	case Refused:
		return
	case Waiting:
		if rng.IntN(4) == 0 {
			if rng.IntN(2) == 0 {
				runtime.Gosched()
			}
			p.Cancel()
			return
		}
		<-p.Ready()
		if p.Reason() != "" {
			return
		}
	}
	now := running.Add(int64(cost))
	for most := peak.Load(); now > most && !peak.CompareAndSwap(most, now); most = peak.Load() {
	}
	if rng.IntN(8) != 0 {
		p.Forwarded()
	}
	if rng.IntN(3) == 0 {
		runtime.Gosched()
	}
	running.Add(-int64(cost)) // before the capacity is given back
	if rng.IntN(2) == 0 {
		p.FirstToken()
	}
	p.Done(Outcome(rng.IntN(6)))
}

// Grant and cancel meet: three places, waits of a millisecond, cancels at random. In the end all three are there.
func TestNoPlaceIsLostBetweenGrantAndCancel(t *testing.T) {
	t.Parallel()
	rounds := 100
	if testing.Short() {
		rounds = 10
	}
	s := limited(3, 1000, 1000)
	s.MaxWait = time.Millisecond
	r := newRig(t, s)
	for range rounds {
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				var p Permit
				if r.c.Acquire(&p, Request{Cost: 1}) == Waiting {
					if i%3 == 0 {
						go p.Cancel()
					}
					<-p.Ready()
				}
				runtime.Gosched()
				p.Done(OK)
			})
		}
		wg.Wait()
	}
	deadline := time.Now().Add(5 * time.Second)
	for r.c.Snapshot().ActiveCount != 0 && time.Now().Before(deadline) { // the last cancels
		time.Sleep(time.Millisecond)
	}
	a, b, c := r.ask("", 1, Admitted), r.ask("", 1, Admitted), r.ask("", 1, Admitted)
	d := r.ask("", 1, Waiting)
	done(a, b, c, d)
	r.empty()
}

func TestAdmissionDoesNotAllocate(t *testing.T) {
	c := mustNew(t, benchSettings())
	names := laneNames(64)
	var p Permit
	i := 0
	for name, f := range map[string]func(){
		"headers-only response": func() {
			i++
			c.Acquire(&p, Request{Lane: names[i%len(names)], Cost: 5, Forward: true})
			p.Done(OK)
		},
		"every event": func() {
			i++
			c.Acquire(&p, Request{Lane: names[i%len(names)], Cost: 5})
			p.Forwarded()
			p.Raise(9)
			p.FirstToken()
			p.Done(OK)
		},
		"no tenant": func() {
			c.Acquire(&p, Request{Cost: 5})
			p.Cancel()
		},
		"a child": func() {
			c.AcquireNow(&p, Request{Lane: names[0], Cost: 5})
			p.Done(Timeout)
		},
	} {
		for range 100 {
			f() // makes the lanes
		}
		if n := testing.AllocsPerRun(1000, f); n != 0 {
			t.Errorf("%s: %v allocations, want 0", name, n)
		}
	}
}
