package extproc

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/config"
)

// traced makes the rig sample what its parent samples, and what has no parent, and keeps the spans.
func traced(t *testing.T, r *rig) *tracetest.SpanRecorder {
	t.Helper()
	spans := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans), sdktrace.WithSampler(sdktrace.AlwaysSample()))
	t.Cleanup(func() { _ = provider.Shutdown(context.Background()) })
	tracer := provider.Tracer("test")
	r.server.startSpan = func(ctx context.Context, parent trace.SpanContext) (context.Context, trace.Span) {
		if parent.IsValid() && !parent.IsSampled() {
			return ctx, nil
		}
		return tracer.Start(trace.ContextWithRemoteSpanContext(ctx, parent), "exchange")
	}
	return spans
}

func ended(t *testing.T, spans *tracetest.SpanRecorder, n int) []sdktrace.ReadOnlySpan {
	t.Helper()
	if !eventually(func() bool { return len(spans.Ended()) >= n }) {
		t.Fatalf("%d spans ended, want %d", len(spans.Ended()), n)
	}
	return spans.Ended()
}

const (
	httpParent = "00-" + "11111111111111111111111111111111" + "-2222222222222222-01"
	grpcParent = "00-" + "33333333333333333333333333333333" + "-4444444444444444-01"
)

func TestTheSpanIsAChildOfWhoeverTraces(t *testing.T) {
	r := newRig(t, nil)
	spans := traced(t, r)
	for _, c := range []struct {
		name, http, grpc string
		trace, parent    string // empty trace: one of its own; "-": no span
	}{
		{"the HTTP header alone", httpParent, "", strings.Repeat("1", 32), strings.Repeat("2", 16)},
		{"gRPC metadata alone", "", grpcParent, strings.Repeat("3", 32), strings.Repeat("4", 16)},
		{"both: the metadata wins", httpParent, grpcParent, strings.Repeat("3", 32), strings.Repeat("4", 16)},
		{"metadata that is malformed leaves the header", httpParent, "zz", strings.Repeat("1", 32), strings.Repeat("2", 16)},
		{"nothing", "", "", "", strings.Repeat("0", 16)},
		{"malformed", "zz", "", "", strings.Repeat("0", 16)},
		{"not sampled", httpParent[:53] + "00", "", "-", ""},
		{"not sampled by the metadata", httpParent, grpcParent[:53] + "00", "-", ""},
	} {
		before := len(spans.Ended())
		var md, headers []string
		if c.grpc != "" {
			md = []string{"traceparent", c.grpc}
		}
		if c.http != "" {
			headers = []string{"traceparent", c.http}
		}
		s := r.open(md...)
		s.send(rh(early, true, headers...), sh("200", true))
		s.wants("RH", "SH")
		s.finish()
		if c.trace == "-" {
			r.settled()
			if n := len(spans.Ended()) - before; n != 0 {
				t.Errorf("%s: %d spans, want none", c.name, n)
			}
			continue
		}
		span := ended(t, spans, before+1)[before]
		id, parent := span.SpanContext().TraceID().String(), span.Parent().SpanID().String()
		if (c.trace != "" && id != c.trace) || parent != c.parent {
			t.Errorf("%s: trace %s below span %s, want %q below %s", c.name, id, parent, c.trace, c.parent)
		}
	}
}

func TestTheSpanTellsWhatHappened(t *testing.T) {
	r := newRig(t, func(c *config.Config) {
		c.Clusters = map[string]config.Cluster{"*": c.Cluster("*")}
		star := c.Clusters["*"]
		star.Lanes.Mode = adaptive.Enforce
		c.Clusters["*"] = star
	})
	spans := traced(t, r)

	s := r.open()
	s.send(rh(early, false, "x-tenant-id", "secret-tenant"))
	s.send(rb(bytesOf(300<<10), false), rb(bytesOf(400<<10), true), sh("200", false), st())
	s.wants("RH", "RB", "RB", "SH", "ST")
	s.finish()
	admitted := ended(t, spans, 1)[0]
	names := eventNames(admitted)
	for _, want := range []string{"grant bytes", "grant lane", "growth bytes", "first byte", "release"} {
		if !slices.Contains(names, want) {
			t.Errorf("events %q, want %q among them", names, want)
		}
	}
	if n := countOf(names, "release"); n != 1 {
		t.Errorf("%d release events, want 1", n)
	}
	if code := attributeOf(admitted, "http.response.status_code"); code != "200" {
		t.Errorf("status code attribute %q, want 200", code)
	}

	s = r.open()
	s.send(rh(early, false, "content-length", "2000000", "x-tenant-id", "secret-tenant"))
	s.refused(413, "payload_too_large")
	refused := ended(t, spans, 2)[1]
	if names := eventNames(refused); !slices.Contains(names, "refusal") {
		t.Errorf("events %q, want a refusal", names)
	}
	if got := attributeOf(refused, "error.type"); got != "payload_too_large" {
		t.Errorf("error.type %q, want payload_too_large", got)
	}
	for _, span := range spans.Ended() {
		for _, a := range span.Attributes() {
			if v := a.Value.String(); strings.Contains(v, "secret") || strings.Contains(v, "lane_") {
				t.Errorf("attribute %s = %q says who asked", a.Key, v)
			}
		}
	}
}

