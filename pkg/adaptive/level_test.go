package adaptive

import (
	"fmt"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// threeLevels guarantee 0.6, 0.3 and 0.1.
func threeLevels() []Level { return []Level{{"high", 6}, {"middle", 3}, {"low", 1}} }

// crowd is a tenant at a level with so many closed loops.
type crowd struct {
	tenant string
	level  string
	loops  int
	cost   int
	hold   time.Duration
	from   time.Duration
	until  time.Duration
	most   int
	waited *time.Duration // the longest wait is noted here
}

// run runs crowds side by side and returns the work done for each between begin and end, in cost-seconds.
func run(t *testing.T, c *Controller, begin, end time.Duration, crowds []crowd) []float64 {
	t.Helper()
	var mu sync.Mutex
	work := make([]float64, len(crowds))
	start := time.Now()
	for i, w := range crowds {
		until := w.until
		if until == 0 {
			until = end
		}
		for range w.loops {
			go func() {
				time.Sleep(w.from)
				for time.Since(start) < until {
					var p Permit
					if c.Acquire(&p, Request{Lane: w.tenant, Level: w.level, Cost: w.cost, MaxConcurrent: w.most}) == Waiting {
						<-p.Ready()
					}
					if reason := p.Reason(); reason != "" {
						t.Errorf("tenant %s at %s was refused: %s", w.tenant, w.level, reason)
						return
					}
					mu.Lock()
					if w.waited != nil && time.Since(start) > begin {
						*w.waited = max(*w.waited, p.Waited())
					}
					mu.Unlock()
					from := max(time.Since(start), begin)
					time.Sleep(w.hold)
					mu.Lock()
					work[i] += float64(w.cost) * max(0, min(time.Since(start), end)-from).Seconds()
					mu.Unlock()
					p.Done(OK)
				}
			}()
		}
	}
	time.Sleep(end + time.Hour)
	synctest.Wait()
	return work
}

func leveled(limit int) Settings {
	s := limited(limit, 1000, 100_000)
	s.VirtualLanes, s.MaxWait = true, time.Hour
	s.Levels = threeLevels()
	return s
}

func near(t *testing.T, name string, got, want, tolerance float64) {
	t.Helper()
	if math.Abs(got-want) > tolerance {
		t.Errorf("%s is %.3f, want %.3f ± %.3f", name, got, want, tolerance)
	}
}

// Every level gets its guaranteed share while all want more, whatever their requests are like, however many wait, and whether it
// is the limit that is scarce or maxConcurrent.
func TestEachLevelGetsItsShare(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for name, scene := range map[string]struct {
		limit, most int
		crowds      []crowd
	}{
		"alike": {100, 0, []crowd{
			{tenant: "a", level: "high", loops: 200, cost: 1, hold: 100 * ms},
			{tenant: "b", level: "middle", loops: 200, cost: 1, hold: 100 * ms},
			{tenant: "c", level: "low", loops: 200, cost: 1, hold: 100 * ms},
		}},
		"low ones are long, high ones short": {100, 0, []crowd{
			{tenant: "a", level: "high", loops: 200, cost: 1, hold: 50 * ms},
			{tenant: "b", level: "middle", loops: 200, cost: 5, hold: 300 * ms},
			{tenant: "c", level: "low", loops: 900, cost: 2, hold: 3000 * ms},
		}},
		"one tenant at all levels": {100, 0, []crowd{
			{tenant: "a", level: "high", loops: 200, cost: 1, hold: 100 * ms},
			{tenant: "a", level: "middle", loops: 200, cost: 1, hold: 100 * ms},
			{tenant: "a", level: "low", loops: 200, cost: 1, hold: 100 * ms},
		}},
		"maxConcurrent is what is scarce": {100, 20, []crowd{
			{tenant: "a", level: "high", loops: 100, cost: 1, hold: 100 * ms},
			{tenant: "b", level: "middle", loops: 100, cost: 1, hold: 100 * ms},
			{tenant: "c", level: "low", loops: 100, cost: 1, hold: 100 * ms},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := leveled(scene.limit)
				s.MaxConcurrent = scene.most
				work := run(t, mustNew(t, s), time.Minute, 3*time.Minute, scene.crowds)
				sum := work[0] + work[1] + work[2]
				for i, want := range []float64{0.6, 0.3, 0.1} {
					near(t, "share of "+scene.crowds[i].level, work[i]/sum, want, 0.02)
				}
				whole := float64(scene.limit)
				if scene.most > 0 {
					whole = float64(scene.most)
				}
				if used := sum / (whole * 120); used < 0.97 {
					t.Errorf("%.3f of the capacity was used, want at least 0.97", used)
				}
			})
		})
	}
}

// What a level does not use, others get; it has it back as soon as requests end.
func TestIdleSharesAreLent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var waited time.Duration
		c := mustNew(t, leveled(100))
		work := run(t, c, 0, 2*time.Minute, []crowd{
			{tenant: "batch", level: "low", loops: 300, cost: 1, hold: time.Second},
			{tenant: "chat", level: "high", loops: 40, cost: 1, hold: time.Second, from: time.Minute, waited: &waited},
		})
		// The low level alone has all of a minute, then the 60 that 40 high ones leave.
		near(t, "work of both", work[0]+work[1], 100*120, 200)
		near(t, "work of the high level", work[1], 40*60, 200) // a request waits a second at most, in which it does not work
		if waited > 1100*time.Millisecond {
			t.Errorf("a request below its level's share waited %v, want at most the second that a running one takes", waited)
		}
	})
}

