package extproc

import (
	"context"
	"io"
	"log/slog"
	"net"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/budget"
	"github.com/headgate/headgate/pkg/budget/memory"
	"github.com/headgate/headgate/pkg/config"
	"github.com/headgate/headgate/pkg/lease"
)

// rig is a real gRPC server with the real gates behind it, and a client on Process.
type rig struct {
	t        testing.TB
	config   *config.Config
	server   *Server
	bytes    *budget.Controller
	lanes    *adaptive.Registry
	parents  *adaptive.ParentTokens
	leases   *lease.Service
	seen     *ledger
	client   extprocv3.ExternalProcessorClient
	conn     *grpc.ClientConn
	pressure atomic.Pointer[memory.Pressure]
}

// ledger is an Observer that remembers.
type ledger struct {
	mu          sync.Mutex
	decisions   map[string]int
	wouldReject map[string]int
	idled       int
	traces      map[string]trace.TraceID // of exemplars, by reason
}

func (l *ledger) Decided(ctx context.Context, d Decision) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.decisions[d.Reason]++
	if s := trace.SpanContextFromContext(ctx); s.IsSampled() {
		l.traces[d.Reason] = s.TraceID()
	}
	if d.Idled {
		l.idled++
	}
}

func (l *ledger) FirstByte(context.Context, string, time.Duration) {}

func (l *ledger) WouldReject(_, reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wouldReject[reason]++
}

// trace is that of the last measurement with a reason, empty for none.
func (l *ledger) trace(reason string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if id := l.traces[reason]; id.IsValid() {
		return id.String()
	}
	return ""
}

func (l *ledger) count(reason string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.decisions[reason]
}

const mib = 1 << 20

// newRig starts a server. The configuration is the default one with a maximum of 1 MiB and a byte budget of 4 MiB, as
// edit changes it.
func newRig(t testing.TB, edit func(*config.Config)) *rig {
	t.Helper()
	c := config.Default()
	c.Bytes.HardMaxBody = mib
	c.Tenant.Sources = []config.Source{{Header: "x-tenant-id"}}
	if edit != nil {
		edit(c)
	}
	before := runtime.NumGoroutine()
	r := &rig{t: t, config: c, seen: &ledger{traces: map[string]trace.TraceID{}, decisions: map[string]int{}, wouldReject: map[string]int{}}}
	r.pressure.Store(&memory.Pressure{Healthy: true})
	pressure := func() memory.Pressure { return *r.pressure.Load() }
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	var err error
	if r.leases, err = lease.New(c.Leases, c.Principals, lease.Options{Log: log}); err != nil {
		t.Fatalf("lease service: %v", err)
	}
	r.bytes = budget.New(c.Bytes, memory.Budget{Bytes: 4 * mib}, pressure)
	r.lanes = adaptive.NewRegistry(func(name string) adaptive.Settings { return c.Cluster(name).Lanes }, 0)
	r.parents = adaptive.NewParentTokens(nil, time.Minute, 3)
	r.server = NewServer(c, Dependencies{
		Bytes: r.bytes, Pressure: pressure, Lanes: r.lanes, Parents: r.parents, Leases: r.leases, Observer: r.seen, Log: log,
	})
	g := grpc.NewServer(ServerOptions()...)
	r.server.Register(g)
	l := bufconn.Listen(mib)
	served := make(chan struct{})
	go func() { defer close(served); _ = g.Serve(l) }()
	r.conn, err = grpc.NewClient("passthrough:///rig", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(128*mib), grpc.MaxCallRecvMsgSize(128*mib)))
	if err != nil {
		t.Fatalf("dial: %v", err)
	}
	r.client = extprocv3.NewExternalProcessorClient(r.conn)
	t.Cleanup(func() {
		r.settled()
		_ = r.conn.Close()
		g.Stop()
		<-served
		r.server.Close()
		_ = r.leases.Close()
		r.lanes.Shutdown()
		if !eventually(func() bool { return runtime.NumGoroutine() <= before }) {
			buf := make([]byte, 1<<20)
			t.Errorf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, buf[:runtime.Stack(buf, true)])
		}
	})
	return r
}

// between reports whether a Retry-After is so many whole seconds.
func between(retryAfter string, least, most int) bool {
	n, err := strconv.Atoi(retryAfter)
	return err == nil && n >= least && n <= most
}

