package e2e

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	tracev3 "github.com/envoyproxy/go-control-plane/envoy/config/trace/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/headgate/headgate/internal/stack"
	"github.com/headgate/headgate/pkg/lease"
)

const (
	envoyService    = "ingress"
	upstreamService = "model"
)

// tracesTo makes Envoy export its spans to the receiver, over gRPC or over HTTP, one by one.
func tracesTo(r *receiver, overGRPC bool) func(*stack.Bootstrap) error {
	return func(b *stack.Bootstrap) error {
		http2 := b.Cluster("headgate").TypedExtensionProtocolOptions
		b.StaticResources.Clusters = append(b.StaticResources.Clusters, &clusterv3.Cluster{
			Name: "otlp", TypedExtensionProtocolOptions: http2, LoadAssignment: endpointAt("otlp", r.addr)})
		runtime, err := structpb.NewStruct(map[string]any{"tracing.opentelemetry.min_flush_spans": 1})
		if err != nil {
			return err
		}
		b.LayeredRuntime = &bootstrapv3.LayeredRuntime{Layers: []*bootstrapv3.RuntimeLayer{{Name: "test",
			LayerSpecifier: &bootstrapv3.RuntimeLayer_StaticLayer{StaticLayer: runtime}}}}
		tracer := &tracev3.OpenTelemetryConfig{ServiceName: envoyService}
		if overGRPC {
			tracer.GrpcService = &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
				EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: "otlp"}}}
		} else {
			tracer.HttpService = &corev3.HttpService{HttpUri: &corev3.HttpUri{Uri: "http://" + r.addr + "/v1/traces",
				HttpUpstreamType: &corev3.HttpUri_Cluster{Cluster: "otlp"}, Timeout: durationpb.New(5 * time.Second)}}
		}
		packed, err := anypb.New(tracer)
		if err != nil {
			return err
		}
		return b.Connections(func(m *hcmv3.HttpConnectionManager) error {
			m.Tracing = &hcmv3.HttpConnectionManager_Tracing{Provider: &tracev3.Tracing_Http{
				Name: "envoy.tracers.opentelemetry", ConfigType: &tracev3.Tracing_Http_TypedConfig{TypedConfig: packed}}}
			return nil
		})
	}
}

// sendsTo makes Envoy forward every request to addr.
func sendsTo(addr string) func(*stack.Bootstrap) error {
	return func(b *stack.Bootstrap) error {
		for _, c := range b.StaticResources.Clusters {
			if c.Name != "headgate" && c.Name != "headgate-api" && c.Name != "otlp" {
				c.LoadAssignment = endpointAt(c.Name, addr)
			}
		}
		return nil
	}
}

func endpointAt(cluster, addr string) *endpointv3.ClusterLoadAssignment {
	at, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return nil // Envoy refuses the configuration
	}
	address := &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: at.IP.String(), PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(at.Port)}}}}
	return &endpointv3.ClusterLoadAssignment{ClusterName: cluster, Endpoints: []*endpointv3.LocalityLbEndpoints{{
		LbEndpoints: []*endpointv3.LbEndpoint{{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: address}}}}}}}
}

// startTracedUpstream starts an upstream with a span for each request, below the one that Envoy names.
func startTracedUpstream(t *testing.T, r *receiver) (addr string) {
	t.Helper()
	exporter, err := otlptracehttp.New(t.Context(), otlptracehttp.WithEndpoint(r.addr), otlptracehttp.WithInsecure())
	if err != nil {
		t.Fatal(err)
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter), sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.AlwaysSample())),
		sdktrace.WithResource(resource.NewSchemaless(semconv.ServiceName(upstreamService))))
	t.Cleanup(func() { _ = provider.Shutdown(context.Background()) })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serveBoth(t, l, func(w http.ResponseWriter, q *http.Request) {
		ctx := propagation.TraceContext{}.Extract(q.Context(), propagation.HeaderCarrier(q.Header))
		_, s := provider.Tracer("test").Start(ctx, "answer", trace.WithSpanKind(trace.SpanKindServer))
		defer s.End()
		_, _ = io.Copy(io.Discard, q.Body) // fails when Envoy has gone
		fmt.Fprintln(w, "{}")
	})
	return l.Addr().String()
}

// label is what a span is called in the trees below.
func label(s span) string {
	switch {
	case s.service == envoyService && s.Kind == tracev1.Span_SPAN_KIND_SERVER:
		return "Envoy"
	case s.service == envoyService && strings.Contains(s.Name, "ExternalProcessor"):
		return "Envoy's call"
	case s.service == "headgate" && s.Kind == tracev1.Span_SPAN_KIND_SERVER:
		return "sidecar"
	case s.service == upstreamService:
		return "upstream"
	}
	return s.service + " " + s.Name
}

// traceOf waits for n spans in the trace of the request for a path.
func (r *receiver) traceOf(t *testing.T, path string, n int) (all []span) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d spans of %s", n, path), func() bool {
		received := r.received()
		root := slices.IndexFunc(received, func(s span) bool { return label(s) == "Envoy" && strings.HasSuffix(s.text("http.url"), path) })
		if root < 0 {
			return false
		}
		trace := received[root].TraceId
		all = slices.DeleteFunc(received, func(s span) bool { return !bytes.Equal(s.TraceId, trace) })
		return len(all) >= n
	})
	return all
}

