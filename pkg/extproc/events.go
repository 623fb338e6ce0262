package extproc

import (
	"time"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/budget"
	"github.com/headgate/headgate/pkg/extproc/wire"
	"github.com/headgate/headgate/pkg/lease"
)

// await sends the answers that may go out by now, waits for the next thing to happen and takes it in. It is the only place
// where an exchange waits.
func (x *exchange) await() result {
	if err := x.flush(); err != nil {
		return endedBy(err)
	}
	inbox, cancelled := x.inbox.next(), (<-chan struct{})(nil)
	if x.replies.holdBody() && !x.mayAnswer() {
		inbox, cancelled = nil, x.stream.Context().Done() // what comes now would have to be stored: let flow control hold it
	}
	select {
	case next := <-inbox:
		if err := next.end(); err != nil {
			return result{kind: gone, err: err}
		}
		return refusedBy(x.take(next.message))
	case <-cancelled:
		return result{kind: gone, err: x.stream.Context().Err()}
	case <-x.permit.granted():
		return refusedBy(x.endLaneWait())
	case <-x.reservation.granted():
		return refusedBy(x.endByteWait())
	case <-x.reservation.evicted():
		return refusedBy(byteVerdict(x.reservation.backlog.Refusal()))
	case answer, ok := <-x.fence.answered():
		return x.endFence(answer, ok)
	case <-x.timer():
		return refusedBy(x.expire())
	case <-x.lease.lost:
		return refusedBy(leaseVerdict(&lease.Refusal{Reason: lease.FenceStale}))
	case <-x.leaving():
		return result{kind: leave}
	}
}

// take handles one message: one answer of its own type, sent at once or when the exchange is ready for it.
func (x *exchange) take(m *wire.Message) *verdict {
	defer m.Free()
	switch m.Phase {
	case wire.RequestHeaders:
		x.replies.push(m, false)
	case wire.RequestBody:
		x.replies.push(m, x.plan.echoes(m.Phase))
		return x.count(m)
	case wire.RequestTrailers:
		x.replies.push(m, false)
		x.endBody()
	case wire.ResponseHeaders:
		x.replies.push(m, false)
		x.respond(m)
	case wire.ResponseBody, wire.ResponseTrailers:
		x.replies.push(m, x.plan.echoes(m.Phase))
		x.respondUnseen()
		x.continueResponse(m)
	case wire.None:
	}
	return nil
}

// count takes a chunk of the request body into account, whatever was declared.
func (x *exchange) count(m *wire.Message) *verdict {
	if x.facts.upgrade || x.body.over {
		return nil
	}
	x.body.add(m)
	x.body.scans = x.body.scans && (!x.decided || x.scanMatters())
	if n := m.BodyLen(); n > 0 {
		x.recordProgress(n)
	}
	if x.plan.ends(m) {
		x.body.end()
	}
	if v := x.countShed(x.tooLarge(x.body.seen)); v != nil {
		return v
	}
	if x.responded {
		return nil // nothing but the hard maximum can end an exchange whose answer has begun
	}
	if v := x.overMessageLimit(); x.decided && v != nil {
		return v
	}
	if v := x.wrongModel(); v != nil {
		return v
	}
	x.permit.raise(&x.body)
	if v := x.charge(); v != nil {
		return v
	}
	x.shrink()
	return x.queueBytes()
}

// endBody notes that no more of the request body will come.
func (x *exchange) endBody() {
	x.body.end()
	x.shrink()
}

// respond takes in the first byte of the response: the upstream has the body and has begun to answer.
func (x *exchange) respond(m *wire.Message) {
	x.responded = true
	answer := readAnswer(m)
	code := answer.status
	x.outcome = answer.outcome()
	x.facts.upgrade = x.facts.upgrade && (code == 101 || (x.facts.connect && code/100 == 2))
	x.respondLane(answer)
	x.tracing.firstByte(code)
	switch waiting := x.permit.waiting() || x.reservation.waiting() || x.fence.pending(); {
	case x.decided:
		x.server.observe.FirstByte(x.measured(), x.facts.cluster, time.Since(x.timing.began)-x.timing.admitted)
	case waiting || code >= 400:
		x.abandonDecision()
	}
	x.lease.answered(x, m, answer)
	if x.policy.config.Bytes.ReleaseAt == budget.ReleaseAtResponseStart {
		x.reservation.close()
	}
	if m.EndOfStream {
		x.noBody = true
		x.release()
	}
}

// respondUnseen notes a response whose headers Envoy does not send us (response_header_mode SKIP): they have passed when its
// body comes, so that no gate can refuse any more.
func (x *exchange) respondUnseen() {
	if x.responded {
		return
	}
	x.responded = true
	if !x.decided {
		x.abandonDecision()
	}
}

// abandonDecision is for an answer that comes before the decision: nothing is left to protect.
func (x *exchange) abandonDecision() {
	x.moot = true
	x.permit.release(adaptive.Cancelled)
	x.reservation.close()
}

// continueResponse takes in what follows the response headers. The status of a gRPC response comes in its trailers.
func (x *exchange) continueResponse(m *wire.Message) {
	if m.Phase == wire.ResponseBody && m.BodyLen() > 0 {
		x.permit.firstBody()
	}
	if m.Phase == wire.ResponseTrailers {
		if o, known := grpcOutcome(m); known && x.outcome == adaptive.OK {
			x.outcome = o
		}
	}
	if m.EndOfStream || m.Phase == wire.ResponseTrailers {
		x.release()
	}
}

// leaving is readable once a shutting-down server lets its decided exchanges go. One that has to be cut when its lease is lost
// stays: nobody else would cut it.
func (x *exchange) leaving() <-chan struct{} {
	if x.decided && x.lease.lost == nil && x.replies.empty() && x.plan.mayLeave(x.body.over) {
		return x.server.letGo
	}
	return nil
}
