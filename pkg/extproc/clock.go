package extproc

import (
	"time"

	"github.com/headgate/headgate/pkg/config"
)

// clock keeps an exchange's deadlines. There is one timer, made by the first exchange state that needs one, and it is
// not moved for every message: it rings early at most, and is then set anew.
type clock struct {
	began    time.Time
	last     time.Time     // when Envoy was last heard
	byteWait time.Duration // time the decision spent waiting for bytes
	decided  time.Duration // from began to the admission
	decision config.Decision
	upload   time.Duration
	timer    *time.Timer
	due      time.Time
}

func (c *clock) start(cfg *config.Config) {
	c.began = time.Now()
	c.last, c.decision, c.upload = c.began, cfg.Decision, cfg.Bytes.UploadTimeout
}

// heard notes that something arrived, or that we were the ones who held it up.
func (c *clock) heard() { c.last = time.Now() }

// waitLeft is how long one more wait may take: what is left of decision.maxWait, which bounds all waits of a decision
// together, or all of it for the growth of a body that is already being forwarded.
func (x *exchange) waitLeft() time.Duration {
	if x.decided {
		return x.clock.decision.MaxWait
	}
	return max(0, x.clock.decision.MaxWait-time.Since(x.clock.began))
}

// dueAt is when something happens although nothing arrives; zero is never.
func (x *exchange) dueAt() time.Time {
	switch {
	case x.body.over || x.facts.upgrade || x.responded:
		return time.Time{}
	case x.gathers():
		idle, most := x.clock.last.Add(x.clock.decision.UploadIdle), x.clock.began.Add(x.clock.decision.MaxWait)
		if idle.Before(most) {
			return idle
		}
		return most
	case x.uploads():
		return x.clock.last.Add(x.clock.upload)
	}
	return time.Time{}
}

// gathers reports that the answer to the headers is withheld for want of evidence.
func (x *exchange) gathers() bool { return !x.decided && x.mode.early && !x.evidenceIsIn() }

// uploads reports that the client has yet to send, that we do not keep it from sending, and that something is held for
// it. A gRPC stream may rest between messages: it is timed only while it holds bytes.
func (x *exchange) uploads() bool {
	return x.replies.empty() && (x.hold != nil || (x.permit.held && !x.facts.grpc))
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
	}
	return refusedBy(newVerdict("upload_timeout", 0))
}
