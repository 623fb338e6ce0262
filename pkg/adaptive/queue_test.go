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
	r.refused("above the highest limit", r.ask("t", 101, Refused), Oversized)
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
	r.refused("one of 11 beside 5 of 15", r.ask("t", 10+1, Refused), QueueFull)
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

// Cost 60 at a limit of 20 takes 5 of it at a share of a quarter, and its lane pays 60.
func TestARequestTakesAtMostItsShareOfTheLimit(t *testing.T) {
	t.Parallel()
	s := limited(20, 4, 400)
	s.MaxShare = 0.25
	r := newRig(t, s)
	small := r.ask("s", 10, Admitted)
	r.numbers("a small one", map[string]any{"activeCost": 5})
	large := []*Permit{r.ask("t", 60, Admitted), r.ask("t", 100, Admitted), r.ask("t", 60, Admitted)}
	r.numbers("and three large ones", map[string]any{"activeCost": 20, "activeCount": 4})
	if got := large[0].flow.rate; got != 220 {
		t.Errorf("the lane pays %v, want 220", got)
	}
	w := r.ask("s", 1, Waiting)
	r.refused("above the highest limit", r.ask("t", 101, Refused), Oversized)
	large[0].FirstToken()
	r.numbers("one streams", map[string]any{"activeCost": 17})
	large[1].Raise(90)
	r.numbers("another grew", map[string]any{"activeCost": 17})
	done(small, w)
	done(large...)
	r.empty()
}

// However low the limit, under pressure too, nobody is locked out: the least place is 1.
func TestALowLimitLocksNobodyOut(t *testing.T) {
	t.Parallel()
	s := limited(2, 4, 400)
	s.MaxShare = 0.25
	r := newRig(t, s)
	r.c.Observe(High)
	a, b := r.ask("t", 100, Admitted), r.ask("u", 60, Admitted)
	w := r.ask("u", 60, Waiting)
	done(a)
	r.admitted("the one that waited", w, true)
	done(b, w)
	r.empty()
}

// A place is given at the grant: what was queued when the limit was higher takes its share of the lower one.
func TestAWaiterTakesItsShareOfALoweredLimit(t *testing.T) {
	t.Parallel()
	s := limited(20, 4, 40)
	s.MinLimit, s.MaxShare = 5, 0.5
	r := newRig(t, s)
	a, b := r.ask("a", 18, Admitted), r.ask("a", 18, Admitted)
	w := r.ask("b", 18, Waiting)
	r.c.Observe(Critical)
	r.numbers("critical", map[string]any{"currentLimit": 10, "activeCost": 20})
	done(a)
	r.admitted("while the old ones fill the lower limit", w, false)
	done(b)
	r.admitted("then", w, true)
	r.numbers("then", map[string]any{"activeCost": 5})
	done(w)
	r.empty()
}
