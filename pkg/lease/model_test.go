package lease_test

import (
	"slices"
	"time"

	"github.com/headgate/headgate/pkg/lease"
)

// The reference model: the state table in plain maps. It knows two halves of each lease, as the store does, so that losing
// one is part of the game.
type model struct {
	ttl, maxHold time.Duration
	leases       map[int]*modelLease   // by owner
	holders      map[string]modelLease // by connection
	ended        map[int]modelEnded    // by owner
	rests        map[string]time.Time  // by connection
	generation   int64                 // last of the pool
	highest      int64                 // ever handed out, over all losses
	connections  map[string][]string   // candidates by model
}

type modelLease struct {
	owner                      int
	principal                  string
	connection                 string
	generation                 int64
	acquired, renewed, expires time.Time
}

type modelEnded struct {
	modelLease
	released bool
}

func newModel(ttl, maxHold time.Duration) *model {
	return &model{
		ttl: ttl, maxHold: maxHold, leases: map[int]*modelLease{}, holders: map[string]modelLease{}, ended: map[int]modelEnded{},
		rests:       map[string]time.Time{},
		connections: map[string][]string{"": {"acct-1", "acct-2", "acct-3"}, "small": {"acct-1", "acct-2", "acct-3"}, "large": {"acct-2", "acct-3"}, "none": nil},
	}
}

// live is the owner's live lease, nil without one.
func (m *model) live(owner int, now time.Time) *modelLease {
	l := m.leases[owner]
	if l == nil || !l.expires.After(now) {
		return nil
	}
	if h, held := m.holders[l.connection]; !held || h.owner != owner || h.generation != l.generation {
		return nil
	}
	return l
}

func (m *model) set(l modelLease) {
	m.leases[l.owner] = &l
	m.holders[l.connection] = l
}

func (m *model) end(l *modelLease, released bool) {
	delete(m.leases, l.owner)
	delete(m.holders, l.connection)
	m.ended[l.owner] = modelEnded{*l, released}
}

// free says whether a connection can be bound by an owner without a lease.
func (m *model) free(c string, owner int, now time.Time) bool {
	h, held := m.holders[c]
	return !held || !h.expires.After(now) || h.owner == owner
}

func (m *model) resting(c string, now time.Time) bool { return m.rests[c].After(now) }

// nextEdge is the first moment after now at which some answer changes by itself.
func (m *model) nextEdge(now time.Time) time.Time {
	edge := now.Add(time.Hour)
	consider := func(t time.Time) {
		if t.After(now) && t.Before(edge) {
			edge = t
		}
	}
	for _, l := range m.leases {
		consider(l.expires)
	}
	for _, l := range m.holders {
		consider(l.expires)
	}
	for _, t := range m.rests {
		consider(t)
	}
	return edge
}

// acquire says which outcome and connection an acquire has.
func (m *model) acquire(owner int, principal, name string, now time.Time) (outcome, connection string) {
	candidates := m.connections[name]
	if len(candidates) == 0 {
		return string(lease.NoEligibleConnection), ""
	}
	if l := m.live(owner, now); l != nil {
		if l.principal != principal || !slices.Contains(candidates, l.connection) {
			return string(lease.FenceStale), ""
		}
		return "REUSED", l.connection
	}
	awake := 0
	for _, c := range candidates {
		if m.resting(c, now) {
			continue
		}
		awake++
		if m.free(c, owner, now) {
			return "ACQUIRED", c
		}
	}
	if awake > 0 {
		return string(lease.CapacityUnavailable), ""
	}
	return string(lease.EligibilityUnavailable), ""
}

// check says what the fence answers, and where the lease is afterwards.
func (m *model) check(owner int, principal string, generation int64, pin, name string, now time.Time) (outcome, connection string) {
	l := m.live(owner, now)
	switch {
	case l == nil:
		return string(lease.LeaseRequired), ""
	case l.generation != generation || l.principal != principal:
		return string(lease.FenceStale), ""
	case pin != "" && pin != l.connection:
		return string(lease.ConnectionMismatch), ""
	}
	candidates := m.connections[name]
	eligible := slices.Contains(candidates, l.connection)
	if eligible && !m.resting(l.connection, now) {
		return "VALID", l.connection
	}
	if eligible && pin != "" {
		return string(lease.EligibilityUnavailable), ""
	}
	for _, c := range candidates {
		if c != l.connection && m.free(c, owner, now) && !m.resting(c, now) {
			moved := *l
			moved.connection = c
			delete(m.holders, l.connection)
			m.set(moved)
			if pin != "" {
				return string(lease.ConnectionMismatch), ""
			}
			return "MOVED", c
		}
	}
	m.end(l, false)
	if len(candidates) == 0 {
		return string(lease.NoEligibleConnection), ""
	}
	return string(lease.EligibilityUnavailable), ""
}
