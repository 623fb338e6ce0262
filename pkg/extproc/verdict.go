package extproc

import (
	"fmt"
	"net/http"
	"strconv"
	"time"

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
}

// gRPC status codes used by the table.
const (
	grpcInvalidArgument   = 3
	grpcDeadlineExceeded  = 4
	grpcResourceExhausted = 8
	grpcUnavailable       = 14
)

// Verdicts returns the verdict table, in the order of the gates.
func Verdicts() []Row {
	const (
		tooLarge = "payload_too_large"
		server   = "server_error"
		busy     = "chat_admission_busy"
		invalid  = "invalid_request_error"
	)
	rows := []Row{
		{"resource_pressure", "the protected process is under critical memory pressure", 503, grpcUnavailable, server, "resource_pressure", "The service is short of memory. Retry later.", 2 * time.Second},
		{"invalid_content_length", "content-length values that contradict each other", 400, grpcInvalidArgument, invalid, "invalid_content_length", "The content-length headers contradict each other.", 0},
		{"payload_too_large", "declared or actual bytes above bytes.hardMaxBody", 413, grpcResourceExhausted, tooLarge, "PAYLOAD_TOO_LARGE", "The request body is larger than the service accepts.", 0},
		{"body_exceeds_budget", "a heavy body that cannot fit even an empty byte budget", 413, grpcResourceExhausted, tooLarge, "body_exceeds_budget", "The request body is larger than the memory set aside for requests.", 0},
		{"message_limit", "more messages than bytes.structure.hardMaxMessages", 413, grpcResourceExhausted, tooLarge, "chat_history_too_large", "The request has more messages than the service accepts.", 0},
		{"queue_timeout", "the byte budget stayed taken for the whole wait", 503, grpcUnavailable, server, busy, "The service is busy with large requests. Retry later.", 2 * time.Second},
		{"queued_bytes_budget", "too many bytes are waiting already", 503, grpcUnavailable, server, busy, "The service is busy with large requests. Retry later.", 2 * time.Second},
		{"inflight_bytes_budget", "the byte budget is taken and waiting is turned off", 503, grpcUnavailable, server, busy, "The service is busy with large requests. Retry later.", 2 * time.Second},
		{"structure_limit", "a structure-heavy body found no capacity", 503, grpcUnavailable, server, busy, "The service is busy with large requests. Retry later.", time.Second},
		{"upload_timeout", "an incomplete upload sent nothing, or less than bytes.uploadMinRate, for bytes.uploadTimeout", 408, grpcDeadlineExceeded, invalid, "upload_timeout", "The request body did not arrive in time.", 0},
		{"admission_queue_full", "the tenant's lane, or the cluster's queue, is full", 503, grpcUnavailable, server, "admission_queue_full", "The upstream is at capacity. Retry later.", time.Second},
		{"admission_deadline", "no capacity came free within the wait", 503, grpcUnavailable, server, "admission_deadline", "The upstream is at capacity. Retry later.", time.Second},
		{"admission_lane_evicted", "the tenant's lane was removed while it waited", 503, grpcUnavailable, server, "admission_lane_evicted", "The upstream is at capacity. Retry later.", time.Second},
		{"admission_unavailable", "capacity cannot be granted for another reason", 503, grpcUnavailable, server, "admission_unavailable", "The upstream is at capacity. Retry later.", time.Second},
		{"admission_oversized", "the request costs more than the limit and cannot run alone", 503, grpcUnavailable, server, "admission_oversized", "The request is too expensive for the upstream's present capacity.", 0},
		{"admission_shutdown", "the sidecar is shutting down", 503, grpcUnavailable, server, "admission_shutdown", "The service is shutting down.", 0},
		{"fanout_skipped", "a child request found no free capacity in its tenant's lane", 503, grpcUnavailable, server, "fanout_skipped", "No free capacity for this branch of the fan-out.", 0},
	}
	return append(rows, leaseRows()...)
}

// leaseRows are the rows of session leases. Their package says how each reason is answered; over HTTP it uses them too.
func leaseRows() []Row {
	answers := lease.Answers()
	rows := make([]Row, len(answers))
	for i, a := range answers {
		rows[i] = Row{
			Reason: string(a.Reason), When: a.Message, HTTP: a.HTTP, GRPC: uint32(a.GRPC), //nolint:gosec // a gRPC code
			Type: "lease_error", Code: string(a.Reason), Message: a.Message + ".",
		}
		if a.HTTP == http.StatusTooManyRequests {
			rows[i].Retry = time.Second
		}
	}
	return rows
}

// Verdict is a refusal on its way to the client: a row of the table and, where the row has a Retry-After, the hint.
type Verdict struct {
	Row
	RetryAfter time.Duration
}

// Longest Retry-After: leases may name an expiry that is further away.
const (
	maxRetryAfter      = 60 * time.Second
	maxRetryAfterLease = 3600 * time.Second
)

// rowOf is the verdict table by reason. It is made once: under overload refusals are most of the work.
var rowOf = func() map[string]Row {
	rows := make(map[string]Row)
	for _, row := range Verdicts() {
		rows[row.Reason] = row
	}
	return rows
}()

// newVerdict finds the row of a reason. An unknown reason becomes admission_unavailable, so that a fault in a gate
// still is a refusal.
func newVerdict(reason string, hint time.Duration) *Verdict {
	row, known := rowOf[reason]
	if !known {
		row = rowOf["admission_unavailable"]
	}
	return &Verdict{Row: row, RetryAfter: row.retryAfter(hint)}
}

func (r Row) retryAfter(hint time.Duration) time.Duration {
	if r.Retry == 0 {
		return 0
	}
	most := maxRetryAfter
	if r.Type == "lease_error" {
		most = maxRetryAfterLease
	}
	whole := (hint + time.Second - 1).Truncate(time.Second)
	return min(max(whole, r.Retry), most)
}

// frame encodes the immediate response. gRPC callers get a gRPC status, everybody else must not.
func (v *Verdict) frame(grpcCaller bool) (wire.Frame, error) {
	response := wire.Immediate{
		Status: v.HTTP,
		Headers: []wire.Header{
			{Name: "content-type", Value: "application/json"},
			{Name: "x-headgate-reason", Value: v.Reason},
		},
		Body:    fmt.Appendf(nil, `{"error":{"message":%q,"type":%q,"code":%q,"reason":%q}}`, v.Message, v.Type, v.Code, v.Reason),
		Details: "headgate_" + v.Reason,
	}
	if v.RetryAfter > 0 {
		response.Headers = append(response.Headers, wire.Header{
			Name: "retry-after", Value: strconv.FormatInt(int64(v.RetryAfter/time.Second), 10),
		})
	}
	if grpcCaller {
		response.GRPCStatus = v.GRPC
	}
	return response.Frame()
}
