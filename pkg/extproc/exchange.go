package extproc

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/budget"
	"github.com/headgate/headgate/pkg/config"
	"github.com/headgate/headgate/pkg/extproc/wire"
)

// exchange is one HTTP exchange, which is one gRPC stream. The goroutine that runs it owns all of its state.
type exchange struct {
	server   *Server
	stream   grpc.ServerStream
	ctx      context.Context
	policy   *policy
	settings config.Cluster // of the route cluster
	inbox    inbox
	mode     mode
	facts    facts
	body     body
	replies  replies
	clock    clock

	onHeaders bool // the decision needs nothing but the headers
	decided   bool
	responded bool // response headers have come
	idled     bool // the upload paused and the decision was taken on what had arrived

	hold      *budget.Hold   // reservation in the byte budget
	byteAsk   *budget.Waiter // waiting for bytes; answers are withheld meanwhile
	settled   bool           // bytes are given back for good
	described bool           // the answer with the metadata is out
	permit    permit         // of the route cluster's lanes
	lease     leaseHold      // of the session
	tracing   tracing
	outcome   adaptive.Outcome // what the response said
	verdict   *Verdict
}

// exit says why a part of the exchange ended. The zero value means that it went through.
type exit struct {
	kind    exitKind
	verdict *Verdict
	err     error
}

type exitKind uint8

const (
	proceed exitKind = iota
	refused          // verdict says how
	gone             // Envoy ended the stream: the exchange is over, or the client left
	leave            // nothing needs us any more: end the stream with OK, Envoy carries on
	broken           // err says what broke
)

func refusedBy(v *Verdict) exit {
	if v == nil {
		return exit{}
	}
	return exit{kind: refused, verdict: v}
}

// run is the whole life of an exchange.
func (x *exchange) run() error {
	first, err := x.inbox.first()
	for err == nil && first.Phase == wire.None { // flow control may come before the headers
		first, err = x.inbox.first()
	}
	if err != nil {
		return normalEnd(err) // it never began: nothing to decide, nothing to count
	}
	x.begin(first)
	if first.Observability {
		return x.observe(first)
	}
	end := x.decide(first)
	if end.kind == proceed {
		x.admit()
		end = x.until(x.nothingGoverns)
	}
	return x.conclude(end)
}

// begin reads the facts and settles what the decision will need.
func (x *exchange) begin(first *wire.Message) {
	x.clock.start(x.policy.config)
	x.mode = readMode(first.Protocol)
	x.facts = readFacts(first, x.policy)
	if name := policyName(x.ctx); name != "" {
		x.facts.cluster = name
	}
	x.settings = x.policy.config.Cluster(x.facts.cluster)
	x.facts.cluster = x.server.clusterName(x.policy, x.facts.cluster)
	x.startSpan()
	if x.leaseGoverns() {
		x.facts.caller = x.policy.principalOf(first)
	}
	x.body = body{declared: x.facts.declared, scans: x.facts.json}
	x.body.scanner.Reset()
	x.body.over = first.Phase == wire.RequestHeaders && (first.EndOfStream || !x.mode.sendsBody())
	if x.body.over && !first.EndOfStream {
		x.body.seen = max(0, x.body.declared) // all that will ever be known of it
	}
	x.onHeaders = x.body.over || x.facts.declared == 0 || x.facts.bodyless || x.facts.upgrade || !x.facts.json ||
		(!x.mode.early && x.leaseGoverns())
}

// decide gathers the evidence and passes the gates in their order. It withholds whatever would let Envoy contact the
// upstream.
func (x *exchange) decide(first *wire.Message) exit {
	for _, gate := range arrivalGates {
		if v := gate(x); v != nil {
			first.Free()
			return refusedBy(v)
		}
	}
	if v := x.take(first); v != nil {
		return refusedBy(v)
	}
	if end := x.until(x.evidenceIsIn); end.kind != proceed {
		return end
	}
	for _, gate := range evidenceGates {
		if end := gate(x); end.kind != proceed {
			return end
		}
	}
	return exit{}
}