// Beyond the guaranteed shares, nobody is first: two levels share what the third leaves as their shares are.
func TestWhatIsLentIsDividedByShares(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		work := run(t, mustNew(t, leveled(100)), time.Minute, 3*time.Minute, []crowd{
			{tenant: "b", level: "middle", loops: 200, cost: 1, hold: 100 * time.Millisecond},
			{tenant: "c", level: "low", loops: 200, cost: 1, hold: 100 * time.Millisecond},
		})
		near(t, "share of the middle level", work[0]/(work[0]+work[1]), 0.75, 0.02)
	})
}

// The tenants of a level share what the level gets, and what a tenant did at another level is not held against it.
func TestTenantsShareTheirLevel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		work := run(t, mustNew(t, leveled(100)), time.Minute, 4*time.Minute, []crowd{
			{tenant: "a", level: "high", loops: 300, cost: 1, hold: 100 * time.Millisecond},
			{tenant: "a", level: "low", loops: 300, cost: 1, hold: 100 * time.Millisecond},
			{tenant: "b", level: "low", loops: 30, cost: 3, hold: 200 * time.Millisecond},
			{tenant: "c", level: "low", loops: 30, cost: 1, hold: 500 * time.Millisecond},
		})
		if j := jain(work[1:]); j < 0.99 {
			t.Errorf("work at the low level %.0f: Jain index %.4f, want at least 0.99", work[1:], j)
		}
		near(t, "share of the high level", work[0]/(work[0]+work[1]+work[2]+work[3]), 6.0/7, 0.02)
	})
}

// A request of a higher level that finds its level below its share goes before those that wait at lower ones.
func TestAHigherLevelGoesFirstWithinItsShare(t *testing.T) {
	t.Parallel()
	s := leveled(10)
	r := newRig(t, s)
	ask := func(lane, level string, want State) *Permit {
		t.Helper()
		p := new(Permit)
		if got := r.c.Acquire(p, Request{Lane: lane, Level: level, Cost: 1}); got != want {
			t.Fatalf("%s at %s: answer %v, want %v", lane, level, got, want)
		}
		return p
	}
	var running []*Permit
	for range 10 {
		running = append(running, ask("batch", "low", Admitted))
	}
	low := ask("batch", "low", Waiting)
	other := ask("another", "low", Waiting)
	var high []*Permit
	for range 7 {
		high = append(high, ask("chat", "high", Waiting))
	}
	// when one after the other ends: six places are guaranteed to the high level, and it has them first
	for i := range 6 {
		done(running[i])
		r.admitted(fmt.Sprintf("high %d", i), high[i], true)
	}
	r.admitted("low, while the high level is below its share", low, false)
	// then the low level still holds four, four times its share, and the high one just its own
	done(running[6])
	r.admitted("the seventh high one, of the level that has least beyond its share", high[6], true)
	r.admitted("low", low, false)
	done(running[7:]...)
	r.admitted("low, when there is room", low, true)
	r.admitted("another tenant of the low level", other, true)
	done(low, other)
	done(high...)
	r.empty()
}

// A level that does not exist is the lowest.
func TestUnknownLevelsAreTheLowest(t *testing.T) {
	t.Parallel()
	r := newRig(t, leveled(10))
	var p Permit
	r.c.Acquire(&p, Request{Level: "none such", Cost: 3})
	levels := r.c.Snapshot().Levels
	if want := (LevelState{Name: "low", Share: 0.1, ActiveCost: 3, ActiveCount: 1}); len(levels) != 3 || levels[2] != want {
		t.Errorf("levels are %+v, want the last to be %+v", levels, want)
	}
	p.Done(OK)
	r.empty()
}

// Requests that wait at a level that is taken away wait at the lowest from then on, and those that run end as usual.
func TestLevelsCanChange(t *testing.T) {
	t.Parallel()
	s := leveled(10)
	r := newRig(t, s)
	ask := func(level string, want State) *Permit {
		t.Helper()
		p := new(Permit)
		if got := r.c.Acquire(p, Request{Lane: "t", Level: level, Cost: 5}); got != want {
			t.Fatalf("%s: answer %v, want %v", level, got, want)
		}
		return p
	}
	a, b := ask("middle", Admitted), ask("low", Admitted)
	waits := []*Permit{ask("high", Waiting), ask("middle", Waiting), ask("low", Waiting)}
	s.Levels = []Level{{"low", 1}, {"high", 1}}
	if err := r.c.Configure(s); err != nil {
		t.Fatal(err)
	}
	levels := r.c.Snapshot().Levels
	want := []LevelState{{Name: "low", Share: 0.5, ActiveCost: 5, ActiveCount: 1, QueuedCost: 5, QueuedCount: 1}, {Name: "high", Share: 0.5, QueuedCost: 10, QueuedCount: 2}}
	if len(levels) != 2 || levels[0] != want[0] || levels[1] != want[1] {
		t.Errorf("levels are %+v, want %+v", levels, want)
	}
	s.Levels = nil
	if err := r.c.Configure(s); err != nil {
		t.Fatal(err)
	}
	r.numbers("without levels", map[string]any{"laneQueuedCount": 3, "activeCount": 2})
	done(a, b)
	done(waits...)
	r.empty()
}