func eventually(ok func() bool) bool {
	for range 500 {
		if ok() {
			return true
		}
		time.Sleep(10 * time.Millisecond)
	}
	return ok()
}

// settled checks the invariant that holds after every scenario: nothing in flight, queued, reserved or running.
func (r *rig) settled() {
	r.t.Helper()
	if !eventually(func() bool { return r.server.Active() == 0 }) {
		r.t.Errorf("%d exchanges in flight, want 0", r.server.Active())
	}
	if s := r.bytes.Snapshot(); s.InflightBytes != 0 || s.ActiveHeavy != 0 || s.Waiting != 0 || s.QueuedBytes != 0 {
		r.t.Errorf("after all is over: inflight %d, heavy %d, waiting %d, queued %d bytes; want 0, 0, 0, 0",
			s.InflightBytes, s.ActiveHeavy, s.Waiting, s.QueuedBytes)
	}
	for cluster, s := range r.lanes.Snapshot() {
		if s.ActiveCost != 0 || s.ActiveCount != 0 || s.QueuedCost != 0 || s.QueuedCount != 0 || s.LaneQueuedCount != 0 {
			r.t.Errorf("after all is over: cluster %s has cost %d of %d active, cost %d of %d queued; want none",
				cluster, s.ActiveCost, s.ActiveCount, s.QueuedCost, s.QueuedCount)
		}
	}
}

// stream is one exchange seen from Envoy.
type stream struct {
	extprocv3.ExternalProcessor_ProcessClient
	t      testing.TB
	cancel context.CancelFunc
}

func (r *rig) open(md ...string) *stream {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(context.Background(), md...), 30*time.Second)
	r.t.Cleanup(cancel)
	s, err := r.client.Process(ctx)
	if err != nil {
		r.t.Fatalf("open a stream: %v", err)
	}
	return &stream{s, r.t, cancel}
}

func (s *stream) send(requests ...*extprocv3.ProcessingRequest) {
	s.t.Helper()
	for _, q := range requests {
		if err := s.Send(q); err != nil && err != io.EOF {
			s.t.Fatalf("send: %v", err)
		}
	}
}

// next receives a reply.
func (s *stream) next() *extprocv3.ProcessingResponse {
	s.t.Helper()
	a, err := s.Recv()
	if err != nil {
		s.t.Fatalf("receive a reply: %v", err)
	}
	return a
}

// wants receives replies and compares their kinds.
func (s *stream) wants(kinds ...string) []*extprocv3.ProcessingResponse {
	s.t.Helper()
	var got []*extprocv3.ProcessingResponse
	for i, want := range kinds {
		a := s.next()
		if k := kind(a); k != want {
			s.t.Fatalf("reply %d is %s, want %s (%v)", i+1, k, want, a)
		}
		got = append(got, a)
	}
	return got
}

// silent checks that nothing comes for a while.
func (s *stream) silent(d time.Duration) {
	s.t.Helper()
	got := make(chan *extprocv3.ProcessingResponse, 1)
	go func() {
		if a, err := s.Recv(); err == nil {
			got <- a
		}
	}()
	select {
	case a := <-got:
		s.t.Fatalf("got %s, want silence for %v", kind(a), d)
	case <-time.After(d):
	}
}

// ended checks that the stream ends, with OK.
func (s *stream) ended() {
	s.t.Helper()
	if a, err := s.Recv(); err != io.EOF {
		s.t.Fatalf("got %v and error %v, want the end of the stream with OK", a, err)
	}
}

// finish ends the stream in good order, as Envoy does after the response.
func (s *stream) finish() {
	s.t.Helper()
	if err := s.CloseSend(); err != nil {
		s.t.Fatalf("close: %v", err)
	}
	s.ended()
}

// refusal receives an immediate response and the end of the stream after it.
func (s *stream) refusal() (status int, reason, retryAfter string, grpcStatus int) {
	s.t.Helper()
	i := s.wants("immediate")[0].GetImmediateResponse()
	for _, h := range i.GetHeaders().GetSetHeaders() {
		switch h.GetHeader().GetKey() {
		case "x-headgate-reason":
			reason = string(h.GetHeader().GetRawValue())
		case "retry-after":
			retryAfter = string(h.GetHeader().GetRawValue())
		}
	}
	named, body := false, string(i.GetBody())
	for _, h := range i.GetHeaders().GetSetHeaders() { // gRPC callers find it in the details of their status
		named = named || h.GetHeader().GetKey() == "grpc-status-details-bin"
	}
	if n := len(body); n > 512 || !named && !strings.Contains(body, reason) {
		s.t.Errorf("body of %d bytes %q, want at most 512 with the reason", n, body)
	}
	s.ended()
	grpcStatus = -1
	if i.GetGrpcStatus() != nil {
		grpcStatus = int(i.GetGrpcStatus().GetStatus())
	}
	return int(i.GetStatus().GetCode()), reason, retryAfter, grpcStatus
}

