package admin

import (
	"time"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/budget"
	"github.com/headgate/headgate/pkg/config"
	"github.com/headgate/headgate/pkg/lease"
	"github.com/headgate/headgate/pkg/telemetry"
)

// Health is the document at /api/monitoring/health. The status page and the terminal view show nothing but this.
type Health struct {
	Status            string                       `json:"status"` // ok, draining, or degraded
	Version           string                       `json:"version"`
	GoVersion         string                       `json:"goVersion"`
	UptimeSeconds     int64                        `json:"uptimeSeconds"`
	Exchanges         Exchanges                    `json:"exchanges"`
	ChatAdmission     budget.Snapshot              `json:"chatAdmission"`
	AdaptiveAdmission map[string]adaptive.Snapshot `json:"adaptiveAdmission"` // by route cluster
	Leases            *Leases                      `json:"leases,omitempty"`
	RecentRefusals    []telemetry.Refusal          `json:"recentRefusals"` // the newest first
	Config            config.ReloadStatus          `json:"config"`
	Time              time.Time                    `json:"time"`
}

// Exchanges counts what the processor serves.
type Exchanges struct {
	InFlight int64 `json:"inFlight"` // HTTP exchanges with an open stream
}

// Leases is the state of session leases.
type Leases struct {
	Status   string          `json:"status"` // ok, or degraded: some pool's store does not answer
	Store    string          `json:"store"`  // embedded, single, sentinel or cluster
	Eviction string          `json:"evictionPolicy,omitempty"`
	Pools    map[string]Pool `json:"pools"`
}

// Pool is one pool of connections.
type Pool struct {
	lease.PoolState
	telemetry.Pool     // as of the last look at the store, a few seconds ago at most while it answers
	Connections    int `json:"connections"` // configured
}

// NewLeases puts together what the lease service knows, what its sweeps found and what is configured, by pool.
func NewLeases(s lease.State, found map[string]telemetry.Pool, connections map[string]int) *Leases {
	l := &Leases{Status: s.Status, Store: s.Store, Eviction: s.Eviction, Pools: make(map[string]Pool, len(s.Pools))}
	for name, state := range s.Pools {
		l.Pools[name] = Pool{PoolState: state, Pool: found[name], Connections: connections[name]}
	}
	return l
}
