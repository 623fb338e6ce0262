package adaptive

import (
	"testing"
)

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
	r.numbers("grown above the limit", map[string]any{"activeCost": 10})
	a.FirstToken()
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
