package adaptive

import "time"

// State is what became of a request at the gate.
type State int

// The three answers of Acquire.
const (
	Admitted State = iota
	Waiting        // Permit.Ready is closed when it is settled
	Refused        // Permit.Reason says why
)

// Outcome is how an admitted request ended.
type Outcome int

// The outcomes. Only the first four are evidence for the limit.
const (
	OK            Outcome = iota // any response that is none of the following
	UpstreamError                // status >= 500, or a reset before the response began
	Timeout                      // 408, 504, or a time-out on the way to the upstream
	Overload                     // 429 or 503 said by the upstream itself
	Cancelled                    // the client went away
	Withdrawn                    // a later gate of ours refused it
)

// Severity of resource pressure, as the adaptation sees it.
type Severity int

// The three severities, in rising order.
const (
	Normal Severity = iota
	High
	Critical
)

// Reason is why a request was refused. It equals the reason in the verdict table.
type Reason string

// The reasons of lane admission.
const (
	QueueFull     Reason = "admission_queue_full"
	Deadline      Reason = "admission_deadline"
	Oversized     Reason = "admission_oversized"
	ShutDown      Reason = "admission_shutdown"
	FanoutSkipped Reason = "fanout_skipped"
	// What the request waited for, or could not wait for, was a maxConcurrent: its tenant's, or the cluster's.
	TenantConcurrency Reason = "admission_tenant_concurrency"
	Concurrency       Reason = "admission_concurrency"
)

// Request asks for one admission.
type Request struct {
	// Lane is the tenant's opaque name; empty is the default lane.
	Lane string
	// Weight is the lane's share relative to the others, brought into 0.001..1000000; 0 is 1. The last one seen
	// holds for the whole lane; that of AcquireNow is ignored.
	Weight float64
	// MaxConcurrent is how many requests of the lane may run at once; 0 leaves it to the settings. As with the weight, the last
	// one seen holds, and that of AcquireNow is ignored.
	MaxConcurrent int
	// Level is the name of the request's priority level; any other text is the lowest level.
	Level string
	// Class is what the request asks for: a stream, or an answer in one piece. The response may turn out to be of the other.
	Class Class
	// Tokens is how many tokens the prompt has, as far as is known: what the response holds of the upstream's memory while it
	// is generated.
	Tokens int64
	// Cost is the price in cost units; it is brought into 1..1000.
	Cost int
	// MaxWait bounds the wait further than the settings do; 0 leaves it to the settings, below 0 never waits.
	MaxWait time.Duration
	// Forward says that forwarding starts with the admission itself, as when no gate follows: the latency sample begins
	// when the permit is admitted, and Forwarded need not be called.
	Forward bool
}

// defaultLane is where requests without a tenant queue; overflowLane is shared by tenants above the cap.
const (
	defaultLane  = "_default"
	overflowLane = "_overflow"
)
