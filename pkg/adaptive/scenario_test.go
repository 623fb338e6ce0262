package adaptive

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// baseSettings are the small numbers that the scenarios reason with.
func baseSettings() Settings {
	s := DefaultSettings()
	s.Mode = Enforce
	s.MinLimit, s.InitialLimit, s.MaxLimit = 10, 20, 100
	s.MaxQueueCount, s.MaxQueueCost = 4, 40
	s.MaxWait, s.Window = time.Second, 100*time.Millisecond
	s.IncreaseStep, s.MaxIncreasePerWindow = 2, 4
	return s
}

// limited are settings whose limit does not move by itself.
func limited(limit, queueCount, queueCost int) Settings {
	s := baseSettings()
	s.MinLimit, s.InitialLimit, s.MaxLimit = limit, limit, 100
	s.MaxQueueCount, s.MaxQueueCost = queueCount, queueCost
	s.Window = time.Hour
	return s
}

// bench is a controller under test and what was asked of it.
type rig struct {
	t *testing.T
	c *Controller
}

func newRig(t *testing.T, s Settings) rig { return rig{t, mustNew(t, s)} }

// ask asks for cost in a lane and expects an answer.
func (r rig) ask(lane string, cost int, want State) *Permit {
	r.t.Helper()
	p := new(Permit)
	if got := r.c.Acquire(p, Request{Lane: lane, Cost: cost}); got != want {
		r.t.Errorf("cost %d in lane %q: answer %d (%s), want %d", cost, lane, got, p.Reason(), want)
	}
	return p
}

func settled(p *Permit) bool {
	select {
	case <-p.Ready():
		return true
	default:
		return false
	}
}

// admitted checks that a waiter was let in, or still waits.
func (r rig) admitted(name string, p *Permit, want bool) {
	r.t.Helper()
	if got := settled(p) && p.Reason() == ""; got != want {
		r.t.Errorf("%s: admitted %v (reason %q), want %v", name, got, p.Reason(), want)
	}
}

func (r rig) refused(name string, p *Permit, want Reason) {
	r.t.Helper()
	if !settled(p) || p.Reason() != want {
		r.t.Errorf("%s: settled %v with reason %q, want %q", name, settled(p), p.Reason(), want)
	}
}

// numbers checks parts of the snapshot.
func (r rig) numbers(when string, want map[string]any) {
	r.t.Helper()
	b, err := json.Marshal(r.c.Snapshot())
	if err != nil {
		r.t.Fatal(err)
	}
	got := make(map[string]any)
	if err := json.Unmarshal(b, &got); err != nil {
		r.t.Fatal(err)
	}
	for key, v := range want {
		if n, ok := v.(int); ok {
			v = float64(n)
		}
		if got[key] != v {
			r.t.Errorf("%s: %s is %v, want %v", when, key, got[key], v)
		}
	}
}

// empty ends every scenario: nothing in flight, nothing queued, and what is free can be taken.
func (r rig) empty() {
	r.t.Helper()
	r.numbers("at the end", map[string]any{
		"activeCost": 0, "activeCount": 0, "queuedCost": 0, "queuedCount": 0, "laneQueuedCost": 0, "laneQueuedCount": 0,
		"virtualActiveCost": 0, "virtualActiveCount": 0, "virtualQueuedCost": 0, "virtualQueuedCount": 0,
	})
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	if r.c.held != (tally{}) || r.c.waiting != (tally{}) || r.c.rate != 0 || r.c.reserved != nil || r.c.deadlines.used != 0 {
		r.t.Errorf("left over: held %v, waiting %v, rate %v, reserved %v, deadlines %b", r.c.held, r.c.waiting, r.c.rate, r.c.reserved, r.c.deadlines.used)
	}
	r.c.lanes.each(func(l *lane) {
		if l.refs != 0 || l.count != 0 || l.cost != 0 || (!l.idle && l != r.c.lanes.overflow) {
			r.t.Errorf("lane %s is left with %d references, %d waiters of cost %d", l.id, l.refs, l.count, l.cost)
		}
	})
}

