package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"

	envoyconf "github.com/headgate/headgate/deploy/envoy"
	"github.com/headgate/headgate/internal/stack"
	"github.com/headgate/headgate/pkg/config"
)

// lab is an Envoy between a client, the demo upstream and a processor that does what a test tells it: it shows what
// Envoy does, without the sidecar. Its Stack has no sidecar.
type lab struct {
	extprocv3.UnimplementedExternalProcessorServer
	*stack.Stack
	script  atomic.Pointer[script]
	streams chan *dialogue
}

// script is what the processor does with a stream; its error ends it.
type script func(*dialogue) error

// newLab starts a lab with the shipped configuration of Envoy, as the edits change it.
func newLab(t *testing.T, edits ...func(*stack.Bootstrap) error) *lab {
	t.Helper()
	l := &lab{Stack: &stack.Stack{}, streams: make(chan *dialogue, 1000)}
	l.play(obliging)
	c := config.Default()
	c.Listen.GRPC, c.Listen.API = serveProcessor(t, l), ""
	var err error
	if l.Upstream, err = stack.NewUpstream(""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Upstream.Close)
	b, err := stack.NewBootstrap(c, envoyconf.Options{Upstream: l.Upstream.Addr()})
	if err != nil {
		t.Fatal(err)
	}
	b.FreePorts()
	for _, edit := range edits {
		if err := edit(b); err != nil {
			t.Fatal(err)
		}
	}
	text, err := b.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if l.Envoy, err = stack.StartEnvoy(ctx, stack.EnvoyOptions{Bootstrap: text}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Envoy.Stop)
	return l
}

// serveProcessor serves a processor and returns its address.
func serveProcessor(t *testing.T, p extprocv3.ExternalProcessorServer) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(64 << 20))
	extprocv3.RegisterExternalProcessorServer(server, p)
	go func() { _ = server.Serve(listener) }() // ends with Stop
	t.Cleanup(server.Stop)
	return listener.Addr().String()
}

// play sets the script of the streams to come.
func (l *lab) play(s script) { l.script.Store(&s) }

// Process plays the script.
func (l *lab) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	d := &dialogue{ExternalProcessor_ProcessServer: stream, ended: make(chan struct{})}
	defer close(d.ended)
	l.streams <- d
	err := (*l.script.Load())(d)
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// stream returns the next stream that Envoy opened.
func (l *lab) stream(t *testing.T) *dialogue {
	t.Helper()
	select {
	case d := <-l.streams:
		return d
	case <-time.After(10 * time.Second):
		t.Fatal("Envoy opened no stream within 10 s")
		return nil
	}
}

// dialogue is one stream; what Envoy says is recorded.
type dialogue struct {
	extprocv3.ExternalProcessor_ProcessServer
	ended chan struct{} // closed when the stream is over

	mu    sync.Mutex
	heard []*extprocv3.ProcessingRequest
}

// hear receives one message.
func (d *dialogue) hear() (*extprocv3.ProcessingRequest, error) {
	m, err := d.Recv()
	if err == nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.heard = append(d.heard, m)
	}
	return m, err
}

// phases lists what was heard, like "RH RB5 RB0. SH."; a dot means the end of the stream.
func (d *dialogue) phases() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []string
	for _, m := range d.heard {
		all = append(all, phase(m))
	}
	return strings.Join(all, " ")
}

// bodies returns the sizes of the request's chunks so far and their sum.
func (d *dialogue) bodies() (sizes []int, sum int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, m := range d.heard {
		if b := m.GetRequestBody(); b != nil {
			sizes = append(sizes, len(b.Body))
			sum += len(b.Body)
		}
	}
	return sizes, sum
}

// over reports whether the stream has ended.
func (d *dialogue) over() bool {
	select {
	case <-d.ended:
		return true
	default:
		return false
	}
}

func phase(m *extprocv3.ProcessingRequest) string {
	dot := func(end bool) string {
		if end {
			return "."
		}
		return ""
	}
	switch m := m.Request.(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		return "RH" + dot(m.RequestHeaders.EndOfStream)
	case *extprocv3.ProcessingRequest_RequestBody:
		return fmt.Sprintf("RB%d%s", len(m.RequestBody.Body), dot(m.RequestBody.EndOfStream))
	case *extprocv3.ProcessingRequest_RequestTrailers:
		return "RT"
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		return "SH" + dot(m.ResponseHeaders.EndOfStream)
	case *extprocv3.ProcessingRequest_ResponseBody:
		return fmt.Sprintf("SB%d%s", len(m.ResponseBody.Body), dot(m.ResponseBody.EndOfStream))
	case *extprocv3.ProcessingRequest_ResponseTrailers:
		return "ST"
	}
	return "?"
}

// pass is the answer that lets a message pass.
func pass(m *extprocv3.ProcessingRequest) *extprocv3.ProcessingResponse {
	switch m.Request.(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{}}}
	case *extprocv3.ProcessingRequest_RequestBody:
		return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{}}}
	case *extprocv3.ProcessingRequest_RequestTrailers:
		return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestTrailers{RequestTrailers: &extprocv3.TrailersResponse{}}}
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extprocv3.HeadersResponse{}}}
	case *extprocv3.ProcessingRequest_ResponseBody:
		return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: &extprocv3.BodyResponse{}}}
	default:
		return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseTrailers{ResponseTrailers: &extprocv3.TrailersResponse{}}}
	}
}

// obliging lets everything pass.
func obliging(d *dialogue) error {
	for {
		m, err := d.hear()
		if err != nil {
			return err
		}
		if err := d.Send(pass(m)); err != nil {
			return err
		}
	}
}

// holding is obliging, but sends no answer until it may; then it sends all it owes.
func holding(may <-chan struct{}) script {
	return func(d *dialogue) error {
		messages := make(chan *extprocv3.ProcessingRequest, 100_000)
		failed := make(chan error, 1)
		go func() { // ends with the stream
			for {
				m, err := d.hear()
				if err != nil {
					failed <- err
					return
				}
				messages <- m
			}
		}()
		select {
		case <-may:
		case err := <-failed:
			return err
		}
		for {
			select {
			case m := <-messages:
				if err := d.Send(pass(m)); err != nil {
					return err
				}
			case err := <-failed:
				return err
			}
		}
	}
}

// processing edits the filter's processing mode.
func processing(edit func(*filterv3.ProcessingMode)) func(*stack.Bootstrap) error {
	return func(b *stack.Bootstrap) error {
		return b.Processor(func(p *filterv3.ExternalProcessor) { edit(p.ProcessingMode) })
	}
}
