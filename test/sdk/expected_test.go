//go:build sdk

package sdk

import (
	"strconv"
	"strings"
	"time"
)

// refusal is what the product says, whoever is called.
type refusal struct {
	status   int
	kind     string // OpenAI's type
	code     string // OpenAI's code
	google   string // google.rpc.Code
	message  string
	attempts int64
	least    time.Duration
}

var refusals = map[string]refusal{
	"payload_too_large": {413, "payload_too_large", "PAYLOAD_TOO_LARGE", "RESOURCE_EXHAUSTED", "The request body is larger than the service accepts.", 1, 0},
	"queue_timeout":     {503, "server_error", "chat_admission_busy", "UNAVAILABLE", "The service is busy with large requests. Retry later.", 2, 2 * time.Second},
	"fanout_skipped":    {503, "server_error", "fanout_skipped", "UNAVAILABLE", "No free capacity for this branch of the fan-out.", 1, 0},
	"LEASE_REQUIRED":    {409, "lease_error", "LEASE_REQUIRED", "FAILED_PRECONDITION", "An active lease is required.", 1, 0},
}

// exceptions are the classes that the documentation of each library names for a status.
var exceptions = map[string]map[int]string{
	"openai-python":    {413: "APIStatusError", 503: "InternalServerError", 409: "ConflictError"},
	"openai-node":      {413: "APIError", 503: "InternalServerError", 409: "ConflictError"},
	"anthropic-python": {413: "ContentTooLargeError", 503: "ServiceUnavailableError", 409: "ConflictError"},
	"anthropic-node":   {413: "APIError", 503: "InternalServerError", 409: "ConflictError"},
	"google-python":    {413: "ClientError", 503: "ServerError", 409: "ClientError"},
}

// anthropicKinds are the error types of Anthropic's API.
var anthropicKinds = map[int]string{413: "request_too_large", 503: "overloaded_error", 409: "invalid_request_error"}

func expected(sdk, reason string) want {
	r := refusals[reason]
	w := want{exceptions[sdk][r.status], r.status, r.kind, r.code, r.message, r.attempts, r.least}
	switch {
	case strings.HasPrefix(sdk, "anthropic"):
		w.kind, w.code = anthropicKinds[r.status], reason
	case sdk == "google-python": // its code is the status, and it never retries by itself
		w.kind, w.code, w.attempts, w.least = r.google, strconv.Itoa(r.status), 1, 0
	}
	return w
}
