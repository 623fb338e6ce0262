package extproc

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/headgate/headgate/pkg/extproc/wire"
	"github.com/headgate/headgate/pkg/lease"
)

// shape is the form in which a client reads an error: that of the API it calls. It changes how a refusal is written, never
// what is refused.
type shape uint8

// The shapes.
const (
	openAI    shape = iota // also for all that is none of the others
	anthropic              // Messages API, also behind Google's rawPredict
	google                 // Gemini, Vertex AI
	grpcCall               // google.rpc.Status in the trailers
)

// errorDomain names us in google.rpc.ErrorInfo.
const errorDomain = "headgate"

// body is the refusal as the shape's clients read it: at most 512 bytes, nothing of the request in it. The reason is in
// each, at error.reason.
func (s shape) body(v *verdict) []byte {
	switch s {
	case anthropic:
		return fmt.Appendf(nil, `{"type":"error","error":{"type":%q,"message":%q,"code":%q,"reason":%q,"details":{"error_code":%[4]q}}}`,
			anthropicType(v.HTTP), v.Message, v.Code, v.Reason)
	case google:
		body := fmt.Appendf(nil, `{"error":{"code":%d,"message":%q,"status":%q,"reason":%q,"details":[`+
			`{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":%[4]q,"domain":%q}`,
			v.HTTP, v.Message, googleStatus(v.GRPC), v.Reason, errorDomain)
		if v.RetryAfter > 0 {
			body = fmt.Appendf(body, `,{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"%ds"}`, v.RetryAfter/time.Second)
		}
		return append(body, "]}}"...)
	case grpcCall:
		return []byte(v.Message) // becomes grpc-message
	case openAI:
	}
	return fmt.Appendf(nil, `{"error":{"message":%q,"type":%q,"param":null,"code":%q,"reason":%q}}`, v.Message, v.Type, v.Code, v.Reason)
}

// contentType is that of the body. A gRPC caller gets its own from Envoy.
func (s shape) contentType() string {
	if s == grpcCall {
		return "text/plain"
	}
	return "application/json"
}

// anthropicType is the error type that Anthropic's API has for a status (https://docs.anthropic.com/en/api/errors).
func anthropicType(code int) string {
	switch code {
	case http.StatusUnauthorized:
		return "authentication_error"
	case http.StatusForbidden:
		return "permission_error"
	case http.StatusRequestTimeout:
		return "timeout_error"
	case http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	case http.StatusServiceUnavailable:
		return "overloaded_error"
	}
	return "invalid_request_error"
}

// googleStatus is the name of a gRPC status as google.rpc.Code has it.
func googleStatus(code uint32) string {
	switch codes.Code(code) {
	case codes.InvalidArgument:
		return "INVALID_ARGUMENT"
	case codes.DeadlineExceeded:
		return "DEADLINE_EXCEEDED"
	case codes.PermissionDenied:
		return "PERMISSION_DENIED"
	case codes.ResourceExhausted:
		return "RESOURCE_EXHAUSTED"
	case codes.FailedPrecondition:
		return "FAILED_PRECONDITION"
	case codes.Aborted:
		return "ABORTED"
	case codes.Unauthenticated:
		return "UNAUTHENTICATED"
	case codes.Unavailable:
		return "UNAVAILABLE"
	}
	return "UNKNOWN"
}

// headers are those of the refusal. x-should-retry and retry-after-ms are read by the libraries of OpenAI and Anthropic,
// retry-after by everybody.
func (s shape) headers(v *verdict) []wire.Header {
	retry := v.Again && v.RetryAfter <= lease.LongestClientWait
	headers := append(make([]wire.Header, 0, 7),
		wire.Header{Name: "content-type", Value: s.contentType()},
		wire.Header{Name: "x-headgate-reason", Value: v.Reason},
		wire.Header{Name: "x-should-retry", Value: strconv.FormatBool(retry)})
	if v.RetryAfter > 0 {
		headers = append(headers,
			wire.Header{Name: "retry-after", Value: strconv.FormatInt(int64(v.RetryAfter/time.Second), 10)},
			wire.Header{Name: "retry-after-ms", Value: strconv.FormatInt(v.RetryAfter.Milliseconds(), 10)})
	}
	if s == grpcCall {
		headers = append(headers, grpcHeaders(v, retry)...)
	}
	return headers
}

// grpcHeaders are what gRPC callers read: the details of the status (https://grpc.io/docs/guides/error/) and, for clients
// that have a retry policy, when to try again (gRPC proposal A6: a negative number is never).
func grpcHeaders(v *verdict, retry bool) []wire.Header {
	details := []proto.Message{&errdetails.ErrorInfo{Reason: v.Reason, Domain: errorDomain}}
	if v.RetryAfter > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(v.RetryAfter)})
	}
	var headers []wire.Header
	switch {
	case !retry:
		headers = append(headers, wire.Header{Name: "grpc-retry-pushback-ms", Value: "-1"})
	case v.RetryAfter > 0: // else the client's own policy says when
		headers = append(headers, wire.Header{Name: "grpc-retry-pushback-ms", Value: strconv.FormatInt(v.RetryAfter.Milliseconds(), 10)})
	}
	status := rpcstatus.Status{Code: int32(v.GRPC), Message: v.Message} //nolint:gosec // a gRPC code
	for _, d := range details {
		packed, err := anypb.New(d)
		if err != nil {
			return headers // cannot happen: fixed types
		}
		status.Details = append(status.Details, packed)
	}
	encoded, err := proto.Marshal(&status)
	if err != nil {
		return headers // cannot happen: the texts are ours
	}
	return append(headers, wire.Header{Name: "grpc-status-details-bin", Value: base64.RawStdEncoding.EncodeToString(encoded)})
}

// isGRPCCall reports a gRPC call as Envoy understands it, which answers it with trailers; gRPC-Web is none.
func isGRPCCall(media string) bool {
	return isGRPC(media) && !strings.HasPrefix(media, grpcMediaTypePrefix+"-")
}
