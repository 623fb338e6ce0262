package telemetry

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/headgate/headgate/pkg/extproc"
)

// Metrics holds every instrument and what they are read from. It implements extproc.Observer.
type Metrics struct {
	registry *prometheus.Registry
	provider *sdkmetric.MeterProvider
	instruments
	version string
	sources atomic.Pointer[Sources]

	decisions, wouldReject           *seriesSet // by cluster and reason
	clusters                         *seriesSet // by cluster; count is decisions taken because the upload paused
	steps, outcomes, signals, levels *seriesSet // by cluster and reason, outcome, signal or priority level: labels of what snapshots count
	refusals                         refusalLog
	leases                           leaseCounts
}

// MetricsOptions say where metrics go besides Prometheus.
type MetricsOptions struct {
	Version string             // of the build, for a label
	Readers []sdkmetric.Reader // from OTLPReaders; may be empty
}

// NewMetrics declares the instruments and a Prometheus reader, which is always on.
func NewMetrics(o MetricsOptions) (*Metrics, error) {
	m := &Metrics{
		registry: prometheus.NewRegistry(), version: o.Version,
		decisions: newSeriesSet(labelCluster, labelReason), wouldReject: newSeriesSet(labelCluster, labelReason),
		clusters: newSeriesSet(labelCluster), steps: newSeriesSet(labelCluster, labelReason), outcomes: newSeriesSet(labelCluster, labelOutcome), signals: newSeriesSet(labelCluster, labelSignal), levels: newSeriesSet(labelCluster, labelLevel),
		leases: newLeaseCounts(),
	}
	exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(m.registry), otelprometheus.WithoutScopeInfo(), otelprometheus.WithoutTargetInfo())
	if err != nil {
		return nil, fmt.Errorf("prometheus exporter: %w", err)
	}
	options := []sdkmetric.Option{
		sdkmetric.WithReader(exporter),
		sdkmetric.WithCardinalityLimit(0), // bounded where the labels are made, not by losing some
	}
	if len(o.Readers) > 0 { // Prometheus has no use for it, and what is wrong with it must not stop who exports nothing
		r, err := describe(context.Background(), o.Version)
		if err != nil {
			return nil, err
		}
		options = append(options, sdkmetric.WithResource(r))
	}
	for _, r := range o.Readers {
		options = append(options, sdkmetric.WithReader(r))
	}
	m.provider = sdkmetric.NewMeterProvider(options...)
	meter := m.provider.Meter(scope)
	all, observables, err := declare(meter)
	if err != nil {
		return nil, fmt.Errorf("declare instruments: %w", err)
	}
	m.instruments = *all
	if _, err := meter.RegisterCallback(m.collect, observables...); err != nil {
		return nil, fmt.Errorf("register the gauges: %w", err)
	}
	for _, c := range []prometheus.Collector{collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})} {
		if err := m.registry.Register(&cachedCollector{Collector: c}); err != nil {
			return nil, fmt.Errorf("register the runtime's metrics: %w", err)
		}
	}
	return m, nil
}

// Decided implements extproc.Observer.
func (m *Metrics) Decided(ctx context.Context, d extproc.Decision) {
	c := m.decisions.get(values{d.Cluster, d.Reason})
	c.count.Add(1)
	c.bytes.Add(d.Bytes)
	cluster := m.clusters.get(values{d.Cluster})
	if d.Idled {
		cluster.count.Add(1)
	}
	m.exchange.decisionTime.Record(ctx, d.Took.Seconds(), cluster.record...)
	if d.ByteWait > 0 {
		m.exchange.byteWait.Record(ctx, d.ByteWait.Seconds(), cluster.record...)
	}
	if d.LaneWait > 0 {
		m.exchange.laneWait.Record(ctx, d.LaneWait.Seconds(), cluster.record...)
	}
	switch d.Reason {
	case reasonAdmitted, reasonGone, reasonAnsweredEarlier:
	default:
		m.refusals.add(d)
	}
}

// reasonNeverFits is a reason of which a single refusal sets off an alert.
const reasonNeverFits = "body_exceeds_budget"

// Reasons of decisions that are no refusals.
const (
	reasonAdmitted        = "admitted"
	reasonGone            = "client_gone"
	reasonAnsweredEarlier = "answered_earlier"
)

// FirstByte implements extproc.Observer.
func (m *Metrics) FirstByte(ctx context.Context, cluster string, took time.Duration) {
	m.exchange.firstByte.Record(ctx, took.Seconds(), m.clusters.get(values{cluster}).record...)
}

// WouldReject implements extproc.Observer.
func (m *Metrics) WouldReject(cluster, reason string) {
	m.wouldReject.get(values{cluster, reason}).count.Add(1)
}

// Handler serves the metrics in Prometheus's formats; exemplars come with OpenMetrics only. They are not compressed, which
// would be two fifths of what a scrape costs.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(prometheus.GathererFunc(m.gather), promhttp.HandlerOpts{
		Registry: m.registry, EnableOpenMetrics: true, DisableCompression: true, Timeout: 10 * time.Second,
	})
}

// ambiguous is a counter of Go's collector that in OpenMetrics, where counters lose "_total" from their family's name, has the
// name of a gauge: a strict parser refuses the whole page for it.
const ambiguous = "go_memstats_alloc_bytes_total"

func (m *Metrics) gather() ([]*dto.MetricFamily, error) {
	families, err := m.registry.Gather()
	families = slices.DeleteFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == ambiguous })
	if err != nil {
		return families, fmt.Errorf("gather metrics: %w", err)
	}
	return families, nil
}

// Shutdown flushes what readers have not collected.
func (m *Metrics) Shutdown(ctx context.Context) error { return m.provider.Shutdown(ctx) }
