package adaptive

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

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
