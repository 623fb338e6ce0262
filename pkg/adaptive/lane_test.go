package adaptive

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestLanesAreForgottenWhenIdle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := limited(10, 4, 40)
		s.VirtualLanes, s.MaxWait = true, 2*time.Minute
		r := newRig(t, s)
		hold := r.ask("running", 10, Admitted)
		waiting := r.ask("waiting", 5, Waiting)
		r.ask("idle", 101, Refused)
		r.numbers("at first", map[string]any{"laneCount": 3})
		time.Sleep(60*time.Second - 1)
		r.numbers("a nanosecond early", map[string]any{"laneCount": 3})
		time.Sleep(1)
		r.numbers("after 60 s", map[string]any{"laneCount": 2})
		time.Sleep(2*time.Minute - 60*time.Second - 1)
		r.admitted("the waiter, long after", waiting, false)
		done(hold)
		r.admitted("the waiter, released", waiting, true)
		done(waiting)
		time.Sleep(time.Hour)
		r.numbers("an hour later", map[string]any{"laneCount": 0})
		r.empty()
	})
}

func TestManyTenantsOneByOne(t *testing.T) {
	t.Parallel()
	s := benchSettings()
	c := newController(s, 1000)
	r := rig{t, c}
	for i := range 100_000 {
		p := r.ask(fmt.Sprint("tenant ", i), 5, Admitted)
		done(p)
		if n := len(c.lanes.byID); n > 1000 {
			t.Fatalf("%d lanes after %d tenants", n, i)
		}
	}
	r.empty()
}

func TestAtTheCapTheLongestIdleGoes(t *testing.T) {
	t.Parallel()
	s := limited(10, 4, 40)
	s.VirtualLanes = true
	r := rig{t, newController(s, 3)}
	busy := r.ask("busy", 1, Admitted)
	done(r.ask("first", 1, Admitted), r.ask("second", 1, Admitted))
	done(r.ask("first", 1, Admitted)) // now second has been idle for longer
	done(r.ask("third", 1, Admitted))
	r.c.mu.Lock()
	_, first := r.c.lanes.byID["first"]
	_, second := r.c.lanes.byID["second"]
	r.c.mu.Unlock()
	if !first || second {
		t.Errorf("first is known: %v, second is known: %v; want the longer idle one gone", first, second)
	}
	done(busy)
	r.empty()
}

func TestWhenAllLanesAreBusyNewcomersShareOne(t *testing.T) {
	t.Parallel()
	s := limited(10, 2, 40)
	s.VirtualLanes = true
	r := rig{t, newController(s, 2)}
	a := r.ask("a", 10, Admitted)
	b := r.ask("b", 1, Waiting)
	x, y := r.ask("x", 1, Waiting), r.ask("y", 1, Waiting)
	r.refused("a third newcomer finds the overflow lane full", r.ask("z", 1, Refused), QueueFull)
	r.numbers("all busy", map[string]any{"laneCount": 3, "laneQueuedCount": 3})
	done(a)
	r.admitted("x", x, true)
	r.admitted("y", y, true)
	done(b, x, y)
	done(r.ask("z", 1, Admitted))
	r.numbers("in the end", map[string]any{"laneCount": 2})
	r.empty()
}

// shares runs closed loops: each tenant always has a few requests waiting, each held for its time. It returns the work
// that was done for each in the given time.
func shares(t *testing.T, c *Controller, length time.Duration, tenants []loop) []float64 {
	t.Helper()
	var mu sync.Mutex
	work := make([]float64, len(tenants))
	end := time.Now().Add(length)
	for i, tenant := range tenants {
		for range tenant.backlog {
			go func() {
				time.Sleep(tenant.from)
				for time.Now().Before(end) {
					var p Permit
					if c.Acquire(&p, Request{Lane: fmt.Sprint(i), Cost: tenant.cost, Weight: tenant.weight}) == Waiting {
						<-p.Ready()
					}
					if p.Reason() == "" {
						time.Sleep(tenant.hold)
						if !time.Now().After(end) {
							mu.Lock()
							work[i] += float64(tenant.cost) * tenant.hold.Seconds()
							mu.Unlock()
						}
					}
					p.Done(OK)
				}
			}()
		}
	}
	time.Sleep(length + time.Minute)
	synctest.Wait()
	return work
}

type loop struct {
	backlog int
	cost    int
	hold    time.Duration
	weight  float64
	from    time.Duration
}

