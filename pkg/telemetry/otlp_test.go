package telemetry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

// receiver takes what is uploaded as a collector would: encoded.
type receiver struct {
	requests [][]byte
	fails    error
}

func (*receiver) Start(context.Context) error { return nil }
func (*receiver) Stop(context.Context) error  { return nil }
func (r *receiver) UploadTraces(_ context.Context, all []*tracepb.ResourceSpans) error {
	encoded, err := proto.Marshal(&collector.ExportTraceServiceRequest{ResourceSpans: all})
	r.requests = append(r.requests, encoded)
	return errors.Join(err, r.fails)
}

// received is what a collector understands, with spans and scopes in a fixed order.
func (r *receiver) received(t testing.TB) *collector.ExportTraceServiceRequest {
	t.Helper()
	all := &collector.ExportTraceServiceRequest{}
	for _, encoded := range r.requests {
		if err := (proto.UnmarshalOptions{Merge: true}).Unmarshal(encoded, all); err != nil {
			t.Fatalf("decode an upload: %v", err)
		}
	}
	for _, of := range all.ResourceSpans {
		for _, in := range of.ScopeSpans {
			slices.SortFunc(in.Spans, func(a, b *tracepb.Span) int { return bytes.Compare(a.SpanId, b.SpanId) })
		}
		slices.SortFunc(of.ScopeSpans, func(a, b *tracepb.ScopeSpans) int {
			return strings.Compare(a.GetScope().String(), b.GetScope().String())
		})
	}
	return all
}

func anAttribute() *rapid.Generator[attribute.KeyValue] {
	return rapid.Custom(func(t *rapid.T) attribute.KeyValue {
		key := attribute.Key(rapid.String().Draw(t, "key"))
		switch rapid.IntRange(0, 5).Draw(t, "type") {
		case 0:
			return key.String(rapid.String().Draw(t, "text"))
		case 1:
			return key.Bool(rapid.Bool().Draw(t, "bool"))
		case 2:
			return key.Int64(rapid.Int64().Draw(t, "int"))
		case 3:
			return key.Float64(rapid.Float64().Draw(t, "float"))
		case 4:
			return key.StringSlice(rapid.SliceOf(rapid.String()).Draw(t, "texts"))
		}
		return key.Int64(0)
	})
}

func aSpan(id int) *rapid.Generator[sdktrace.ReadOnlySpan] {
	attributes := rapid.SliceOfN(anAttribute(), 0, 12)
	at := rapid.Map(rapid.Int64Range(-5, 2e18), func(n int64) time.Time { return time.Unix(0, n) })
	count := rapid.SampledFrom([]int{0, 0, 0, 3, 1 << 20})
	return rapid.Custom(func(t *rapid.T) sdktrace.ReadOnlySpan {
		state, _ := trace.ParseTraceState(rapid.SampledFrom([]string{"", "a=b", "a=b,c=d"}).Draw(t, "state"))
		context := trace.SpanContextConfig{
			TraceID: trace.TraceID{1, byte(id)}, SpanID: trace.SpanID{1, byte(id)}, TraceState: state,
			TraceFlags: trace.TraceFlags(rapid.Byte().Draw(t, "flags")),
		}
		stub := tracetest.SpanStub{
			Name: rapid.String().Draw(t, "name"), SpanContext: trace.NewSpanContext(context),
			SpanKind:  trace.SpanKind(rapid.IntRange(1, 5).Draw(t, "kind")),
			StartTime: at.Draw(t, "start"), EndTime: at.Draw(t, "end"), Attributes: attributes.Draw(t, "attributes"),
			DroppedAttributes: count.Draw(t, "dropped attributes"), DroppedEvents: count.Draw(t, "dropped events"), DroppedLinks: count.Draw(t, "dropped links"),
			Status:               sdktrace.Status{Code: codes.Code(rapid.IntRange(0, 2).Draw(t, "code")), Description: rapid.String().Draw(t, "status")},
			Resource:             resource.NewSchemaless(attribute.String("service.name", "gate")),
			InstrumentationScope: instrumentation.Scope{Name: rapid.SampledFrom([]string{"gate", "redis"}).Draw(t, "scope"), Version: "2"},
		}
		if rapid.IntRange(0, 5).Draw(t, "scope has attributes") == 0 {
			stub.InstrumentationScope.Attributes = attribute.NewSet(attribute.Bool("odd", true))
		}
		if rapid.Bool().Draw(t, "child") {
			stub.Parent = trace.NewSpanContext(trace.SpanContextConfig{
				TraceID: context.TraceID, SpanID: trace.SpanID{7}, Remote: rapid.Bool().Draw(t, "remote"),
			})
		}
		for range rapid.IntRange(0, 4).Draw(t, "events") {
			stub.Events = append(stub.Events, sdktrace.Event{
				Name: rapid.String().Draw(t, "event"), Time: at.Draw(t, "time"), Attributes: attributes.Draw(t, "of it"), DroppedAttributeCount: count.Draw(t, "dropped"),
			})
		}
		if rapid.IntRange(0, 9).Draw(t, "linked") == 0 {
			stub.Links = []sdktrace.Link{{SpanContext: stub.SpanContext}}
		}
		return stub.Snapshot()
	})
}

