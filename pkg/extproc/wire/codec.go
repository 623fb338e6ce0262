package wire

import (
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that all other types are left to
	"google.golang.org/grpc/mem"
)

// Codec is the gRPC codec of the ext_proc server: Messages in, Frames out, everything else as usual.
type Codec struct{ standard encoding.CodecV2 }

// NewCodec returns a Codec.
func NewCodec() Codec { return Codec{encoding.GetCodecV2("proto")} }

// Name is the content-subtype, the usual one.
func (c Codec) Name() string { return "proto" }

// Marshal encodes v; a Frame is encoded already.
func (c Codec) Marshal(v any) (mem.BufferSlice, error) {
	if f, ok := v.(Frame); ok {
		return mem.BufferSlice{mem.SliceBuffer(f)}, nil
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
