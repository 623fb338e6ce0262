package lease

import (
	"errors"
	"sync"
	"time"
)

// When a pool's breaker opens: a store that is slow for a moment is not away.
const (
	breakerAfter    = 250 * time.Millisecond // without any success, counted from the beginning of the first call that failed
	breakerFailures = 3                      // and with at least so many failures
	probeFirst      = 100 * time.Millisecond // the first probe comes after half to all of it; doubling
	probeMost       = time.Second
)

// breaker keeps calls away from a store that does not answer. Only a probe in the background closes it: no request waits
// for one.
type breaker struct {
	mu           sync.Mutex
	state        string // closed, half-open, open
	failures     int    // since the last success
	failingSince time.Time
	lastErr      error
	answered     bool          // ever
	lastOpen     time.Time     // when it was last not closed
	opened       chan struct{} // closed when it opens
}

func newBreaker() *breaker { return &breaker{state: "closed", opened: make(chan struct{})} }

// pass returns a channel that is closed when the breaker opens, and whether calls may be made now.
func (b *breaker) pass() (opened <-chan struct{}, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.opened, b.state == "closed"
}

// failing says that the last call failed.
func (b *breaker) failing() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failures > 0
}

func (b *breaker) succeeded() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answered = true
	if b.state == "closed" {
		b.failures = 0
	}
}

// failed notes a failure of a call that began at a moment. It says whether the breaker opened.
func (b *breaker) failed(began time.Time, err error) (opens bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lastErr = err
	if b.state != "closed" {
		return false
	}
	if b.failures == 0 {
		b.failingSince = began
	}
	b.failures++
	if b.failures < breakerFailures || time.Since(b.failingSince) < breakerAfter {
		return false
	}
	b.state, b.lastOpen = "open", time.Now()
	close(b.opened)
	return true
}

// probing notes that a probe begins (half-open) or has failed (open).
func (b *breaker) probing(state string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.state, b.lastOpen = state, time.Now()
}

func (b *breaker) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.state, b.failures, b.answered, b.lastOpen, b.opened = "closed", 0, true, time.Now(), make(chan struct{})
}

// now is the state and the last error.
func (b *breaker) now() (state string, lastErr error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state, b.lastErr
}

// healthy is nil when the store has answered and has for a while.
func (b *breaker) healthy() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.state == "closed" && b.answered && time.Since(b.lastOpen) >= healthyAfter:
		return nil
	case b.lastErr != nil:
		return b.lastErr
	default:
		return errors.New("has not answered yet")
	}
}

// unknown says that the store has not answered yet and that no probe of the breaker's will find out whether it does.
func (b *breaker) unknown() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.answered && b.state == "closed"
}
