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

// recentRefusals is how many refusals are kept.
const recentRefusals = 50

// ring keeps the last refusals. Adding to it allocates for an exchange that has a trace, nothing otherwise.
type ring struct {
	mu    sync.Mutex
	kept  [recentRefusals]Refusal
	added int
}

func (r *ring) add(d extproc.Decision) {
	refusal := Refusal{
		At: time.Now().UTC(), Cluster: d.Cluster, Reason: d.Reason, Lane: d.Lane, Bytes: d.Bytes, WaitMS: d.Waited.Milliseconds(),
	}
	if d.Trace.HasTraceID() {
		refusal.TraceID = d.Trace.TraceID().String()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kept[r.added%recentRefusals] = refusal
	r.added++
}

// Refusals are the last refused exchanges, the newest first.
func (m *Metrics) Refusals() []Refusal {
	r := &m.refusals
	r.mu.Lock()
	defer r.mu.Unlock()
	n := min(r.added, recentRefusals)
	last := make([]Refusal, 0, n)
	for i := range n {
		last = append(last, r.kept[(r.added-1-i)%recentRefusals])
	}
	return slices.Clip(last)
}