// TestTheSpanNamesTheModel: as the conventions for generative AI have it, from the body or the path, and only what is a name.
func TestTheSpanNamesTheModel(t *testing.T) {
	r := newRig(t, nil)
	spans := traced(t, r)
	for i, c := range []struct{ name, path, body, model, stream string }{
		{"in the body", "/v1/chat/completions", `{"model":"gpt-4o","stream":true,"messages":[]}`, "gpt-4o", "true"},
		{"in one piece", "/v1/messages", `{"model":"claude","stream":false}`, "claude", "false"},
		{"nothing about streams", "/v1/embeddings", `{"model":"e"}`, "e", ""},
		{"Gemini", "/v1beta/models/gemini-2.5-pro:streamGenerateContent?alt=sse", `{}`, "gemini-2.5-pro", "true"},
		{"Gemini, escaped", "/v1beta/models/gemini-2.5-pro%3AstreamGenerateContent", `{}`, "gemini-2.5-pro", "true"},
		{"Bedrock", "/model/anthropic.claude-v1%3A0/converse-stream", `{}`, "anthropic.claude-v1:0", "true"},
		{"Azure", "/openai/deployments/mine/chat/completions", `{"stream":true}`, "mine", "true"},
		{"no model", "/v1/files", `{"a":1}`, "", ""},
		{"no JSON", "/v1/files", "model=x", "", ""},
		{"a name too long", "/v1/chat/completions", `{"model":"` + strings.Repeat("m", 129) + `"}`, "", ""},
		{"no name", "/v1beta/models/%zz:generateContent", `{}`, "", ""},
	} {
		s := r.open()
		s.send(rh(early, false, ":method", "POST", ":path", c.path, "content-type", "application/json"), rb(c.body, true), sh("200", true))
		s.wants("RH", "RB", "SH")
		s.finish()
		span := ended(t, spans, i+1)[i]
		if got := attributeOf(span, "gen_ai.request.model"); got != c.model {
			t.Errorf("%s: gen_ai.request.model %q, want %q", c.name, got, c.model)
		}
		if got := attributeOf(span, "gen_ai.request.stream"); got != c.stream {
			t.Errorf("%s: gen_ai.request.stream %q, want %q", c.name, got, c.stream)
		}
	}
}

// TestTheSpanOfAClientThatLeft says so.
func TestTheSpanOfAClientThatLeft(t *testing.T) {
	r := newRig(t, nil)
	spans := traced(t, r)
	s := r.open()
	s.send(rh(early, false, "content-length", "1000", "content-type", "application/json"))
	if !eventually(func() bool { return len(spans.Started()) == 1 }) {
		t.Fatal("no span began")
	}
	s.cancel()
	span := ended(t, spans, 1)[0]
	if reason, cost := attributeOf(span, "headgate.reason"), attributeOf(span, "headgate.cost"); reason != "client_gone" || cost == "" {
		t.Errorf("reason %q and cost %q, want client_gone and a cost", reason, cost)
	}
}

// TestExemplarsAreOfTheTraceOfTheExchange, or, of a refusal that has no span, of its parent's.
func TestExemplarsAreOfTheTraceOfTheExchange(t *testing.T) {
	for _, c := range []struct {
		name              string
		traced            bool
		admitted, refused string // traces that measurements are of
	}{
		{"sampled", true, strings.Repeat("1", 32), strings.Repeat("1", 32)},
		{"traced by others alone", false, "", strings.Repeat("1", 32)},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, nil)
			if c.traced {
				traced(t, r)
			}
			s := r.open()
			s.send(rh(early, true, "traceparent", httpParent), sh("200", true))
			s.wants("RH", "SH")
			s.finish()
			s = r.open()
			s.send(rh(early, false, "content-length", "2000000", "traceparent", httpParent))
			s.refused(413, "payload_too_large")
			r.settled()
			for reason, want := range map[string]string{"admitted": c.admitted, "payload_too_large": c.refused} {
				if got := r.seen.trace(reason); got != want {
					t.Errorf("%s: the measurement is of trace %q, want %q", reason, got, want)
				}
			}
		})
	}
}