func jain(v []float64) float64 {
	var sum, squares float64
	for _, x := range v {
		sum += x
		squares += x * x
	}
	return sum * sum / (float64(len(v)) * squares)
}

func TestWorkIsSharedFairly(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for name, tenants := range map[string][]loop{
		"ten times the backlog":          {{100, 5, 100 * ms, 0, 0}, {10, 5, 100 * ms, 0, 0}, {10, 5, 100 * ms, 0, 0}},
		"ten times the cost":             {{20, 50, 100 * ms, 0, 0}, {20, 5, 100 * ms, 0, 0}, {20, 5, 100 * ms, 0, 0}},
		"ten times as long":              {{20, 5, 1000 * ms, 0, 0}, {20, 5, 100 * ms, 0, 0}, {20, 5, 100 * ms, 0, 0}},
		"ten times the cost and as long": {{20, 50, 1000 * ms, 0, 0}, {20, 5, 100 * ms, 0, 0}, {20, 5, 100 * ms, 0, 0}},
		"a different mix each":           {{20, 7, 130 * ms, 0, 0}, {20, 3, 470 * ms, 0, 0}, {20, 31, 90 * ms, 0, 0}},
		"a different mix, few waiting":   {{8, 7, 130 * ms, 0, 0}, {20, 3, 470 * ms, 0, 0}, {3, 31, 90 * ms, 0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := limited(100, 1000, 100_000)
				s.VirtualLanes, s.MaxWait = true, time.Hour
				work := shares(t, mustNew(t, s), time.Minute, tenants)
				if j := jain(work); j < 0.995 {
					t.Errorf("work %.0f: Jain index %.4f, want at least 0.995", work, j)
				}
				var sum float64
				for _, w := range work {
					sum += w
				}
				if used := sum / (100 * 60); used < 0.9 {
					t.Errorf("work %.0f: %.2f of the capacity, want at least 0.9", work, used)
				}
			})
		})
	}
}

func TestWeightsShareWork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := limited(100, 1000, 100_000)
		s.VirtualLanes, s.MaxWait = true, time.Hour
		work := shares(t, mustNew(t, s), time.Minute, []loop{{40, 5, 100 * time.Millisecond, 3, 0}, {40, 5, 300 * time.Millisecond, 1, 0}})
		if ratio := work[0] / work[1]; ratio < 2.9 || ratio > 3.1 {
			t.Errorf("work %.0f: ratio %.2f, want 3", work, ratio)
		}
	})
}

// A tenant that was idle for ten minutes shares from now on; it does not get what it did not ask for then.
func TestIdlingSavesNoCredit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := limited(10, 1000, 100_000)
		s.VirtualLanes, s.MaxWait = true, time.Hour
		c := mustNew(t, s)
		work := shares(t, c, 10*time.Minute+20*time.Second, []loop{
			{50, 1, time.Second, 0, 0}, {50, 1, time.Second, 0, 10 * time.Minute},
		})
		if late := work[1]; late < 90 || late > 120 {
			t.Errorf("after ten idle minutes a tenant got %.0f of the next 200 cost-seconds, want about half", late)
		}
	})
}

// A tenant that used more than it was charged for pays when it comes back.
func TestDebtsOutlastIdling(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := limited(10, 1000, 100_000)
		s.VirtualLanes, s.MaxWait = true, time.Hour
		r := newRig(t, s)
		// given requests of a second as the rule, while someone waits a tenant holds half of everything for twenty
		for range 100 {
			p := r.ask("rule", 1, Admitted)
			time.Sleep(time.Second)
			done(p)
		}
		long := r.ask("debtor", 5, Admitted)
		other := r.ask("other", 5, Admitted)
		waiting := r.ask("third", 10, Waiting)
		time.Sleep(20 * time.Second)
		done(long, other)
		done(waiting)
		// when all have been idle, and all come back
		time.Sleep(30 * time.Second)
		hold := r.ask("hold", 10, Admitted)
		back, fresh := make([]*Permit, 5), make([]*Permit, 5)
		for i := range back {
			back[i], fresh[i] = r.ask("debtor", 5, Waiting), r.ask("fresh", 5, Waiting)
		}
		done(hold)
		// then the one without a debt goes first
		r.admitted("the first without debt", fresh[0], true)
		r.admitted("the second without debt", fresh[1], true)
		r.admitted("the debtor", back[0], false)
		done(fresh...)
		done(back...)
		r.empty()
	})
}
