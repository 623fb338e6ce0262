package budget

import "time"

// Severity of resource pressure.
type Severity int32

// The three severities, in rising order.
const (
	Normal Severity = iota
	High
	Critical
)

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
		return retryPressure
	}
	return max(retryPressure, ceilSecond(time.Until(p.until)))
}

// Reason is why a reservation was refused. It equals the reason in the verdict table.
type Reason string

// The reasons of byte admission.
const (
	QueueTimeout        Reason = "queue_timeout"
	QueuedBytesBudget   Reason = "queued_bytes_budget"
	BodyExceedsBudget   Reason = "body_exceeds_budget"
	InflightBytesBudget Reason = "inflight_bytes_budget"
	ResourcePressure    Reason = "resource_pressure"
	StructureLimit      Reason = "structure_limit"
)

// Refusal says why, and when to come back.
type Refusal struct {
	Reason     Reason
	RetryAfter time.Duration // whole seconds, 0 = none; the hint of the spec, already maxed with the table's least value
}

// Ask is one request for bytes.
type Ask struct {
	Key       string        // fairness key; empty is "anonymous"
	Bytes     int64         // what to charge
	MaxWait   time.Duration // upper bound from the caller (what is left of decision.maxWait), 0 = do not wait; the pressure policy may shorten it
	Structure bool          // heavy by structure only: refused as structure_limit
	Trickle   bool          // one of the few that critical pressure lets through (see Monitor.Shed)
}
