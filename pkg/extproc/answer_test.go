package extproc

import (
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/extproc/wire"
)

// decoded is a message as it comes from the wire.
func decoded(t *testing.T, p *extprocv3.ProcessingRequest) *wire.Message {
	t.Helper()
	encoded, err := proto.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	m := &wire.Message{}
	if err := m.Decode(mem.BufferSlice{mem.SliceBuffer(encoded)}); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestOnlyTheUpstreamSpeaksForTheUpstream: what a response says depends on who gave it, and for gRPC on its status.
func TestOnlyTheUpstreamSpeaksForTheUpstream(t *testing.T) {
	for _, tc := range []struct {
		name, status, details string
		headers               []string
		outcome               adaptive.Outcome
		said                  adaptive.Answer
	}{
		{"ok", "200", viaUpstream, nil, adaptive.OK, adaptive.AnswerAccepted},
		{"the client's fault", "404", viaUpstream, nil, adaptive.OK, adaptive.AnswerAccepted},
		{"too many", "429", viaUpstream, nil, adaptive.Overload, adaptive.AnswerRefused},
		{"unavailable", "503", viaUpstream, nil, adaptive.Overload, adaptive.AnswerRefused},
		{"unavailable, who said it is unknown", "503", "", nil, adaptive.Overload, adaptive.AnswerRefused},
		{"an error", "500", viaUpstream, nil, adaptive.UpstreamError, adaptive.AnswerFailed},
		{"a time-out of the upstream's", "504", viaUpstream, nil, adaptive.Timeout, adaptive.AnswerFailed},
		{"Envoy: connection refused", "503", "upstream_reset_before_response_started{remote_connection_failure}", nil, adaptive.UpstreamError, adaptive.AnswerProxyFailed},
		{"Envoy: timed out", "504", "upstream_response_timeout", nil, adaptive.UpstreamError, adaptive.AnswerProxyFailed},
		{"Envoy: rate limited", "429", "request_rate_limited", nil, adaptive.UpstreamError, adaptive.AnswerProxyFailed},
		{"gRPC, trailers only: exhausted", "200", viaUpstream, []string{"grpc-status", "8"}, adaptive.Overload, adaptive.AnswerRefused},
		{"gRPC, trailers only: unavailable", "200", viaUpstream, []string{"grpc-status", "14"}, adaptive.Overload, adaptive.AnswerRefused},
		{"gRPC, trailers only: Envoy's own unavailable", "200", "no_healthy_upstream", []string{"grpc-status", "14"}, adaptive.UpstreamError, adaptive.AnswerProxyFailed},
		{"gRPC, trailers only: internal", "200", viaUpstream, []string{"grpc-status", "13"}, adaptive.UpstreamError, adaptive.AnswerFailed},
		{"gRPC, trailers only: not found", "200", viaUpstream, []string{"grpc-status", "5"}, adaptive.OK, adaptive.AnswerAccepted},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := sh(tc.status, false, tc.headers...)
			if tc.details != "" {
				p.Attributes = map[string]*structpb.Struct{"envoy.filters.http.ext_proc": {Fields: map[string]*structpb.Value{
					codeDetails: structpb.NewStringValue(tc.details)}}}
			}
			a := readAnswer(decoded(t, p))
			if a.outcome() != tc.outcome || a.forLanes() != tc.said {
				t.Errorf("outcome %d, answer %d; want %d, %d", a.outcome(), a.forLanes(), tc.outcome, tc.said)
			}
		})
	}
}

// TestStatusOfGRPCTrailers: the status of a gRPC response is read from its trailers.
func TestStatusOfGRPCTrailers(t *testing.T) {
	for status, want := range map[string]adaptive.Outcome{"0": adaptive.OK, "8": adaptive.Overload, "14": adaptive.Overload, "4": adaptive.Timeout, "2": adaptive.UpstreamError} {
		p := st()
		p.GetResponseTrailers().Trailers = headerMap("grpc-status", status)
		if got, known := grpcOutcome(decoded(t, p)); got != want || !known {
			t.Errorf("status %s: outcome %d, known %v; want %d", status, got, known, want)
		}
	}
}

// TestRetryAfterOfTheUpstream: seconds, or a date that counts from the response's own.
func TestRetryAfterOfTheUpstream(t *testing.T) {
	const date = "Thu, 03 Dec 2026 03:00:00 GMT"
	for value, want := range map[string]time.Duration{
		"": 0, "soon": 0, "-5": 0, "7": 7 * time.Second, "99999999999": time.Hour, "Thu, 03 Dec 2026 03:00:30 GMT": 30 * time.Second, "Thu, 03 Dec 2026 02:00:00 GMT": 0,
	} {
		a := readAnswer(decoded(t, sh("429", false, "retry-after", value, "date", date)))
		if a.retryAfter != want {
			t.Errorf("%q: %v, want %v", value, a.retryAfter, want)
		}
	}
}

// TestMediaTypesOfStreams: the response's media type tells streams where the request does not.
func TestMediaTypesOfStreams(t *testing.T) {
	for media, want := range map[string]bool{
		"text/event-stream": true, "Text/Event-Stream; charset=utf-8": true, "application/x-ndjson": true, "application/vnd.amazon.eventstream": true,
		"application/grpc": true, "application/grpc+proto": true, "application/json": false, "": false, "application/grpcx": false,
	} {
		if got := isStream(media); got != want {
			t.Errorf("%q: stream %v, want %v", media, got, want)
		}
	}
}
