package telemetry

import (
	"context"
	"runtime"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/budget"
	"github.com/headgate/headgate/pkg/budget/memory"
	"github.com/headgate/headgate/pkg/config"
	"github.com/headgate/headgate/pkg/lease"
	"github.com/headgate/headgate/pkg/share"
)

// Label keys that more than one instrument has.
const (
	labelCluster attribute.Key = "route_cluster"
	labelReason  attribute.Key = "reason"
	labelOutcome attribute.Key = "outcome"
	labelPool    attribute.Key = "pool"
	labelResult  attribute.Key = "result"
	labelSignal  attribute.Key = "signal"
	labelLevel   attribute.Key = "level"
)

// Sources are what gauges are read from when somebody scrapes. Those that are nil are left out. They must be safe to
// call at any time and from several goroutines.
type Sources struct {
	Bytes       func() budget.Snapshot
	Signals     func() map[string]float64           // pressure signals by name, as last sampled; unknown ones are absent
	Lanes       func() map[string]adaptive.Snapshot // without the lanes' own figures
	Streams     func() int64
	Config      func() config.ReloadStatus
	Leases      func() lease.State
	Sharing     func() map[string]share.Status // by route cluster
	Connections func() map[string]int          // configured connections by lease pool
}

// Observe sets what the gauges are read from. Until it is called they are absent.
func (m *Metrics) Observe(s Sources) { m.sources.Store(&s) }

// collect reads everything that is observed.
func (m *Metrics) collect(_ context.Context, o metric.Observer) error {
	m.collectDecisions(o)
	s := m.sources.Load()
	if s == nil {
		s = &Sources{}
	}
	o.ObserveInt64(m.config.build, 1, metric.WithAttributes(attribute.String("version", m.version), attribute.String("go_version", runtime.Version())))
	if s.Streams != nil {
		o.ObserveInt64(m.exchange.streams, s.Streams())
	}
	if s.Bytes != nil {
		m.collectBudget(o, s.Bytes())
	}
	if s.Signals != nil {
		m.collectPressure(o, s.Signals())
	}
	if s.Lanes != nil {
		for cluster, snapshot := range s.Lanes() {
			m.collectLanes(o, cluster, snapshot)
		}
	}
	if s.Sharing != nil {
		for cluster, status := range s.Sharing() {
			m.collectSharing(o, cluster, status)
		}
	}
	if s.Config != nil {
		m.collectConfig(o, s.Config())
	}
	m.collectLeases(o, s)
	return nil
}

// collectDecisions shows what a single event of matters before the first one: for Prometheus, a counter that begins at 1 has not
// increased.
func (m *Metrics) collectDecisions(o metric.Observer) {
	for v := range m.clusters.all() {
		m.decisions.get(values{v[0], reasonNeverFits})
	}
	for v, c := range m.decisions.all() {
		o.ObserveInt64(m.exchange.decisions, c.count.Load(), c.observe...)
		switch v[1] {
		case reasonAdmitted:
			o.ObserveInt64(m.exchange.admitted, c.bytes.Load(), m.clusters.get(values{v[0]}).observe...)
		case reasonGone:
		default:
			o.ObserveInt64(m.exchange.refused, c.bytes.Load(), c.observe...)
		}
	}
	for _, c := range m.clusters.all() {
		o.ObserveInt64(m.exchange.idled, c.count.Load(), c.observe...)
	}
	for _, c := range m.wouldReject.all() {
		o.ObserveInt64(m.exchange.wouldReject, c.count.Load(), c.observe...)
	}
}

func (m *Metrics) collectBudget(o metric.Observer, s budget.Snapshot) {
	o.ObserveInt64(m.budget.used, s.InflightBytes)
	o.ObserveInt64(m.budget.limit, s.MaxInflightBytes, metric.WithAttributes(attribute.String("source", string(s.BudgetSource))))
	o.ObserveInt64(m.budget.ceiling, s.EffectiveCeiling)
	o.ObserveInt64(m.budget.heavy, int64(s.ActiveHeavy+s.ActiveHealthyHeadroom))
	o.ObserveInt64(m.budget.waiting, int64(s.Waiting))
	o.ObserveInt64(m.budget.waitingBytes, s.QueuedBytes)
	severity := int64(0)
	switch s.PressureSeverity {
	case "high":
		severity = 1
	case "critical":
		severity = 2
	}
	o.ObserveInt64(m.budget.severity, severity)
}

// collectPressure shows each signal in the instrument of its unit.
func (m *Metrics) collectPressure(o metric.Observer, signals map[string]float64) {
	for signal, value := range signals {
		label := metric.WithAttributes(labelSignal.String(signal))
		switch signal {
		case memory.SignalMemoryRatio, memory.SignalMemoryHigh:
			o.ObserveFloat64(m.budget.memory, value, label)
		case memory.SignalPSISome, memory.SignalPSIFull:
			o.ObserveFloat64(m.budget.stall, value, label)
		case memory.SignalOOM, memory.SignalOOMKill:
			o.ObserveInt64(m.budget.oom, int64(value), label)
		}
	}
}

