package adaptive

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// model is the controller as its users see it: who runs, who waits in which lane, and what was refused.
type model struct {
	c       *Controller
	s       Settings
	live    []*tracked // running or waiting, as far as the model knows
	refused int64
	limit   int
}

type tracked struct {
	*Permit
	lane   string
	cost   int
	waited bool
}

// Whatever is asked, cancelled, raised, released and reconfigured in whatever order, the books are right: what runs fits
// the limit, what waits fits the queues, nobody who could be let in waits, and nothing is left in the end.
func TestControllerAgainstItsBooks(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := limited(20, 6, 60)
		s.VirtualLanes = rapid.Bool().Draw(t, "lanes")
		s.MinLimit = 1
		s.MaxShare = rapid.SampledFrom([]float64{0.25, 1}).Draw(t, "share")
		m := &model{s: s, limit: 20}
		m.c = mustNewRapid(t, s)
		lanes := rapid.SampledFrom([]string{"a", "b", "c", ""})
		t.Repeat(map[string]func(*rapid.T){
			"acquire": func(t *rapid.T) {
				m.acquire(t, lanes.Draw(t, "lane"), rapid.IntRange(1, 25).Draw(t, "cost"), rapid.Float64Range(0, 4).Draw(t, "weight"))
			},
			"end": func(t *rapid.T) {
				x := m.pick(t)
				x.Done(Outcome(rapid.IntRange(0, 5).Draw(t, "outcome")))
				x.Done(OK)
				m.drop(x)
			},
			"first byte": func(t *rapid.T) { m.pick(t).FirstToken() },
			"raise":      func(t *rapid.T) { m.pick(t).Raise(rapid.IntRange(1, 30).Draw(t, "cost")) },
			"configure": func(t *rapid.T) {
				m.s.InitialLimit = rapid.IntRange(5, 40).Draw(t, "limit")
				m.s.MaxQueueCount = rapid.IntRange(1, 8).Draw(t, "queue")
				if err := m.c.Configure(m.s); err != nil {
					t.Fatal(err)
				}
			},
			"observe": func(t *rapid.T) { m.c.Observe(Severity(rapid.IntRange(0, 1).Draw(t, "severity"))) },
			"":        m.check,
		})
		for _, x := range m.live {
			x.Done(OK)
		}
		left := m.c.Snapshot()
		if left.ActiveCost != 0 || left.ActiveCount != 0 || m.c.waiting != (tally{}) || m.c.held != (tally{}) {
			t.Fatalf("left over: %+v, waiting %v, held %v", left, m.c.waiting, m.c.held)
		}
	})
}

func mustNewRapid(t *rapid.T, s Settings) *Controller {
	c, err := New(s)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (m *model) acquire(t *rapid.T, lane string, cost int, weight float64) {
	x := &tracked{Permit: new(Permit), lane: lane, cost: cost}
	switch m.c.Acquire(x.Permit, Request{Lane: lane, Cost: cost, Weight: weight}) {
	case Refused:
		m.refused++
		if x.Reason() == "" {
			t.Fatalf("refused without a reason")
		}
	case Waiting:
		x.waited = true
		m.live = append(m.live, x)
	case Admitted:
		m.live = append(m.live, x)
	}
}

func (m *model) pick(t *rapid.T) *tracked {
	if len(m.live) == 0 {
		t.Skip()
	}
	return m.live[rapid.IntRange(0, len(m.live)-1).Draw(t, "permit")]
}

func (m *model) drop(x *tracked) {
	m.live = slices.DeleteFunc(m.live, func(other *tracked) bool { return other == x })
}

func (m *model) check(t *rapid.T) {
	c := m.c
	c.mu.Lock()
	defer c.mu.Unlock()
	var active, waiting tally
	m.live = slices.DeleteFunc(m.live, func(x *tracked) bool {
		switch x.stage {
		case stageActive:
			active.add(x.place)
		case stageWaiting:
			waiting.add(x.Permit.cost)
		default: // a smaller queue had no room for it
			m.refused++
			return true
		}
		return false
	})
	if active != c.active || active != c.held || waiting != c.waiting {
		t.Fatalf("active %v held %v waiting %v, want %v and %v", c.active, c.held, c.waiting, active, waiting)
	}
	if c.counts.rejected != m.refused {
		t.Fatalf("rejected %d, want %d", c.counts.rejected, m.refused)
	}
	byLane := make(map[*lane]tally)
	c.lanes.each(func(l *lane) {
		var sum tally
		for p := l.head; p != nil; p = p.next {
			sum.add(p.cost)
		}
		if sum != (tally{l.count, l.cost}) {
			t.Fatalf("lane %q says %d waiters of cost %d, has %v", l.id, l.count, l.cost, sum)
		}
		byLane[l] = sum
	})
	for l, q := range byLane {
		if m.s.VirtualLanes && (q.count > m.s.MaxQueueCount || q.cost > m.s.MaxQueueCost) {
			t.Fatalf("lane %q has a queue of %v", l.id, q)
		}
	}
	if !m.s.VirtualLanes && (waiting.count > m.s.MaxQueueCount || waiting.cost > m.s.MaxQueueCost) {
		t.Fatalf("the shared queue is %v", waiting)
	}
	if waiting.count > 0 && c.pickLocked() != nil {
		t.Fatalf("someone who could be let in waits: limit %d, held %v", c.state.limit, c.held)
	}
}