// evidenceIsIn reports whether waiting for more of the body could not change the decision, or has taken long enough.
func (x *exchange) evidenceIsIn() bool {
	switch {
	case x.body.over, x.responded, x.onHeaders:
		return true
	case x.mode.early:
		return x.idled || x.body.told() || x.body.seen >= int64(x.policy.config.Decision.Window)
	case x.mode.request == wire.BodyBufferedPartial:
		return x.body.seen > 0
	}
	return false
}

// admit lets Envoy contact the upstream: the withheld answers go out with the next flush.
func (x *exchange) admit() {
	x.decided = true
	x.clock.excused()                                                                  // what the decision took, the upload is not to blame for
	x.body.scans = x.body.scans && x.policy.config.Bytes.Structure.HardMaxMessages > 0 // else nobody asks any more
	x.permit.forwarded()
	d := x.decision("admitted")
	x.clock.decided = d.Took
	x.tracing.decided(d, nil)
	x.server.observe.Decided(x.measured(), d)
}

// nothingGoverns reports whether the exchange can go on without us.
func (x *exchange) nothingGoverns() bool {
	return x.mayLeave() && (x.body.over || x.facts.upgrade) && x.hold == nil && !x.permit.held && x.lease.keep == nil && x.replies.empty()
}

// until lets things happen until done, or until something ends the exchange.
func (x *exchange) until(done func() bool) exit {
	for {
		if err := x.flush(); err != nil {
			return exit{kind: broken, err: err}
		}
		if done() {
			return exit{}
		}
		if end := x.step(); end.kind != proceed {
			return end
		}
	}
}

// step waits for the next thing to happen and takes it in.
func (x *exchange) step() exit {
	inbox, cancelled := x.inbox.next(), (<-chan struct{})(nil)
	if x.replies.keepsBody() && !x.mayAnswer() {
		inbox, cancelled = nil, x.stream.Context().Done() // what came now would have to be kept: let flow control hold it
	}
	select {
	case next := <-inbox:
		if err := next.end(); err != nil {
			return exit{kind: gone, err: err}
		}
		if n := next.message.BodyLen(); n > 0 {
			x.clock.heard(n)
		}
		return refusedBy(x.take(next.message))
	case <-cancelled:
		return exit{kind: gone, err: x.stream.Context().Err()}
	case <-x.bytesSettled():
		return refusedBy(x.takeBytes())
	case <-x.permit.wait:
		return x.permit.settle()
	case <-x.clock.alarm(x):
		return x.ring()
	case <-x.lease.lost:
		return exit{kind: broken, err: status.Error(codes.Aborted, "the session lease was lost")}
	case <-x.leaving():
		return exit{kind: leave}
	}
}

// take handles one message: one answer of its own type, sent at once or when the exchange is ready for it.
func (x *exchange) take(m *wire.Message) *Verdict {
	defer m.Free()
	switch m.Phase {
	case wire.RequestHeaders:
		x.replies.push(m, false)
	case wire.RequestBody:
		x.replies.push(m, x.mode.echoes(m.Phase))
		return x.count(m)
	case wire.RequestTrailers:
		x.replies.push(m, false)
		x.endBody()
	case wire.ResponseHeaders:
		x.replies.push(m, false)
		x.respond(m)
	case wire.ResponseBody, wire.ResponseTrailers:
		x.replies.push(m, x.mode.echoes(m.Phase))
		if m.EndOfStream || m.Phase == wire.ResponseTrailers {
			x.release()
		}
	case wire.None:
	}
	return nil
}

// count takes a chunk into account, whatever was declared.
func (x *exchange) count(m *wire.Message) *Verdict {
	if x.facts.upgrade || x.body.over {
		return nil
	}
	x.body.add(m)
	if v := x.tooLarge(x.body.seen); v != nil {
		return v
	}
	if x.decided && x.body.tooManyMessages(x.policy.config.Bytes.Structure) {
		return newVerdict("message_limit", 0)
	}
	x.permit.raise(&x.body)
	if v := x.charge(); v != nil {
		return v
	}
	x.shrink()
	return nil
}

// endBody notes that no more of the request body will come.
func (x *exchange) endBody() {
	x.body.end()
	x.shrink()
}

