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
	running map[string]int // by lane, at the last look
	total   int
}

type tracked struct {
	*Permit
	lane   string
	cost   int
	waited bool
}

// levelsDrawn are sets of levels to change between.
var levelsDrawn = [][]Level{
	nil, {{"high", 3}, {"low", 1}}, {{"high", 1}, {"middle", 5}, {"low", 4}}, {{"low", 1}},
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
		s.MaxConcurrent = rapid.SampledFrom([]int{0, 0, 1, 3}).Draw(t, "maxConcurrent")
		s.TenantMaxConcurrent = rapid.SampledFrom([]int{0, 0, 1, 2}).Draw(t, "tenantMaxConcurrent")
		s.Levels = rapid.SampledFrom(levelsDrawn).Draw(t, "levels")
		m := &model{s: s, limit: 20}
		m.c = mustNewRapid(t, s)
		lanes := rapid.SampledFrom([]string{"a", "b", "c", ""})
		t.Repeat(map[string]func(*rapid.T){
			"acquire": func(t *rapid.T) {
				m.acquire(t, rapid.Bool().Draw(t, "child"), Request{
					Lane: lanes.Draw(t, "lane"), Cost: rapid.IntRange(1, 25).Draw(t, "cost"), Weight: rapid.Float64Range(0, 4).Draw(t, "weight"),
					Level:         rapid.SampledFrom([]string{"high", "middle", "low", "none"}).Draw(t, "level"),
					MaxConcurrent: rapid.SampledFrom([]int{0, 0, 0, 1, 3}).Draw(t, "own maxConcurrent"),
				})
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
				m.s.MaxConcurrent = rapid.SampledFrom([]int{0, 1, 2, 5}).Draw(t, "maxConcurrent")
				m.s.TenantMaxConcurrent = rapid.SampledFrom([]int{0, 1, 2, 5}).Draw(t, "tenantMaxConcurrent")
				m.s.Levels = rapid.SampledFrom(levelsDrawn).Draw(t, "levels")
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
		for _, v := range m.c.levels {
			if v.active != (tally{}) || v.held != (tally{}) || v.waiting != (tally{}) || v.ranked != 0 || m.c.ranked != 0 {
				t.Fatalf("level %q is left with %+v of %d", v.name, v, m.c.ranked)
			}
		}
		m.c.lanes.each(func(l *lane) {
			if l.active != 0 || l.held != 0 || l.queued != 0 || l.queuedCost != 0 {
				t.Fatalf("lane %q is left with %+v", l.id, l)
			}
		})
	})
}

func mustNewRapid(t *rapid.T, s Settings) *Controller {
	c, err := New(s)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (m *model) acquire(t *rapid.T, child bool, r Request) {
	x := &tracked{Permit: new(Permit), lane: r.Lane, cost: r.Cost}
	acquire := m.c.Acquire
	if child {
		acquire = m.c.AcquireNow
	}
	switch acquire(x.Permit, r) {
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
	running := make(map[string]int)
	m.live = slices.DeleteFunc(m.live, func(x *tracked) bool {
		switch x.stage {
		case stageActive:
			active.add(x.place)
			running[x.lane]++
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
	m.checkConcurrency(t, running, active.count)
	m.checkOrders(t)
	if c.counts.rejected != m.refused {
		t.Fatalf("rejected %d, want %d", c.counts.rejected, m.refused)
	}
	byLane := make(map[*lane]tally)
	c.lanes.each(func(l *lane) {
		var sum tally
		for f := l.flows; f != nil; f = f.next {
			for p := f.head; p != nil; p = p.next {
				sum.add(p.cost)
			}
		}
		if sum != (tally{l.queued, l.queuedCost}) {
			t.Fatalf("lane %q says %d waiters of cost %d, has %v", l.id, l.queued, l.queuedCost, sum)
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
	if waiting.count > 0 && !c.fullLocked() && c.pickLocked() != nil {
		t.Fatalf("someone who could be let in waits: limit %d, held %v", c.state.limit, c.held)
	}
}

// checkConcurrency: what runs is below the bounds in force, or has not grown since they were higher.
func (m *model) checkConcurrency(t *rapid.T, running map[string]int, total int) {
	if most := m.s.MaxConcurrent; most > 0 && total > most && total > m.total {
		t.Fatalf("%d requests run, at most %d may", total, most)
	}
	for id, n := range running {
		l := m.c.lanes.peek(id)
		most := l.most
		if most == 0 {
			most = m.s.TenantMaxConcurrent
		}
		if most > 0 && n > most && n > m.running[id] {
			t.Fatalf("%d requests of lane %q run, at most %d may", n, id, most)
		}
	}
	m.running, m.total = running, total
}

// checkOrders: in its level's order is exactly who waits and may be served, and the sums over levels are those of the controller.
func (m *model) checkOrders(t *rapid.T) {
	c := m.c
	var held, waiting tally
	ranked := make(map[*priorityLevel]int)
	c.lanes.each(func(l *lane) {
		for f := l.flows; f != nil; f = f.next {
			if want := f.count > 0 && !c.laneFullLocked(l); f.ranked != want {
				t.Fatalf("flow of %q at %q is in the order: %v, want %v", l.id, f.level.name, f.ranked, want)
			}
			if f.ranked {
				ranked[f.level]++
			}
		}
	})
	sum := 0
	for _, v := range c.levels {
		if v.ranked != ranked[v] {
			t.Fatalf("level %q has %d flows in its order, want %d", v.name, v.ranked, ranked[v])
		}
		sum += v.ranked
		held.count, held.cost = held.count+v.held.count, held.cost+v.held.cost
		waiting.count, waiting.cost = waiting.count+v.waiting.count, waiting.cost+v.waiting.cost
	}
	if c.ranked != sum || waiting != c.waiting {
		t.Fatalf("%d flows in the orders, want %d; %v wait at levels, %v in all", c.ranked, sum, waiting, c.waiting)
	}
	if held.count > c.held.count || held.cost > c.held.cost {
		t.Fatalf("levels hold %v, all together %v", held, c.held)
	}
}
