package direct

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/headgate/headgate/test/bench/load"
)

// Options describe one run.
type Options struct {
	Address  string // of the ext_proc service, as gRPC dials it
	Shape    load.Shape
	Streams  int           // exchanges under way at any time
	Duration time.Duration // no exchange begins later
}

// Result is what a run measured on the client's side.
type Result struct {
	Exchanges int
	Elapsed   time.Duration
}

// processMethod is the method that Envoy calls.
const processMethod = extproc.ExternalProcessor_Process_FullMethodName

// errRefused is returned for an immediate response: figures of refused exchanges mean nothing.
var errRefused = errors.New("the server refused the exchange")

// Run replays exchanges as fast as they are answered.
func Run(ctx context.Context, o Options) (Result, error) {
	script, err := newScript(o.Shape)
	if err != nil {
		return Result{}, err
	}
	conn, err := grpc.NewClient(o.Address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec{})))
	if err != nil {
		return Result{}, fmt.Errorf("replay %s: %w", o.Shape.Name, err)
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	counts := make([]int, o.Streams)
	failures := make([]error, o.Streams)
	begin := time.Now()
	var all sync.WaitGroup
	for i := range o.Streams {
		all.Go(func() {
			for failures[i] == nil && time.Since(begin) < o.Duration {
				if failures[i] = exchange(ctx, conn, script); failures[i] != nil {
					cancel()
					return
				}
				counts[i]++
			}
		})
	}
	all.Wait()
	r := Result{Elapsed: time.Since(begin)}
	for _, n := range counts {
		r.Exchanges += n
	}
	if err := firstFault(failures); err != nil {
		return Result{}, fmt.Errorf("replay %s: %w", o.Shape.Name, err)
	}
	return r, nil
}

// exchange replays one exchange as Envoy does: the whole request at once, then the response message by message, then the
// end of the stream. A server may end the stream itself once it has nothing more to say.
func exchange(ctx context.Context, conn *grpc.ClientConn, script *script) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	desc := &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}
	stream, err := conn.NewStream(ctx, desc, processMethod)
	if err != nil {
		return err
	}
	for _, message := range script.request {
		if err := send(stream, message); err != nil {
			return err
		}
	}
	for range script.request {
		if ended, err := receive(stream); ended || err != nil {
			return err
		}
	}
	for _, message := range script.response {
		if err := send(stream, message); err != nil {
			return err
		}
		if ended, err := receive(stream); ended || err != nil {
			return err
		}
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	ended, err := receive(stream)
	if err == nil && !ended {
		return errors.New("an answer that nothing asked for")
	}
	return err
}

// send does not fail when the server has ended the stream: receive tells how.
func send(stream grpc.ClientStream, message []byte) error {
	if err := stream.SendMsg(frame(message)); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// receive takes one answer, or the end of the stream.
func receive(stream grpc.ClientStream) (ended bool, err error) {
	var a answer
	switch err := stream.RecvMsg(&a); {
	case errors.Is(err, io.EOF):
		return true, nil
	case err != nil:
		return false, err
	case a.immediate:
		return false, errRefused
	}
	return false, nil
}

// frame is an encoded message.
type frame []byte

// answer is the part of a ProcessingResponse that the client needs.
type answer struct{ immediate bool }

// codec spares the client the coding, so that it takes little from the server on the same cores.
type codec struct{}

// immediateResponse is the field of ProcessingResponse.
const immediateResponse = 7

func (codec) Name() string { return "proto" }

func (codec) Marshal(v any) (mem.BufferSlice, error) {
	f, ok := v.(frame)
	if !ok {
		return nil, fmt.Errorf("cannot send %T", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(f)}, nil
}

func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	a, ok := v.(*answer)
	if !ok {
		return fmt.Errorf("cannot receive %T", v)
	}
	buffer := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buffer.Free()
	for rest := buffer.ReadOnlyData(); len(rest) > 0; {
		field, _, n := protowire.ConsumeField(rest)
		if n < 0 {
			return protowire.ParseError(n)
		}
		a.immediate = a.immediate || field == immediateResponse
		rest = rest[n:]
	}
	return nil
}
