package memory

import "time"

// leastRetry is the least RetryAfter.
const leastRetry = 2 * time.Second

// Severity of resource pressure.
type Severity int32

// The three severities, in rising order.
const (
	Normal Severity = iota
	High
	Critical
)

// String names the severity as logs and the health endpoint do.
func (s Severity) String() string {
	switch s {
	case Normal:
		return "normal"
	case High:
		return "high"
	default:
		return "critical"
	}
}

// Pressure is what the monitor last found, and why.
type Pressure struct {
	Severity  Severity
	Signal    string // memory_ratio, memory_high, psi_some, psi_full, oom, oom_kill, stale; empty when normal
	Value     float64
	Threshold float64
	Healthy   bool // memory ratio under Settings.MemoryRatio; a failing probe is healthy

	until time.Time // critical does not end before; zero where the next sample may end it
}

// RetryAfter is when a request that critical pressure refuses now may come back: whole seconds, at least 2, and no sooner than
// the pressure can end.
func (p Pressure) RetryAfter() time.Duration {
	if p.until.IsZero() {
		return leastRetry
	}
	return max(leastRetry, (time.Until(p.until) + time.Second - 1).Truncate(time.Second))
}
