package telemetry

import (
	"errors"

	"go.opentelemetry.io/otel/metric"
)

// scope is the instrumentation scope of metrics and spans.
const scope = "github.com/headgate/headgate"

// instruments are all that Headgate measures. Counters are observable like the gauges: requests add to atomics, which
// are read when somebody scrapes. Only histograms are recorded into directly.
type instruments struct {
	exchange exchangeInstruments
	budget   budgetInstruments
	lane     laneInstruments
	share    shareInstruments
	lease    leaseInstruments
	config   configInstruments
}

type exchangeInstruments struct {
	decisions, admitted, refused, wouldReject, idled metric.Int64ObservableCounter
	decisionTime, byteWait, laneWait, firstByte      metric.Float64Histogram
	streams                                          metric.Int64ObservableGauge
}

type budgetInstruments struct {
	used, limit, ceiling, heavy, waiting, waitingBytes, severity metric.Int64ObservableGauge
	memory, stall                                                metric.Float64ObservableGauge
	oom                                                          metric.Int64ObservableCounter
}

type shareInstruments struct {
	limit, part, members, stale metric.Int64ObservableGauge
	failures                    metric.Int64ObservableCounter
}

type laneInstruments struct {
	limit, activeCost, active, queuedCost, queued, lanes metric.Int64ObservableGauge
	levelActive, levelQueued, maxConcurrent              metric.Int64ObservableGauge
	utilization                                          metric.Float64ObservableGauge
	signal, headersAtOnce                                metric.Int64ObservableGauge
	steps, shadow, probes                                metric.Int64ObservableCounter
}

type leaseInstruments struct {
	answers, lost, expired metric.Int64ObservableCounter
	connections, breaker   metric.Int64ObservableGauge
	saturation             metric.Float64ObservableGauge
	calls                  metric.Float64Histogram
}

type configInstruments struct {
	reloads                   metric.Int64ObservableCounter
	info, build, lastReloadOK metric.Int64ObservableGauge
	lastReload                metric.Float64ObservableGauge
}

