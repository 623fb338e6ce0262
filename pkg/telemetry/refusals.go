package telemetry

import (
	"slices"
	"sync"
	"time"

	"github.com/headgate/headgate/pkg/extproc"
)

// Refusal is one refused exchange, as operators see it.
type Refusal struct {
	At      time.Time `json:"at"`
	Cluster string    `json:"cluster"`
	Reason  string    `json:"reason"`
	Lane    string    `json:"lane,omitempty"` // opaque; empty for anonymous
	Bytes   int64     `json:"bytes"`          // declared or seen
	WaitMS  int64     `json:"waitMs"`
	TraceID string    `json:"traceId,omitempty"` // of the trace that Envoy or the client began, sampled or not
}

// recentRefusals is how many refusals are remembered.
const recentRefusals = 50

// refusalLog is a ring buffer of the last refusals. Adding to it allocates for an exchange that has a trace, nothing otherwise.
type refusalLog struct {
	mu      sync.Mutex
	entries [recentRefusals]Refusal
	added   int // ever
}

func (l *refusalLog) add(d extproc.Decision) {
	refusal := Refusal{
		At: time.Now().UTC(), Cluster: d.Cluster, Reason: d.Reason, Lane: d.Lane, Bytes: d.Bytes, WaitMS: d.Waited.Milliseconds(),
	}
	if d.Trace.HasTraceID() {
		refusal.TraceID = d.Trace.TraceID().String()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries[l.added%recentRefusals] = refusal
	l.added++
}

// Refusals are the last refused exchanges, the newest first.
func (m *Metrics) Refusals() []Refusal {
	l := &m.refusals
	l.mu.Lock()
	defer l.mu.Unlock()
	n := min(l.added, recentRefusals)
	last := make([]Refusal, 0, n)
	for i := range n {
		last = append(last, l.entries[(l.added-1-i)%recentRefusals])
	}
	return slices.Clip(last)
}
