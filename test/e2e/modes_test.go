package e2e

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/headgate/headgate/internal/stack"
)

// TestEveryPhaseOn: with every message sent to the sidecar, every one is answered in kind.
func TestEveryPhaseOn(t *testing.T) {
	t.Parallel()
	s := start(t, stack.Options{Envoy: []func(*stack.Bootstrap) error{processing(func(m *filterv3.ProcessingMode) {
		m.ResponseBodyMode = filterv3.ProcessingMode_STREAMED
	})}})
	protocols(t, func(t *testing.T, c *http.Client) {
		for i := range 100 {
			got := must(t, s, c, request{method: "POST", path: "/trailers", body: noise(int64(i) * 3000)})
			passed(t, "body and trailers", got, nil, int64(i)*3000, digest(noise(int64(i)*3000)))
			if got.trailer.Get("X-Demo-Trailer") != "end" {
				t.Fatalf("trailers %v, want those of the upstream", got.trailer)
			}
		}
	})
}

// TestReleaseDoesNotDependOnHowStreamsEnd: with response bodies sent to us, and with Envoy's older way of ending
// streams, the exchange is held to its end all the same, and no longer.
func TestReleaseDoesNotDependOnHowStreamsEnd(t *testing.T) {
	t.Parallel()
	runtime := func(b *stack.Bootstrap) error {
		off, err := structpb.NewStruct(map[string]any{"envoy.reloadable_features.ext_proc_stream_close_optimization": false})
		b.LayeredRuntime = &bootstrapv3.LayeredRuntime{Layers: []*bootstrapv3.RuntimeLayer{{
			Name: "static", LayerSpecifier: &bootstrapv3.RuntimeLayer_StaticLayer{StaticLayer: off}}}}
		return err
	}
	for name, edit := range map[string]func(*stack.Bootstrap) error{
		"response bodies": processing(func(m *filterv3.ProcessingMode) { m.ResponseBodyMode = filterv3.ProcessingMode_STREAMED }),
		"older endings":   runtime,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, stack.Options{Envoy: []func(*stack.Bootstrap) error{edit}})
			for _, method := range []string{"GET", "POST"} {
				done := make(chan error, 1)
				go func() {
					n, err := drips(t.Context(), s, client(t, false), method, 10, 100)
					if err == nil && n != 10 {
						err = fmt.Errorf("%d of 10 events", n)
					}
					done <- err
				}()
				eventually(t, "the response to begin", func() bool { return s.Upstream.CountsOf("/drip").Active == 1 })
				time.Sleep(300 * time.Millisecond)
				if h := health(t, s); h.Exchanges.InFlight != 1 || h.AdaptiveAdmission["default"].ActiveCount != 1 {
					t.Errorf("%s: %d exchanges in the middle of the response, want 1", method, h.Exchanges.InFlight)
				}
				if err := <-done; err != nil {
					t.Error(err)
				}
				idle(t.Context(), t, s)
			}
		})
	}
}

// TestHalfClosedClient: a client that sends no more while it reads is served or cut by Envoy, and all is released.
func TestHalfClosedClient(t *testing.T) {
	t.Parallel()
	s := start(t, stack.Options{})
	raw := dialRaw(t, s)
	raw.say(t, "GET /drip?n=5&ms=50 HTTP/1.1\nHost: t\n\n")
	eventually(t, "the upstream", func() bool { return s.Upstream.CountsOf("/drip").Seen == 1 })
	if err := raw.Conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	for events := bufio.NewScanner(raw.in); events.Scan(); {
	}
	idle(t.Context(), t, s)
}

// TestBesideAnotherProcessor: bodies pass whole through us and a pass-through processor: one before us may see both bodies.
// One behind us must leave the response body alone: Envoy 1.40 loses some of the bodies that a filter behind hands back
// while our answer to the response headers is due, whatever processors the two are (envoyproxy/envoy#41654).
func TestBesideAnotherProcessor(t *testing.T) {
	t.Parallel()
	for name, behind := range map[string]bool{"before": false, "behind": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			other := &lab{streams: make(chan *dialogue, 1000)}
			other.play(func(d *dialogue) error {
				for {
					m, err := d.Recv()
					if err != nil {
						return err
					}
					if err := d.Send(pass(m)); err != nil {
						return err
					}
				}
			})
			address := serveProcessor(t, other)
			response := filterv3.ProcessingMode_STREAMED
			if behind {
				response = filterv3.ProcessingMode_NONE
			}
			s := start(t, stack.Options{Overlay: "bytes: {hardMaxBody: 11MiB}", Envoy: []func(*stack.Bootstrap) error{func(b *stack.Bootstrap) error {
				return b.AddFilter("other", &filterv3.ExternalProcessor{
					GrpcService: &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_GoogleGrpc_{GoogleGrpc: &corev3.GrpcService_GoogleGrpc{
						TargetUri: address, StatPrefix: "other"}}},
					MessageTimeout: durationpb.New(30 * time.Second),
					ProcessingMode: &filterv3.ProcessingMode{
						RequestBodyMode: filterv3.ProcessingMode_STREAMED, ResponseBodyMode: response,
						RequestTrailerMode: sent, ResponseTrailerMode: sent,
					},
				}, behind)
			}}})
			protocols(t, func(t *testing.T, c *http.Client) {
				for _, size := range []int64{0, 1, 65536, 10 * mebibyte} {
					got := must(t, s, c, request{method: "POST", body: noise(size)})
					passed(t, fmt.Sprint(size, " bytes"), got, nil, size, digest(noise(size)))
				}
			})
			payload := bytes.Repeat([]byte("0123456789abcdef"), 5*mebibyte/16)
			if got, err := stack.Say(t.Context(), dialGRPC(t, s), payload); err != nil || !bytes.Equal(got, payload) {
				t.Errorf("5 MiB there and back = %d bytes (%v), want all", len(got), err)
			}
		})
	}
}