// tree writes spans as "what < parent", sorted. A parent that is none of the spans is written as its id.
func tree(all []span) []string {
	names := map[string]string{"": "nothing"}
	for _, s := range all {
		names[s.id()] = label(s)
	}
	var written []string
	for _, s := range all {
		written = append(written, label(s)+" < "+cmp.Or(names[s.parent()], s.parent()))
	}
	slices.Sort(written)
	return written
}

// TestOneTrace: whoever begins the trace, the spans of Envoy, the sidecar, its calls of the lease store and the upstream
// are one tree, and none of them says who asked for what.
func TestOneTrace(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"grpc", "http/protobuf"} {
		t.Run(strings.ReplaceAll(protocol, "/", " "), func(t *testing.T) {
			t.Parallel()
			r := startReceiver(t)
			s := start(t, stack.Options{
				Overlay: "bytes: {hardMaxBody: 1MiB}",
				Environ: []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + r.addr, "OTEL_EXPORTER_OTLP_PROTOCOL=" + protocol,
					"OTEL_TRACES_SAMPLER=parentbased_always_on", "OTEL_BSP_SCHEDULE_DELAY=50", "OTEL_METRICS_EXPORTER=none"},
				Envoy: []func(*stack.Bootstrap) error{tracesTo(r, protocol == "grpc"), sendsTo(startTracedUpstream(t, r))},
			})
			protocols(t, func(t *testing.T, c *http.Client) { oneTrace(t, s, c, r) })
			if !r.said("EVALSHA check") {
				t.Error("the search for secrets sees nothing")
			}
			for _, secret := range []string{"tenant-of-secrets", "demo-key-a", "team-a", lease.HashKey("demo-key-a"), "vlo_", strings.Repeat("t", 43), "private-words"} {
				if r.said(secret) {
					t.Errorf("the spans say %q", secret)
				}
			}
		})
	}
}

// oneTrace sends requests that are traced in different ways.
func oneTrace(t *testing.T, s *stack.Stack, c *http.Client, r *receiver) {
	const clientSpan = "2222222222222222"
	a := session{s, c, "demo-key-a", "vlo_" + strings.Repeat("t", 43)}
	generation := a.acquire(t)
	passed := []string{"Envoy's call < Envoy", "sidecar < Envoy's call", "upstream < Envoy"}
	unsampled := ""
	for _, x := range []struct {
		name, flags string // of the client's traceparent; empty: it has none
		path        string
		length      int64 // declared; 0: a small body
		status      int
		want        []string // nil: no spans
	}{
		{"the client does not sample", "00", "/", 0, 200, nil},
		{"the client traces", "01", "/", 0, 200, append(passed, "Envoy < "+clientSpan)},
		{"Envoy begins the trace", "", "/", 0, 200, append(passed, "Envoy < nothing")},
		{"a leased request", "01", "/leased/", 0, 200, append(passed, "Envoy < "+clientSpan, "headgate EVALSHA check < sidecar")},
		{"a refusal", "01", "/", 2 << 20, 413, []string{"Envoy < " + clientSpan, "Envoy's call < Envoy", "sidecar < Envoy's call"}},
	} {
		id := fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64()|1)
		q := request{method: "POST", path: x.path + id, body: strings.NewReader(`{"private-words": true}`), length: x.length, headers: map[string]string{
			"content-type": "application/json", "x-tenant-id": "tenant-of-secrets", "authorization": "Bearer " + a.key,
			"x-omniroute-lease-owner": a.owner, "x-omniroute-lease-generation": generation,
		}}
		if x.length > 0 {
			q.body = zeros(x.length)
		}
		if x.flags != "" {
			q.headers["traceparent"] = "00-" + id + "-" + clientSpan + "-" + x.flags
		}
		if got := must(t, s, c, q); got.status != x.status {
			t.Fatalf("%s: status %d, want %d", x.name, got.status, x.status)
		}
		if x.want == nil {
			unsampled = id
			continue
		}
		all := r.traceOf(t, q.path, len(x.want))
		slices.Sort(x.want)
		if got := tree(all); !slices.Equal(got, x.want) {
			t.Errorf("%s: spans %q, want %q", x.name, got, x.want)
		}
		if got := hex.EncodeToString(all[0].TraceId); x.flags != "" && got != id {
			t.Errorf("%s: trace %s, want the client's, %s", x.name, got, id)
		}
		if x.status == 413 {
			if last := health(t, s).RecentRefusals[0]; last.TraceID != id {
				t.Errorf("the last refusal is of trace %q, want %s", last.TraceID, id)
			}
		}
	}
	// What came later has been exported by now.
	if n := len(slices.DeleteFunc(r.received(), func(s span) bool { return hex.EncodeToString(s.TraceId) != unsampled })); n > 0 {
		t.Errorf("%d spans of a request that its client does not sample, want none", n)
	}
}
