package extproc

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/budget"
	"github.com/headgate/headgate/pkg/extproc/wire"
	"github.com/headgate/headgate/pkg/lease"
)

// Row is one row of the verdict table: everything a refusal says. Refusals, metric labels and the documentation page
// are made from it.
type Row struct {
	Reason  string        // x-headgate-reason, metric label, access log
	When    string        // for the documentation
	HTTP    int           // status of the immediate response
	GRPC    uint32        // status for gRPC callers; other callers get none
	Type    string        // error.type of the body
	Code    string        // error.code of the body
	Message string        // error.message of the body: fixed, nothing of the request
	Retry   time.Duration // least Retry-After in whole seconds; 0: no such header
	Again   bool          // the same request may succeed later: client libraries may retry it
}

// gRPC status codes used by the table.
const (
	grpcInvalidArgument   = 3
	grpcDeadlineExceeded  = 4
	grpcResourceExhausted = 8
	grpcUnavailable       = 14
)

// gateReason is why the gates refuse a request. Each has exactly one row in the table; the lanes', the byte budget's and the
// leases' own reasons are translated into these, or in the case of leases into rows of their own.
type gateReason uint8

// The reasons, in the order of the gates.
const (
	resourcePressure gateReason = iota
	invalidContentLength
	payloadTooLarge
	bodyExceedsBudget
	messageLimit
	queueTimeout
	queuedBytesBudget
	inflightBytesBudget
	structureLimit
	uploadTimeout
	admissionQueueFull
	admissionDeadline
	admissionOversized
	admissionShutdown
	admissionTenantConcurrency
	admissionConcurrency
	fanoutSkipped
	reasonCount
)

// What the bodies of refusals name as type and code.
const (
	typeTooLarge = "payload_too_large"
	typeServer   = "server_error"
	typeInvalid  = "invalid_request_error"
	typeLease    = "lease_error"
	typeRate     = "rate_limit_error"
	codeBusy     = "chat_admission_busy"
)

// Messages that several rows share.
const (
	busyWithLarge = "The service is busy with large requests. Retry later."
	atCapacity    = "The upstream is at capacity. Retry later."
)

// table has one row for each reason: the array's length and the keys make a missing or doubled one visible.
var table = [reasonCount]Row{
	resourcePressure:           {"resource_pressure", "the protected process is under critical memory pressure", 503, grpcUnavailable, typeServer, "resource_pressure", "The service is short of memory. Retry later.", 2 * time.Second, true},
	invalidContentLength:       {"invalid_content_length", "content-length values that contradict each other", 400, grpcInvalidArgument, typeInvalid, "invalid_content_length", "The content-length headers contradict each other.", 0, false},
	payloadTooLarge:            {"payload_too_large", "declared or actual bytes above bytes.hardMaxBody", 413, grpcResourceExhausted, typeTooLarge, "PAYLOAD_TOO_LARGE", "The request body is larger than the service accepts.", 0, false},
	bodyExceedsBudget:          {"body_exceeds_budget", "a heavy body that cannot fit even an empty byte budget", 413, grpcResourceExhausted, typeTooLarge, "body_exceeds_budget", "The request body is larger than the memory set aside for requests.", 0, false},
	messageLimit:               {"message_limit", "more messages than bytes.structure.hardMaxMessages", 413, grpcResourceExhausted, typeTooLarge, "chat_history_too_large", "The request has more messages than the service accepts.", 0, false},
	queueTimeout:               {"queue_timeout", "the byte budget stayed taken for the whole wait", 503, grpcUnavailable, typeServer, codeBusy, busyWithLarge, 2 * time.Second, true},
	queuedBytesBudget:          {"queued_bytes_budget", "too many bytes are waiting already", 503, grpcUnavailable, typeServer, codeBusy, busyWithLarge, 2 * time.Second, true},
	inflightBytesBudget:        {"inflight_bytes_budget", "the byte budget is taken and waiting is turned off", 503, grpcUnavailable, typeServer, codeBusy, busyWithLarge, 2 * time.Second, true},
	structureLimit:             {"structure_limit", "a structure-heavy body found no capacity", 503, grpcUnavailable, typeServer, codeBusy, busyWithLarge, time.Second, true},
	uploadTimeout:              {"upload_timeout", "an incomplete upload sent nothing, or less than its least rate, for bytes.uploadTimeout", 408, grpcDeadlineExceeded, typeInvalid, "upload_timeout", "The request body did not arrive in time.", 0, true},
	admissionQueueFull:         {"admission_queue_full", "the tenant's lane, or the cluster's queue, is full", 503, grpcUnavailable, typeServer, "admission_queue_full", atCapacity, time.Second, true},
	admissionDeadline:          {"admission_deadline", "no capacity came free within the wait", 503, grpcUnavailable, typeServer, "admission_deadline", atCapacity, time.Second, true},
	admissionOversized:         {"admission_oversized", "the request costs more than lanes.maxLimit", 503, grpcUnavailable, typeServer, "admission_oversized", "The request costs more than the highest limit of its upstream.", 0, false},
	admissionShutdown:          {"admission_shutdown", "the sidecar is shutting down", 503, grpcUnavailable, typeServer, "admission_shutdown", "The service is shutting down.", 0, true},
	admissionTenantConcurrency: {"admission_tenant_concurrency", "the tenant has as many requests running as it may have, and a full queue or no end of that within the wait", 429, grpcResourceExhausted, typeRate, "rate_limit_exceeded", "Too many of your requests are running. Retry later.", time.Second, true},
	admissionConcurrency:       {"admission_concurrency", "the cluster has as many requests running as it may have, and a full queue or no end of that within the wait", 503, grpcUnavailable, typeServer, "admission_concurrency", atCapacity, time.Second, true},
	fanoutSkipped:              {"fanout_skipped", "a child request found no free capacity in its tenant's lane", 503, grpcUnavailable, typeServer, "fanout_skipped", "No free capacity for this branch of the fan-out.", 0, false},
}