// declare makes every instrument. It returns those that are observed too, for the callback that reads them.
func declare(meter metric.Meter) (*instruments, []metric.Observable, error) {
	d := &declarer{meter: meter}
	i := &instruments{
		exchange: exchangeInstruments{
			decisions:    d.counter("headgate.decisions", "{decision}", "Decisions, by route cluster and reason."),
			admitted:     d.counter("headgate.admitted", "By", "Body bytes of admitted exchanges, declared or seen at the decision, by route cluster."),
			refused:      d.counter("headgate.refused", "By", "Body bytes of refused exchanges, declared or seen at the decision, by route cluster and reason."),
			wouldReject:  d.counter("headgate.would_reject", "{exchange}", "Exchanges in observability mode that would have been refused, by route cluster and reason."),
			idled:        d.counter("headgate.decisions.idled", "{decision}", "Decisions taken because the upload paused, by route cluster."),
			decisionTime: d.seconds("headgate.decision.duration", "Time from the request headers to the decision, waits included, by route cluster.", fine),
			byteWait:     d.seconds("headgate.byte.wait.duration", "Time that exchanges waited for bytes of the budget before they were decided, by route cluster; those that did not wait are left out.", fine),
			laneWait:     d.seconds("headgate.lane.wait.duration", "Time that exchanges waited in a lane of their route cluster; those that did not wait are left out.", fine),
			firstByte:    d.seconds("headgate.first_byte.duration", "Time from the decision to the response headers, by route cluster.", coarse),
			streams:      d.gauge("headgate.streams", "{stream}", "Exchanges in flight: open ext_proc streams."),
		},
		budget: budgetInstruments{
			used:         d.gauge("headgate.budget.used", "By", "Bytes reserved in the byte budget."),
			limit:        d.gauge("headgate.budget.limit", "By", "The byte budget, by where its ceiling comes from."),
			ceiling:      d.gauge("headgate.budget.ceiling", "By", "The memory ceiling that the byte budget derives from."),
			heavy:        d.gauge("headgate.budget.heavy", "{exchange}", "Exchanges that hold bytes of the budget."),
			waiting:      d.gauge("headgate.budget.waiting.exchanges", "{exchange}", "Exchanges that wait for bytes of the budget."),
			waitingBytes: d.gauge("headgate.budget.waiting", "By", "Bytes that exchanges wait for."),
			severity:     d.gauge("headgate.pressure.severity", "{level}", "Resource pressure: 0 normal, 1 high, 2 critical."),
			memory:       d.value("headgate.pressure.memory", "1", "Memory in use over each limit, as last sampled, 0 to 1."),
			stall:        d.value("headgate.pressure.stall", "%", "Time that tasks stalled for memory in the last 10 s, in percent, as last sampled."),
			oom:          d.counter("headgate.pressure.oom_events", "{event}", "Times that the cgroup ran out of memory, and processes killed for it, since the cgroup exists."),
		},
		lane: laneInstruments{
			limit:         d.gauge("headgate.lane.limit", "{cost}", "The adaptive limit, in cost units, by route cluster."),
			activeCost:    d.gauge("headgate.lane.active.cost", "{cost}", "Cost of what the lanes admitted and is in flight, by route cluster."),
			active:        d.gauge("headgate.lane.active.exchanges", "{exchange}", "Exchanges that the lanes admitted and are in flight, by route cluster."),
			queuedCost:    d.gauge("headgate.lane.queued.cost", "{cost}", "Cost of what waits in lanes, by route cluster; in shadow mode, of what would wait."),
			queued:        d.gauge("headgate.lane.queued.exchanges", "{exchange}", "Exchanges that wait in lanes, by route cluster; in shadow mode, those that would wait."),
			lanes:         d.gauge("headgate.lane.lanes", "{lane}", "Lanes that exist, by route cluster."),
			levelActive:   d.gauge("headgate.lane.level.active.exchanges", "{exchange}", "Exchanges in flight by route cluster and priority level, where levels are configured."),
			levelQueued:   d.gauge("headgate.lane.level.queued.exchanges", "{exchange}", "Exchanges that wait, or in shadow mode would wait, by route cluster and priority level."),
			maxConcurrent: d.gauge("headgate.lane.max_concurrent", "{exchange}", "Exchanges of the route cluster that may be in flight at once; absent where lanes.maxConcurrent is not set."),
			utilization:   d.value("headgate.lane.utilization", "1", "Share of the limit that was used in the last window, 0 to 1, by route cluster."),
			signal:        d.gauge("headgate.lane.signal", "", "1 for where first tokens of the route cluster's responses are seen (headers, witness or body), 0 for the others."),
			headersAtOnce: d.gauge("headgate.lane.headers_at_once", "", "1 when first tokens are looked for in response headers and these come at once whatever the cost and the load, so that latency says nothing; by route cluster."),
			steps:         d.counter("headgate.lane.limit.steps", "{step}", "Windows closed, by route cluster and what the adaptation did."),
			shadow:        d.counter("headgate.lane.shadow.decisions", "{decision}", "What shadow mode would have decided, by route cluster and outcome."),
			probes:        d.counter("headgate.lane.probes", "{target}", "Targets of fan-out probes, by route cluster and answer."),
		},
		share: shareInstruments{
			limit:    d.gauge("headgate.share.limit", "{cost}", "The limit of all members of the group together, in cost units, by route cluster; of those that share it."),
			part:     d.gauge("headgate.share.part", "{cost}", "The part of the group's limit that this sidecar was last given, by route cluster."),
			members:  d.gauge("headgate.share.members", "{member}", "Members of the group as last seen, this sidecar included, by route cluster."),
			stale:    d.gauge("headgate.share.stale", "", "1 while the store has not answered for three windows, so that this sidecar's limit is its own to say; by route cluster."),
			failures: d.counter("headgate.share.failures", "{exchange}", "Exchanges with the store without an answer, by route cluster."),
		},
		lease: leaseInstruments{
			answers:     d.counter("headgate.lease.answers", "{answer}", "Lease actions and checks, by pool, action and outcome."),
			lost:        d.counter("headgate.lease.lost", "{lease}", "Leases lost while an exchange was in flight, by pool and reason."),
			expired:     d.counter("headgate.lease.expired", "{lease}", "Leases that sweeps of this process found expired, by pool."),
			connections: d.gauge("headgate.lease.connections", "{connection}", "Connections by pool and state: configured, active (leased) and cooldown."),
			breaker:     d.gauge("headgate.lease.breaker.state", "", "1 for the state that the pool's circuit breaker is in, 0 for the others."),
			saturation:  d.value("headgate.lease.pool.saturation", "1", "Share of a pool's connections that is leased or in cooldown, 0 to 1."),
			calls:       d.seconds("headgate.lease.store.call.duration", "Round trips to the lease store, by script and result.", fine),
		},
		config: configInstruments{
			reloads:      d.counter("headgate.config.reloads", "{reload}", "Reloads of the configuration, by result."),
			info:         d.gauge("headgate.config.info", "", "Always 1; the label is the hash of the configuration in force."),
			build:        d.gauge("headgate.build.info", "", "Always 1; the labels are the version and Go's."),
			lastReloadOK: d.gauge("headgate.config.last_reload.successful", "", "1 when the last reload was put into force, or there was none yet."),
			lastReload:   d.value("headgate.config.last_reload.timestamp", "s", "When the configuration was last reloaded, in Unix time; absent before the first time."),
		},
	}
	return i, d.observed, errors.Join(d.errs...)
}

// buckets are the upper bounds of histograms, in seconds.
type buckets int

const (
	fine   buckets = iota // for what should take no time
	coarse                // for what upstreams take
)

func (b buckets) bounds() []float64 {
	if b == coarse {
		return []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120}
	}
	return []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
}

// declarer makes instruments and keeps the faults.
type declarer struct {
	meter    metric.Meter
	observed []metric.Observable
	errs     []error
}

func (d *declarer) counter(name, unit, description string) metric.Int64ObservableCounter {
	i, err := d.meter.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
	d.keep(i, err)
	return i
}

func (d *declarer) gauge(name, unit, description string) metric.Int64ObservableGauge {
	i, err := d.meter.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(description))
	d.keep(i, err)
	return i
}

func (d *declarer) value(name, unit, description string) metric.Float64ObservableGauge {
	i, err := d.meter.Float64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(description))
	d.keep(i, err)
	return i
}

func (d *declarer) seconds(name, description string, b buckets) metric.Float64Histogram {
	i, err := d.meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description),
		metric.WithExplicitBucketBoundaries(b.bounds()...))
	d.errs = append(d.errs, err)
	return i
}

func (d *declarer) keep(i metric.Observable, err error) {
	d.observed = append(d.observed, i)
	d.errs = append(d.errs, err)
}
