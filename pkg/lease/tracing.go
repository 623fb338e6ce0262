package lease

import (
	"context"

	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
)

// traceCall begins a span of a store call below the span in ctx. Where that one is not recorded, or there is none, it
// does nothing and allocates nothing. No key, owner or argument goes into it.
func traceCall(ctx context.Context, script string) (context.Context, trace.Span) {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return ctx, nil
	}
	return parent.TracerProvider().Tracer("github.com/headgate/headgate").Start(ctx, "EVALSHA "+script,
		trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(semconv.DBSystemNameRedis, semconv.DBOperationName("EVALSHA"), semconv.DBStoredProcedureName(script)))
}

// endCall ends it. The error's text stays out of it: it is the store's, and may quote what it was asked.
func endCall(s trace.Span, err error) {
	if s == nil {
		return
	}
	if err != nil {
		s.SetStatus(codes.Error, "the store call failed")
	}
	s.End()
}
