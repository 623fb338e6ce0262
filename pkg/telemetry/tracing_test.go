package telemetry

import (
	"context"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"
)

var discard = slog.New(slog.DiscardHandler)

// bare clears what the machine's environment says about telemetry.
func bare(t *testing.T) {
	t.Helper()
	for _, name := range []string{
		"OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
		"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG", "OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES",
	} {
		t.Setenv(name, "")
	}
}

func TestTracesAreOffUnlessAnExporterIsConfigured(t *testing.T) {
	for _, c := range []struct {
		name string
		env  map[string]string
		on   bool
	}{
		{"nothing set", nil, false},
		{"an endpoint", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, true},
		{"an endpoint for traces", map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1/v1/traces"}, true},
		{"an endpoint for metrics", map[string]string{"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://127.0.0.1:1/v1/metrics"}, false},
		{"an exporter", map[string]string{"OTEL_TRACES_EXPORTER": "otlp"}, true},
		{"none", map[string]string{"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, false},
		{"disabled", map[string]string{"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "otlp"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			bare(t)
			for k, v := range c.env {
				t.Setenv(k, v)
			}
			tracing, err := NewTracing(t.Context(), "1", discard)
			if err != nil {
				t.Fatalf("new tracing: %v", err)
			}
			if on := tracing.StartSpan() != nil; on != c.on {
				t.Errorf("on is %v, want %v", on, c.on)
			}
			if err := tracing.Shutdown(t.Context()); err != nil {
				t.Errorf("shut down: %v", err)
			}
		})
	}
}

func TestSamplerFromEnv(t *testing.T) {
	for _, c := range []struct {
		name, arg string
		want      sampler
		fault     string
	}{
		{"", "", sampler{true, .1}, ""},
		{"", "0.7", sampler{true, .1}, ""},
		{"always_on", "", sampler{false, 1}, ""},
		{"always_off", "", sampler{false, 0}, ""},
		{"traceidratio", "0.25", sampler{false, .25}, ""},
		{"traceidratio", "", sampler{false, 1}, ""},
		{"parentbased_always_on", "", sampler{true, 1}, ""},
		{"parentbased_always_off", "", sampler{true, 0}, ""},
		{"parentbased_traceidratio", "1", sampler{true, 1}, ""},
		{"parentbased_traceidratio", "1.5", sampler{}, "OTEL_TRACES_SAMPLER_ARG"},
		{"traceidratio", "NaN", sampler{}, "OTEL_TRACES_SAMPLER_ARG"},
		{"jaeger_remote", "", sampler{}, "OTEL_TRACES_SAMPLER"},
	} {
		bare(t)
		t.Setenv("OTEL_TRACES_SAMPLER", c.name)
		t.Setenv("OTEL_TRACES_SAMPLER_ARG", c.arg)
		got, err := samplerFromEnv()
		if c.fault != "" {
			if err == nil || !strings.Contains(err.Error(), c.fault) {
				t.Errorf("%s %s: error %v, want one that names %s", c.name, c.arg, err, c.fault)
			}
			continue
		}
		if err != nil || got != c.want {
			t.Errorf("%s %s: %+v, %v; want %+v", c.name, c.arg, got, err, c.want)
		}
	}
}

func parentOf(id trace.TraceID, sampled bool) trace.SpanContext {
	c := trace.SpanContextConfig{TraceID: id, SpanID: trace.SpanID{1}, Remote: true}
	if sampled {
		c.TraceFlags = trace.FlagsSampled
	}
	return trace.NewSpanContext(c)
}

func TestWhatIsSampled(t *testing.T) {
	t.Parallel()
	none := trace.SpanContext{}
	const n = 20_000
	share := func(s sampler, parent func(i int) trace.SpanContext) float64 {
		sampled := 0
		for i := range n {
			if s.samples(parent(i)) {
				sampled++
			}
		}
		return float64(sampled) / n
	}
	always := func(p trace.SpanContext) func(int) trace.SpanContext { return func(int) trace.SpanContext { return p } }
	for _, c := range []struct {
		name   string
		s      sampler
		parent func(int) trace.SpanContext
		want   float64
	}{
		{"a tenth of what has no parent", sampler{true, .1}, always(none), .1},
		{"all below a sampled parent", sampler{true, .1}, always(parentOf(trace.TraceID{1}, true)), 1},
		{"none below an unsampled one", sampler{true, 1}, always(parentOf(trace.TraceID{1}, false)), 0},
		{"by trace id, whatever the parent says", sampler{false, .5}, func(i int) trace.SpanContext {
			return parentOf(trace.TraceID{1, 8: byte(i), 15: 1}, false)
		}, .5},
		{"nothing", sampler{false, 0}, always(none), 0},
	} {
		if got := share(c.s, c.parent); math.Abs(got-c.want) > .015 {
			t.Errorf("%s: %.3f sampled, want %.3f", c.name, got, c.want)
		}
	}
}

func TestSpansBelowTheirParent(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewSpanRecorder()
	tracing := newTracing(sampler{true, 1}, sdktrace.WithSpanProcessor(spans))
	parent := parentOf(trace.TraceID{9}, true)
	_, span := tracing.StartSpan()(t.Context(), parent)
	span.End()
	_, root := tracing.StartSpan()(t.Context(), trace.SpanContext{})
	root.End()
	if err := tracing.Shutdown(t.Context()); err != nil {
		t.Fatalf("shut down: %v", err)
	}
	got := spans.Ended()
	if len(got) != 2 || got[0].SpanContext().TraceID() != parent.TraceID() || got[0].Parent().SpanID() != parent.SpanID() || got[0].SpanKind() != trace.SpanKindServer {
		t.Errorf("got %v, want a server span below %v and a root", got, parent)
	}
	if got[1].Parent().IsValid() || !got[1].SpanContext().IsSampled() {
		t.Errorf("the root is %v below %v, want a sampled one without a parent", got[1].SpanContext(), got[1].Parent())
	}
}

func TestUnsampledAllocatesNothing(t *testing.T) {
	start := newTracing(sampler{true, .1}).StartSpan()
	ctx, parent := context.Background(), parentOf(trace.TraceID{1}, false)
	if got := testing.AllocsPerRun(1000, func() { start(ctx, parent) }); got != 0 {
		t.Errorf("%v allocations, want 0", got)
	}
}

// TestOTLPCarriesTheResource: what is exported over HTTP names the service, which the environment may rename.
func TestOTLPCarriesTheResource(t *testing.T) {
	bare(t)
	received := make(chan *collector.ExportTraceServiceRequest, 4)
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		request := &collector.ExportTraceServiceRequest{}
		if err := proto.Unmarshal(body, request); err != nil {
			t.Errorf("decode the export: %v", err)
		}
		received <- request
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	defer receiver.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.URL)
	t.Setenv("OTEL_TRACES_SAMPLER", "always_on")
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")

	for _, service := range []string{"headgate", "gate-of-team-a"} {
		if service != "headgate" {
			t.Setenv("OTEL_SERVICE_NAME", service)
		}
		tracing, err := NewTracing(t.Context(), "1.2.3", discard)
		if err != nil {
			t.Fatalf("new tracing: %v", err)
		}
		_, span := tracing.StartSpan()(t.Context(), trace.SpanContext{})
		span.End()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if err := tracing.Shutdown(ctx); err != nil {
			t.Fatalf("shut down: %v", err)
		}
		select {
		case request := <-received:
			said := map[string]string{}
			for _, a := range request.GetResourceSpans()[0].GetResource().GetAttributes() {
				said[a.GetKey()] = a.GetValue().GetStringValue()
			}
			if said["service.name"] != service || said["service.version"] != "1.2.3" || said["deployment.environment.name"] != "test" {
				t.Errorf("resource %v, want service.name %s, service.version 1.2.3 and what the environment adds", said, service)
			}
		case <-ctx.Done():
			t.Fatal("nothing was exported")
		}
	}
}

func TestOTLPReaders(t *testing.T) {
	for _, c := range []struct {
		name string
		env  map[string]string
		want int
	}{
		{"nothing set", nil, 0},
		{"prometheus is on anyway", map[string]string{"OTEL_METRICS_EXPORTER": "prometheus"}, 0},
		{"an endpoint", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, 1},
		{"none", map[string]string{"OTEL_METRICS_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, 0},
	} {
		bare(t)
		for k, v := range c.env {
			t.Setenv(k, v)
		}
		got, err := OTLPReaders(t.Context())
		if err != nil || len(got) != c.want {
			t.Errorf("%s: %d readers, error %v; want %d", c.name, len(got), err, c.want)
		}
	}
}

// TestAnEndpointNeedsItsScheme: without one exporters take the host for the scheme, and nothing ever arrives.
func TestAnEndpointNeedsItsScheme(t *testing.T) {
	for _, c := range []struct {
		variable, value string
		valid           bool
	}{
		{"OTEL_EXPORTER_OTLP_ENDPOINT", "localhost:4317", false},
		{"OTEL_EXPORTER_OTLP_ENDPOINT", "collector", false},
		{"OTEL_EXPORTER_OTLP_ENDPOINT", "//collector:4318", false},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "collector:4318/v1/traces", false},
		{"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "10.0.0.1:4318", false},
		{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318", true},
		{"OTEL_EXPORTER_OTLP_ENDPOINT", "https://collector.example", true},
	} {
		bare(t)
		t.Setenv(c.variable, c.value)
		tracing, err := NewTracing(t.Context(), "1", discard)
		if err == nil {
			_ = tracing.Shutdown(t.Context())
			var readers []sdkmetric.Reader
			readers, err = OTLPReaders(t.Context())
			for _, r := range readers {
				_ = r.Shutdown(t.Context())
			}
		}
		if (err == nil) != c.valid || err != nil && (!strings.Contains(err.Error(), c.variable) || !strings.Contains(err.Error(), "http://")) {
			t.Errorf("%s=%s: %v, want valid %t, or an error with the variable and an example", c.variable, c.value, err, c.valid)
		}
	}
}

// TestServiceInstance: one id for a process, which the environment can name.
func TestServiceInstance(t *testing.T) {
	bare(t)
	id := func() string {
		r, err := describe(t.Context(), "1")
		if err != nil {
			t.Fatal(err)
		}
		value, _ := r.Set().Value(semconv.ServiceInstanceIDKey)
		return value.AsString()
	}
	if first, second := id(), id(); uuid.Validate(first) != nil || first != second {
		t.Errorf("service.instance.id is %q and then %q, want the same UUID", first, second)
	}
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=gateway-0")
	if got := id(); got != "gateway-0" {
		t.Errorf("service.instance.id is %q, want the one that is set", got)
	}
}

func TestUnknownExporters(t *testing.T) {
	for _, c := range []struct{ variable, value, fault string }{
		{"OTEL_EXPORTER_OTLP_PROTOCOL", "", ""},
		{"OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", ""},
		{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf", ""},
		{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json", `OTEL_EXPORTER_OTLP_TRACES_PROTOCOL is "http/json": `},
		{"OTEL_EXPORTER_OTLP_PROTOCOL", "thrift", `OTEL_EXPORTER_OTLP_PROTOCOL is "thrift": `},
		{"OTEL_TRACES_EXPORTER", "zipkin", `OTEL_TRACES_EXPORTER is "zipkin": `},
	} {
		bare(t)
		t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "")
		t.Setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "")
		t.Setenv(c.variable, c.value)
		exporter, err := newSpanExporter(t.Context())
		if (err != nil) != (c.fault != "") || err != nil && !strings.HasPrefix(err.Error(), c.fault) {
			t.Errorf("%s=%s: error %v, want it to begin with %q", c.variable, c.value, err, c.fault)
		}
		if err == nil {
			_ = exporter.Shutdown(t.Context())
		}
	}
}

func TestSpanQueueFromEnv(t *testing.T) {
	for text, want := range map[string]int{"": 2048, "100000": 100000, " 400 ": 400, "1": 1, "0": 0, "-5": 0, "many": 0, "1e3": 0, "99999999": 0} {
		t.Setenv("OTEL_BSP_MAX_QUEUE_SIZE", text)
		queue, err := queueFromEnv()
		if queue != want || (err != nil) != (want == 0) || err != nil && !strings.Contains(err.Error(), "OTEL_BSP_MAX_QUEUE_SIZE") {
			t.Errorf("a queue of %q: %d and error %v, want %d, or an error that names the variable", text, queue, err, want)
		}
	}
}
