package direct

import (
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"

	"github.com/headgate/headgate/test/bench/load"
)

// processor answers with what respond returns; nil ends the stream.
type processor struct {
	extproc.UnimplementedExternalProcessorServer
	respond func(*extproc.ProcessingRequest) *extproc.ProcessingResponse
	bytes   atomic.Int64 // of request bodies
	ends    atomic.Int64 // end_of_stream seen
}

func (p *processor) Process(stream grpc.BidiStreamingServer[extproc.ProcessingRequest, extproc.ProcessingResponse]) error {
	for {
		request, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		p.bytes.Add(int64(len(request.GetRequestBody().GetBody())))
		if request.GetRequestBody().GetEndOfStream() || request.GetRequestHeaders().GetEndOfStream() {
			p.ends.Add(1)
		}
		response := p.respond(request)
		if response == nil {
			return nil
		}
		if err := stream.Send(response); err != nil {
			return err
		}
	}
}

func serve(t *testing.T, p *processor) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(grpc.MaxRecvMsgSize(64 << 20))
	extproc.RegisterExternalProcessorServer(g, p)
	go func() { _ = g.Serve(l) }()
	t.Cleanup(g.Stop)
	return l.Addr().String()
}

func goOn(*extproc.ProcessingRequest) *extproc.ProcessingResponse {
	return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_RequestHeaders{RequestHeaders: &extproc.HeadersResponse{}}}
}

func TestEveryShapeIsReplayedWhole(t *testing.T) {
	t.Parallel()
	for _, shape := range load.Shapes() {
		p := &processor{respond: goOn}
		r, err := Run(t.Context(), Options{Address: serve(t, p), Shape: shape, Streams: 2, Duration: 20 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		if got, want := p.bytes.Load(), int64(r.Exchanges*shape.Bytes); r.Exchanges < 2 || got != want || p.ends.Load() != int64(r.Exchanges) {
			t.Errorf("%s: %d exchanges brought %d bytes and %d ends, want at least 2, %d and one each", shape.Name, r.Exchanges, got, p.ends.Load(), want)
		}
	}
}

func TestServersMayEndTheStreamThemselves(t *testing.T) {
	t.Parallel()
	p := &processor{respond: func(r *extproc.ProcessingRequest) *extproc.ProcessingResponse {
		if r.GetRequestHeaders() == nil {
			return nil
		}
		return goOn(r)
	}}
	r, err := Run(t.Context(), Options{Address: serve(t, p), Shape: load.Shapes()[2], Streams: 1, Duration: 20 * time.Millisecond})
	if err != nil || r.Exchanges == 0 {
		t.Errorf("got %d exchanges and %v, want some and no error", r.Exchanges, err)
	}
}

func TestRefusalsAreErrors(t *testing.T) {
	t.Parallel()
	p := &processor{respond: func(*extproc.ProcessingRequest) *extproc.ProcessingResponse {
		return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ImmediateResponse{ImmediateResponse: &extproc.ImmediateResponse{}}}
	}}
	_, err := Run(t.Context(), Options{Address: serve(t, p), Shape: load.Shapes()[0], Streams: 2, Duration: time.Second})
	if !errors.Is(err, errRefused) {
		t.Errorf("got %v, want %v", err, errRefused)
	}
}
