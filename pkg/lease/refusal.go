package lease

import (
	"encoding/json"
	"net/http"
	"time"
)

// Reason is why a request or an action is refused: the code of the answer and the label of its counter.
type Reason string

// All reasons.
const (
	AuthenticationRequired  Reason = "LEASE_AUTHENTICATION_REQUIRED"
	APIKeyInvalid           Reason = "LEASE_API_KEY_INVALID"
	ContentTypeRequired     Reason = "LEASE_CONTENT_TYPE_REQUIRED"
	ActionInvalid           Reason = "LEASE_ACTION_INVALID"
	ModelInvalid            Reason = "LEASE_MODEL_INVALID"
	ScopeRequired           Reason = "LEASE_SCOPE_REQUIRED"
	KeyConfigurationInvalid Reason = "LEASE_KEY_CONFIGURATION_INVALID"
	ContextRequired         Reason = "LEASE_CONTEXT_REQUIRED"
	ContextInvalid          Reason = "LEASE_CONTEXT_INVALID"
	LeaseRequired           Reason = "LEASE_REQUIRED"
	FenceStale              Reason = "LEASE_FENCE_STALE"
	ConnectionMismatch      Reason = "LEASE_CONNECTION_MISMATCH"
	NoEligibleConnection    Reason = "LEASE_NO_ELIGIBLE_CONNECTION"
	UnsupportedRoute        Reason = "LEASE_UNSUPPORTED_ROUTE"
	CapacityUnavailable     Reason = "LEASE_CAPACITY_UNAVAILABLE"
	EligibilityUnavailable  Reason = "LEASE_ELIGIBILITY_UNAVAILABLE"
	RateLimited             Reason = "LEASE_RATE_LIMITED"
	ServiceUnavailable      Reason = "LEASE_SERVICE_UNAVAILABLE"
)

// Answer is how a reason is said: the HTTP status, the gRPC status and the message. None of it depends on the request.
type Answer struct {
	Reason  Reason
	HTTP    int
	GRPC    int
	Message string
}

// answers is the one table of all reasons.
func answers() []Answer {
	return []Answer{
		{AuthenticationRequired, 401, 16, "Authentication required"},
		{APIKeyInvalid, 401, 16, "Invalid API key"},
		{ContentTypeRequired, 415, 3, "Content-Type must be application/json"},
		{ActionInvalid, 400, 3, "Invalid lease action"},
		{ModelInvalid, 400, 3, "The model must be a text of 1 to 512 characters"},
		{ScopeRequired, 403, 7, "The lease:exclusive scope is required"},
		{KeyConfigurationInvalid, 403, 7, "The key has the lease:exclusive scope but no connections"},
		{ContextRequired, 400, 3, "A lease owner is required"},
		{ContextInvalid, 400, 3, "The lease owner or generation is malformed"},
		{LeaseRequired, 409, 9, "An active lease is required"},
		{FenceStale, 409, 10, "The lease is stale"},
		{ConnectionMismatch, 409, 9, "The lease is bound to another connection"},
		{NoEligibleConnection, 409, 9, "No connection is eligible for this key and model"},
		{UnsupportedRoute, 409, 9, "Leased requests cannot fan out"},
		{CapacityUnavailable, 429, 14, "All eligible connections are leased"},
		{EligibilityUnavailable, 429, 14, "Eligible connections are temporarily unavailable"},
		{RateLimited, 429, 8, "Too many acquires with this key"},
		{ServiceUnavailable, 503, 14, "The lease service is unavailable"},
	}
}

// Answers returns how every reason is said, for the verdict table and its documentation.
func Answers() []Answer { return answers() }

// Answer returns how r is said; an unknown reason is said like LEASE_SERVICE_UNAVAILABLE.
func (r Reason) Answer() Answer {
	for _, a := range answers() {
		if a.Reason == r {
			return a
		}
	}
	return Answer{Reason: ServiceUnavailable, HTTP: 503, GRPC: 14, Message: "The lease service is unavailable"}
}

// Refusal is a verdict, not an error: the machine works.
type Refusal struct {
	Reason     Reason
	RetryAfter time.Duration // whole seconds, 1 s to 1 h; only with the 429 reasons
	Eligible   int           // connections that could serve but are held by others; only with LEASE_CAPACITY_UNAVAILABLE
}

// maxRetryAfter is what a client is told to wait at most.
const maxRetryAfter = time.Hour

func refuse(r Reason) *Refusal { return &Refusal{Reason: r} }

// refuseFor refuses until something happens in wait, rounded up to whole seconds.
func refuseFor(r Reason, wait time.Duration, eligible int) *Refusal {
	seconds := (wait + time.Second - 1) / time.Second
	return &Refusal{
		Reason:     r,
		RetryAfter: min(max(seconds*time.Second, time.Second), maxRetryAfter),
		Eligible:   eligible,
	}
}

type errorBody struct {
	Type    string `json:"type"`
	Code    Reason `json:"code"`
	Message string `json:"message"`
}

// Body is the JSON answer, at most 512 bytes, with nothing of the request in it.
func (r *Refusal) Body() []byte {
	e := errorBody{Type: "lease_error", Code: r.Reason, Message: r.Reason.Answer().Message}
	var v any
	switch {
	case r.Reason == CapacityUnavailable:
		v = struct {
			State      string    `json:"state"`
			Error      errorBody `json:"error"`
			Reason     string    `json:"reason"`
			RetryAfter int64     `json:"retryAfter"`
			Eligible   int       `json:"eligibleCount"`
			Free       int       `json:"freeCount"`
		}{"WAITING_FOR_CAPACITY", e, "NO_FREE_ELIGIBLE_CONNECTION", r.retryAfterSeconds(), r.Eligible, 0}
	case r.RetryAfter > 0:
		v = struct {
			Error      errorBody `json:"error"`
			RetryAfter int64     `json:"retryAfter"`
		}{e, r.retryAfterSeconds()}
	default:
		v = struct {
			Error errorBody `json:"error"`
		}{e}
	}
	body, err := json.Marshal(v)
	if err != nil { // cannot happen: fixed texts and numbers
		return []byte(`{"error":{"type":"lease_error","code":"LEASE_SERVICE_UNAVAILABLE"}}`)
	}
	return body
}

// retryAfterSeconds is the value of the Retry-After header, 0 when there is none.
func (r *Refusal) retryAfterSeconds() int64 { return int64(r.RetryAfter / time.Second) }

// LongestClientWait bounds what a client library is to wait on its own: some sleep for however long Retry-After says, inside
// the caller's call. A longer wait is for the caller to decide on.
const LongestClientWait = 60 * time.Second

// Again reports whether the same request may succeed later. A fault of the client stays one.
func (r Reason) Again() bool {
	status := r.Answer().HTTP
	return status == http.StatusTooManyRequests || status >= 500
}

// shouldRetry is the value of the x-should-retry header: whether a client library is to try the same again by itself.
func (r *Refusal) shouldRetry() bool { return r.Reason.Again() && r.RetryAfter <= LongestClientWait }