func eventNames(s sdktrace.ReadOnlySpan) []string {
	var names []string
	for _, e := range s.Events() {
		name := e.Name
		for _, a := range e.Attributes {
			if a.Key == "headgate.resource" {
				name += " " + a.Value.AsString()
			}
		}
		names = append(names, name)
	}
	return names
}

func countOf(names []string, name string) (n int) {
	for _, each := range names {
		if each == name {
			n++
		}
	}
	return n
}

func attributeOf(s sdktrace.ReadOnlySpan, key string) string {
	for _, a := range s.Attributes() {
		if string(a.Key) == key {
			return a.Value.String()
		}
	}
	return ""
}

// TestUnsampledAllocatesNothing: gRPC copies a metadata value for whoever reads it, which is the one allocation left.
func TestUnsampledAllocatesNothing(t *testing.T) {
	unsampled := httpParent[:53] + "00"
	never := func(ctx context.Context, _ trace.SpanContext) (context.Context, trace.Span) { return ctx, nil }
	for _, c := range []struct {
		name, http string
		ctx        context.Context
		want       float64
	}{
		{"no parent", "", context.Background(), 0},
		{"a parent in the HTTP header", unsampled, context.Background(), 0},
		{"a parent in the gRPC metadata", "", metadata.NewIncomingContext(context.Background(), metadata.Pairs("traceparent", unsampled)), 1},
	} {
		x := &exchange{server: &Server{startSpan: never}, ctx: c.ctx, facts: facts{traceparent: c.http, cluster: "chat"}}
		got := testing.AllocsPerRun(100, func() {
			x.startSpan()
			x.tracing.bytesEvent("wait", 300<<10)
			x.tracing.bytesEvent("grant", 300<<10)
			x.tracing.leaseChecked(nil)
			x.tracing.decided(Decision{Reason: "admitted", Waited: time.Second}, nil)
			x.tracing.firstByte(200)
			x.tracing.released()
			x.tracing.end(nil)
		})
		if got != c.want {
			t.Errorf("%s: %v allocations, want %v", c.name, got, c.want)
		}
	}
}

func TestParseTraceparent(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, value string
		valid       bool
		sampled     bool
		lenient     bool // OpenTelemetry refuses it
	}{
		{"sampled", httpParent, true, true, false},
		{"not sampled", httpParent[:53] + "00", true, false, false},
		{"other flags are ignored", httpParent[:53] + "ff", true, true, true},
		{"a later version may say more", "01" + httpParent[2:] + "-more", true, true, false},
		{"a later version that ends at the flags", "cc" + httpParent[2:], true, true, false},
		{"version 00 may not", httpParent + "-more", false, false, false},
		{"a later version glued on", "01" + httpParent[2:] + "more", false, false, false},
		{"version ff", "ff" + httpParent[2:], false, false, false},
		{"upper case", strings.ToUpper("00-abababababababababababababababab-2222222222222222-01"), false, false, false},
		{"a version that is not hex", "0x" + httpParent[2:], false, false, false},
		{"no trace", "00-" + strings.Repeat("0", 32) + "-2222222222222222-01", false, false, false},
		{"no span", "00-" + strings.Repeat("1", 32) + "-0000000000000000-01", false, false, false},
		{"flags that are not hex", httpParent[:53] + "0g", false, false, false},
		{"short", httpParent[:54], false, false, false},
		{"wrong separators", strings.ReplaceAll(httpParent, "-", "_"), false, false, false},
		{"empty", "", false, false, false},
	} {
		if s := parseTraceparent(c.value); s.IsValid() != c.valid || s.IsSampled() != c.sampled {
			t.Errorf("%s: valid %v and sampled %v, want %v and %v", c.name, s.IsValid(), s.IsSampled(), c.valid, c.sampled)
		}
		library := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": c.value})
		if want, got := trace.SpanContextFromContext(library), parseTraceparent(c.value); !want.Equal(got) && !c.lenient {
			t.Errorf("%s: %+v, OpenTelemetry has %+v", c.name, got, want)
		}
	}
}
