package telemetry

import (
	"context"
	"sync"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

const (
	burstSize   = 64                     // spans passed on together, well below the queue of 2048
	burstLinger = 100 * time.Millisecond // what a span waits for others at most
)

// bursts passes spans on to the SDK's batch processor many at a time. That one has a goroutine that puts spans into
// batches; waking it for each span costs more than the span on a sidecar with time to spare, as profiles suggest.
type bursts struct {
	next sdktrace.SpanProcessor

	mu    sync.Mutex
	spans []sdktrace.ReadOnlySpan // never more than burstSize
	timer *time.Timer             // runs while there are some
}

func newBursts(next sdktrace.SpanProcessor) *bursts {
	b := &bursts{next: next, spans: make([]sdktrace.ReadOnlySpan, 0, burstSize)}
	b.timer = time.AfterFunc(burstLinger, b.pass)
	b.timer.Stop()
	return b
}

// OnStart implements sdktrace.SpanProcessor; batches are made of ended spans alone.
func (b *bursts) OnStart(context.Context, sdktrace.ReadWriteSpan) {}

// OnEnd implements sdktrace.SpanProcessor. Passing on does not block: what the batch processor has no room for is dropped.
func (b *bursts) OnEnd(s sdktrace.ReadOnlySpan) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.spans = append(b.spans, s)
	switch len(b.spans) {
	case 1:
		b.timer.Reset(burstLinger)
	case burstSize:
		b.timer.Stop()
		b.passLocked()
	}
}

func (b *bursts) pass() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.passLocked()
}

func (b *bursts) passLocked() {
	for _, s := range b.spans {
		b.next.OnEnd(s)
	}
	clear(b.spans)
	b.spans = b.spans[:0]
}

// ForceFlush implements sdktrace.SpanProcessor.
func (b *bursts) ForceFlush(ctx context.Context) error {
	b.pass()
	return b.next.ForceFlush(ctx)
}

// Shutdown implements sdktrace.SpanProcessor.
func (b *bursts) Shutdown(ctx context.Context) error {
	b.timer.Stop()
	b.pass()
	return b.next.Shutdown(ctx)
}
