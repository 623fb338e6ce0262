package budget

import "time"

// What Retry-After says: at least so much, by reason, and never more than the last.
const (
	leastRetryStructure = time.Second
	leastRetryBytes     = 2 * time.Second
	mostRetry           = time.Minute
)

// refuseLocked counts a refusal under its cause and returns it. A body that is heavy by its structure only is refused with
// StructureLimit whatever it lacked: its bytes were not the problem. bound is how long it was allowed to wait.
func (c *Controller) refuseLocked(cause Reason, structure bool, bound time.Duration) *Refusal {
	c.sheds[cause]++
	switch cause {
	case BodyExceedsBudget:
		return &Refusal{Reason: cause}
	case ResourcePressure:
		return &Refusal{Reason: cause, RetryAfter: c.pressure().RetryAfter()}
	}
	hint := c.retryHintLocked(bound)
	if structure {
		return &Refusal{Reason: StructureLimit, RetryAfter: max(hint, leastRetryStructure)}
	}
	return &Refusal{Reason: cause, RetryAfter: max(hint, leastRetryBytes)}
}

// retryHintLocked guesses when coming back is worth it, in whole seconds: the wait that was not enough, or as long as
// the youngest live request has been running without giving its share back, whichever is longer.
func (c *Controller) retryHintLocked(bound time.Duration) time.Duration {
	hint := bound
	if c.live.last != nil {
		hint = max(hint, time.Since(c.live.last.of.since))
	}
	return min((hint + time.Second - 1).Truncate(time.Second), mostRetry)
}
