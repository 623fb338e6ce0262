package lease

import (
	"context"
	"testing"

	"go.opentelemetry.io/otel/trace"
)

func TestUnsampledCallsAllocateNothing(t *testing.T) {
	parent := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}, Remote: true})
	for name, ctx := range map[string]context.Context{
		"no trace":              context.Background(),
		"an unsampled exchange": trace.ContextWithRemoteSpanContext(context.Background(), parent),
	} {
		got := testing.AllocsPerRun(100, func() {
			_, span := traceCall(ctx, "check")
			endCall(span, nil)
		})
		if got != 0 {
			t.Errorf("%s: %v allocations, want 0", name, got)
		}
	}
}
