package cross

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/headgate/headgate/internal/stack"
)

// oneLane lets one request at a time into the route cluster default.
const oneLane = "clusters: {default: {lanes: {mode: enforce, minLimit: 7, initialLimit: 7, maxLimit: 7, maxShare: 1, maxWait: 20s}}}"

// target is an upstream that answers each path's requests in turn.
type target struct {
	*httptest.Server
	mu   sync.Mutex
	seen map[string]int
}

// newTarget answers with what answer returns for the nth request of a path.
func newTarget(t *testing.T, answer func(w http.ResponseWriter, r *http.Request, nth int)) *target {
	u := &target{seen: map[string]int{}}
	u.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return
		}
		u.mu.Lock()
		u.seen[r.URL.Path]++
		nth := u.seen[r.URL.Path]
		u.mu.Unlock()
		answer(w, r, nth)
	}))
	t.Cleanup(u.Close)
	return u
}

func (u *target) times(path string) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.seen[path]
}

// at sends the route default to an upstream.
func (u *target) at(b *stack.Bootstrap) error {
	host, text, err := net.SplitHostPort(u.Listener.Addr().String())
	if err != nil {
		return err
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return err
	}
	at := b.Cluster("default").LoadAssignment.Endpoints[0].LbEndpoints[0].GetEndpoint().Address.GetSocketAddress()
	at.Address, at.PortSpecifier = host, &corev3.SocketAddress_PortValue{PortValue: uint32(port)}
	return nil
}

// route edits the route default.
func route(edit func(*routev3.RouteAction)) func(*stack.Bootstrap) error {
	return func(b *stack.Bootstrap) error {
		return b.Connections(func(m *hcmv3.HttpConnectionManager) error {
			for _, r := range m.GetRouteConfig().VirtualHosts[0].Routes {
				if r.Name == "default" {
					edit(r.GetRoute())
				}
			}
			return nil
		})
	}
}

// TestRoutesThatRepeat: what Envoy does with a request behind the filters (retries, hedged attempts, mirrors) is the same
// exchange and one decision; a redirect that Envoy follows is a second exchange, which does not wait for the first.
func TestRoutesThatRepeat(t *testing.T) {
	for _, e := range envoys {
		for name, c := range map[string]struct {
			route     func(*routev3.RouteAction)
			answer    func(w http.ResponseWriter, r *http.Request, nth int)
			exchanges int64
			upstream  map[string]int // how often it sees each path
		}{
			"retry": {
				route: func(a *routev3.RouteAction) {
					a.RetryPolicy = &routev3.RetryPolicy{RetryOn: "5xx", NumRetries: wrapperspb.UInt32(3)}
				},
				answer: func(w http.ResponseWriter, _ *http.Request, nth int) {
					if nth < 3 {
						w.WriteHeader(http.StatusServiceUnavailable)
					}
				},
				exchanges: 1, upstream: map[string]int{"/first": 3},
			},
			"hedge": {
				route: func(a *routev3.RouteAction) {
					a.HedgePolicy = &routev3.HedgePolicy{HedgeOnPerTryTimeout: true}
					a.RetryPolicy = &routev3.RetryPolicy{RetryOn: "5xx", NumRetries: wrapperspb.UInt32(3), PerTryTimeout: durationpb.New(200 * time.Millisecond)}
				},
				answer: func(_ http.ResponseWriter, r *http.Request, nth int) {
					if nth == 1 {
						select {
						case <-r.Context().Done():
						case <-time.After(20 * time.Second):
						}
					}
				},
				exchanges: 1, upstream: map[string]int{"/first": 2},
			},
			"redirect": {
				route: func(a *routev3.RouteAction) {
					a.InternalRedirectPolicy = &routev3.InternalRedirectPolicy{MaxInternalRedirects: wrapperspb.UInt32(1)}
				},
				answer: func(w http.ResponseWriter, r *http.Request, _ int) {
					if r.URL.Path == "/first" {
						http.Redirect(w, r, "http://"+r.Host+"/final", http.StatusFound)
					}
				},
				exchanges: 2, upstream: map[string]int{"/first": 1, "/final": 1},
			},
			"mirror": {
				route: func(a *routev3.RouteAction) {
					a.RequestMirrorPolicies = []*routev3.RouteAction_RequestMirrorPolicy{{Cluster: "default"}}
				},
				answer:    func(http.ResponseWriter, *http.Request, int) {},
				exchanges: 1, upstream: map[string]int{"/first": 2},
			},
		} {
			t.Run(e.String()+"/"+name, func(t *testing.T) {
				t.Parallel()
				u := newTarget(t, c.answer)
				s := e.start(t, stack.Options{Overlay: oneLane, Envoy: []func(*stack.Bootstrap) error{u.at, route(c.route)}})
				in, err := http.Get(s.Envoy.URL() + "/first")
				if err != nil {
					t.Fatal(err)
				}
				in.Body.Close()
				if in.StatusCode != http.StatusOK {
					t.Errorf("%d %q, want 200", in.StatusCode, in.Header.Get("X-Headgate-Reason"))
				}
				for path, want := range c.upstream {
					for end := time.Now().Add(patience); u.times(path) != want && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
					}
					if got := u.times(path); got != want {
						t.Errorf("the upstream saw %s %d times, want %d", path, got, want)
					}
				}
				if n, err := s.Envoy.ProcessorStat(t.Context(), "streams_started"); err != nil || n != c.exchanges {
					t.Errorf("%d exchanges (%v), want %d", n, err, c.exchanges)
				}
				nothingLeft(t, s)
			})
		}
	}
}

