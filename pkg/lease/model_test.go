package lease_test

import (
	"slices"
	"time"

	"github.com/headgate/headgate/pkg/lease"
)

// The reference model: the state table in plain maps.
type model struct {
	ttl, maxHold time.Duration
	bound        map[string]*modelLease // the last lease bound to a connection, live or not
	where        map[int]string         // connection of an owner's last lease
	ended        map[string]modelEnded  // the last lease that ended on a connection
	cooldown     map[string]time.Time   // by connection
	known        map[string]span        // when the cooldowns end that the service has set itself: it does not repeat them
	number       int64                  // the pool's last one
	highest      int64                  // ever handed out, over all losses
	top          map[string]int64       // highest fencing token a connection was sent
	connections  map[string][]string    // candidates by model
}

type modelLease struct {
	owner                      int
	principal, name            string // name of the model
	connection                 string
	generation, token          int64
	acquired, renewed, expires time.Time
}

type modelEnded struct {
	modelLease
	released bool
}

func newModel(ttl, maxHold time.Duration) *model {
	return &model{
		ttl: ttl, maxHold: maxHold, bound: map[string]*modelLease{}, where: map[int]string{}, ended: map[string]modelEnded{},
		cooldown: map[string]time.Time{}, known: map[string]span{}, top: map[string]int64{},
		connections: map[string][]string{"": {"acct-1", "acct-2", "acct-3"}, "small": {"acct-1", "acct-2", "acct-3"}, "large": {"acct-2", "acct-3"}, "none": nil},
	}
}

// live is the owner's live lease, nil without one.
func (m *model) live(owner int, now time.Time) *modelLease {
	l := m.bound[m.where[owner]]
	if l == nil || l.owner != owner || !l.expires.After(now) {
		return nil
	}
	return l
}

func (m *model) end(l *modelLease, released bool) {
	c := l.connection
	if before, was := m.ended[c]; was && before.owner != l.owner {
		m.forget(before.owner, c)
	}
	delete(m.bound, c)
	m.ended[c] = modelEnded{*l, released}
}

// bind puts a lease on a connection.
func (m *model) bind(l modelLease) {
	if old := m.bound[l.connection]; old != nil && old.owner != l.owner {
		m.forget(old.owner, l.connection)
	}
	m.bound[l.connection] = &l
	m.where[l.owner] = l.connection
}

func (m *model) forget(owner int, connection string) {
	if m.where[owner] == connection {
		delete(m.where, owner)
	}
}

// lose is the loss of all that the store holds.
func (m *model) lose() {
	clear(m.bound)
	clear(m.where)
	clear(m.ended)
	clear(m.cooldown)
	m.number = 0
}

// free says whether a connection can be bound by an owner without a lease.
func (m *model) free(c string, owner int, now time.Time) bool {
	l := m.bound[c]
	return l == nil || !l.expires.After(now) || l.owner == owner
}

func (m *model) cooling(c string, now time.Time) bool { return m.cooldown[c].After(now) }

// candidates serve all the models.
func (m *model) candidates(names ...string) []string {
	return slices.DeleteFunc(slices.Clone(m.connections[""]), func(c string) bool {
		return slices.ContainsFunc(names, func(name string) bool { return !slices.Contains(m.connections[name], c) })
	})
}

// nextEdge is the first moment after now at which some answer changes by itself.
func (m *model) nextEdge(now time.Time) time.Time {
	edge := now.Add(time.Hour)
	consider := func(t time.Time) {
		if t.After(now) && t.Before(edge) {
			edge = t
		}
	}
	for _, l := range m.bound {
		consider(l.expires)
	}
	for _, t := range m.cooldown {
		consider(t)
	}
	for _, end := range m.known {
		consider(end.from)
		consider(end.to)
	}
	return edge
}

// span is when something happened, as far as two readings of the clock tell.
type span struct{ from, to time.Time }

// unsure is when it is known again what the service knows: until then one of its cooldowns may have ended, or not.
func (m *model) unsure(now time.Time) time.Time {
	until := now
	for _, end := range m.known {
		if !end.from.After(now) && end.to.After(until) {
			until = end.to
		}
	}
	return until
}

// choose says which of the candidates is taken, or why none is.
func (m *model) choose(candidates []string, owner int, except string, now time.Time) (connection, refusal string) {
	if len(candidates) == 0 {
		return "", string(lease.NoEligibleConnection)
	}
	refusal = string(lease.EligibilityUnavailable)
	for _, c := range candidates {
		switch {
		case m.cooling(c, now):
		case !m.free(c, owner, now):
			refusal = string(lease.CapacityUnavailable)
		case c != except:
			return c, ""
		}
	}
	return "", refusal
}

// acquire says which outcome and connection an acquire has.
func (m *model) acquire(owner int, principal, name string, now time.Time) (outcome, connection string) {
	candidates := m.candidates(name)
	if l := m.live(owner, now); l != nil && len(candidates) > 0 {
		if l.principal != principal || !slices.Contains(candidates, l.connection) {
			return string(lease.FenceStale), ""
		}
		return "REUSED", l.connection
	}
	connection, refusal := m.choose(candidates, owner, "", now)
	if refusal != "" {
		return refusal, ""
	}
	return "ACQUIRED", connection
}

// unmanaged says which connection a request without a lease gets: the last that is free.
func (m *model) unmanaged(name string, now time.Time) (outcome, connection string) {
	candidates := m.candidates(name)
	slices.Reverse(candidates)
	connection, refusal := m.choose(candidates, 0, "", now) // owner 0 never has a lease
	if refusal != "" {
		return refusal, ""
	}
	delete(m.known, connection)
	return "FREE", connection
}

// check says what the fence answers, and where the lease is afterwards. A lease that moves gets its token from the answer.
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
	candidates := m.candidates(l.name, name)
	eligible := slices.Contains(candidates, l.connection)
	if eligible && !m.cooling(l.connection, now) {
		delete(m.known, l.connection)
		return "VALID", l.connection
	}
	if eligible && pin != "" {
		return string(lease.EligibilityUnavailable), ""
	}
	to, refusal := m.choose(candidates, owner, l.connection, now)
	if to == "" {
		m.end(l, false)
		if len(candidates) > 0 {
			refusal = string(lease.EligibilityUnavailable)
		}
		return refusal, ""
	}
	moved := *l
	moved.connection = to
	delete(m.bound, l.connection)
	m.bind(moved)
	if pin != "" {
		return string(lease.ConnectionMismatch), ""
	}
	return "MOVED", to
}
