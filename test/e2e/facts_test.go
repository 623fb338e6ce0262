package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/internal/stack"
)

// The tests in this file pin what Envoy does, as far as the design rests on it. A failure after an upgrade of Envoy
// says what to think over.

const (
	skip = filterv3.ProcessingMode_SKIP
	sent = filterv3.ProcessingMode_SEND
)

// TestFactStreamLasts: the end of the gRPC stream is the end of the exchange only with response trailers asked for.
func TestFactStreamLasts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name           string
		shows, trailer filterv3.ProcessingMode_HeaderSendMode // of the response
		lasts          bool                                   // to the end of the response
	}{
		{"nothing of the response", skip, skip, false},
		{"response headers", sent, skip, false},
		{"response trailers", skip, sent, true},
		{"response headers and trailers", sent, sent, true}, // as shipped
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, processing(func(m *filterv3.ProcessingMode) {
				m.ResponseHeaderMode, m.ResponseTrailerMode = c.shows, c.trailer
				m.RequestTrailerMode = c.trailer
			}))
			for _, method := range []string{"GET", "POST"} { // the POST has no body
				raw := dialRaw(t, l.Stack)
				raw.say(t, "%s /drip?n=600&ms=50 HTTP/1.1\nHost: t\nContent-Length: 0\n\n", method)
				if _, err := raw.in.ReadString('\n'); err != nil {
					t.Fatal(err)
				}
				d := l.stream(t)
				if c.lasts {
					time.Sleep(500 * time.Millisecond)
					if d.over() {
						t.Errorf("%s: the stream ended before the response, having heard %s", method, d.phases())
					}
				} else {
					eventually(t, "the stream to end before the response", d.over)
				}
				if strings.Contains(d.phases(), "ST") || strings.Contains(d.phases(), "SB") {
					t.Errorf("%s: heard %s, want no message about a body or trailers that are none", method, d.phases())
				}
				raw.Close()
				eventually(t, "the stream to end", d.over)
			}
		})
	}
}

// TestFactStreamEndsWithTheExchange: as shipped, the stream is over when the response is, for GET, POST and events.
func TestFactStreamEndsWithTheExchange(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	for want, r := range map[string]request{
		"RH. SH": {path: "/drip?n=3&ms=10"}, "RH RB5 RB0. SH": {method: "POST", path: "/x", body: strings.NewReader("hello"), length: 5}, "RH. SH ST": {path: "/trailers"},
	} {
		if got := must(t, l.Stack, client(t, false), r); got.status != 200 {
			t.Errorf("%s = %d, want 200", r.path, got.status)
		}
		d := l.stream(t)
		eventually(t, "the stream to end", d.over)
		if got := d.phases(); got != want {
			t.Errorf("%s: heard %q, want %q", r.path, got, want)
		}
	}
}

// TestFactModeOverride: honoured without the flag for early bodies, ignored with it.
func TestFactModeOverride(t *testing.T) {
	t.Parallel()
	override := func(trailers filterv3.ProcessingMode_HeaderSendMode) script {
		return func(d *dialogue) error {
			m, err := d.hear()
			if err != nil {
				return err
			}
			answer := pass(m)
			answer.ModeOverride = &filterv3.ProcessingMode{RequestTrailerMode: skip, ResponseHeaderMode: skip, ResponseTrailerMode: trailers}
			if err := d.Send(answer); err != nil {
				return err
			}
			return obliging(d)
		}
	}
	allow := func(b *stack.Bootstrap) error {
		return b.Processor(func(p *filterv3.ExternalProcessor) { p.AllowModeOverride = true })
	}
	slow := func() request {
		return request{method: "POST", path: "/x?ms=1500", body: strings.NewReader("hello"), length: 5}
	}
	for _, c := range []struct {
		mode     stack.Mode
		trailers filterv3.ProcessingMode_HeaderSendMode
		want     string
		lasts    bool
	}{
		{stack.ModeStreamed, skip, "RH", false},
		{stack.ModeStreamed, sent, "RH", true},
		{stack.ModeEarly, skip, "RH RB5 RB0. SH", true},
	} {
		t.Run(fmt.Sprint(c.mode, c.trailers), func(t *testing.T) {
			t.Parallel()
			l := newLab(t, allow, func(b *stack.Bootstrap) error { return b.UseMode(c.mode) })
			l.play(override(c.trailers))
			answered := make(chan error, 1)
			go func() {
				_, err := send(t.Context(), l.Stack, client(t, false), slow())
				answered <- err
			}()
			d := l.stream(t)
			eventually(t, "the upstream", func() bool { return l.Upstream.CountsOf("/x").Completed == 1 })
			if c.lasts {
				if time.Sleep(300 * time.Millisecond); d.over() {
					t.Error("the stream ended before the response")
				}
			} else {
				eventually(t, "the stream to end at once", d.over)
				if n := l.Upstream.CountsOf("/x").Active; n != 1 {
					t.Errorf("the upstream had answered already")
				}
			}
			if err := <-answered; err != nil {
				t.Error(err)
			}
			eventually(t, "the stream to end", d.over)
			if got := d.phases(); got != c.want {
				t.Errorf("heard %q, want %q", got, c.want)
			}
		})
	}
}

