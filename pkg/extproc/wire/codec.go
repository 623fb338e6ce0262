package wire

import (
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that all other types are left to
	"google.golang.org/grpc/mem"
)

// Codec is the gRPC codec of the ext_proc server: Messages in, Outgoing frames out, everything else as usual.
type Codec struct{ standard encoding.CodecV2 }

// NewCodec returns a Codec.
func NewCodec() Codec { return Codec{encoding.GetCodecV2("proto")} }

// Name is the content-subtype, the usual one.
func (c Codec) Name() string { return "proto" }

// Outgoing is a Frame in the form in which gRPC sends it. It is not changed by that and may be sent more than once.
type Outgoing struct{ buffers [1]mem.Buffer }

// Outgoing returns the frame for grpc.ServerStream.SendMsg. The frames of Continue allocate nothing.
func (f Frame) Outgoing() *Outgoing {
	if len(f) == emptyReply && f[1] == 0 && int(f[0]>>3) < len(continued) {
		return continued[f[0]>>3]
	}
	return &Outgoing{[1]mem.Buffer{mem.SliceBuffer(f)}}
}

// emptyReply is the length of a frame that continues.
const emptyReply = 2

// continued are the frames of Continue by their field number.
var continued = func() (all [len(continueFrames)]*Outgoing) {
	for _, f := range continueFrames {
		if f != nil {
			all[f[0]>>3] = &Outgoing{[1]mem.Buffer{mem.SliceBuffer(f)}}
		}
	}
	return all
}()

// Marshal encodes v; an Outgoing frame is encoded already.
func (c Codec) Marshal(v any) (mem.BufferSlice, error) {
	if o, ok := v.(*Outgoing); ok {
		return o.buffers[:], nil
	}
	return c.standard.Marshal(v)
}

// Unmarshal decodes data into v.
func (c Codec) Unmarshal(data mem.BufferSlice, v any) error {
	if m, ok := v.(*Message); ok {
		return m.Decode(data)
	}
	return c.standard.Unmarshal(data, v)
}
