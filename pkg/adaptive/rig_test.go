package adaptive

import (
	"encoding/json"
	"testing"
	"time"
)

// baseSettings are the small numbers that the scenarios reason with.
func baseSettings() Settings {
	s := DefaultSettings()
	s.Mode = Enforce
	s.MinLimit, s.InitialLimit, s.MaxLimit = 10, 20, 100
	s.MaxShare = 1
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

// rig is a controller under test.
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
	if r.c.held != (tally{}) || r.c.waiting != (tally{}) || r.c.ranked != 0 || r.c.reserved != nil || r.c.deadlines.used != 0 {
		r.t.Errorf("left over: held %v, waiting %v, ranked %v, reserved %v, deadlines %b", r.c.held, r.c.waiting, r.c.ranked, r.c.reserved, r.c.deadlines.used)
	}
	for _, v := range r.c.levels {
		if v.active != (tally{}) || v.held != (tally{}) || v.waiting != (tally{}) || v.ranked != 0 || v.rate != 0 {
			r.t.Errorf("level %q is left with active %v, held %v, waiting %v, ranked %d, rate %v", v.name, v.active, v.held, v.waiting, v.ranked, v.rate)
		}
	}
	r.c.lanes.each(func(l *lane) {
		if l.refs != 0 || l.queued != 0 || l.queuedCost != 0 || l.active != 0 || l.held != 0 || (!l.idle && l != r.c.lanes.overflow) {
			r.t.Errorf("lane %s is left with %d references, %d running, %d held, %d waiters of cost %d", l.id, l.refs, l.active, l.held, l.queued, l.queuedCost)
		}
		for f := l.flows; f != nil; f = f.next {
			if f.count != 0 || f.cost != 0 || f.ranked || f.rate != 0 {
				r.t.Errorf("lane %s is left with %d waiters of cost %d at level %q, ranked %v, rate %v", l.id, f.count, f.cost, f.level.name, f.ranked, f.rate)
			}
		}
	})
}

func done(ps ...*Permit) {
	for _, p := range ps {
		p.Done(OK)
	}
}