func done(ps ...*Permit) {
	for _, p := range ps {
		p.Done(OK)
	}
}

func TestInitialLimitIsClamped(t *testing.T) {
	t.Parallel()
	for initial, want := range map[int]int{1: 10, 999: 100, 20: 20} {
		s := baseSettings()
		s.InitialLimit = initial
		newRig(t, s).numbers("new", map[string]any{"currentLimit": want})
	}
}

func TestOffAdmitsWithoutAccounting(t *testing.T) {
	t.Parallel()
	s := baseSettings()
	s.Mode = Off
	r := newRig(t, s)
	a, b := r.ask("a", 100, Admitted), r.ask("a", 100, Admitted)
	r.numbers("two of 100", map[string]any{"activeCount": 0, "admittedCount": 0, "rejectedCount": 0})
	a.Forwarded()
	a.FirstByte()
	r.admitted("a permit that lanes know nothing of", a, true)
	done(a, b)
	r.empty()
}

func TestShadowNeverDelaysAndCountsWhatItWouldDo(t *testing.T) {
	t.Parallel()
	s := limited(10, 1, 10)
	s.Mode = Shadow
	r := newRig(t, s)
	a := r.ask("t", 8, Admitted)
	r.numbers("first", map[string]any{"activeCost": 8, "wouldAdmitCount": 1})
	b := r.ask("t", 8, Admitted)
	r.numbers("second", map[string]any{"activeCost": 16, "queuedCount": 0, "wouldQueueCount": 1})
	c := r.ask("t", 50, Admitted)
	r.numbers("third", map[string]any{"activeCost": 66, "wouldRejectCount": 1, "rejectedCount": 0, "admittedCount": 3})
	done(a, b, c)
	r.empty()
}

func TestShadowVirtualQueueMovesUp(t *testing.T) {
	t.Parallel()
	s := limited(10, 1, 8)
	s.Mode = Shadow
	r := newRig(t, s)
	a, b, c := r.ask("t", 8, Admitted), r.ask("t", 8, Admitted), r.ask("t", 8, Admitted)
	r.numbers("three of 8", map[string]any{
		"wouldAdmitCount": 1, "wouldQueueCount": 1, "wouldRejectCount": 1,
		"virtualActiveCost": 8, "virtualActiveCount": 1, "virtualQueuedCost": 8, "virtualQueuedCount": 1,
	})
	done(a)
	r.numbers("first released", map[string]any{
		"virtualActiveCost": 8, "virtualActiveCount": 1, "virtualQueuedCost": 0, "virtualQueuedCount": 0,
	})
	done(b, c)
	r.empty()
}

func TestShadowVirtualWaiterMayEndOrShrinkWhileQueued(t *testing.T) {
	t.Parallel()
	s := limited(10, 4, 40)
	s.Mode = Shadow
	r := newRig(t, s)
	a, b, c := r.ask("t", 8, Admitted), r.ask("t", 8, Admitted), r.ask("u", 8, Admitted)
	b.FirstByte()
	r.numbers("the first in the queue streams", map[string]any{"virtualQueuedCost": 8, "virtualQueuedCount": 1, "virtualActiveCost": 9})
	c.FirstByte()
	r.numbers("the other too", map[string]any{"virtualQueuedCount": 0, "virtualActiveCost": 10, "activeCost": 10})
	done(c, b, a)
	r.empty()
}

func TestQueueAndRelease(t *testing.T) {
	t.Parallel()
	r := newRig(t, limited(20, 4, 40))
	a := r.ask("t", 12, Admitted)
	b := r.ask("t", 12, Waiting)
	r.refused("above the limit", r.ask("t", 25, Refused), Oversized)
	r.admitted("before the release", b, false)
	done(a)
	r.admitted("after the release", b, true)
	done(b)
	r.empty()
}

