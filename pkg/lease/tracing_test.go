package lease_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/headgate/headgate/pkg/lease"
)

// TestTheFenceIsASpanBelowTheExchange: a sampled exchange shows each call of the store by its script, and nothing of what
// it was about; an exchange that is not sampled shows none.
func TestTheFenceIsASpanBelowTheExchange(t *testing.T) {
	t.Parallel()
	svc := newService(t, settings("acct-1"))
	l := acquire(t, svc, 1, teamA)
	spans := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans), sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.AlwaysSample())))
	t.Cleanup(func() { _ = provider.Shutdown(context.Background()) })
	check := func(parent context.Context) trace.SpanContext {
		t.Helper()
		ctx, exchange := provider.Tracer("test").Start(parent, "exchange")
		defer exchange.End()
		if _, refusal := svc.Check(ctx, fence(t, svc, 1, teamA, l.Generation)); refusal != nil {
			t.Fatalf("check: %s, want it valid", refusal.Reason)
		}
		return exchange.SpanContext()
	}

	exchange := check(within(t, patience))
	all := spans.Ended()
	if len(all) != 2 {
		t.Fatalf("%d spans of a sampled exchange, want itself and one call of the store", len(all))
	}
	call := all[0]
	if call.Name() != "EVALSHA check" || call.SpanKind() != trace.SpanKindClient || call.Status().Code != codes.Unset {
		t.Errorf("span %q of kind %v with status %v, want EVALSHA check, client, unset", call.Name(), call.SpanKind(), call.Status())
	}
	if call.SpanContext().TraceID() != exchange.TraceID() || call.Parent().SpanID() != exchange.SpanID() {
		t.Errorf("the call is below %v, want it below the exchange %v", call.Parent(), exchange)
	}
	for _, a := range call.Attributes() {
		for _, secret := range []string{"vlo_", rawOwner(1)[4:], "key-a", teamA, "acct-1", "headgate:", string(owner(t, 1))} {
			if strings.Contains(a.Value.String(), secret) {
				t.Errorf("attribute %s = %q holds %q", a.Key, a.Value.String(), secret)
			}
		}
	}

	unsampled := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}, Remote: true})
	check(trace.ContextWithRemoteSpanContext(within(t, patience), unsampled))
	if n := len(spans.Ended()); n != 2 {
		t.Errorf("%d spans of an exchange that is not sampled, want none", n-2)
	}
}

// TestACallThatFailsSaysSoInItsSpan: with the status, not with what the store said.
func TestACallThatFailsSaysSoInItsSpan(t *testing.T) {
	t.Parallel()
	s := onRedis(settings("acct-1"), "127.0.0.1:1")
	s.Store.Redis.CallTimeout, s.Store.Redis.DialTimeout = 100*time.Millisecond, 100*time.Millisecond
	svc := newService(t, s)
	spans := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	t.Cleanup(func() { _ = provider.Shutdown(context.Background()) })
	ctx, exchange := provider.Tracer("test").Start(within(t, patience), "exchange")
	defer exchange.End()
	if _, refusal := svc.Check(ctx, fence(t, svc, 1, teamA, 1)); reason(refusal) != lease.ServiceUnavailable {
		t.Fatalf("check without a store: %q, want %s", reason(refusal), lease.ServiceUnavailable)
	}
	all := spans.Ended()
	if len(all) != 1 || all[0].Status().Code != codes.Error || strings.Contains(all[0].Status().Description, "127.0.0.1") || len(all[0].Events()) != 0 {
		t.Errorf("spans %v, want one with an error that does not quote the store's", all)
	}
}
