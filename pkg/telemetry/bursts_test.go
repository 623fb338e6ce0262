package telemetry

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
)

// burstTracing records what reaches the processor behind the bursts.
func burstTracing() (*Tracing, *tracetest.SpanRecorder) {
	spans := tracetest.NewSpanRecorder()
	return newTracing(sampler{true, 1}, sdktrace.WithSpanProcessor(newBursts(spans, burstSize))), spans
}

func endSpans(t *Tracing, n int) {
	for range n {
		_, span := t.StartSpan()(context.Background(), trace.SpanContext{})
		span.End()
	}
}

func TestSpansGoOnInBursts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tracing, spans := burstTracing()
		passed := func(when string, want int) {
			t.Helper()
			synctest.Wait()
			if n := len(spans.Ended()); n != want {
				t.Errorf("%s: %d spans passed on, want %d", when, n, want)
			}
		}
		endSpans(tracing, burstSize-1)
		passed("one short of a burst", 0)
		endSpans(tracing, 1)
		passed("a burst", burstSize)
		endSpans(tracing, 1)
		time.Sleep(burstLinger - 1)
		passed("a lone span, just before it has lingered", burstSize)
		time.Sleep(1)
		passed("a lone span that has lingered", burstSize+1)
		time.Sleep(10 * burstLinger)
		passed("nothing more", burstSize+1)
		endSpans(tracing, 2)
		if err := tracing.provider.ForceFlush(t.Context()); err != nil {
			t.Errorf("flush: %v", err)
		}
		passed("a flush", burstSize+3)
		endSpans(tracing, 2)
		if err := tracing.Shutdown(t.Context()); err != nil {
			t.Errorf("shut down: %v", err)
		}
		passed("the end", burstSize+5)
	})
}

func TestBurstsFitTheQueue(t *testing.T) {
	for text, want := range map[string]int{"": 512, "2048": 512, "100000": 512, " 400 ": 100, "3": 1, "1": 1, "0": 0, "-5": 0, "many": 0, "1e3": 0, "99999999": 0} {
		t.Setenv("OTEL_BSP_MAX_QUEUE_SIZE", text)
		queue, err := queueFromEnv()
		if want == 0 {
			if err == nil || !strings.Contains(err.Error(), "OTEL_BSP_MAX_QUEUE_SIZE") {
				t.Errorf("a queue of %q: %d and error %v, want one that names the variable", text, queue, err)
			}
			continue
		}
		if got := burstFor(queue); err != nil || got != want {
			t.Errorf("a queue of %q: bursts of %d and error %v, want %d", text, got, err, want)
		}
	}
}

func TestBurstsOfOneWaitForNobody(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewSpanRecorder()
	tracing := newTracing(sampler{true, 1}, sdktrace.WithSpanProcessor(newBursts(spans, 1)))
	for n := range 3 {
		endSpans(tracing, 1)
		if got := len(spans.Ended()); got != n+1 {
			t.Errorf("%d spans passed on after %d have ended", got, n+1)
		}
	}
}

// TestBurstsLoseNothing: many exchanges end at once.
func TestBurstsLoseNothing(t *testing.T) {
	t.Parallel()
	tracing, spans := burstTracing()
	const exchanges, each = 20, 1501
	var all sync.WaitGroup
	for range exchanges {
		all.Go(func() { endSpans(tracing, each) })
	}
	all.Wait()
	if err := tracing.Shutdown(t.Context()); err != nil {
		t.Errorf("shut down: %v", err)
	}
	if n := len(spans.Ended()); n != exchanges*each {
		t.Errorf("%d spans passed on, want %d", n, exchanges*each)
	}
}