// Verdicts returns the verdict table, in the order of the gates.
func Verdicts() []Row { return append(table[:], leaseRows()...) }

// byteReason translates what byte admission says.
func byteReason(r budget.Reason) gateReason {
	//exhaustive:enforce
	switch r {
	case budget.QueueTimeout:
		return queueTimeout
	case budget.QueuedBytesBudget:
		return queuedBytesBudget
	case budget.BodyExceedsBudget:
		return bodyExceedsBudget
	case budget.InflightBytesBudget:
		return inflightBytesBudget
	case budget.ResourcePressure:
		return resourcePressure
	case budget.StructureLimit:
		return structureLimit
	}
	return reasonCount
}

// laneReason translates what the lanes say.
func laneReason(r adaptive.Reason) gateReason {
	//exhaustive:enforce
	switch r {
	case adaptive.QueueFull:
		return admissionQueueFull
	case adaptive.Deadline:
		return admissionDeadline
	case adaptive.Oversized:
		return admissionOversized
	case adaptive.ShutDown:
		return admissionShutdown
	case adaptive.FanoutSkipped:
		return fanoutSkipped
	case adaptive.TenantConcurrency:
		return admissionTenantConcurrency
	case adaptive.Concurrency:
		return admissionConcurrency
	}
	return reasonCount
}

// leaseRows are the rows of session leases. Their package says how each reason is answered; over HTTP it uses them too.
func leaseRows() []Row {
	answers := lease.Answers()
	rows := make([]Row, len(answers))
	for i, a := range answers {
		rows[i] = Row{
			Reason: string(a.Reason), When: a.Message, HTTP: a.HTTP, GRPC: uint32(a.GRPC), //nolint:gosec // a gRPC code
			Type: typeLease, Code: string(a.Reason), Message: a.Message + ".",
			Again: a.Reason.Again(),
		}
		if a.HTTP == http.StatusTooManyRequests {
			rows[i].Retry = time.Second
		}
	}
	return rows
}

// verdict is a refusal on its way to the client: a row of the table and, where the row has a Retry-After, the hint.
type verdict struct {
	Row
	reason     gateReason // of the gates; reasonCount for one of leases
	RetryAfter time.Duration
}

// Longest Retry-After: leases may name an expiry that is further away.
const (
	maxRetryAfter      = 60 * time.Second
	maxRetryAfterLease = 3600 * time.Second
)

// newVerdict refuses for one of the gates' reasons; hint is when coming back is worth it, 0 where nobody knows. A reason
// that is none cannot be answered: CheckVerdicts finds it before anything is served.
func newVerdict(reason gateReason, hint time.Duration) *verdict {
	row := table[reason]
	return &verdict{Row: row, reason: reason, RetryAfter: row.jitter(row.retryAfter(hint))}
}

// rowOfLease is the part of the table that leases have, by reason. It is made once: under overload refusals are most of
// the work.
var rowOfLease = func() map[lease.Reason]Row {
	rows := make(map[lease.Reason]Row)
	for _, row := range leaseRows() {
		rows[lease.Reason(row.Reason)] = row
	}
	return rows
}()

// leaseVerdict refuses for a reason of leases; nil is no refusal.
func leaseVerdict(r *lease.Refusal) *verdict {
	if r == nil {
		return nil
	}
	row := rowOfLease[r.Reason]
	return &verdict{Row: row, reason: reasonCount, RetryAfter: row.jitter(row.retryAfter(r.RetryAfter))}
}

// CheckVerdicts reports what is wrong with the verdict table: a reason without a row, or one that stands twice.
func CheckVerdicts() error {
	var faults []error
	seen := make(map[string]bool)
	for i, row := range Verdicts() {
		if row.Reason == "" || row.HTTP == 0 || row.Message == "" {
			faults = append(faults, fmt.Errorf("verdict table: row %d is incomplete: %+v", i, row))
		}
		if seen[row.Reason] {
			faults = append(faults, fmt.Errorf("verdict table: %s stands twice", row.Reason))
		}
		seen[row.Reason] = true
	}
	return errors.Join(faults...)
}

// retryAfter is when coming back is worth it: whole seconds, at least the row's own. 0 is no such header.
func (r Row) retryAfter(hint time.Duration) time.Duration {
	if r.Retry == 0 {
		return 0
	}
	whole := (hint + time.Second - 1).Truncate(time.Second)
	return min(max(whole, r.Retry), r.longest())
}

func (r Row) longest() time.Duration {
	if r.Type == typeLease {
		return maxRetryAfterLease
	}
	return maxRetryAfter
}

// maxJitter bounds how far apart clients come back that are refused together.
const maxJitter = 10 * time.Second

// jitter adds whole seconds at random, as many again at the most, so that clients that are refused together do not come back
// together. It stays within the longest that the row may say.
func (r Row) jitter(after time.Duration) time.Duration {
	if after == 0 {
		return 0
	}
	width := min(after, maxJitter)
	earliest := min(after, r.longest()-width)
	return earliest + rand.N(width/time.Second+1)*time.Second
}

// frame encodes the immediate response in the shape that the client understands. gRPC callers get a gRPC status, everybody
// else must not.
func (v *verdict) frame(s shape, grpcCaller bool) (wire.Frame, error) {
	response := wire.Immediate{Status: v.HTTP, Headers: s.headers(v), Body: s.body(v), Details: "headgate_" + v.Reason}
	if grpcCaller {
		response.GRPCStatus = v.GRPC
	}
	return response.Frame()
}