// TestFactContentLength: Envoy takes it away unless told that bodies stay as they are.
func TestFactContentLength(t *testing.T) {
	t.Parallel()
	for allowed, want := range map[bool]int64{true: 5, false: -1} {
		t.Run(fmt.Sprint(allowed), func(t *testing.T) {
			t.Parallel()
			l := newLab(t, func(b *stack.Bootstrap) error {
				return b.Processor(func(p *filterv3.ExternalProcessor) { p.AllowContentLengthHeader = allowed })
			})
			var e stack.Echo
			got := must(t, l.Stack, client(t, false), request{method: "POST", body: strings.NewReader("hello"), length: 5})
			if err := json.Unmarshal([]byte(got.body), &e); err != nil || e.ContentLength != want || e.BodyBytes != 5 {
				t.Errorf("the upstream saw content-length %d and %d bytes (%v), want %d and 5", e.ContentLength, e.BodyBytes, err, want)
			}
		})
	}
}

// TestFactAttributes: the route cluster comes with the headers, under the filter's name, and header values are raw.
func TestFactAttributes(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	got := must(t, l.Stack, client(t, false), request{method: "POST", path: "/v1/responses", body: strings.NewReader("hello"), length: 5, headers: map[string]string{"x-probe": "v"}})
	if got.status != 200 {
		t.Fatalf("status %d, want 200", got.status)
	}
	d := l.stream(t)
	eventually(t, "the stream to end", d.over)
	for _, m := range d.heard {
		fields := m.Attributes["envoy.filters.http.ext_proc"].GetFields()
		cluster, route := fields["xds.cluster_name"].GetStringValue(), fields["xds.route_name"].GetStringValue()
		switch {
		case m.GetRequestHeaders() != nil && (cluster != "chat" || route != "chat"):
			t.Errorf("request headers: cluster %q, route %q, want chat and chat", cluster, route)
		case m.GetRequestBody() != nil && len(m.Attributes) > 0:
			t.Errorf("a body message carries %v, want no attributes", m.Attributes)
		}
		for _, h := range m.GetRequestHeaders().GetHeaders().GetHeaders() {
			if h.Key == "x-probe" && (string(h.RawValue) != "v" || h.Value != "") {
				t.Errorf("header value %q, raw %q, want it raw", h.Value, h.RawValue)
			}
		}
	}
}

// immediate refuses as soon as what was heard begins a body of that many bytes.
func immediate(bytes int) script {
	return func(d *dialogue) error {
		for {
			m, err := d.hear()
			if err != nil {
				return err
			}
			answer := pass(m)
			if _, sum := d.bodies(); sum >= bytes {
				answer = &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ImmediateResponse{ImmediateResponse: &extprocv3.ImmediateResponse{
					Status: &typev3.HttpStatus{Code: typev3.StatusCode_PayloadTooLarge}, Body: []byte("{}"),
				}}}
			}
			if err := d.Send(answer); err != nil {
				return err
			}
		}
	}
}

// TestFactImmediateResponse: in mid-body it is a clean answer and an aborted request; gRPC callers need a gRPC status.
func TestFactImmediateResponse(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.play(immediate(mebibyte))
	for _, http2 := range []bool{false, true} {
		got, err := upload(t.Context(), l.Stack, client(t, http2), http2, false, request{path: "/mid", body: noise(3 * mebibyte)})
		if err != nil || got.status != 413 || got.body != "{}" || (!http2 && got.header.Get("Connection") != "close") {
			t.Errorf("HTTP/2 %t: %d %q, connection %q (%v), want 413 and close", http2, got.status, got.body, got.header.Get("Connection"), err)
		}
	}
	if n := l.Upstream.CountsOf("/mid").Completed; n != 0 {
		t.Errorf("the upstream had %d whole bodies, want none", n)
	}
	l.play(immediate(0))
	if _, err := stack.Say(t.Context(), dialGRPC(t, l.Stack), []byte("x")); status.Code(err) != codes.Unknown {
		t.Errorf("refused without a gRPC status: %v, want code Unknown", err)
	}
}

