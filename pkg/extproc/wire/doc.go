// Package wire reads and writes ext_proc messages without the generated types on the hot path.
//
// A [Message] is the view of one ProcessingRequest that the exchange works on: its phase, a header look-up, the body's
// length, the end of the stream, and a loan of the body's bytes. The loan refers to gRPC's own receive buffers, so a
// body chunk is never copied, and ends with [Message.Free]. A [Frame] is an encoded ProcessingResponse; the replies
// that carry nothing are constants.
//
// [Codec] plugs both into grpc-go. It leaves every other type, such as those of the health service, to the standard
// codec.
//
// The field numbers are those of envoy/service/ext_proc/v3/external_processor.proto; tests compare every decoding with
// the generated types. Two things differ on purpose: header values need not be UTF-8, and unknown fields are skipped.
package wire