// TestInternalRedirect: the second pass through the filters does not stand in its own way.
func TestInternalRedirect(t *testing.T) {
	t.Parallel()
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/final" {
			http.Redirect(w, r, "http://"+r.Host+"/final", http.StatusFound)
		}
	}))
	defer upstream.Close()
	s := start(t, stack.Options{Overlay: oneAtATime("default", "5s"), Envoy: []func(*stack.Bootstrap) error{
		func(b *stack.Bootstrap) error {
			host, port, err := net.SplitHostPort(upstream.Listener.Addr().String())
			if err != nil {
				return err
			}
			at := b.Cluster("default").LoadAssignment.Endpoints[0].LbEndpoints[0].GetEndpoint().Address.GetSocketAddress()
			at.Address = host
			var number uint32
			if _, err := fmt.Sscan(port, &number); err != nil {
				return err
			}
			at.PortSpecifier = &corev3.SocketAddress_PortValue{PortValue: number}
			return b.Connections(func(m *hcmv3.HttpConnectionManager) error {
				for _, r := range m.GetRouteConfig().VirtualHosts[0].Routes {
					if r.Name == "default" {
						r.GetRoute().InternalRedirectPolicy = &routev3.InternalRedirectPolicy{MaxInternalRedirects: wrapperspb.UInt32(1)}
					}
				}
				return nil
			})
		},
	}})
	for range 5 {
		if got := must(t, s, client(t, false), request{path: "/first"}); got.status != 200 {
			t.Errorf("a redirect followed by Envoy = %d %q, want 200 from /final", got.status, got.reason())
		}
	}
	if n, err := s.Envoy.ProcessorStat(t.Context(), "streams_started"); err != nil || n != 10 {
		t.Errorf("%d exchanges for 5 redirected requests (%v), want 10", n, err)
	}
}

// TestFailOpen: where the operator chose so, requests pass while the sidecar is away, without a wait for it, and bodies
// that it had begun to count end in one way or the other.
func TestFailOpen(t *testing.T) {
	t.Parallel()
	s := start(t, stack.Options{Envoy: []func(*stack.Bootstrap) error{(*stack.Bootstrap).FailOpen}},
		expectation{gone: true, faults: []string{"streams_failed", "failure_mode_allowed"}})
	half := dialRaw(t, s)
	half.say(t, "POST /half HTTP/1.1\nHost: t\nContent-Length: 5000000\n\n%s", strings.Repeat(" ", 2_500_000))
	eventually(t, "half a body to be on its way", func() bool { return s.Upstream.CountsOf("/half").BodyBytes > 0 })
	s.Sidecar.Kill()
	began := time.Now()
	got := must(t, s, client(t, false), request{method: "POST", body: strings.NewReader("hello"), length: 5})
	passed(t, "without a sidecar", got, nil, 5, digest(strings.NewReader("hello")))
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("it took %v, want no wait for a sidecar, which lasts some 6 s", took)
	}
	half.say(t, "%s", strings.Repeat(" ", 2_500_000))
	if got := half.mustAnswer(t, "POST"); got.status != 200 {
		t.Errorf("an upload over the death of the sidecar = %d, want 200", got.status)
	}
	if n, err := s.Envoy.ProcessorStat(t.Context(), "failure_mode_allowed"); err != nil || n == 0 {
		t.Errorf("Envoy let %d requests through unchecked (%v), want it to count them", n, err)
	}
}

// TestBufferedLimits: whole bodies in one message pass above gRPC's default of 4 MiB; our limit answers before Envoy's
// where Envoy's buffer is larger, and Envoy's where it is not.
func TestBufferedLimits(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		mode    stack.Mode
		limit   uint32
		size    int64
		status  int
		reason  string
		details string
	}{
		"fits":                   {stack.ModeBuffered, 16 * mebibyte, 6 * mebibyte, 200, "", "via_upstream"},
		"above our limit":        {stack.ModeBuffered, 16 * mebibyte, 9 * mebibyte, 413, "payload_too_large", "headgate_payload_too_large"},
		"above Envoy's":          {stack.ModeBuffered, 32 << 10, 40_000, 413, "", "request_payload_too_large"},
		"streamed, above buffer": {stack.ModeEarly, 32 << 10, 40_000, 200, "", "via_upstream"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log := newAccessLog(t)
			s := start(t, stack.Options{Overlay: "bytes: {hardMaxBody: 8MiB}", Run: stack.EnvoyOptions{AccessLog: log.file},
				Envoy: []func(*stack.Bootstrap) error{func(b *stack.Bootstrap) error {
					b.BufferLimit(c.limit)
					return b.UseMode(c.mode)
				}}})
			got, err := upload(t.Context(), s, nil, false, false, request{path: "/x", body: noise(c.size)})
			if err != nil || got.status != c.status || got.reason() != c.reason {
				t.Errorf("%d bytes = %d %q (%v), want %d %q", c.size, got.status, got.reason(), err, c.status, c.reason)
			}
			if line := log.line(t, "/x"); !strings.Contains(line, "details="+c.details) {
				t.Errorf("access log %q, want details=%s", line, c.details)
			}
			if sheds := health(t, s).ChatAdmission.ShedTotal; sheds != 0 {
				t.Errorf("%d sheds counted, want 0", sheds)
			}
		})
	}
}

