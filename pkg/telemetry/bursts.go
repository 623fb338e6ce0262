package telemetry

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

const (
	burstSize   = 512                    // spans passed on together at most: a batch as it is exported, a quarter of the queue
	burstLinger = 500 * time.Millisecond // what a span waits for others at most; exports come every 5 s unless batches are full
)

// bursts passes spans on to the SDK's batch processor many at a time. That one has a goroutine that puts spans into
// batches; waking it for each span costs more than the span on a sidecar with time to spare, as profiles suggest.
type bursts struct {
	next sdktrace.SpanProcessor

	mu    sync.Mutex
	spans []sdktrace.ReadOnlySpan // never more than its capacity
	timer *time.Timer             // runs while there are some
}

func newBursts(next sdktrace.SpanProcessor, size int) *bursts {
	b := &bursts{next: next, spans: make([]sdktrace.ReadOnlySpan, 0, size)}
	b.timer = time.AfterFunc(burstLinger, b.pass)
	b.timer.Stop()
	return b
}

// burstFor is how many spans the queue that the environment asks for takes at once without dropping any.
func burstFor(queue string) int {
	n, err := strconv.Atoi(strings.TrimSpace(queue))
	if err != nil || n <= 0 {
		return burstSize // the batch processor falls back to its default, too
	}
	return min(max(n/4, 1), burstSize)
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
	case cap(b.spans):
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
