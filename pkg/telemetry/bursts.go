package telemetry

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

const (
	burstSize   = 512                    // spans passed on together at most: a batch as it is exported, a quarter of the queue
	burstLinger = 500 * time.Millisecond // what a span waits for others at most; exports come every 5 s unless batches are full
	mostQueued  = 1 << 20                // spans, some gigabytes
)

// bursts passes spans on to the SDK's batch processor many at a time. That one has a goroutine that puts spans into
// batches; waking it for each span costs more than the span on a sidecar with time to spare, as profiles suggest.
type bursts struct {
	next sdktrace.SpanProcessor

	mu    sync.Mutex
	spans []sdktrace.ReadOnlySpan // never more than size
	size  int
	timer *time.Timer // runs while there are some
}

func newBursts(next sdktrace.SpanProcessor, size int) *bursts {
	b := &bursts{next: next, spans: make([]sdktrace.ReadOnlySpan, 0, size), size: size}
	b.timer = time.AfterFunc(burstLinger, b.pass)
	b.timer.Stop()
	return b
}

// queueFromEnv is how many spans the batch processor keeps for later.
func queueFromEnv() (int, error) {
	text := strings.TrimSpace(os.Getenv("OTEL_BSP_MAX_QUEUE_SIZE"))
	if text == "" {
		return sdktrace.DefaultMaxQueueSize, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > mostQueued {
		return 0, fmt.Errorf("OTEL_BSP_MAX_QUEUE_SIZE is %q, want a number from 1 to %d", text, mostQueued)
	}
	return n, nil
}

// burstFor is how many spans a queue of that size takes at once without dropping any.
func burstFor(queue int) int { return min(max(queue/4, 1), burstSize) }

// OnStart implements sdktrace.SpanProcessor; batches are made of ended spans alone.
func (b *bursts) OnStart(context.Context, sdktrace.ReadWriteSpan) {}

// OnEnd implements sdktrace.SpanProcessor. Passing on does not block: what the batch processor has no room for is dropped.
func (b *bursts) OnEnd(s sdktrace.ReadOnlySpan) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.spans = append(b.spans, s)
	switch n := len(b.spans); {
	case n >= b.size:
		b.timer.Stop()
		b.passLocked()
	case n == 1:
		b.timer.Reset(burstLinger)
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
