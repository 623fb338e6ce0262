package share

import (
	"context"
	"sync"
	"time"
)

// Memory is a store within the process, for tests and simulations.
type Memory struct {
	mu     sync.Mutex
	began  time.Time
	groups map[string]*memoryGroup
}

type memoryGroup struct {
	version, at int64
	limit       int
	state       []byte
	members     map[string]memoryMember
	used        time.Time
}

type memoryMember struct {
	at           int64
	claim, alone int
	record       []byte
}

// NewMemory is empty.
func NewMemory() *Memory { return &Memory{began: time.Now(), groups: make(map[string]*memoryGroup)} }

func (m *Memory) now() int64 { return int64(time.Since(m.began)/time.Millisecond) + 1 }

// Exchange implements Store.
func (m *Memory) Exchange(_ context.Context, group string, c Claim) (View, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	g := m.groups[group]
	if g == nil || time.Since(g.used) > forgetWindows*c.Window {
		g = &memoryGroup{members: make(map[string]memoryMember)}
		m.groups[group] = g
	}
	g.used = time.Now()
	now, window := m.now(), c.Window.Milliseconds()
	v := View{Now: now, Version: g.version, State: g.state}
	limit := c.Limit
	if g.state != nil {
		limit, v.Age = g.limit, time.Duration(now-g.at)*time.Millisecond
	}
	var claims, gone, known int
	for id, o := range g.members {
		age := now - o.at
		switch {
		case id == c.Member:
		case age <= validWindows*window:
			known++
			claims += o.claim
			v.Others = append(v.Others, Other{Member: id, Age: time.Duration(age) * time.Millisecond, Claim: o.claim, Record: o.record})
		case age <= forgetWindows*window:
			known++
			gone += o.alone
		default:
			delete(g.members, id)
		}
	}
	gone += c.Part * max(0, c.Replicas-1-known)
	v.Granted = max(c.Floor, min(c.Want, limit-claims, c.Most-claims-gone))
	g.members[c.Member] = memoryMember{at: now, claim: v.Granted, alone: c.Alone, record: c.Record}
	return v, nil
}

// Commit implements Store.
func (m *Memory) Commit(_ context.Context, group string, s Step) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	g := m.groups[group]
	if g == nil || g.version != s.Version {
		return false, nil
	}
	g.version, g.at, g.limit, g.state = max(g.version+1, m.now()), s.At, s.Limit, s.State
	return true, nil
}

// Leave implements Store.
func (m *Memory) Leave(_ context.Context, group, member string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if g := m.groups[group]; g != nil {
		delete(g.members, member)
	}
	return nil
}