// TestFactRouteByHeader: a header set with the headers' answer picks the cluster, early bodies or not.
func TestFactRouteByHeader(t *testing.T) {
	t.Parallel()
	for _, mode := range []stack.Mode{stack.ModeEarly, stack.ModeStreamed} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			l := newLab(t, func(b *stack.Bootstrap) error { return b.UseMode(mode) }, func(b *stack.Bootstrap) error {
				return b.Connections(func(m *hcmv3.HttpConnectionManager) error {
					host := m.GetRouteConfig().VirtualHosts[0]
					host.Routes = slices.Insert(host.Routes, 0, &routev3.Route{
						Name: "by-header",
						Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}, Headers: []*routev3.HeaderMatcher{{
							Name: "x-omniroute-connection", HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{PresentMatch: true}}}},
						Action: &routev3.Route_Route{Route: &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_ClusterHeader{ClusterHeader: "x-omniroute-connection"}}},
					})
					return nil
				})
			})
			l.play(func(d *dialogue) error {
				m, err := d.hear()
				if err != nil {
					return err
				}
				answer := pass(m)
				answer.GetRequestHeaders().Response = &extprocv3.CommonResponse{ClearRouteCache: true, HeaderMutation: &extprocv3.HeaderMutation{
					SetHeaders: []*corev3.HeaderValueOption{{Header: &corev3.HeaderValue{Key: "x-omniroute-connection", RawValue: []byte("chat")}}}}}
				if err := d.Send(answer); err != nil {
					return err
				}
				return obliging(d)
			})
			got := must(t, l.Stack, client(t, false), request{method: "POST", path: "/any", body: strings.NewReader("hello"), length: 5})
			passed(t, "a body to the named cluster", got, nil, 5, digest(strings.NewReader("hello")))
			counts, err := l.Envoy.Stats(t.Context(), "upstream_rq_total")
			if err != nil || counts["cluster.chat.upstream_rq_total"] != 1 || counts["cluster.default.upstream_rq_total"] != 0 {
				t.Errorf("requests by cluster: %v (%v), want one in chat and none in default", counts, err)
			}
		})
	}
}

// TestFactDisabledPerRoute: a route can leave the processor out.
func TestFactDisabledPerRoute(t *testing.T) {
	t.Parallel()
	s := start(t, stack.Options{})
	got := must(t, s, client(t, false), request{method: "POST", path: "/v1/admission/probe", body: strings.NewReader("{}")})
	if got.status == http.StatusNotFound {
		t.Errorf("the probe = %d, want the sidecar's answer", got.status)
	}
	if n, err := s.Envoy.ProcessorStat(t.Context(), "streams_started"); err != nil || n != 0 {
		t.Errorf("%d exchanges began (%v), want 0 for a route without processing", n, err)
	}
}

// TestFactImmediateResponseDisabled: with disable_immediate_response a refusal is a fault of the processor's to Envoy. Whether
// it refuses then or lets pass is up to failure_mode_allow.
func TestFactImmediateResponseDisabled(t *testing.T) {
	t.Parallel()
	for open, status := range map[bool]int{false: 503, true: 200} {
		s := start(t, stack.Options{Overlay: "bytes: {hardMaxBody: 1MiB}", Envoy: []func(*stack.Bootstrap) error{func(b *stack.Bootstrap) error {
			if open {
				if err := b.FailOpen(); err != nil {
					return err
				}
			}
			return b.Processor(func(p *filterv3.ExternalProcessor) { p.DisableImmediateResponse = true })
		}}}, expectation{faults: []string{"streams_failed", "failure_mode_allowed", "spurious_msgs_received"}})
		got := must(t, s, client(t, true), request{method: "POST", path: "/x", body: zeros(2 * mebibyte), length: 2 * mebibyte})
		if got.status != status || got.reason() != "" {
			t.Errorf("fail open %t: 2 MiB = %d %q, want Envoy's own %d", open, got.status, got.reason(), status)
		}
	}
}