// shrink gives back what was reserved beyond a body that is all there.
func (x *exchange) shrink() {
	if x.body.over && x.hold != nil && x.byteAsk == nil && x.body.seen >= int64(x.policy.config.Bytes.LargeBody) {
		x.hold.Shrink(x.body.seen)
	}
}

// respond settles what the first byte of the response settles: the upstream has the body and has begun to answer.
func (x *exchange) respond(m *wire.Message) {
	x.responded = true
	code := statusOf(m)
	x.outcome = outcomeOf(code)
	x.facts.upgrade = x.facts.upgrade && (code == 101 || (x.facts.connect && code/100 == 2))
	x.permit.firstByte(code)
	x.tracing.firstByte(code)
	if x.decided {
		x.server.observe.FirstByte(x.measured(), x.facts.cluster, time.Since(x.clock.began)-x.clock.decided)
	}
	x.lease.answered(x, m, code)
	if x.policy.config.Bytes.ReleaseAt == budget.ReleaseAtResponseStart {
		x.releaseBytes()
	}
	if m.EndOfStream {
		x.release()
	}
}

// conclude sends the refusal, where there is one, and says how the gRPC stream ends.
func (x *exchange) conclude(end exit) error {
	x.clock.stop()
	if end.kind == refused && !x.responded {
		x.outcome = adaptive.Withdrawn
	}
	x.release()
	switch end.kind {
	case refused:
		x.verdict = end.verdict
		d := x.decision(end.verdict.Reason)
		d.Trace = x.spanContext()
		x.tracing.decided(d, end.verdict)
		x.server.refused(x.measuredAs(d.Trace), d)
		frame, err := end.verdict.frame(x.facts.grpc)
		if err != nil {
			return status.Errorf(codes.Internal, "refusal: %v", err)
		}
		return x.send(frame.WithMetadata(metadataNamespace, x.metadata(end.verdict.Reason)))
	case broken:
		return end.err
	case gone:
		if !x.decided {
			d := x.decision("client_gone")
			x.tracing.decided(d, nil)
			x.server.observe.Decided(x.measured(), d)
		}
		return normalEnd(end.err)
	}
	return nil
}

// normalEnd turns the ways in which Envoy ends a stream in good order into OK; a real fault stays one.
func normalEnd(err error) error {
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, context.Canceled) || status.Code(err) == codes.Canceled {
		return nil
	}
	return err
}

// release gives back whatever is held, in reverse order. It is called at the end of the response and at the end of the
// stream, whatever ended it, and does its work once.
func (x *exchange) release() {
	x.lease.release()
	x.permit.release(x.outcome)
	x.releaseBytes()
	x.tracing.released()
}

// releaseBytes gives the reservation back for good.
func (x *exchange) releaseBytes() {
	x.settled = true
	if x.byteAsk != nil {
		x.byteAsk.Cancel()
		x.byteAsk = nil
	}
	if x.hold != nil {
		x.hold.Release()
		x.hold = nil
	}
}

// leaving is readable once a shutting-down server lets its decided exchanges go.
func (x *exchange) leaving() <-chan struct{} {
	if x.decided && x.replies.empty() && x.mayLeave() {
		return x.server.letGo
	}
	return nil
}

// mayLeave reports whether the stream may end with OK: not while Envoy relies on chunks that it has given away, of
// either side, or has yet to hand over the buffered body.
func (x *exchange) mayLeave() bool {
	return (x.body.over || x.mode.request == wire.BodyStreamed || x.mode.request == wire.BodyNone) && !x.mode.echoes(wire.ResponseBody)
}

// decision describes the exchange for logs and metrics.
func (x *exchange) decision(reason string) Decision {
	lane, bytes := x.permit.waited(), x.clock.byteWait
	return Decision{
		Cluster: x.facts.cluster, Reason: reason, Lane: x.laneName(), Bytes: max(x.body.seen, x.body.declared, 0),
		Cost: x.permit.cost, Waited: lane + bytes, LaneWait: lane, ByteWait: bytes,
		Took: time.Since(x.clock.began), Idled: x.idled,
	}
}