func (s *stream) refused(status int, reason string) {
	s.t.Helper()
	if gotStatus, gotReason, _, _ := s.refusal(); gotStatus != status || gotReason != reason {
		s.t.Errorf("refused with %d %s, want %d %s", gotStatus, gotReason, status, reason)
	}
}

func kind(a *extprocv3.ProcessingResponse) string {
	switch a.GetResponse().(type) {
	case *extprocv3.ProcessingResponse_RequestHeaders:
		return "RH"
	case *extprocv3.ProcessingResponse_RequestBody:
		return "RB"
	case *extprocv3.ProcessingResponse_RequestTrailers:
		return "RT"
	case *extprocv3.ProcessingResponse_ResponseHeaders:
		return "SH"
	case *extprocv3.ProcessingResponse_ResponseBody:
		return "SB"
	case *extprocv3.ProcessingResponse_ResponseTrailers:
		return "ST"
	case *extprocv3.ProcessingResponse_ImmediateResponse:
		return "immediate"
	}
	return "nothing"
}

// early announces the shipped mode: streamed, and the body does not wait for the answer to the headers.
var early = &extprocv3.ProtocolConfiguration{
	RequestBodyMode: modev3.ProcessingMode_STREAMED, SendBodyWithoutWaitingForHeaderResponse: true,
}

func announce(m modev3.ProcessingMode_BodySendMode) *extprocv3.ProtocolConfiguration {
	return &extprocv3.ProtocolConfiguration{RequestBodyMode: m}
}

// rh is a request headers message; headers are pairs of a name and a value. Without a method it is a POST of JSON.
func rh(p *extprocv3.ProtocolConfiguration, eos bool, headers ...string) *extprocv3.ProcessingRequest {
	all := headers
	if len(headers) == 0 || headers[0] != ":method" {
		all = append([]string{":method", "POST", "content-type", "application/json"}, headers...)
	}
	return &extprocv3.ProcessingRequest{
		ProtocolConfig: p,
		Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{
			Headers: headerMap(all...), EndOfStream: eos,
		}},
		Attributes: map[string]*structpb.Struct{"envoy.filters.http.ext_proc": {Fields: map[string]*structpb.Value{
			"xds.cluster_name": structpb.NewStringValue("chat"),
		}}},
	}
}

func headerMap(pairs ...string) *corev3.HeaderMap {
	m := &corev3.HeaderMap{}
	for i := 0; i < len(pairs); i += 2 {
		m.Headers = append(m.Headers, &corev3.HeaderValue{Key: pairs[i], RawValue: []byte(pairs[i+1])})
	}
	return m
}

func rb(body string, eos bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
		RequestBody: &extprocv3.HttpBody{Body: []byte(body), EndOfStream: eos},
	}}
}

func rt() *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestTrailers{
		RequestTrailers: &extprocv3.HttpTrailers{},
	}}
}

func sh(status string, eos bool, headers ...string) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{
		ResponseHeaders: &extprocv3.HttpHeaders{Headers: headerMap(append([]string{":status", status}, headers...)...), EndOfStream: eos},
	}}
}

func sb(body string, eos bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{
		ResponseBody: &extprocv3.HttpBody{Body: []byte(body), EndOfStream: eos},
	}}
}

func st() *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseTrailers{
		ResponseTrailers: &extprocv3.HttpTrailers{},
	}}
}

// bytesOf is a body of n bytes that is no JSON.
func bytesOf(n int) string { return strings.Repeat("x", n) }

// chunks cuts a body into messages as an HTTP/2 client's DATA frames do.
func chunks(body string, size int) (out []*extprocv3.ProcessingRequest) {
	for len(body) > size {
		out, body = append(out, rb(body[:size], false)), body[size:]
	}
	return append(out, rb(body, true))
}
