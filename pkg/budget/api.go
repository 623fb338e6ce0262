package budget

import "time"

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

// Request is a request for bytes of the budget.
type Request struct {
	Key       string        // fairness key; empty is "anonymous"
	Bytes     int64         // what to charge
	MaxWait   time.Duration // upper bound from the caller (what is left of decision.maxWait), 0 = do not wait; the pressure policy may shorten it
	Structure bool          // heavy by structure only: refused as structure_limit
	Trickle   bool          // one of the few that critical pressure lets through (see memory.Monitor.Shed)
}