// TestKeepalivePings: Envoy may ping every five seconds for as long as it likes.
func TestKeepalivePings(t *testing.T) {
	t.Parallel()
	s := start(t, stack.Options{Envoy: []func(*stack.Bootstrap) error{func(b *stack.Bootstrap) error {
		options := &httpv3.HttpProtocolOptions{}
		for _, packed := range b.Cluster("headgate").TypedExtensionProtocolOptions {
			if err := packed.UnmarshalTo(options); err != nil {
				return err
			}
			options.GetExplicitHttpConfig().GetHttp2ProtocolOptions().ConnectionKeepalive = &corev3.KeepaliveSettings{
				Interval: durationpb.New(5 * time.Second), Timeout: durationpb.New(5 * time.Second)}
			if err := packed.MarshalFrom(options); err != nil {
				return err
			}
		}
		return nil
	}}})
	if n, err := drips(t.Context(), s, client(t, false), "GET", 24, 1000); n != 24 || err != nil {
		t.Errorf("%d of 24 events (%v), want all", n, err)
	}
	counts, err := s.Envoy.Stats(t.Context(), "cluster.headgate.")
	if err != nil || counts["cluster.headgate.upstream_cx_destroy"] != 0 || counts["cluster.headgate.http2.keepalive_timeout"] != 0 {
		t.Errorf("%d connections to the sidecar ended, %d pings unanswered (%v), want 0 and 0",
			counts["cluster.headgate.upstream_cx_destroy"], counts["cluster.headgate.http2.keepalive_timeout"], err)
	}
}

// TestManyExchangesAtOnce: no limit of streams or requests stands between Envoy and the sidecar.
func TestManyExchangesAtOnce(t *testing.T) {
	t.Parallel()
	const exchanges, connections = 2000, 20
	s := start(t, stack.Options{})
	var clients []*http.Client
	for range connections {
		clients = append(clients, client(t, true))
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var all sync.WaitGroup
	var mu sync.Mutex
	failed := map[string]int{}
	for i := range exchanges {
		all.Go(func() {
			got, err := send(ctx, s, clients[i%connections], request{path: "/slow?ms=4000"})
			if err != nil || got.status != 200 {
				mu.Lock()
				defer mu.Unlock()
				failed[fmt.Sprintf("%d %s %v", got.status, got.reason(), err)]++
			}
		})
	}
	most := int64(0)
	for end := time.Now().Add(20 * time.Second); most < exchanges && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		most = max(most, health(t, s).Exchanges.InFlight)
	}
	all.Wait()
	if most <= 1024 || len(failed) > 0 {
		t.Errorf("at most %d of %d exchanges at once, failed: %v, want more than 1024 and none", most, exchanges, failed)
	}
	counts, err := s.Envoy.Stats(t.Context(), "overflow")
	for name, n := range counts {
		if n != 0 {
			t.Errorf("%s = %d, want 0", name, n)
		}
	}
	if err != nil || len(counts) == 0 {
		t.Errorf("%d overflow counters (%v), want some", len(counts), err)
	}
}

// TestClientsCannotSayWhatIsOurs: internal headers of clients are taken away or replaced.
func TestClientsCannotSayWhatIsOurs(t *testing.T) {
	t.Parallel()
	s := start(t, stack.Options{Overlay: "clusters: {chat: {fanout: {issueParent: true}}}"})
	forged := map[string]string{"x-headgate-parent": "forged", "x-headgate-reason": "forged", "x-headgate-anything": "forged", "x-omniroute-admission-bypass": "1"}
	for _, path := range []string{"/x", "/v1/responses"} {
		got := must(t, s, client(t, false), request{method: "POST", path: path, body: strings.NewReader("{}"), length: 2, headers: forged})
		if got.status != 200 || strings.Contains(got.body, "forged") || strings.Contains(strings.ToLower(got.body), "bypass") {
			t.Errorf("%s: %d, the upstream saw %s, want nothing of what the client forged", path, got.status, got.body)
		}
		if has := strings.Contains(got.body, "X-Headgate-Parent"); has != (path != "/x") {
			t.Errorf("%s: a parent token of ours: %t, want it for the cluster that issues them only", path, has)
		}
	}
}