func TestQueueBounds(t *testing.T) {
	t.Parallel()
	r := newRig(t, limited(10, 2, 15))
	a := r.ask("t", 10, Admitted)
	b, c := r.ask("t", 5, Waiting), r.ask("t", 5, Waiting)
	r.numbers("two wait", map[string]any{"queuedCount": 2, "queuedCost": 10})
	r.refused("the third", r.ask("t", 5, Refused), QueueFull)
	b.Cancel()
	r.refused("one of 11 beside 5 of 15", r.ask("t", 10+1, Refused), Oversized)
	d := r.ask("u", 10, Waiting)
	done(a, b, c, d)
	r.empty()
}

func TestDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := limited(10, 4, 40)
		s.MaxWait = 30 * time.Millisecond
		r := newRig(t, s)
		a := r.ask("t", 10, Admitted)
		b := r.ask("t", 5, Waiting)
		time.Sleep(30*time.Millisecond - 1)
		synctest.Wait()
		r.admitted("a nanosecond early", b, false)
		if settled(b) {
			t.Error("settled before its time")
		}
		time.Sleep(1)
		synctest.Wait()
		r.refused("in time", b, Deadline)
		b.Cancel()
		done(b)
		r.numbers("after", map[string]any{"queuedCount": 0, "rejectedCount": 1, "activeCost": 10})
		if b.Waited() != 30*time.Millisecond {
			t.Errorf("waited %v, want 30ms", b.Waited())
		}
		done(a)
		r.empty()
	})
}

func TestCancelWhileQueued(t *testing.T) {
	t.Parallel()
	r := newRig(t, limited(10, 4, 40))
	a := r.ask("t", 10, Admitted)
	b := r.ask("t", 5, Waiting)
	b.Cancel()
	r.numbers("client gone", map[string]any{"queuedCount": 0, "rejectedCount": 0})
	if !settled(b) || b.Reason() != "" {
		t.Errorf("cancelled: settled %v, reason %q", settled(b), b.Reason())
	}
	done(a)
	r.numbers("released", map[string]any{"activeCount": 0, "admittedCount": 1})
	r.empty()
}

func TestConfigureRaisesLowersAndSwitches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, limited(5, 4, 40))
		a := r.ask("t", 5, Admitted)
		b := r.ask("t", 5, Waiting)
		configure := func(s Settings) {
			t.Helper()
			if err := r.c.Configure(s); err != nil {
				t.Fatal(err)
			}
		}
		configure(limited(10, 4, 40))
		r.admitted("limit 10", b, true)
		r.numbers("limit 10", map[string]any{"activeCost": 10})
		configure(limited(5, 4, 40))
		c := r.ask("t", 1, Waiting)
		shadow := limited(5, 4, 40)
		shadow.Mode = Shadow
		configure(shadow)
		r.admitted("shadow", c, true)
		time.Sleep(2 * time.Second)
		r.numbers("after its deadline", map[string]any{"rejectedCount": 0, "activeCount": 3})
		d := r.ask("t", 90, Admitted)
		configure(limited(5, 4, 40))
		r.ask("t", 5, Waiting).Cancel() // what ran in shadow counts now
		done(a, b, c, d)
		r.empty()
	})
}

func TestConfigureRefusesTheLastToComeOfASmallerQueue(t *testing.T) {
	t.Parallel()
	for _, lanes := range []bool{false, true} {
		s := limited(10, 4, 40)
		s.VirtualLanes = lanes
		r := newRig(t, s)
		hold := r.ask("a", 10, Admitted)
		first, second, third := r.ask("a", 2, Waiting), r.ask("b", 2, Waiting), r.ask("a", 2, Waiting)
		s.MaxQueueCount, s.MaxQueueCost = 2, 4
		if lanes {
			s.MaxQueueCount = 1
		}
		if err := r.c.Configure(s); err != nil {
			t.Fatal(err)
		}
		r.refused("the third", third, QueueFull)
		done(hold)
		r.admitted("the first", first, true)
		r.admitted("the second", second, true)
		done(first, second, third)
		r.empty()
	}
}

