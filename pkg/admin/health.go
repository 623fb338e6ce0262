package admin

import (
	"slices"
	"time"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/budget"
	"github.com/headgate/headgate/pkg/config"
	"github.com/headgate/headgate/pkg/lease"
	"github.com/headgate/headgate/pkg/share"
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
	Sharing           map[string]share.Status      `json:"sharing,omitempty"` // by route cluster, of those that share their limit
	Leases            *Leases                      `json:"leases,omitempty"`
	Traffic           Traffic                      `json:"traffic"`
	RecentRefusals    []telemetry.Refusal          `json:"recentRefusals"` // the newest first
	Config            config.ReloadStatus          `json:"config"`
	Time              time.Time                    `json:"time"`
}

// Traffic says what of the configuration the traffic does not meet; Envoy's side of it is often the cause, which extproc doctor finds.
type Traffic struct {
	RequestsWithoutTenant int64    `json:"requestsWithoutTenant"` // since the start, in which no tenant source had a value; 0 without sources
	UnseenClusters        []string `json:"unseenClusters"`        // entries of clusters that no request was for since the start
}

// NewTraffic compares the configured clusters with those that were seen.
func NewTraffic(withoutTenant int64, c *config.Config, seen map[string]adaptive.Snapshot) Traffic {
	t := Traffic{RequestsWithoutTenant: withoutTenant, UnseenClusters: []string{}}
	for name, cluster := range c.Clusters {
		if _, ok := seen[name]; !ok && name != config.AnyCluster && cluster.Lanes.Mode != adaptive.Off {
			t.UnseenClusters = append(t.UnseenClusters, name)
		}
	}
	slices.Sort(t.UnseenClusters)
	return t
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
