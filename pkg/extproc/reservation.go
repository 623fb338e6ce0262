package extproc

import (
	"time"

	"github.com/headgate/headgate/pkg/budget"
)

// structureBytes is what a body costs that is light in bytes and heavy in structure.
const structureBytes = 256 << 10

// reservation is what an exchange holds of the byte budget, or waits for. The zero value holds nothing.
type reservation struct {
	hold    *budget.Hold
	waiter  *budget.Waiter  // answers are withheld while there is one: that is back-pressure to the client
	backlog *budget.Backlog // what arrived while the exchange waits for its lane
	open    bool            // bytes are charged as they arrive
	closed  bool            // given back for good
	known   int64           // what was reserved when it last changed here
	trickle bool            // one of the few that critical pressure lets through
	base    int64           // body bytes that came before the reservation was last given back

	waitBegan time.Time
	waited    time.Duration
}

func (r *reservation) held() bool    { return r.hold != nil }
func (r *reservation) waiting() bool { return r.waiter != nil }

// bytes is what is reserved.
func (r *reservation) bytes() int64 {
	if r.hold == nil {
		return 0
	}
	return r.hold.Bytes()
}

// granted is readable when a wait for bytes is over.
func (r *reservation) granted() <-chan struct{} {
	if r.waiter == nil {
		return nil
	}
	return r.waiter.Done()
}

// evicted is readable when the exchange may no longer keep what arrived while it waits for its lane.
func (r *reservation) evicted() <-chan struct{} {
	if r.backlog == nil {
		return nil
	}
	return r.backlog.Refused()
}

// returnFirst returns what is reserved for the first bytes of a body, which are not charged again; more of it is charged when it
// arrives.
func (r *reservation) returnFirst(bytes int64) {
	r.release()
	r.base = bytes
}

// close returns everything for good.
func (r *reservation) close() {
	r.closed = true
	r.release()
}

func (r *reservation) release() {
	if r.waiter != nil {
		r.waiter.Cancel()
		r.waiter = nil
	}
	if r.hold != nil {
		r.hold.Release()
		r.hold = nil
	}
	r.dropBacklog()
}

func (r *reservation) dropBacklog() {
	if r.backlog != nil {
		r.backlog.Release()
		r.backlog = nil
	}
}

// exempt reports a request that reserves nothing: one with a valid parent token, since its parent does, and one that has
// given its bytes back for good.
func (x *exchange) exempt() bool { return x.facts.parent != nil || x.reservation.closed }

// declaredGate reserves what is declared before the headers are answered, where bodies are forwarded before the decision.
func (x *exchange) declaredGate() (pending bool, _ *verdict) {
	v := x.charge()
	return x.reservation.waiting(), v
}

// bytesGate reserves what the body needs by now, and is pending while it waits for that. From then on what arrives is
// charged as it comes.
func (x *exchange) bytesGate() (pending bool, _ *verdict) {
	if !x.reservation.open {
		x.reservation.open = true
		x.reservation.dropBacklog()
		if v := x.charge(); v != nil {
			return false, v
		}
	}
	return x.reservation.waiting(), nil
}

// wouldLackBytes is bytesGate for an exchange that only watches: it holds nothing.
func (x *exchange) wouldLackBytes() *verdict {
	need := x.need()
	s := x.server.bytes.Snapshot()
	if need == 0 || need <= s.MaxInflightBytes-s.InflightBytes {
		return nil
	}
	return newVerdict(inflightBytesBudget, 0)
}

// need is what the body is known to need by now: nothing for one that is light in bytes and structure.
func (x *exchange) need() int64 {
	need := x.body.bytes() - x.reservation.base
	switch {
	case need >= int64(x.policy.config.Bytes.LargeBody):
		return need
	case x.body.structureHeavy(x.policy.config.Bytes.Structure):
		return structureBytes
	}
	return 0
}

