package sim

import (
	"cmp"
	"math/rand/v2"

	"github.com/headgate/headgate/pkg/adaptive"
)

// Route says which of a fleet's members a tenant's request reaches.
type Route func(rng *rand.Rand, tenant string) int

// Evenly spreads every tenant's requests over n members.
func Evenly(n int) Route { return func(rng *rand.Rand, _ string) int { return rng.IntN(n) } }

// Lopsided sends the first of n members factor times as much as each of the others.
func Lopsided(n int, factor float64) Route {
	return func(rng *rand.Rand, _ string) int {
		if pick := rng.Float64() * (factor + float64(n-1)); pick >= factor {
			return 1 + int(pick-factor)
		}
		return 0
	}
}

// fleet is several controllers before one upstream, each of them for the requests that reach it.
type fleet struct {
	headgate // of the first member; a ticket knows its own controller
	members  []*adaptive.Controller
	route    Route
	rng      *rand.Rand
	down     map[int]bool
}

// Fleet is n controllers with the same settings, which know nothing of each other.
func Fleet(n int, s adaptive.Settings, route Route) Factory {
	return func(settled chan<- *Exchange) (Limiter, error) { return newFleet(n, s, route, settled) }
}

func newFleet(n int, s adaptive.Settings, route Route, settled chan<- *Exchange) (*fleet, error) {
	f := &fleet{route: route, rng: rand.New(rand.NewPCG(uint64(n), 0xf1ee7)), down: make(map[int]bool)}
	for range n {
		c, err := adaptive.New(s)
		if err != nil {
			return nil, err
		}
		f.members = append(f.members, c)
	}
	f.headgate = headgate{settled: settled, perTenant: true}
	return f, nil
}

// Enter goes to a member that is up.
func (f *fleet) Enter(x *Exchange, tenant string) Answer {
	member := f.route(f.rng, tenant)
	for f.down[member] {
		member = (member + 1) % len(f.members)
	}
	h := headgate{controller: f.members[member], settled: f.settled, perTenant: f.perTenant}
	return h.Enter(x, tenant)
}

// Limit is the sum of the members' limits.
func (f *fleet) Limit() (limit, utilization float64) {
	for i, c := range f.members {
		if f.down[i] {
			continue
		}
		s := c.Totals()
		limit += float64(s.CurrentLimit)
		utilization += s.Utilization / float64(len(f.members))
	}
	return limit, utilization
}

// Close checks every member.
func (f *fleet) Close() error {
	var first error
	for _, c := range f.members {
		h := headgate{controller: c}
		first = cmp.Or(first, h.Close())
	}
	return first
}
