package telemetry

import (
	"context"
	"fmt"
	"os"
	"strings"

	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
)

// newSpanExporter is autoexport's, but for how OTLP is encoded. OTLP as JSON is refused: it would lose encoded spans.
func newSpanExporter(ctx context.Context) (sdktrace.SpanExporter, error) {
	if name := strings.TrimSpace(os.Getenv("OTEL_TRACES_EXPORTER")); name != "" && name != "otlp" {
		exporter, err := autoexport.NewSpanExporter(ctx)
		if err != nil {
			return nil, fmt.Errorf("OTEL_TRACES_EXPORTER is %q: %w", name, err)
		}
		return exporter, nil
	}
	variable := "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
	if os.Getenv(variable) == "" {
		variable = "OTEL_EXPORTER_OTLP_PROTOCOL"
	}
	switch protocol := os.Getenv(variable); protocol {
	case "grpc":
		return newOTLPExporter(ctx, otlptracegrpc.NewClient())
	case "", "http/protobuf":
		return newOTLPExporter(ctx, otlptracehttp.NewClient())
	default:
		return nil, fmt.Errorf("%s is %q, want http/protobuf or grpc", variable, protocol)
	}
}

// otlpExporter is the library's OTLP exporter, which is shown few of the spans: the first of each scope, for which it
// makes the messages that stand around spans, and what is not plain. The others are encoded here and travel in those
// messages as bytes. The library makes some forty messages of a span only to encode them, which was more than half of
// what a span costs ("make bench-telemetry").
type otlpExporter struct {
	*otlptrace.Exporter
	client *otlpClient
	shown  []sdktrace.ReadOnlySpan
}

func newOTLPExporter(ctx context.Context, client otlptrace.Client) (*otlpExporter, error) {
	c := &otlpClient{Client: client, batches: map[scopeKey]*scopeBatch{}}
	library, err := otlptrace.New(ctx, c)
	if err != nil {
		return nil, err
	}
	return &otlpExporter{Exporter: library, client: c}, nil
}

// ExportSpans implements sdktrace.SpanExporter, which promises not to call it concurrently.
func (e *otlpExporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	defer e.forget()
	for _, s := range spans {
		if !e.encode(s) {
			e.shown = append(e.shown, s)
		}
	}
	return e.Exporter.ExportSpans(ctx, e.shown)
}

// encode adds a span to what the library sends. It is false for the first of a scope and for one that is not plain.
func (e *otlpExporter) encode(s sdktrace.ReadOnlySpan) (encoded bool) {
	made := s.InstrumentationScope()
	if made.Attributes.Len() > 0 {
		return false
	}
	batch := e.client.batch(scopeKey{made.Name, made.Version, made.SchemaURL})
	if !batch.shown {
		batch.shown = true
		return false
	}
	batch.encoded, encoded = appendSpan(batch.encoded, s)
	return encoded
}

// forget drops the spans and keeps the buffers.
func (e *otlpExporter) forget() {
	for _, batch := range e.client.batches {
		batch.shown, batch.encoded = false, batch.encoded[:0]
	}
	clear(e.shown)
	e.shown = e.shown[:0]
}

// otlpClient adds the encoded spans to what the library sends. All spans are of one resource, that of their provider.
type otlpClient struct {
	otlptrace.Client
	batches map[scopeKey]*scopeBatch
}

// scopeKey is what made a span, as far as OTLP tells scopes without attributes apart.
type scopeKey struct{ name, version, schema string }

// scopeBatch is the spans of one scope in one export.
type scopeBatch struct {
	shown   bool   // the library has one
	encoded []byte // the others: fields of ScopeSpans
}

func (c *otlpClient) batch(of scopeKey) *scopeBatch {
	known := c.batches[of]
	if known == nil {
		known = &scopeBatch{}
		c.batches[of] = known
	}
	return known
}

// UploadTraces implements otlptrace.Client. Bytes that a message is said not to know are encoded as they are.
func (c *otlpClient) UploadTraces(ctx context.Context, all []*tracepb.ResourceSpans) error {
	for _, resource := range all {
		for _, spans := range resource.GetScopeSpans() {
			if in := spans.GetScope(); len(in.GetAttributes()) == 0 {
				spans.ProtoReflect().SetUnknown(c.batch(scopeKey{in.GetName(), in.GetVersion(), spans.GetSchemaUrl()}).encoded)
			}
		}
	}
	return c.Client.UploadTraces(ctx, all)
}
