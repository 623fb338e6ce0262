package telemetry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/attribute"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/headgate/headgate/pkg/extproc"
)

// Metrics holds every instrument. It implements extproc.Observer.
type Metrics struct {
	registry *prometheus.Registry
	provider *sdkmetric.MeterProvider

	decisions   metric.Int64Counter
	bytes       metric.Int64Counter
	wouldReject metric.Int64Counter
	idled       metric.Int64Counter
	wait        metric.Float64Histogram
	took        metric.Float64Histogram
}

// NewMetrics declares the instruments and a Prometheus reader.
func NewMetrics() (*Metrics, error) {
	m := &Metrics{registry: prometheus.NewRegistry()}
	exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(m.registry), otelprometheus.WithoutScopeInfo(), otelprometheus.WithoutTargetInfo())
	if err != nil {
		return nil, fmt.Errorf("prometheus exporter: %w", err)
	}
	m.provider = sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter))
	meter := m.provider.Meter("github.com/headgate/headgate")
	seconds := metric.WithExplicitBucketBoundaries(.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10)
	var errs [6]error
	m.decisions, errs[0] = meter.Int64Counter("headgate.decisions", metric.WithDescription("Decisions by route cluster and reason."))
	m.bytes, errs[1] = meter.Int64Counter("headgate.decided.bytes", metric.WithUnit("By"), metric.WithDescription("Body bytes, declared or seen at the decision, by route cluster and reason."))
	m.wouldReject, errs[2] = meter.Int64Counter("headgate.would_reject", metric.WithDescription("Exchanges in observability mode that would have been refused."))
	m.idled, errs[3] = meter.Int64Counter("headgate.decisions.idled", metric.WithDescription("Decisions taken because the upload paused."))
	m.wait, errs[4] = meter.Float64Histogram("headgate.wait.duration", metric.WithUnit("s"), metric.WithDescription("Time decisions waited for bytes and capacity."), seconds)
	m.took, errs[5] = meter.Float64Histogram("headgate.decision.duration", metric.WithUnit("s"), metric.WithDescription("Time from the headers to the decision."), seconds)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("declare instruments: %w", err)
	}
	return m, nil
}

// Decided implements extproc.Observer.
func (m *Metrics) Decided(d extproc.Decision) {
	ctx := context.Background()
	set := metric.WithAttributeSet(attribute.NewSet(attribute.String("cluster", d.Cluster), attribute.String("reason", d.Reason)))
	m.decisions.Add(ctx, 1, set)
	m.bytes.Add(ctx, d.Bytes, set)
	cluster := metric.WithAttributeSet(attribute.NewSet(attribute.String("cluster", d.Cluster)))
	m.took.Record(ctx, d.Took.Seconds(), cluster)
	if d.Waited > 0 {
		m.wait.Record(ctx, d.Waited.Seconds(), cluster)
	}
	if d.Idled {
		m.idled.Add(ctx, 1, cluster)
	}
}

// WouldReject implements extproc.Observer.
func (m *Metrics) WouldReject(cluster, reason string) {
	m.wouldReject.Add(context.Background(), 1, metric.WithAttributes(attribute.String("cluster", cluster), attribute.String("reason", reason)))
}

// Handler serves the metrics in Prometheus's format.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Registry: m.registry, EnableOpenMetrics: true, Timeout: 10 * time.Second})
}

// Shutdown flushes what readers have not collected.
func (m *Metrics) Shutdown(ctx context.Context) error { return m.provider.Shutdown(ctx) }
