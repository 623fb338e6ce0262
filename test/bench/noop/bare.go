package main

import (
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec of the health service
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
)

// bare is the same server without generated types: it reads which message came and answers with bytes made beforehand. What it
// costs is gRPC's own.
type bare struct{}

// phase is the field number of a ProcessingRequest's oneof.
type phase byte

// answers are empty ones of the message's own type, by phase. Requests have the fields 2 to 7, answers 1 to 6.
var answers = [...][]byte{2: {1<<3 | 2, 0}, 3: {2<<3 | 2, 0}, 4: {3<<3 | 2, 0}, 5: {4<<3 | 2, 0}, 6: {5<<3 | 2, 0}, 7: {6<<3 | 2, 0}}

func (bare) process(_ any, stream grpc.ServerStream) error {
	var p phase
	for {
		err := stream.RecvMsg(&p)
		if errors.Is(err, io.EOF) || status.Code(err) == codes.Canceled {
			return nil
		}
		if err != nil {
			return err
		}
		if err := stream.SendMsg(&p); err != nil {
			return err
		}
	}
}

func (b bare) register(g *grpc.Server) {
	g.RegisterService(&grpc.ServiceDesc{
		ServiceName: "envoy.service.ext_proc.v3.ExternalProcessor",
		HandlerType: (*any)(nil),
		Streams:     []grpc.StreamDesc{{StreamName: "Process", Handler: b.process, ServerStreams: true, ClientStreams: true}},
	}, b)
}

// bareCodec reads which message it is and leaves the rest alone.
type bareCodec struct{ encoding.CodecV2 }

func newBareCodec() bareCodec { return bareCodec{encoding.GetCodecV2("proto")} }

func (c bareCodec) Marshal(v any) (mem.BufferSlice, error) {
	if p, ok := v.(*phase); ok {
		return mem.BufferSlice{mem.SliceBuffer(answers[*p])}, nil
	}
	return c.CodecV2.Marshal(v)
}

func (c bareCodec) Unmarshal(data mem.BufferSlice, v any) error {
	p, ok := v.(*phase)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	var head [maxBefore]byte // a message may lie in several buffers, and be divided anywhere
	if *p = phaseIn(head[:data.CopyTo(head[:])]); *p == 0 {
		return status.Error(codes.InvalidArgument, "the message is no part of an exchange")
	}
	return nil
}

// maxBefore is how far into a message the oneof begins at the most: what may come before it are attributes and the announcement.
const maxBefore = 1 << 10

// phaseIn finds the field of the oneof, 0 where it does not begin in the bytes.
func phaseIn(message []byte) phase {
	for len(message) > 0 {
		field, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return 0
		}
		if field >= 2 && field <= 7 {
			return phase(field) //nolint:gosec // 2 to 7
		}
		value := protowire.ConsumeFieldValue(field, kind, message[n:])
		if value < 0 {
			return 0
		}
		message = message[n+value:]
	}
	return 0
}
