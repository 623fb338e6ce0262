package telemetry

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/headgate/headgate/pkg/lease"
)

// leaseCounts is what the lease service reported.
type leaseCounts struct {
	answers *seriesSet // by pool, action and outcome
	lost    *seriesSet // by pool and reason
	calls   *seriesSet // by script and result; labels only
	pools   *seriesSet // by pool; count is expired leases
	states  *seriesSet // by pool and state: labels only

	mu    sync.Mutex
	found map[string]Pool
}

// Pool is what the last look at a pool of connections found.
type Pool struct {
	Active   int64 `json:"active"`   // connections that are leased
	Cooldown int64 `json:"cooldown"` // connections in cooldown
}

func newLeaseCounts() leaseCounts {
	return leaseCounts{
		answers: newSeriesSet(labelPool, "action", labelOutcome), lost: newSeriesSet(labelPool, labelReason),
		calls: newSeriesSet("script", labelResult), pools: newSeriesSet(labelPool), states: newSeriesSet(labelPool, "state"),
		found: map[string]Pool{},
	}
}

// LeaseObserver is what the lease service reports to.
func (m *Metrics) LeaseObserver() lease.Observer {
	l := &m.leases
	return lease.Observer{
		Answer: func(action, pool, outcome string) { l.answers.get(values{pool, action, outcome}).count.Add(1) },
		Call:   m.storeCalled,
		Lost:   func(pool, reason string) { l.lost.get(values{pool, reason}).count.Add(1) },
		Pool: func(pool string, active, cooldown, expired int64) {
			l.pools.get(values{pool}).count.Add(expired)
			l.mu.Lock()
			defer l.mu.Unlock()
			l.found[pool] = Pool{Active: active, Cooldown: cooldown}
		},
	}
}

// storeCalled counts a call of the lease store. A caller that gave up says nothing about the store.
func (m *Metrics) storeCalled(script string, took time.Duration, err error) {
	result := "ok"
	switch {
	case errors.Is(err, context.Canceled):
		result = "cancelled"
	case err != nil:
		result = "error"
	}
	m.lease.calls.Record(context.Background(), took.Seconds(), m.leases.calls.get(values{script, result}).record...)
}

// Pools is what the last look at each pool found, by pool.
func (m *Metrics) Pools() map[string]Pool {
	m.leases.mu.Lock()
	defer m.leases.mu.Unlock()
	return maps.Clone(m.leases.found)
}
