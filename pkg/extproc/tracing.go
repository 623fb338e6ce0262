package extproc

import (
	"context"
	"strconv"
	"strings"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"
)

// StartSpan begins the span of an exchange as a child of parent, which may be invalid: then it begins a trace. It
// answers a nil span, and allocates nothing, where the exchange is not sampled.
type StartSpan func(ctx context.Context, parent trace.SpanContext) (context.Context, trace.Span)

// tracing is an exchange's span. The zero value is that of an exchange that is not sampled: its methods do nothing and
// allocate nothing. No tenant, lane, owner, key or byte of a body ever goes into it, but for the name of the model.
type tracing struct {
	span  trace.Span
	notes *notes // attributes, put on the span at its end: all at once costs less than one by one
	over  bool   // what was held has been given back
}

// notes are attributes to be. The server keeps them for later spans, since a span copies its attributes.
type notes struct {
	list []attribute.KeyValue
	pool *sync.Pool
}

// getNotes returns an empty list.
func getNotes(pool *sync.Pool) *notes {
	if n, ok := pool.Get().(*notes); ok {
		return n
	}
	return &notes{pool: pool}
}

// put returns the list to the pool, empty, so that what an exchange said does not outlive it.
func (n *notes) put() {
	clear(n.list)
	n.list = n.list[:0]
	n.pool.Put(n)
}

// context is the span's own, invalid where there is none.
func (t *tracing) context() (s trace.SpanContext) {
	if t.span != nil {
		s = t.span.SpanContext()
	}
	return s
}

// measured is the context for measurements: without a span there is nothing to look for in the exchange's own.
func (x *exchange) measured() context.Context {
	if x.tracing.span == nil {
		return context.Background()
	}
	return x.ctx
}

// measuredAs is measured for a refusal, whose trace may be its parent's.
func (x *exchange) measuredAs(s trace.SpanContext) context.Context {
	if x.tracing.span != nil || !s.IsSampled() {
		return x.measured()
	}
	return trace.ContextWithSpanContext(context.Background(), s)
}

// startSpan begins the span where the exchange is sampled. What the exchange asks of others from then on is below it.
func (x *exchange) startSpan() {
	if x.server.startSpan == nil {
		return
	}
	ctx, span := x.server.startSpan(x.ctx, x.parentSpan())
	if span == nil {
		return
	}
	x.ctx, x.tracing.span = ctx, span
	x.tracing.notes = getNotes(&x.server.notes)
	x.tracing.note(semconv.RPCSystemNameGRPC)
	x.tracing.note(semconv.RPCMethod("envoy.service.ext_proc.v3.ExternalProcessor/Process"))
	x.tracing.note(attribute.String("headgate.cluster", x.facts.cluster))
	if x.facts.level != "" {
		x.tracing.note(attribute.String("headgate.level", x.facts.level))
	}
}

// parentSpan is the span that the exchange belongs to. Envoy names its own in the metadata of the gRPC stream, which may
// differ from the HTTP header when it is Envoy that traces.
func (x *exchange) parentSpan() trace.SpanContext {
	if values := metadata.ValueFromIncomingContext(x.ctx, "traceparent"); len(values) > 0 {
		if parent := parseTraceparent(values[0]); parent.IsValid() {
			return parent
		}
	}
	return parseTraceparent(x.facts.traceparent)
}

// spanContext is the exchange's own, or its parent's where it has none: enough to find the trace.
func (x *exchange) spanContext() trace.SpanContext {
	if s := x.tracing.context(); s.IsValid() {
		return s
	}
	return x.parentSpan()
}

// parseTraceparent reads a traceparent (W3C Trace Context, 3.2). One that is malformed is invalid, as is an absent one.
// OpenTelemetry's propagator allocates twice for each exchange, sampled or not, and refuses flags of later versions, which
// are to be ignored.
func parseTraceparent(s string) trace.SpanContext {
	const length = len("00-") + 32 + len("-") + 16 + len("-00")
	if len(s) < length || s[2] != '-' || s[35] != '-' || s[52] != '-' || s[:2] == "ff" {
		return trace.SpanContext{}
	}
	if len(s) > length && (s[:2] == "00" || s[length] != '-') {
		return trace.SpanContext{}
	}
	if !lowerHex(s[:2]) || !lowerHex(s[53:length]) {
		return trace.SpanContext{}
	}
	id, err := trace.TraceIDFromHex(s[3:35])
	if err != nil {
		return trace.SpanContext{}
	}
	span, err := trace.SpanIDFromHex(s[36:52])
	if err != nil {
		return trace.SpanContext{}
	}
	flags, _ := strconv.ParseUint(s[53:length], 16, 8)
	return trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: id, SpanID: span, TraceFlags: trace.TraceFlags(flags) & trace.FlagsSampled, Remote: true,
	})
}

