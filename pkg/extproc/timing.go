package extproc

import (
	"time"

	"github.com/headgate/headgate/pkg/adaptive"
)

// timing holds an exchange's deadlines. There is one timer, made when the first deadline is needed, and it is not moved
// for every message: it fires early at most, and is then set anew.
type timing struct {
	began    time.Time     // when the headers came
	admitted time.Duration // from began to the admission
	lastByte time.Time     // when request body bytes last came, or we stopped holding them up
	pace     pace
	timer    *time.Timer
	due      time.Time // what the timer is set for
}

// pace measures whether an upload keeps a least rate. It starts anew whenever enough has come, and whenever it was we who
// held the upload up.
type pace struct {
	start time.Time
	bytes int64 // since start
}

func (t *timing) start() {
	t.began = time.Now()
	t.resetPace(t.began)
}

// resetPace starts to measure anew.
func (t *timing) resetPace(now time.Time) {
	t.lastByte = now
	t.pace = pace{start: now}
}

// recordProgress notes received bytes of the request body. Only as many as the least rate asks for reset the pace:
// otherwise a trickling client could hold budget indefinitely.
func (x *exchange) recordProgress(bytes int) {
	now := time.Now()
	x.timing.lastByte = now
	x.timing.pace.bytes += int64(bytes)
	if x.onPace() {
		x.timing.resetPace(now)
	}
}

// onPace reports whether enough has come since the pace was last reset. The least rate is bytes.uploadMinRate and, where
// others went short of bytes meanwhile, one that brings what is reserved within bytes.uploadMaxTime.
func (x *exchange) onPace() bool {
	settings, pace := &x.policy.config.Bytes, x.timing.pace
	rate := float64(settings.UploadMinRate)
	if x.server.bytes.Contended(pace.start) { // first, since it takes no lock and is seldom true
		rate = max(rate, float64(x.reservation.bytes())/settings.UploadMaxTime.Seconds())
	}
	return pace.bytes > 0 && float64(pace.bytes) >= rate*settings.UploadTimeout.Seconds()
}

// waitLeft is how long one more wait may take: what is left of decision.maxWait, which bounds all waits of a decision
// together, or all of it for the growth of a body that is already being forwarded; and never longer than the caller waits
// for its answer. Where the headers are withheld, the gathering of evidence is a wait too; where they are not, the time
// the client takes for its upload is not ours. Once the response has begun nothing waits for a decision.
func (x *exchange) waitLeft() time.Duration {
	left := x.policy.config.Decision.MaxWait
	switch {
	case x.decided:
	case x.responded:
		return 0
	case x.plan.withholdsHeaders():
		left -= time.Since(x.timing.began)
	default:
		left -= x.reservation.waited + x.permit.waited()
	}
	if x.facts.timeout > 0 {
		left = min(left, x.facts.timeout-time.Since(x.timing.began))
	}
	return max(0, left)
}

// deadline is when something happens although no message comes; zero is never.
func (x *exchange) deadline() time.Time {
	switch {
	case x.body.over || x.facts.upgrade:
		return time.Time{}
	case x.gathersEvidence():
		idle, most := x.timing.lastByte.Add(x.policy.config.Decision.UploadIdle), x.timing.began.Add(x.policy.config.Decision.MaxWait)
		if idle.Before(most) {
			return idle
		}
		return most
	case x.uploadIsTimed():
		return x.timing.pace.start.Add(x.policy.config.Bytes.UploadTimeout)
	}
	return time.Time{}
}

// gathersEvidence reports that the answer to the headers is withheld for want of evidence.
func (x *exchange) gathersEvidence() bool {
	return !x.decided && x.plan.withholdsHeaders() && !x.evidenceIsIn()
}

// uploadIsTimed reports that the client has yet to send, that we do not keep it from sending, and that others go short for
// it: it holds bytes or, until the response begins, a place in a lane that is enforced. A gRPC stream may pause between
// its messages: it is timed only while it holds bytes.
func (x *exchange) uploadIsTimed() bool {
	place := x.permit.held && x.settings.Lanes.Mode == adaptive.Enforce && !x.facts.grpc && !x.responded
	return x.plan.showsProgress() && x.replies.empty() && (x.reservation.held() || place)
}

// timer is readable when a deadline may have passed.
func (x *exchange) timer() <-chan time.Time {
	t, due := &x.timing, x.deadline()
	if due.IsZero() {
		return nil
	}
	switch {
	case t.timer == nil:
		t.timer = time.NewTimer(time.Until(due))
	case t.due.IsZero() || due.Before(t.due):
		t.timer.Reset(time.Until(due))
	default:
		return t.timer.C
	}
	t.due = due
	return t.timer.C
}

// stop lets the timer go.
func (t *timing) stop() {
	if t.timer != nil {
		t.timer.Stop()
	}
}

// expire handles a timer that fired: the decision is taken on what has arrived, or an upload that has stalled or trickles
// is refused. It only loses what it has reserved where a pause is no fault, as in a gRPC stream, where the response has
// begun, and where the body may be all there.
func (x *exchange) expire() *verdict {
	now := time.Now()
	x.timing.due = time.Time{}
	due := x.deadline()
	switch {
	case due.IsZero() || now.Before(due):
		return nil
	case x.gathersEvidence():
		x.idled = true
		return nil
	case x.onPace():
		x.timing.resetPace(now)
		return nil
	case x.facts.grpc, x.responded, x.endIsMissing():
		x.reservation.returnFirst(x.body.seen)
		x.timing.resetPace(now)
		return nil
	}
	return newVerdict(uploadTimeout, 0)
}

// endIsMissing reports that the body looks complete, in a plan that does not show the end of a body that ends with a
// trailer: then it may be the upstream that takes its time.
func (x *exchange) endIsMissing() bool {
	return !x.plan.withholdsHeaders() && !x.facts.bodyless && (x.body.arrived() || x.body.scanner.Features().Complete)
}
