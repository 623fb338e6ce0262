package extproc

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/time/rate"

	"github.com/headgate/headgate/pkg/budget"
)

// What a decision is called that is no refusal.
const (
	reasonAdmitted        = "admitted"
	reasonClientGone      = "client_gone"      // the client left before the decision
	reasonAnsweredEarlier = "answered_earlier" // another filter answered before the request came to us
)

// Decision describes one decision, for logs and metrics. It carries no identity but the opaque lane name.
type Decision struct {
	Cluster  string
	Reason   string            // admitted, client_gone, answered_earlier, or a reason of the verdict table
	Lane     string            // opaque, empty for anonymous
	Bytes    int64             // declared or seen by then, whichever is more
	Cost     int               // 0 where no lane priced it
	Waited   time.Duration     // for bytes and for capacity: the sum of the next two
	ByteWait time.Duration     // for bytes
	LaneWait time.Duration     // for capacity
	Took     time.Duration     // since the headers came
	Idled    bool              // decided because the upload paused
	Trace    trace.SpanContext // of a refusal: its own where it is sampled, its parent's otherwise
}

// Observer takes note of what happens to exchanges. Its methods are on the hot path: they must not block. The contexts are
// for exemplars: they hold the span of the exchange, or what a refusal has as its trace.
type Observer interface {
	Decided(context.Context, Decision)
	FirstByte(ctx context.Context, cluster string, took time.Duration) // response headers, took since the decision
	WouldReject(cluster, reason string)                                // observability mode: what would have been refused
}

// decision describes the exchange as it stands.
func (x *exchange) decision(reason string) Decision {
	lane, bytes := x.permit.waited(), x.reservation.waited
	return Decision{
		Cluster: x.facts.cluster, Reason: reason, Lane: x.laneName(), Bytes: max(x.body.seen, x.body.declared, 0),
		Cost: x.permit.cost, Waited: lane + bytes, LaneWait: lane, ByteWait: bytes,
		Took: time.Since(x.timing.began), Idled: x.idled,
	}
}

// report counts the decision, writes it into the span and, for a refusal, into the log.
func (x *exchange) report(reason string, v *verdict) Decision {
	x.reported = true
	d := x.decision(reason)
	if x.tracing.span != nil {
		f := x.body.scanner.Features()
		x.tracing.noteRequest(x.model(), f.Stream || x.facts.streams, f.StreamKnown || x.facts.streams)
	}
	if v == nil {
		x.tracing.decided(d, nil)
		x.server.observe.Decided(x.measured(), d)
		return d
	}
	d.Trace = x.spanContext()
	x.tracing.decided(d, v)
	x.server.observe.Decided(x.measuredAs(d.Trace), d)
	x.server.sheds.refused(d, x.server.bytes)
	return d
}

// shedLog writes one warning a refusal, a few a second at most, and says how many it left out. With each it says how busy
// byte admission is.
type shedLog struct {
	log     *slog.Logger
	limit   *rate.Limiter
	skipped atomic.Int64
}

func newShedLog(log *slog.Logger) *shedLog {
	return &shedLog{log: log, limit: rate.NewLimiter(rate.Limit(5), 20)}
}

func (s *shedLog) refused(d Decision, bytes *budget.Controller) {
	if !s.limit.Allow() {
		s.skipped.Add(1)
		return
	}
	now := bytes.Snapshot()
	s.log.Warn("request refused", "reason", d.Reason, "cluster", d.Cluster, "lane", d.Lane, "bytes", d.Bytes, "cost", d.Cost,
		"wait_ms", d.Waited.Milliseconds(), "activeHeavy", now.ActiveHeavy, "waiting", now.Waiting, "queuedBytes", now.QueuedBytes,
		"left_out", s.skipped.Swap(0))
}
