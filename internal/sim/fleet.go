package sim

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/share"
)

// Route says which of a fleet's members a tenant's request reaches.
type Route func(rng *rand.Rand, now time.Duration, tenant string) int

// Evenly spreads every tenant's requests over n members.
func Evenly(n int) Route {
	return func(rng *rand.Rand, _ time.Duration, _ string) int { return rng.IntN(n) }
}

// Lopsided sends one of n members factor times as much as each of the others: the first, or each in turn for a while.
func Lopsided(n int, factor float64, turn time.Duration) Route {
	return func(rng *rand.Rand, now time.Duration, _ string) int {
		first := 0
		if turn > 0 {
			first = int(now/turn) % n
		}
		pick := rng.Float64() * (factor + float64(n-1))
		if pick < factor {
			return first
		}
		return (first + 1 + int(pick-factor)) % n
	}
}

// fleet is several controllers before one upstream, each of them for the requests that reach it.
type fleet struct {
	headgate // a ticket knows its own controller
	members  []*fleetMember
	settings adaptive.Settings
	route    Route
	rng      *rand.Rand
	began    time.Time
	store    *faultyStore // nil: the members know nothing of each other
	running  sync.WaitGroup
}

// fleetMember is one sidecar.
type fleetMember struct {
	controller *adaptive.Controller
	stop       context.CancelFunc
	frozen     bool // nothing reaches it, and it does nothing
	store      *faultyStore
}

// Fleet is n controllers with the same settings, which know nothing of each other.
func Fleet(n int, s adaptive.Settings, route Route) Factory {
	return func(settled chan<- *Exchange) (Limiter, error) {
		f := &fleet{
			headgate: headgate{settled: settled, perTenant: true}, settings: s, route: route,
			rng: rand.New(rand.NewPCG(uint64(n), 0xf1ee7)), began: time.Now(),
		}
		for range n {
			c, err := adaptive.New(s)
			if err != nil {
				return nil, err
			}
			f.members = append(f.members, &fleetMember{controller: c})
		}
		return f, nil
	}
}

// SharingFleet is n controllers that share one limit through a store.
func SharingFleet(n int, s adaptive.Settings, route Route) Factory {
	return func(settled chan<- *Exchange) (Limiter, error) {
		l, err := Fleet(n, s, route)(settled)
		if err != nil {
			return nil, err
		}
		f := l.(*fleet)
		f.store = &faultyStore{Store: share.NewMemory()}
		for i := range f.members {
			f.join(i, time.Duration(f.rng.Float64()*float64(s.Window)))
		}
		return f, nil
	}
}

// join has a member exchange with the others, from a while from now on.
func (f *fleet) join(i int, after time.Duration) {
	m := f.members[i]
	ctx, stop := context.WithCancel(context.Background())
	m.stop, m.store = stop, &faultyStore{Store: f.store}
	member := share.NewMember("sim", m.controller, m.store, func() adaptive.Settings { return f.settings })
	f.running.Go(func() {
		select {
		case <-time.After(after):
			member.Run(ctx)
		case <-ctx.Done():
		}
	})
}

// freeze stops a member, or lets it go on. What it has let in goes on.
func (f *fleet) freeze(i int, frozen bool) {
	f.members[i].frozen = frozen
	f.members[i].store.away(frozen)
}

// Enter goes to a member that is up.
func (f *fleet) Enter(x *Exchange, tenant string) Answer {
	i := f.route(f.rng, time.Since(f.began), tenant)
	for f.members[i].frozen {
		i = (i + 1) % len(f.members)
	}
	h := headgate{controller: f.members[i].controller, settled: f.settled, perTenant: f.perTenant}
	return h.Enter(x, tenant)
}

// Limit is the sum of the members' limits.
func (f *fleet) Limit() (limit, utilization float64) {
	for _, m := range f.members {
		if m.frozen {
			continue
		}
		s := m.controller.Totals()
		limit += float64(s.CurrentLimit)
		utilization += s.Utilization / float64(len(f.members))
	}
	return limit, utilization
}

// Close ends the exchange and checks every member.
func (f *fleet) Close() error {
	for _, m := range f.members {
		if m.stop != nil {
			m.stop()
		}
	}
	f.running.Wait()
	var first error
	for _, m := range f.members {
		h := headgate{controller: m.controller}
		first = cmp.Or(first, h.Close())
	}
	return first
}

// faultyStore does not answer while it is away.
type faultyStore struct {
	share.Store
	mu   sync.Mutex
	gone bool
}

var errAway = errors.New("the store is away")

func (s *faultyStore) away(gone bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone = gone
}

func (s *faultyStore) err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return errAway
	}
	return nil
}

func (s *faultyStore) Exchange(ctx context.Context, group string, c share.Claim) (share.View, error) {
	if err := s.err(); err != nil {
		return share.View{}, err
	}
	return s.Store.Exchange(ctx, group, c)
}

func (s *faultyStore) Commit(ctx context.Context, group string, step share.Step) (bool, error) {
	if err := s.err(); err != nil {
		return false, err
	}
	return s.Store.Commit(ctx, group, step)
}
