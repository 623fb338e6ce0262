package adaptive

import (
	"math"
	"time"
)

// retry holds what waits while the upstream asks several lanes to come back later. One lane alone may have a quota of its
// own.
type retry struct {
	lane  *lane // the last that was asked
	until int64 // when it may come back
	held  int64 // when all may
}

// asked notes that the upstream wants no request of a lane for a while.
func (r *retry) asked(l *lane, now int64, after time.Duration) {
	if after <= 0 {
		return
	}
	until := now + int64(after)
	if r.lane != nil && r.lane != l && now < r.until {
		r.held = max(r.held, min(until, r.until))
	}
	if r.lane != l || until > r.until {
		r.lane, r.until = l, until
	}
}

func (r *retry) holds(now int64) bool { return now < r.held }

// next is when what waits may go on.
func (r *retry) next(now int64) int64 {
	if r.holds(now) {
		return r.held
	}
	return math.MaxInt64
}