// other is a processor that lets everything pass.
type other struct {
	extprocv3.UnimplementedExternalProcessorServer
	messages atomic.Int64
}

func (o *other) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	for {
		in, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		o.messages.Add(1)
		out := &extprocv3.ProcessingResponse{}
		switch in.Request.(type) {
		case *extprocv3.ProcessingRequest_RequestHeaders:
			out.Response = &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{}}
		case *extprocv3.ProcessingRequest_RequestBody:
			out.Response = &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{}}
		case *extprocv3.ProcessingRequest_RequestTrailers:
			out.Response = &extprocv3.ProcessingResponse_RequestTrailers{RequestTrailers: &extprocv3.TrailersResponse{}}
		case *extprocv3.ProcessingRequest_ResponseHeaders:
			out.Response = &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extprocv3.HeadersResponse{}}
		case *extprocv3.ProcessingRequest_ResponseBody:
			out.Response = &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: &extprocv3.BodyResponse{}}
		default:
			out.Response = &extprocv3.ProcessingResponse_ResponseTrailers{ResponseTrailers: &extprocv3.TrailersResponse{}}
		}
		if err := stream.Send(out); err != nil {
			return err
		}
	}
}

// losesBodies reports a version that hands over an empty body now and then where two processors see it
// (envoyproxy/envoy#41654): 1.38 those that end in a trailer, older ones any.
func (e envoy) losesBodies() bool {
	_, rest, _ := strings.Cut(e.version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	n, err := strconv.Atoi(minor)
	return err == nil && n <= 38 // no version is the newest
}

// TestTwoProcessors: with another ext_proc filter before ours, or behind it, each kind of request is admitted and refused as
// without, from Envoy 1.39 on.
func TestTwoProcessors(t *testing.T) {
	for _, e := range envoys {
		if e.losesBodies() {
			continue
		}
		for name, behind := range map[string]bool{"before": false, "behind": true} {
			t.Run(e.String()+"/"+name, func(t *testing.T) {
				t.Parallel()
				o := &other{}
				l, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				server := grpc.NewServer()
				extprocv3.RegisterExternalProcessorServer(server, o)
				go func() { _ = server.Serve(l) }() // ends with Stop
				t.Cleanup(server.Stop)
				s := e.start(t, stack.Options{Overlay: settings(), Envoy: []func(*stack.Bootstrap) error{routeByHeader, func(b *stack.Bootstrap) error {
					return b.AddFilter("other", &filterv3.ExternalProcessor{
						GrpcService: &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_GoogleGrpc_{GoogleGrpc: &corev3.GrpcService_GoogleGrpc{
							TargetUri: l.Addr().String(), StatPrefix: "other"}}},
						MessageTimeout: durationpb.New(30 * time.Second),
						ProcessingMode: &filterv3.ProcessingMode{RequestBodyMode: filterv3.ProcessingMode_STREAMED,
							RequestTrailerMode: filterv3.ProcessingMode_SEND, ResponseTrailerMode: filterv3.ProcessingMode_SEND},
					}, behind)
				}}})
				for _, k := range kinds {
					x := &cross{k, stack.ModeEarly, s, t}
					for _, end := range ends {
						// A filter before ours that sees bodies takes content-length away: an upgrade is then let in before its body is seen.
						if strings.Contains("ahmr", end.letter) && end.applies(k, x.mode) && !k.anyAnswer && !e.hangs(k, stack.ModeStreamed) { // the mode of the other
							if err := end.reach(x); err != nil {
								t.Errorf("%s, %s: %v", k.name, end.what, err)
							}
						}
					}
				}
				if o.messages.Load() == 0 {
					t.Error("the other processor saw nothing")
				}
				nothingLeft(t, s)
			})
		}
	}
}

// TestShadowRefusesNothing: with lanes in shadow mode requests pass where there is no room.
func TestShadowRefusesNothing(t *testing.T) {
	for _, e := range envoys {
		t.Run(e.String(), func(t *testing.T) {
			t.Parallel()
			s := e.start(t, stack.Options{Overlay: strings.ReplaceAll(settings(), "mode: enforce", "mode: shadow"), Envoy: []func(*stack.Bootstrap) error{routeByHeader}})
			for _, k := range kinds {
				if k.anyAnswer || e.hangs(k, stack.ModeEarly) {
					continue // Envoy lets its body never end; where nothing is enforced, nothing of ours ends it either
				}
				x := &cross{k, stack.ModeEarly, s, t}
				release, err := x.hold("full")
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				got, err := x.send(ctx, call{cluster: "full"})
				if err := x.want(got, err, http.StatusOK, ""); err != nil {
					t.Errorf("%s: %v", k.name, err)
				}
				cancel()
				release()
			}
			nothingLeft(t, s)
		})
	}
}