func lowerHex(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// bytesEvent notes that a reservation is waited for, granted or raised, to so many bytes in all.
func (t *tracing) bytesEvent(name string, bytes int64) {
	if t.span == nil {
		return
	}
	t.span.AddEvent(name, trace.WithAttributes(attribute.String(eventResource, "bytes"), attribute.Int64("headgate.amount", bytes)))
}

// laneEvent notes that the exchange waits in its lane or was granted its cost, which is an attribute of the span.
func (t *tracing) laneEvent(name string) {
	if t.span == nil {
		return
	}
	t.span.AddEvent(name, ofLane...)
}

// eventResource says what a wait or a grant is about.
const eventResource = "headgate.resource"

// ofLane is made once: making options is most of what an event costs.
var ofLane = []trace.EventOption{trace.WithAttributes(attribute.String(eventResource, "lane"))}

// note keeps an attribute for the end of the span.
func (t *tracing) note(a attribute.KeyValue) { t.notes.list = append(t.notes.list, a) }

// leaseChecked notes the answer of the fence: valid, or the reason of the refusal.
func (t *tracing) leaseChecked(v *verdict) {
	if t.span == nil {
		return
	}
	answer := "valid"
	if v != nil {
		answer = v.Reason
	}
	t.span.AddEvent("lease check", trace.WithAttributes(attribute.String("headgate.lease.answer", answer)))
}

// firstByte notes the response.
func (t *tracing) firstByte(code int) {
	if t.span == nil {
		return
	}
	t.span.AddEvent("first byte")
	t.note(semconv.HTTPResponseStatusCode(code))
}

// released notes that everything is given back, once.
func (t *tracing) released() {
	if t.span != nil && !t.over {
		t.over = true
		t.span.AddEvent("release")
	}
}

// longestModel bounds the model's name in a span: clients choose it.
const longestModel = 128

// noteRequest notes what the request asks for, as the conventions for generative AI have it, as far as the evidence says. A name that
// is none is left out.
func (t *tracing) noteRequest(model string, stream, known bool) {
	if t.span == nil {
		return
	}
	if model != "" && model != unreadableModel && len(model) <= longestModel {
		t.note(attribute.String("gen_ai.request.model", strings.ToValidUTF8(model, "")))
	}
	if known {
		t.note(attribute.Bool("gen_ai.request.stream", stream))
	}
}

// decided describes the decision. Of the refusals only those that are the server's doing are errors of the span.
func (t *tracing) decided(d Decision, v *verdict) {
	if t.span == nil {
		return
	}
	t.note(attribute.String("headgate.reason", d.Reason))
	if d.Bytes > 0 {
		t.note(semconv.HTTPRequestBodySize(int(d.Bytes)))
	}
	t.note(attribute.Int("headgate.cost", d.Cost))
	if d.Waited > 0 {
		t.note(attribute.Int64("headgate.wait_ms", d.Waited.Milliseconds()))
	}
	if v == nil {
		return
	}
	t.span.AddEvent("refusal", trace.WithAttributes(attribute.String("headgate.reason", v.Reason)))
	t.note(semconv.ErrorTypeKey.String(v.Reason))
	t.note(semconv.HTTPResponseStatusCode(v.HTTP))
	if v.HTTP >= 500 {
		t.span.SetStatus(codes.Error, v.Reason)
	}
}

// end ends the span; err is a fault of the machine.
func (t *tracing) end(err error) {
	if t.span == nil {
		return
	}
	if err != nil {
		t.span.RecordError(err)
		t.span.SetStatus(codes.Error, "stream broken")
	}
	t.span.SetAttributes(t.notes.list...)
	t.span.End()
	t.notes.put()
	t.span, t.notes = nil, nil
}
