package extproc

import (
	"time"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/config"
)

// clock keeps an exchange's deadlines. There is one timer, made by the first exchange state that needs one, and it is
// not moved for every message: it rings early at most, and is then set anew.
type clock struct {
	began    time.Time
	last     time.Time     // when the client last sent something, or could not because of us
	paced    time.Time     // when it last had sent enough since the last time, or could not because of us
	fresh    int64         // bytes since paced
	enough   int64         // bytes that an upload has to bring in its time-out
	asked    time.Time     // when the wait for bytes began
	byteWait time.Duration // time spent waiting for bytes so far
	decided  time.Duration // from began to the admission
	decision config.Decision
	upload   time.Duration
	timer    *time.Timer
	due      time.Time
}

func (c *clock) start(cfg *config.Config) {
	c.began = time.Now()
	c.last, c.paced, c.decision, c.upload = c.began, c.began, cfg.Decision, cfg.Bytes.UploadTimeout
	c.enough = int64(float64(cfg.Bytes.UploadMinRate) * c.upload.Seconds())
}

// heard notes that bytes arrived. An upload that trickles is not on pace: it would hold on to what others wait for, at no
// cost to who sends it.
func (c *clock) heard(bytes int) {
	c.last = time.Now()
	if c.fresh += int64(bytes); c.fresh >= c.enough {
		c.paced, c.fresh = c.last, 0
	}
}

// excused notes that we were the ones who held the upload up.
func (c *clock) excused() {
	c.last = time.Now()
	c.paced, c.fresh = c.last, 0
}

// waitLeft is how long one more wait may take: what is left of decision.maxWait, which bounds all waits of a decision
// together, or all of it for the growth of a body that is already being forwarded. Where the headers are withheld, the
// gathering of evidence is a wait too; where they are not, the time the client takes for its upload is not ours.
func (x *exchange) waitLeft() time.Duration {
	switch most := x.clock.decision.MaxWait; {
	case x.decided:
		return most
	case x.mode.early:
		return max(0, most-time.Since(x.clock.began))
	default:
		return max(0, most-x.clock.byteWait)
	}
}

// dueAt is when something happens although nothing arrives; zero is never.
func (x *exchange) dueAt() time.Time {
	switch {
	case x.body.over || x.facts.upgrade:
		return time.Time{}
	case x.gathers():
		idle, most := x.clock.last.Add(x.clock.decision.UploadIdle), x.clock.began.Add(x.clock.decision.MaxWait)
		if idle.Before(most) {
			return idle
		}
		return most
	case x.uploads() && x.facts.grpc: // a stream's messages may be small and rare
		return x.clock.last.Add(x.clock.upload)
	case x.uploads():
		return x.clock.paced.Add(x.clock.upload)
	}
	return time.Time{}
}

// gathers reports that the answer to the headers is withheld for want of evidence.
func (x *exchange) gathers() bool { return !x.decided && x.mode.early && !x.evidenceIsIn() }

// uploads reports that the client has yet to send, that we do not keep it from sending, and that others go short for it:
// it holds bytes or, until the response begins, a place in a lane that is enforced. A gRPC stream may rest between its
// messages: it is timed only while it holds bytes.
func (x *exchange) uploads() bool {
	place := x.permit.held && x.settings.Lanes.Mode == adaptive.Enforce && !x.facts.grpc && !x.responded
	return x.mode.showsProgress() && x.replies.empty() && (x.hold != nil || place)
}

// alarm is readable when something is due.
func (c *clock) alarm(x *exchange) <-chan time.Time {
	due := x.dueAt()
	if due.IsZero() {
		return nil
	}
	switch {
	case c.timer == nil:
		c.timer = time.NewTimer(time.Until(due))
	case c.due.IsZero() || due.Before(c.due):
		c.timer.Reset(time.Until(due))
	default:
		return c.timer.C
	}
	c.due = due
	return c.timer.C
}

// stop lets the timer go.
func (c *clock) stop() {
	if c.timer != nil {
		c.timer.Stop()
	}
}

// ring handles the alarm: it decides on what has arrived, or refuses an upload that has stalled.
func (x *exchange) ring() exit {
	x.clock.due = time.Time{}
	due := x.dueAt()
	switch {
	case due.IsZero() || time.Now().Before(due):
		return exit{}
	case x.gathers():
		x.idled = true
		return exit{}
	case x.responded: // too late to refuse
		x.releaseBytes()
		return exit{}
	}
	return refusedBy(newVerdict("upload_timeout", 0))
}