func TestConfigureKeepsTheOldSettingsWhenTheNewAreBad(t *testing.T) {
	t.Parallel()
	r := newRig(t, limited(10, 4, 40))
	bad := limited(20, 4, 40)
	bad.DecreaseFactor = 7
	if err := r.c.Configure(bad); err == nil || !strings.Contains(err.Error(), "decreaseFactor") {
		t.Errorf("got %v", err)
	}
	r.numbers("after a bad reload", map[string]any{"currentLimit": 10, "maxLimit": 100})
}

func TestConfigureKeepsTheAdaptedLimit(t *testing.T) {
	t.Parallel()
	s := baseSettings()
	r := newRig(t, s)
	r.c.Observe(Critical)
	r.numbers("critical", map[string]any{"currentLimit": 10})
	s.MaxQueueCount = 7
	if err := r.c.Configure(s); err != nil {
		t.Fatal(err)
	}
	r.numbers("a reload that says nothing of the limit", map[string]any{"currentLimit": 10})
}

func TestLightTenantIsNotBehindAHeavyOne(t *testing.T) {
	t.Parallel()
	r := newRig(t, limited(5, 9, 90))
	hold := r.ask("heavy", 5, Admitted)
	var heavy []*Permit
	for range 4 {
		heavy = append(heavy, r.ask("heavy", 5, Waiting))
	}
	light := r.ask("light", 5, Waiting)
	b, _ := json.Marshal(r.c.Snapshot())
	if strings.Contains(string(b), "heavy") {
		t.Errorf("with lanes off the snapshot names tenants: %s", b)
	}
	done(hold)
	for i, p := range heavy {
		if settled(light) {
			done(light)
			break
		}
		if i == 3 {
			t.Fatal("the light tenant came last")
		}
		done(p)
	}
	done(heavy...)
	r.empty()
}

func TestASmallerHeadGoesFirstWhenTheLargerDoesNotFit(t *testing.T) {
	t.Parallel()
	for name, lanes := range map[string][2]string{"two tenants": {"a", "b"}, "one tenant": {"a", "a"}} {
		r := newRig(t, limited(10, 4, 40))
		six, four := r.ask("x", 6, Admitted), r.ask("y", 4, Admitted)
		waiting6 := r.ask(lanes[0], 6, Waiting)
		waiting4 := r.ask(lanes[1], 4, Waiting)
		done(four)
		r.admitted(name+": the 4", waiting4, true)
		r.admitted(name+": the 6", waiting6, false)
		r.numbers(name, map[string]any{"queuedCount": 1, "activeCost": 10})
		done(six)
		r.admitted(name+": the 6 in the end", waiting6, true)
		done(waiting4, waiting6)
		r.empty()
	}
}

// reserved brings about a head of 6 that was passed over twice, six running, and a 2 that must wait behind it.
func reserved(r rig, wait time.Duration) (held, head, blocked *Permit) {
	held = r.ask("x", 6, Admitted)
	small := r.ask("y", 4, Admitted)
	head = new(Permit)
	if got := r.c.Acquire(head, Request{Lane: "large", Cost: 6, MaxWait: wait}); got != Waiting {
		r.t.Fatalf("the head: answer %d", got)
	}
	for range passLimit {
		done(small)
		small = r.ask("y", 4, Admitted)
	}
	done(small)
	blocked = r.ask("y", 2, Waiting)
	return held, head, blocked
}