// TestSpansAreEncodedAsTheLibraryDoes: a collector receives the same from our exporter as from the library's.
func TestSpansAreEncodedAsTheLibraryDoes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		var want, got receiver
		library, err := otlptrace.New(t.Context(), &want)
		if err != nil {
			t.Fatal(err)
		}
		ours, err := newOTLPExporter(t.Context(), &got)
		if err != nil {
			t.Fatal(err)
		}
		for range rapid.IntRange(1, 3).Draw(r, "batches") {
			var batch []sdktrace.ReadOnlySpan
			for i := range rapid.IntRange(0, 6).Draw(r, "spans") {
				batch = append(batch, aSpan(i).Draw(r, "span"))
			}
			want.requests, got.requests = nil, nil
			if err := errors.Join(library.ExportSpans(t.Context(), batch), ours.ExportSpans(t.Context(), batch)); err != nil {
				r.Fatalf("export: %v", err)
			}
			if w, g := want.received(t), got.received(t); !proto.Equal(w, g) || len(got.requests) != len(want.requests) {
				r.Fatalf("in %d uploads: %v\nwant in %d: %v", len(got.requests), g, len(want.requests), w)
			}
		}
	})
}

// TestTextThatIsNotUTF8 does not make a collector refuse the whole batch.
func TestTextThatIsNotUTF8(t *testing.T) {
	t.Parallel()
	var got receiver
	ours, err := newOTLPExporter(t.Context(), &got)
	if err != nil {
		t.Fatal(err)
	}
	fine := tracetest.SpanStub{Name: "fine"}.Snapshot()
	foul := tracetest.SpanStub{Name: "foul\xff", Attributes: []attribute.KeyValue{attribute.String("a", "\xc3(")}}.Snapshot()
	if err := ours.ExportSpans(t.Context(), []sdktrace.ReadOnlySpan{fine, foul}); err != nil {
		t.Fatal(err)
	}
	spans := got.received(t).ResourceSpans[0].ScopeSpans[0].Spans
	if len(spans) != 2 || spans[1].Name != "foul\uFFFD" || spans[1].Attributes[0].Value.GetStringValue() != "\uFFFD(" {
		t.Errorf("got %v, want two spans, the second without what is not UTF-8", spans)
	}
}

// TestAFailedExportLeavesNothingBehind: the spans of a batch that failed do not turn up in the next.
func TestAFailedExportLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	got := receiver{fails: errors.New("the collector is away")}
	ours, err := newOTLPExporter(t.Context(), &got)
	if err != nil {
		t.Fatal(err)
	}
	batch := func(name string, n int) (spans []sdktrace.ReadOnlySpan) {
		for i := range n {
			spans = append(spans, tracetest.SpanStub{Name: fmt.Sprint(name, i)}.Snapshot())
		}
		return spans
	}
	if err := ours.ExportSpans(t.Context(), batch("first", 3)); !errors.Is(err, got.fails) {
		t.Errorf("error %v, want %v", err, got.fails)
	}
	got.requests, got.fails = nil, nil
	if err := ours.ExportSpans(t.Context(), batch("second", 2)); err != nil {
		t.Errorf("export: %v", err)
	}
	if spans := got.received(t).ResourceSpans[0].ScopeSpans[0].Spans; len(spans) != 2 {
		t.Errorf("%d spans, want the 2 of the second batch: %v", len(spans), spans)
	}
}

func TestOTLPProtocol(t *testing.T) {
	for _, c := range []struct{ variable, protocol, fault string }{
		{"OTEL_EXPORTER_OTLP_PROTOCOL", "", ""},
		{"OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", ""},
		{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf", ""},
		{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json", `OTEL_EXPORTER_OTLP_TRACES_PROTOCOL is "http/json", want http/protobuf or grpc`},
		{"OTEL_EXPORTER_OTLP_PROTOCOL", "thrift", `OTEL_EXPORTER_OTLP_PROTOCOL is "thrift", want http/protobuf or grpc`},
	} {
		bare(t)
		t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "")
		t.Setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "")
		t.Setenv(c.variable, c.protocol)
		exporter, err := newSpanExporter(t.Context())
		if (err != nil || c.fault != "") && fmt.Sprint(err) != c.fault {
			t.Errorf("%s=%s: error %v, want %q", c.variable, c.protocol, err, c.fault)
		}
		if err == nil {
			_ = exporter.Shutdown(t.Context())
		}
	}
}

func BenchmarkExport(b *testing.B) {
	var batch []sdktrace.ReadOnlySpan
	for i := range 512 {
		batch = append(batch, func() sdktrace.ReadOnlySpan {
			return tracetest.SpanStub{
				Name: "envoy.service.ext_proc.v3.ExternalProcessor/Process", StartTime: time.Unix(1, 0), EndTime: time.Unix(2, 0),
				SpanContext: trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{byte(i), 1}}),
				Attributes:  []attribute.KeyValue{attribute.String("rpc.system.name", "grpc"), attribute.String("headgate.cluster", "chat"), attribute.Int("headgate.cost", 1)},
				Events:      []sdktrace.Event{{Name: "grant", Attributes: []attribute.KeyValue{attribute.String("headgate.resource", "lane")}}, {Name: "release"}},
			}.Snapshot()
		}())
	}
	library, _ := otlptrace.New(b.Context(), discarding{})
	ours, _ := newOTLPExporter(b.Context(), discarding{})
	for name, e := range map[string]sdktrace.SpanExporter{"library": library, "ours": ours} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := e.ExportSpans(b.Context(), batch); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// discarding encodes and forgets.
type discarding struct{}

func (discarding) Start(context.Context) error { return nil }
func (discarding) Stop(context.Context) error  { return nil }
func (discarding) UploadTraces(_ context.Context, all []*tracepb.ResourceSpans) error {
	_, err := proto.Marshal(&collector.ExportTraceServiceRequest{ResourceSpans: all})
	return err
}
