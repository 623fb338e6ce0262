package lease

import (
	"context"
	"strings"
	"time"
)

// healthyAfter is how long a pool's breaker must have been closed before the component is called healthy again, so that a
// store that loses half of its answers does not make it flap.
const healthyAfter = 2 * time.Second

// State is the health report of the component.
type State struct {
	Status   string               `json:"status"` // ok, or degraded: some pool's store does not answer
	Store    string               `json:"store"`  // embedded, single, sentinel or cluster
	Eviction string               `json:"evictionPolicy,omitempty"`
	Pools    map[string]PoolState `json:"pools"`
}

// PoolState is one pool's part of it.
type PoolState struct {
	Status  string `json:"status"`
	Breaker string `json:"breaker"`         // closed, half-open or open
	Error   string `json:"error,omitempty"` // the last failure, while degraded
}

// State reports without asking the store.
func (s *Service) State() State {
	v := s.view()
	st := State{Status: "ok", Store: v.store.kind, Eviction: v.store.evictionPolicy(), Pools: map[string]PoolState{}}
	for _, name := range v.poolNames {
		b := v.store.shard(v.pools[name]).breaker
		state, _ := b.now()
		p := PoolState{Status: "ok", Breaker: state}
		if err := b.healthy(); err != nil {
			p.Status, p.Error = "degraded", err.Error()
			st.Status = "degraded"
		}
		st.Pools[name] = p
	}
	return st
}

// checkEviction warns when the server may evict keys: leases would be lost before they expire. It says whether it could
// look; a server that hides its settings counts as looked at.
func (s *store) checkEviction(ctx context.Context) bool {
	server, ok := s.engine.(interface {
		evictionPolicy(context.Context) (string, error)
	})
	if !ok {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, 4*s.timeout)
	defer cancel()
	policy, err := server.evictionPolicy(ctx)
	if err != nil {
		denied := strings.HasPrefix(err.Error(), "NOPERM")
		if denied {
			s.log.Debug("the store does not show its eviction policy", "error", err)
		}
		return denied
	}
	s.mu.Lock()
	changed := s.eviction != policy
	s.eviction = policy
	s.mu.Unlock()
	if changed && policy != "noeviction" && policy != "" {
		s.log.Warn("the store may evict leases before they expire: set maxmemory-policy to noeviction", "policy", policy)
	}
	return true
}

func (s *store) evictionPolicy() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.eviction
}

func infoField(info, name string) string {
	for line := range strings.Lines(info) {
		if value, found := strings.CutPrefix(strings.TrimSpace(line), name+":"); found {
			return value
		}
	}
	return ""
}
