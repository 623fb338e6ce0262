package budget

import (
	"testing"
	"time"

	"github.com/headgate/headgate/pkg/budget/memory"
	"github.com/headgate/headgate/pkg/budget/size"
)

// Given a taken budget, how long a request waits depends on the pressure, on what is missing and on its caller.
func TestWaitIsBounded(t *testing.T) {
	t.Parallel()
	normal, high := &memory.Pressure{}, &memory.Pressure{Severity: memory.High}
	for _, c := range []struct {
		name     string
		pressure *memory.Pressure
		settings func(*Settings)
		caller   time.Duration
		want     time.Duration
	}{
		{"bytes under normal pressure wait calmly", normal, maxWait(2 * time.Second), long, 250 * time.Millisecond},
		{"calmWait never lengthens maxWait", normal, maxWait(100 * time.Millisecond), long, 100 * time.Millisecond},
		{"bytes under high pressure wait fully", high, maxWait(300 * time.Millisecond), long, 300 * time.Millisecond},
		{"a count slot is waited for fully under normal pressure", normal, both(slots(1), maxWait(10*time.Second)), long, 10 * time.Second},
		{"the caller's bound wins when it is shorter", high, maxWait(2 * time.Second), 30 * time.Millisecond, 30 * time.Millisecond},
		{"the defaults", high, nil, long, 2 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			scenario{budget: 4096, settings: c.settings, pressure: c.pressure}.play(t, func(r *rig) {
				r.admit(request("a", 4096))
				w := r.wait(Request{Key: "a", Bytes: 4096, MaxWait: c.caller})
				time.Sleep(c.want - 1)
				r.waits(w)
				r.queued(1, 4096)
				time.Sleep(1)
				r.refused(w, Refusal{QueueTimeout, max((c.want + time.Second - 1).Truncate(time.Second), seconds(2))})
				r.queued(0, 0)
				r.sheds(map[Reason]int64{QueueTimeout: 1})
			})
		})
	}
}

// Given waiters, each leaves in the one way that comes first.
func TestWaitersLeave(t *testing.T) {
	t.Parallel()
	one := scenario{settings: both(slots(1), maxWait(500*time.Millisecond))}
	for _, c := range []struct {
		name  string
		start scenario
		play  func(r *rig)
	}{
		{"granted after a release", one, func(r *rig) {
			h := r.admit(request("a", 1))
			w := r.wait(request("a", 1))
			time.Sleep(30 * time.Millisecond)
			r.waits(w)
			h.Release()
			r.granted(w)
			r.sheds(nil)
		}},
		{"the third of a cap of two is granted after a second", scenario{settings: both(slots(2), maxWait(10*time.Second))}, func(r *rig) {
			h := r.admit(request("a", 1))
			r.admit(request("a", 1))
			w := r.wait(request("a", 1))
			time.Sleep(time.Second)
			r.waits(w)
			h.Release()
			r.granted(w)
		}},
		{"a long queue outlasts the default one", scenario{settings: both(slots(1), maxWait(15*time.Second))}, func(r *rig) {
			h := r.admit(request("a", 1))
			w := r.wait(request("a", 1))
			time.Sleep(2500 * time.Millisecond)
			r.waits(w)
			h.Release()
			r.granted(w)
		}},
		{"the head cancels, the second is served", one, func(r *rig) {
			h := r.admit(request("a", 1))
			first, second := r.wait(request("a", 1)), r.wait(request("a", 1))
			first.Cancel()
			h.Release()
			r.granted(second)
		}},
		{"cancelling at the head lets those behind it proceed at once", scenario{budget: 2 * mib}, func(r *rig) {
			r.admit(request("a", 1536*kib))
			large, small1, small2 := r.wait(request("a", mib)), r.wait(request("a", 200*kib)), r.wait(request("a", 200*kib))
			r.waits(large, small1, small2)
			large.Cancel()
			r.granted(small1, small2)
		}},
		{"so does the head's deadline", scenario{budget: 2 * mib}, func(r *rig) {
			r.admit(request("a", 1536*kib))
			large := r.wait(Request{Key: "a", Bytes: mib, MaxWait: 40 * time.Millisecond})
			small := r.wait(request("a", 200*kib))
			time.Sleep(40 * time.Millisecond)
			r.refused(large, Refusal{QueueTimeout, seconds(2)})
			r.granted(small)
		}},
		{"a cancelled waiter is no shed and returns its charge", scenario{budget: 1000}, func(r *rig) {
			r.admit(request("a", 1000))
			w := r.wait(request("a", 400))
			r.queued(1, 400)
			time.Sleep(20 * time.Millisecond)
			w.Cancel()
			w.Cancel()
			r.queued(0, 0)
			r.sheds(nil)
			if h, refusal := w.Result(); !ended(w) || h != nil || refusal != nil {
				r.t.Errorf("cancelled waiter: %v, %v; want neither", h, refusal)
			}
		}},
		{"a deadline counts once, whatever follows", one, func(r *rig) {
			h := r.admit(request("a", 1))
			w := r.wait(request("a", 1))
			time.Sleep(500 * time.Millisecond)
			r.refused(w, Refusal{QueueTimeout, seconds(2)})
			w.Cancel()
			h.Release()
			r.refused(w, Refusal{QueueTimeout, seconds(2)})
			r.sheds(map[Reason]int64{QueueTimeout: 1})
		}},
		{"a grant that races a cancel is handed on", one, func(r *rig) {
			h := r.admit(request("a", 1))
			gone, next := r.wait(request("a", 1)), r.wait(request("b", 1))
			h.Release()
			gone.Cancel()
			r.granted(next)
			if h, refusal := gone.Result(); h != nil || refusal != nil {
				r.t.Errorf("cancelled waiter: %v, %v; want neither", h, refusal)
			}
			r.sheds(nil)
		}},
		{"a cancel after the result changes nothing", one, func(r *rig) {
			h := r.admit(request("a", 1))
			w := r.wait(request("a", 1))
			h.Release()
			r.granted(w)
			w.Cancel()
			r.inflight(1)
		}},
		{"critical pressure sends all away at once", scenario{budget: 100}, func(r *rig) {
			h := r.admit(request("a", 60))
			r.admit(request("a", 35))
			w, growth := r.wait(request("b", 20)), r.grow(h, 70)
			r.setPressure(memory.Pressure{Severity: memory.Critical})
			r.refused(growth, Refusal{ResourcePressure, seconds(2)})
			r.refused(w, Refusal{ResourcePressure, seconds(2)})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.start.play(t, c.play)
		})
	}
}

