package telemetry

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/google/uuid"
	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/otel"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/headgate/headgate/pkg/extproc"
)

// defaultRatio is the share of exchanges without a parent that are sampled when OTEL_TRACES_SAMPLER says nothing.
const defaultRatio = 0.1

// Tracing makes the spans of exchanges.
type Tracing struct {
	provider *sdktrace.TracerProvider // nil: off
	tracer   trace.Tracer
	options  []trace.SpanStartOption // of every span
	sampler  sampler
}

// NewTracing sets tracing up from the standard environment variables:
//
//   - OTEL_TRACES_EXPORTER: otlp, console or none. Where it is not set, traces are exported by OTLP if
//     OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is, and are off otherwise, which costs nothing.
//   - OTEL_EXPORTER_OTLP_PROTOCOL: http/protobuf (default) or grpc; and the other OTEL_EXPORTER_OTLP_* variables.
//   - OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG: parentbased_traceidratio with 0.1 unless set; the six samplers of
//     the specification are known.
//   - OTEL_SERVICE_NAME (headgate) and OTEL_RESOURCE_ATTRIBUTES; OTEL_BSP_*; OTEL_SDK_DISABLED.
//
// An exporter that cannot be reached is logged and holds nothing up. A variable with a value that is not known is an
// error. version is the build's.
func NewTracing(ctx context.Context, version string, log *slog.Logger) (*Tracing, error) {
	if !exports("TRACES") {
		return &Tracing{}, nil
	}
	if err := checkEndpoint("TRACES"); err != nil {
		return nil, err
	}
	s, err := samplerFromEnv()
	if err != nil {
		return nil, err
	}
	queue, err := queueFromEnv()
	if err != nil {
		return nil, err
	}
	exporter, err := newSpanExporter(ctx)
	if err != nil {
		return nil, err
	}
	r, err := describe(ctx, version)
	if err != nil {
		return nil, err
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("telemetry was not exported", "error", err) }))
	return newTracing(s, sdktrace.WithBatcher(exporter, sdktrace.WithMaxQueueSize(queue)), sdktrace.WithResource(r)), nil
}

func newSpanExporter(ctx context.Context) (sdktrace.SpanExporter, error) {
	exporter, err := autoexport.NewSpanExporter(ctx)
	if err == nil {
		return exporter, nil
	}
	for _, variable := range []string{"OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		if text := strings.TrimSpace(os.Getenv(variable)); text != "" && text != "otlp" {
			return nil, fmt.Errorf("%s is %q: %w", variable, text, err)
		}
	}
	return nil, fmt.Errorf("span exporter: %w", err)
}

// queueFromEnv returns how many spans the batch processor holds until they are exported. The SDK would replace a malformed
// number by its default without a word.
func queueFromEnv() (int, error) {
	const most = 1 << 20 // spans, some gigabytes
	text := strings.TrimSpace(os.Getenv("OTEL_BSP_MAX_QUEUE_SIZE"))
	if text == "" {
		return sdktrace.DefaultMaxQueueSize, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most {
		return 0, fmt.Errorf("OTEL_BSP_MAX_QUEUE_SIZE is %q, want a number from 1 to %d", text, most)
	}
	return n, nil
}

// newTracing makes a provider. Which exchanges have a span is decided before one is started.
func newTracing(s sampler, options ...sdktrace.TracerProviderOption) *Tracing {
	provider := sdktrace.NewTracerProvider(append(options, sdktrace.WithSampler(sdktrace.AlwaysSample()))...)
	return &Tracing{
		provider: provider, tracer: provider.Tracer(scope), options: []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindServer)}, sampler: s,
	}
}

// StartSpan is for the processor; it is nil when traces are off.
func (t *Tracing) StartSpan() extproc.StartSpan {
	if t.provider == nil {
		return nil
	}
	return t.start
}

func (t *Tracing) start(ctx context.Context, parent trace.SpanContext) (context.Context, trace.Span) {
	if !t.sampler.samples(parent) {
		return ctx, nil
	}
	above := context.Background() // the SDK looks for the parent three times, which takes long in the depths of a request's context
	if parent.IsValid() {
		above = trace.ContextWithRemoteSpanContext(above, parent)
	}
	_, span := t.tracer.Start(above, "envoy.service.ext_proc.v3.ExternalProcessor/Process", t.options...)
	return trace.ContextWithSpan(ctx, span), span
}

// Shutdown exports what is left.
func (t *Tracing) Shutdown(ctx context.Context) error {
	if t.provider == nil {
		return nil
	}
	return t.provider.Shutdown(ctx)
}

