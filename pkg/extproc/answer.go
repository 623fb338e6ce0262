package extproc

import (
	"net/http"
	"strings"
	"time"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/extproc/wire"
	"github.com/headgate/headgate/pkg/lease"
)

// codeDetails is the response attribute that says who answered; viaUpstream is its value for what the upstream sent. All
// other values are answers of Envoy's own: it reached no upstream, or lost it.
const (
	codeDetails = "response.code_details"
	viaUpstream = "via_upstream"
)

// maxUpstreamRetry bounds what an upstream may ask for.
const maxUpstreamRetry = time.Hour

// answer is what response headers say about the upstream.
type answer struct {
	status     int
	byProxy    bool // the upstream did not say this
	byUpstream bool // it did: Envoy says so
	streams    bool // the media type is one of streams
	retryAfter time.Duration

	grpc        bool // it has a gRPC status: the response is over
	grpcOutcome adaptive.Outcome
}

// readAnswer reads response headers. Without the attribute the upstream is taken to have answered.
func readAnswer(m *wire.Message) answer {
	details := m.Attribute(codeDetails)
	a := answer{status: statusOf(m), byProxy: details != "" && details != viaUpstream, byUpstream: details == viaUpstream}
	media, _ := m.Header("content-type")
	a.streams = isStream(string(media))
	a.grpcOutcome, a.grpc = grpcOutcome(m)
	if a.status == http.StatusTooManyRequests || a.status == http.StatusServiceUnavailable {
		after, _ := m.Header("retry-after")
		date, _ := m.Header("date")
		a.retryAfter, _ = lease.ParseRetryAfter(string(after), string(date))
		a.retryAfter = min(a.retryAfter, maxUpstreamRetry)
	}
	return a
}

// proxyFailed reports that Envoy answered because it got no answer from the upstream, or by a refusal of its own.
func (a answer) proxyFailed() bool {
	return a.byProxy && (a.status >= 400 || a.grpcOutcome != adaptive.OK)
}

// outcome says what the response teaches the limit, as far as its headers tell.
func (a answer) outcome() adaptive.Outcome {
	switch code := a.status; {
	case a.proxyFailed():
		return adaptive.UpstreamError
	case a.byProxy:
		return adaptive.OK // what a filter behind this one answers is nobody's fault
	case a.grpc:
		return a.grpcOutcome
	case code == http.StatusTooManyRequests || code == http.StatusServiceUnavailable:
		return adaptive.Overload
	case code == http.StatusRequestTimeout || code == http.StatusGatewayTimeout:
		return adaptive.Timeout
	case code >= 500:
		return adaptive.UpstreamError
	}
	return adaptive.OK
}

// forLanes is the outcome as the lanes want it.
func (a answer) forLanes() adaptive.Answer {
	if a.proxyFailed() {
		return adaptive.AnswerProxyFailed
	}
	switch a.outcome() {
	case adaptive.Overload:
		return adaptive.AnswerRefused
	case adaptive.UpstreamError, adaptive.Timeout:
		return adaptive.AnswerFailed
	}
	return adaptive.AnswerAccepted
}

// respondLane passes the answer on to the lanes. The time to an error says nothing about the time that work takes.
func (x *exchange) respondLane(a answer) {
	p := &x.permit
	if !p.held {
		return
	}
	if a.status >= 400 || a.status == http.StatusSwitchingProtocols || a.byProxy {
		p.adaptive.NoSample()
	}
	signal := x.signal()
	p.body = signal == adaptive.FromBody
	r := adaptive.Response{
		Class: x.class(a), Answer: a.forLanes(), RetryAfter: a.retryAfter,
		Signal: signal, Unsampled: signal == adaptive.FromWitness && p.witness == "",
	}
	if signal == adaptive.FromHeaders {
		r.AtOnce = p.sightings.headers.atOnce.Load()
		if r.Class == adaptive.Stream && x.decided && !x.facts.upgrade {
			p.headers.took, p.headers.cost = max(1, x.sinceForwarded()), p.cost
		}
	}
	p.adaptive.Respond(r)
}

// class tells a response that streams from one that comes whole: by what the request asks for, or by the media type.
func (x *exchange) class(a answer) adaptive.Class {
	if a.streams || x.facts.streams || x.facts.grpc || x.body.scanner.Features().Stream {
		return adaptive.Stream
	}
	return adaptive.Whole
}

// isStream reports the media types of responses that come piece by piece.
func isStream(contentType string) bool {
	media, _, _ := strings.Cut(contentType, ";")
	media = strings.ToLower(strings.TrimSpace(media))
	switch media {
	case "text/event-stream", "application/x-ndjson", "application/vnd.amazon.eventstream":
		return true
	}
	return isGRPC(media)
}

// statusOf reads the status of a response; 0 where there is none.
func statusOf(m *wire.Message) (code int) {
	value, _ := m.Header(":status")
	for _, c := range value {
		if c < '0' || c > '9' || code > 999 {
			return 0
		}
		code = code*10 + int(c-'0')
	}
	return code
}

// grpcOutcome reads a gRPC status, of trailers or of headers that are all of the response.
func grpcOutcome(m *wire.Message) (o adaptive.Outcome, known bool) {
	value, count := m.Header("grpc-status")
	if count == 0 {
		return adaptive.OK, false
	}
	switch string(value) {
	case "8", "14": // RESOURCE_EXHAUSTED, UNAVAILABLE
		return adaptive.Overload, true
	case "4": // DEADLINE_EXCEEDED
		return adaptive.Timeout, true
	case "2", "13", "15": // UNKNOWN, INTERNAL, DATA_LOSS
		return adaptive.UpstreamError, true
	}
	return adaptive.OK, true
}