// charge reserves what the body needs by now, all of it or nothing. Where the budget is taken it leaves a wait behind, and
// answers are withheld until that is over.
func (x *exchange) charge() *verdict {
	r, need := &x.reservation, x.need()
	switch {
	case !r.open || r.waiting() || need == 0 || x.exempt():
		return nil
	case r.hold == nil:
		return x.reserve(need)
	case r.hold.TryGrow(need): // a budget that has shrunk admits nothing new, but takes nothing back
		if need > r.known {
			r.known = r.hold.Bytes()
			x.tracing.bytesEvent("growth", need)
		}
		return nil
	case need > x.server.bytes.Budget().Bytes:
		return x.shed(budget.BodyExceedsBudget, 0)
	}
	waiter, refusal := r.hold.Grow(need, x.waitLeft())
	x.waitForBytes(waiter, need)
	return byteVerdict(refusal)
}

// reserve asks for a reservation, or begins to wait for one.
func (x *exchange) reserve(bytes int64) *verdict {
	hold, waiter, refusal := x.server.bytes.Acquire(budget.Request{
		Key: x.facts.tenant.name, Bytes: bytes, MaxWait: x.waitLeft(),
		Structure: x.body.bytes()-x.reservation.base < int64(x.policy.config.Bytes.LargeBody),
		Trickle:   x.reservation.trickle,
	})
	if hold != nil {
		x.reservation.hold, x.reservation.known = hold, bytes
		x.tracing.bytesEvent("grant", bytes)
		x.timing.resetPace(time.Now()) // until now nobody went short for the upload's pauses
	}
	x.waitForBytes(waiter, bytes)
	return byteVerdict(refusal)
}

// waitForBytes begins a wait, where there is one.
func (x *exchange) waitForBytes(w *budget.Waiter, bytes int64) {
	if w != nil {
		x.reservation.waiter, x.reservation.waitBegan = w, time.Now()
		x.tracing.bytesEvent("wait", bytes)
	}
}

// endByteWait takes in the end of a wait for bytes. More may have arrived meanwhile.
func (x *exchange) endByteWait() *verdict {
	r, now := &x.reservation, time.Now()
	hold, refusal := r.waiter.Result()
	r.waiter = nil
	r.waited += now.Sub(r.waitBegan)
	if refusal != nil {
		return byteVerdict(refusal)
	}
	r.hold, r.known = hold, hold.Bytes()
	x.tracing.bytesEvent("grant", r.known)
	x.timing.resetPace(now) // the pause was ours, not the upload's
	if v := x.charge(); v != nil {
		return v
	}
	x.shrink()
	return nil
}

// queueBytes counts what arrived of a heavy body as waiting while the exchange waits for its lane. Nothing is reserved for
// it meanwhile: what one route cluster needs is never waited for while holding what all share.
func (x *exchange) queueBytes() *verdict {
	r, arrived := &x.reservation, x.body.seen
	switch {
	case r.open || !x.permit.waiting() || x.exempt() || arrived < int64(x.policy.config.Bytes.LargeBody):
		return nil
	case r.backlog != nil:
		return byteVerdict(r.backlog.Grow(arrived))
	}
	backlog, refusal := x.server.bytes.Backlog(x.facts.tenant.name, arrived)
	r.backlog = backlog
	return byteVerdict(refusal)
}

// shrink gives back what was reserved beyond a body that is all there.
func (x *exchange) shrink() {
	r := &x.reservation
	if x.body.over && r.hold != nil && r.waiter == nil && x.body.seen-r.base >= int64(x.policy.config.Bytes.LargeBody) {
		r.hold.Shrink(x.body.seen - r.base)
	}
}

// shed refuses for a reason that byte admission counts; hint is when coming back is worth it, 0 where nobody knows.
func (x *exchange) shed(r budget.Reason, hint time.Duration) *verdict {
	x.server.bytes.Shed(r)
	return newVerdict(byteReason(r), hint)
}

func byteVerdict(r *budget.Refusal) *verdict {
	if r == nil {
		return nil
	}
	return newVerdict(byteReason(r.Reason), r.RetryAfter)
}