func (m *Metrics) collectLanes(o metric.Observer, cluster string, s adaptive.Snapshot) {
	labels := m.clusters.get(values{cluster}).observe
	o.ObserveInt64(m.lane.limit, int64(s.CurrentLimit), labels...)
	o.ObserveInt64(m.lane.activeCost, int64(s.ActiveCost), labels...)
	o.ObserveInt64(m.lane.active, int64(s.ActiveCount), labels...)
	o.ObserveInt64(m.lane.queuedCost, int64(s.QueuedCost+s.LaneQueuedCost+s.VirtualQueuedCost), labels...)
	o.ObserveInt64(m.lane.queued, int64(s.QueuedCount+s.LaneQueuedCount+s.VirtualQueuedCount), labels...)
	o.ObserveInt64(m.lane.lanes, int64(s.LaneCount), labels...)
	o.ObserveFloat64(m.lane.utilization, s.Utilization, labels...)
	if s.MaxConcurrent > 0 {
		o.ObserveInt64(m.lane.maxConcurrent, int64(s.MaxConcurrent), labels...)
	}
	for _, l := range s.Levels {
		observe := m.levels.get(values{cluster, l.Name}).observe
		o.ObserveInt64(m.lane.levelActive, int64(l.ActiveCount), observe...)
		o.ObserveInt64(m.lane.levelQueued, int64(l.QueuedCount), observe...)
	}
	if s.Signal != "" {
		for _, signal := range []adaptive.Signal{adaptive.FromHeaders, adaptive.FromWitness, adaptive.FromBody} {
			o.ObserveInt64(m.lane.signal, oneIf(signal == s.Signal), m.signals.get(values{cluster, string(signal)}).observe...)
		}
		o.ObserveInt64(m.lane.headersAtOnce, oneIf(s.HeadersAtOnce), labels...)
	}
	for reason, n := range s.StepCounts {
		o.ObserveInt64(m.lane.steps, n, m.steps.get(values{cluster, string(reason)}).observe...)
	}
	if s.Mode == adaptive.Shadow {
		o.ObserveInt64(m.lane.shadow, s.WouldAdmitCount, m.outcomes.get(values{cluster, "admit"}).observe...)
		o.ObserveInt64(m.lane.shadow, s.WouldQueueCount, m.outcomes.get(values{cluster, "queue"}).observe...)
		o.ObserveInt64(m.lane.shadow, s.WouldRejectCount, m.outcomes.get(values{cluster, "reject"}).observe...)
	}
	if s.VirtualFanoutProbed > 0 {
		o.ObserveInt64(m.lane.probes, s.VirtualFanoutProbed-s.VirtualFanoutSkipped, m.outcomes.get(values{cluster, "admit"}).observe...)
		o.ObserveInt64(m.lane.probes, s.VirtualFanoutSkipped, m.outcomes.get(values{cluster, "skip"}).observe...)
	}
}

func (m *Metrics) collectSharing(o metric.Observer, cluster string, s share.Status) {
	labels := m.clusters.get(values{cluster}).observe
	o.ObserveInt64(m.share.limit, int64(s.Limit), labels...)
	o.ObserveInt64(m.share.part, int64(s.Share), labels...)
	o.ObserveInt64(m.share.members, int64(s.Members), labels...)
	o.ObserveInt64(m.share.stale, oneIf(s.Stale), labels...)
	o.ObserveInt64(m.share.failures, s.Failures, labels...)
}

func (m *Metrics) collectConfig(o metric.Observer, s config.ReloadStatus) {
	o.ObserveInt64(m.config.reloads, s.Count, metric.WithAttributes(labelResult.String("success")))
	o.ObserveInt64(m.config.reloads, s.Failures, metric.WithAttributes(labelResult.String("failure")))
	o.ObserveInt64(m.config.info, 1, metric.WithAttributes(attribute.String("hash", s.Hash)))
	o.ObserveInt64(m.config.lastReloadOK, oneIf(s.LastSuccess))
	if !s.At.IsZero() {
		o.ObserveFloat64(m.config.lastReload, float64(s.At.UnixMilli())/1000)
	}
}

func (m *Metrics) collectLeases(o metric.Observer, s *Sources) {
	l := &m.leases
	var configured map[string]int
	if s.Connections != nil {
		configured = s.Connections()
	}
	for pool := range configured {
		for _, reason := range lease.LostReasons() {
			l.lost.get(values{pool, string(reason)}) // as with decisions
		}
	}
	for _, c := range l.answers.all() {
		o.ObserveInt64(m.lease.answers, c.count.Load(), c.observe...)
	}
	for _, c := range l.lost.all() {
		o.ObserveInt64(m.lease.lost, c.count.Load(), c.observe...)
	}
	for _, c := range l.pools.all() {
		o.ObserveInt64(m.lease.expired, c.count.Load(), c.observe...)
	}
	if s.Leases != nil {
		for pool, found := range s.Leases().Pools {
			for _, state := range []string{"closed", "half-open", "open"} {
				o.ObserveInt64(m.lease.breaker, oneIf(state == found.Breaker), l.states.get(values{pool, state}).observe...)
			}
		}
	}
	m.collectPools(o, configured)
}

func (m *Metrics) collectPools(o metric.Observer, configured map[string]int) {
	l := &m.leases
	for pool, found := range m.Pools() {
		n, ok := configured[pool]
		if !ok {
			continue // taken out of the configuration
		}
		o.ObserveInt64(m.lease.connections, int64(n), l.states.get(values{pool, "configured"}).observe...)
		o.ObserveInt64(m.lease.connections, found.Active, l.states.get(values{pool, "active"}).observe...)
		o.ObserveInt64(m.lease.connections, found.Cooldown, l.states.get(values{pool, "cooldown"}).observe...)
		if n > 0 {
			o.ObserveFloat64(m.lease.saturation, min(1, float64(found.Active+found.Cooldown)/float64(n)), l.pools.get(values{pool}).observe...)
		}
	}
}

func oneIf(is bool) int64 {
	if is {
		return 1
	}
	return 0
}