// sampler decides whether an exchange has a span, without allocating. The SDK's own would need a context and, for an
// unsampled exchange, a span.
type sampler struct {
	parentBased bool    // a valid parent decides
	ratio       float64 // of the others
}

func (s sampler) samples(parent trace.SpanContext) bool {
	switch {
	case s.parentBased && parent.IsValid():
		return parent.IsSampled()
	case s.ratio >= 1:
		return true
	case s.ratio <= 0:
		return false
	}
	random := rand.Uint64()
	if parent.IsValid() {
		id := parent.TraceID() // the same answer everywhere, as trace id ratio sampling has it
		random = binary.BigEndian.Uint64(id[8:])
	}
	return float64(random>>1) < s.ratio*(1<<63)
}

func samplerFromEnv() (sampler, error) {
	name := strings.TrimSpace(os.Getenv("OTEL_TRACES_SAMPLER"))
	if name == "" {
		return sampler{parentBased: true, ratio: defaultRatio}, nil
	}
	rest, parentBased := strings.CutPrefix(name, "parentbased_")
	s := sampler{parentBased: parentBased}
	switch rest {
	case "always_on":
		s.ratio = 1
	case "always_off":
	case "traceidratio":
		s.ratio = 1
		if arg := strings.TrimSpace(os.Getenv("OTEL_TRACES_SAMPLER_ARG")); arg != "" {
			ratio, err := strconv.ParseFloat(arg, 64)
			if err != nil || !(ratio >= 0 && ratio <= 1) {
				return s, fmt.Errorf("OTEL_TRACES_SAMPLER_ARG is %q, want a number from 0 to 1", arg)
			}
			s.ratio = ratio
		}
	default:
		return s, fmt.Errorf("OTEL_TRACES_SAMPLER is %q, want always_on, always_off or traceidratio, or one of them after parentbased_", name)
	}
	return s, nil
}

// instanceID tells this process from all others, in traces and metrics alike. In Kubernetes OTEL_RESOURCE_ATTRIBUTES should say
// the pod's name instead, as the manifests do.
var instanceID = sync.OnceValue(uuid.NewString)

// describe is the resource: what the environment says wins.
func describe(ctx context.Context, version string) (*resource.Resource, error) {
	r, err := resource.New(ctx, resource.WithTelemetrySDK(),
		resource.WithAttributes(semconv.ServiceName("headgate"), semconv.ServiceVersion(version), semconv.ServiceInstanceID(instanceID())),
		resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	return r, nil
}

// exports reports whether the environment asks for a signal (TRACES or METRICS) to be exported.
func exports(signal string) bool {
	if disabled, _ := strconv.ParseBool(os.Getenv("OTEL_SDK_DISABLED")); disabled {
		return false
	}
	if exporter := strings.TrimSpace(os.Getenv("OTEL_" + signal + "_EXPORTER")); exporter != "" {
		return exporter != "none"
	}
	return os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_"+signal+"_ENDPOINT") != ""
}

// checkEndpoint refuses an endpoint without a scheme: exporters take the host for one, and nothing ever arrives.
func checkEndpoint(signal string) error {
	variable := "OTEL_EXPORTER_OTLP_" + signal + "_ENDPOINT"
	if os.Getenv(variable) == "" {
		variable = "OTEL_EXPORTER_OTLP_ENDPOINT"
	}
	endpoint := strings.TrimSpace(os.Getenv(variable))
	if endpoint == "" {
		return nil
	}
	u, err := url.Parse(endpoint)
	if err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" || strings.HasPrefix(endpoint, "unix:") {
		return nil
	}
	return fmt.Errorf("%s is %q, want a URL with its scheme, such as http://localhost:4318 (OTLP over HTTP) or http://localhost:4317 (gRPC)", variable, endpoint)
}

// OTLPReaders make metrics go where the environment says besides the Prometheus endpoint, which is always on: the rules
// of NewTracing hold with METRICS in place of TRACES. OTEL_METRICS_EXPORTER=prometheus adds nothing.
func OTLPReaders(ctx context.Context) ([]sdkmetric.Reader, error) {
	if !exports("METRICS") || strings.TrimSpace(os.Getenv("OTEL_METRICS_EXPORTER")) == "prometheus" {
		return nil, nil
	}
	if err := checkEndpoint("METRICS"); err != nil {
		return nil, err
	}
	r, err := autoexport.NewMetricReader(ctx)
	if err != nil {
		return nil, fmt.Errorf("metric exporter: %w", err)
	}
	return []sdkmetric.Reader{r}, nil
}