func TestAHeadPassedOverTwiceIsReservedFor(t *testing.T) {
	t.Parallel()
	r := newRig(t, limited(10, 4, 40))
	held, head, blocked := reserved(r, 0)
	blocked2 := r.ask("new", 1, Waiting)
	done(held)
	r.admitted("the reserved head", head, true)
	r.admitted("those behind it", blocked, true)
	r.admitted("those behind it", blocked2, true)
	done(head, blocked, blocked2)
	r.empty()
}

func TestWhenTheReservedHeadLeavesTheNextGoAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, limited(10, 4, 40))
	held, head, blocked := reserved(r, 0)
	head.Cancel()
	r.admitted("the blocked 2", blocked, true)
	r.numbers("after the cancel", map[string]any{"activeCost": 8})
	done(held, blocked)
	r.empty()

	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, limited(10, 4, 40))
		held, head, blocked := reserved(r, 40*time.Millisecond)
		time.Sleep(40 * time.Millisecond)
		synctest.Wait()
		r.refused("the head", head, Deadline)
		r.admitted("the blocked 2", blocked, true)
		done(held, blocked)
		r.empty()
	})
}

func TestAboveTheLimitOnlyAlone(t *testing.T) {
	t.Parallel()
	s := limited(10, 4, 400)
	r := newRig(t, s)
	r.refused("above the highest limit, alone", r.ask("t", 101, Refused), Oversized)
	large := r.ask("t", 60, Admitted)
	r.refused("another beside it", r.ask("t", 60, Refused), Oversized)
	r.ask("t", 5, Waiting).Cancel()
	done(large)
	small := r.ask("t", 1, Admitted)
	r.refused("beside a small one", r.ask("t", 60, Refused), Oversized)
	done(small)
	r.c.Observe(High)
	r.refused("under pressure", r.ask("t", 60, Refused), Oversized)
	r.c.Observe(Normal)
	done(r.ask("t", 60, Admitted))
	r.empty()
}

func TestAWaiterWhomTheLimitSankBelowGoesAloneInTheEnd(t *testing.T) {
	t.Parallel()
	s := limited(20, 4, 40)
	s.MinLimit = 5
	r := newRig(t, s)
	a := r.ask("a", 20, Admitted)
	b := r.ask("b", 18, Waiting)
	r.c.Observe(Critical)
	r.numbers("critical", map[string]any{"currentLimit": 10})
	done(a)
	r.admitted("under pressure", b, false)
	small := r.ask("c", 4, Admitted)
	r.c.Observe(Normal)
	r.admitted("beside another", b, false)
	done(small)
	r.admitted("alone", b, true)
	done(b)
	r.empty()
}

func TestLaneQueuesAreSeparate(t *testing.T) {
	t.Parallel()
	s := limited(10, 2, 10)
	s.VirtualLanes = true
	r := newRig(t, s)
	hold := r.ask("z", 10, Admitted)
	a1, a2, b1 := r.ask("a", 5, Waiting), r.ask("a", 5, Waiting), r.ask("b", 5, Waiting)
	r.refused("a's third", r.ask("a", 1, Refused), QueueFull)
	r.numbers("three wait", map[string]any{"laneCount": 3, "laneQueuedCount": 3, "laneQueuedCost": 15, "queuedCount": 0})
	done(hold)
	r.numbers("released", map[string]any{"activeCost": 10, "laneQueuedCount": 1})
	r.admitted("b is not behind both of a", b1, true)
	done(a1, b1, a2)
	r.empty()
}

func TestAPassingArrivalSeesEveryLane(t *testing.T) {
	t.Parallel()
	s := limited(10, 8, 80)
	s.VirtualLanes = true
	r := newRig(t, s)
	hold := r.ask("a", 10, Admitted)
	waiting := r.ask("a", 3, Waiting)
	// A newcomer in a lane of its own does not overtake a waiter that could run.
	newcomer := r.ask("b", 3, Waiting)
	done(hold)
	r.admitted("the waiter", waiting, true)
	r.admitted("the newcomer", newcomer, true)
	done(waiting, newcomer)
	r.empty()
}