// Given the valve of waiting bytes, what would exceed it is refused at once and never charged.
func TestQueuedBytesValve(t *testing.T) {
	t.Parallel()
	full := func(v size.Bytes) scenario { return scenario{settings: maxQueued(v)} }
	for _, c := range []struct {
		name  string
		start scenario
		play  func(r *rig)
	}{
		{"the second of two is refused", full(100), func(r *rig) {
			r.wait(request("a", 70))
			r.refuse(request("b", 70), Refusal{QueuedBytesBudget, seconds(2)})
			r.queued(1, 70)
			r.wait(request("c", 30))
			r.queued(2, 100)
			r.sheds(map[Reason]int64{QueuedBytesBudget: 1})
		}},
		{"keys share it", full(4 * mib), func(r *rig) {
			r.wait(request("a", 4*mib))
			r.refuse(request("b", 4*mib), Refusal{QueuedBytesBudget, seconds(2)})
			r.queued(1, 4*mib)
		}},
		{"bodies larger than it never wait", scenario{budget: 32 * mib}, func(r *rig) {
			r.refuse(request("a", 16*mib), Refusal{QueuedBytesBudget, seconds(2)})
			r.refuse(request("b", 16*mib), Refusal{QueuedBytesBudget, seconds(2)})
			r.queued(0, 0)
		}},
		{"structure-heavy bodies pass through it too", full(1024), func(r *rig) {
			r.refuse(Request{Bytes: 2000, MaxWait: long, Structure: true}, Refusal{StructureLimit, seconds(2)})
			r.sheds(map[Reason]int64{QueuedBytesBudget: 1})
		}},
		{"zero lets nothing wait", full(0), func(r *rig) {
			r.refuse(request("a", 1), Refusal{QueuedBytesBudget, seconds(2)})
		}},
		{"ten bodies of 1 MiB: four wait", full(4 * mib), func(r *rig) {
			for range 4 {
				r.wait(request("a", mib))
			}
			for range 6 {
				r.refuse(request("a", mib), Refusal{QueuedBytesBudget, seconds(2)})
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.start.play(t, func(r *rig) {
				r.admit(request("holder", r.c.Budget().Bytes))
				c.play(r)
			})
		})
	}
}

// Given live requests of known ages, the hint is the youngest's age or the wait, within the reason's bounds.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name      string
		ages      []time.Duration // oldest first
		wait      time.Duration
		structure bool
		want      Refusal
	}{
		{"fresh, bytes", []time.Duration{0}, 0, false, Refusal{InflightBytesBudget, seconds(2)}},
		{"fresh, structure", []time.Duration{0}, 0, true, Refusal{StructureLimit, seconds(1)}},
		{"47 s and 7 s old", []time.Duration{47 * time.Second, 7 * time.Second}, 0, true, Refusal{StructureLimit, seconds(7)}},
		{"part of a second rounds up", []time.Duration{7001 * time.Millisecond}, 0, false, Refusal{InflightBytesBudget, seconds(8)}},
		{"ten minutes old", []time.Duration{10 * time.Minute}, 0, true, Refusal{StructureLimit, seconds(60)}},
		{"waited five seconds for the slot of a fresh one", []time.Duration{0}, 5 * time.Second, true, Refusal{StructureLimit, seconds(5)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			scenario{settings: both(slots(len(c.ages)), maxWait(c.wait))}.play(t, func(r *rig) {
				for i, age := range c.ages {
					r.admit(request("a", 1))
					younger := time.Duration(0)
					if i+1 < len(c.ages) {
						younger = c.ages[i+1]
					}
					time.Sleep(age - younger)
				}
				a := Request{Bytes: 1, MaxWait: long, Structure: c.structure}
				if c.wait == 0 {
					r.refuse(a, c.want)
					return
				}
				w := r.wait(a)
				time.Sleep(c.wait)
				r.refused(w, c.want)
			})
		})
	}
}