func TestRaisedLimitStartsAllItHasRoomForAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, limited(1, 20, 20))
	ps := []*Permit{r.ask("t", 1, Admitted)}
	for range 10 {
		ps = append(ps, r.ask("t", 1, Waiting))
	}
	if err := r.c.Configure(limited(5, 20, 20)); err != nil {
		t.Fatal(err)
	}
	r.numbers("limit 1 -> 5", map[string]any{"activeCount": 5, "queuedCount": 6})
	done(ps...)
	r.empty()
}

func TestShutdown(t *testing.T) {
	t.Parallel()
	r := newRig(t, limited(10, 4, 40))
	a, b := r.ask("t", 10, Admitted), r.ask("t", 5, Waiting)
	r.c.Shutdown()
	r.refused("the waiter", b, ShutDown)
	r.refused("a newcomer", r.ask("t", 1, Refused), ShutDown)
	r.numbers("after", map[string]any{"shutdown": true, "activeCost": 10, "rejectedCount": 2})
	done(a, b)
	r.empty()
}

func TestRaiseAndFirstByteChangeTheCost(t *testing.T) {
	t.Parallel()
	r := newRig(t, limited(10, 4, 40))
	a := r.ask("t", 4, Admitted)
	a.Raise(7)
	a.Raise(5) // never down
	r.numbers("grown", map[string]any{"activeCost": 7})
	b := r.ask("t", 5, Waiting)
	a.Raise(5000)
	r.numbers("grown above the limit", map[string]any{"activeCost": 1000})
	a.FirstByte()
	r.numbers("streaming", map[string]any{"activeCost": 6, "activeCount": 2})
	a.Raise(9)
	r.numbers("raised too late", map[string]any{"activeCost": 6})
	r.admitted("the waiter", b, true)
	done(a, b, a, b)
	r.empty()
}

func TestChildrenNeverWait(t *testing.T) {
	t.Parallel()
	s := limited(10, 4, 40)
	s.VirtualLanes = true
	r := newRig(t, s)
	a, child := r.ask("t", 8, Admitted), new(Permit)
	if got := r.c.AcquireNow(child, Request{Lane: "t", Cost: 2}); got != Admitted {
		t.Errorf("a child that fits: %d", got)
	}
	late := new(Permit)
	if got := r.c.AcquireNow(late, Request{Lane: "t", Cost: 2}); got != Refused || late.Reason() != FanoutSkipped {
		t.Errorf("a child that does not: %d %q", got, late.Reason())
	}
	r.numbers("after", map[string]any{"virtualFanoutProbed": 2, "virtualFanoutSkipped": 1, "activeCost": 10})
	done(a, child, late)
	r.empty()
}

func TestTryAcquireLooksAndHoldsNothing(t *testing.T) {
	t.Parallel()
	s := limited(10, 4, 40)
	s.VirtualLanes = true
	r := newRig(t, s)
	a := r.ask("t", 5, Admitted)
	got := r.c.TryAcquire([]Request{{Lane: "t", Cost: 3}, {Lane: "t", Cost: 3}, {Lane: "u", Cost: 2}})
	if want := [3]bool{true, false, true}; [3]bool(got) != want {
		t.Errorf("got %v, want %v", got, want)
	}
	r.numbers("after", map[string]any{"virtualFanoutProbed": 3, "virtualFanoutSkipped": 1, "activeCost": 5, "laneCount": 1, "admittedCount": 1})
	s.VirtualLanes = false
	if err := r.c.Configure(s); err != nil {
		t.Fatal(err)
	}
	if got := r.c.TryAcquire([]Request{{Lane: "t", Cost: 900}}); !got[0] {
		t.Error("with lanes off a target was skipped")
	}
	r.numbers("lanes off", map[string]any{"virtualFanoutProbed": 3, "laneCount": 0})
	done(a)
	r.empty()
}
