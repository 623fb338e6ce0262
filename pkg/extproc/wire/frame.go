package wire

import (
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// Frame is an encoded ProcessingResponse.
type Frame []byte

// Continue returns the reply of a phase's own type that changes nothing. The frame is shared: it must not be changed.
func Continue(p Phase) Frame { return continueFrames[p] }

// continueFrames hold an empty HeadersResponse, BodyResponse or TrailersResponse under the oneof's field number.
var continueFrames = [...]Frame{
	RequestHeaders:   {1<<3 | 2, 0},
	ResponseHeaders:  {2<<3 | 2, 0},
	RequestBody:      {3<<3 | 2, 0},
	ResponseBody:     {4<<3 | 2, 0},
	RequestTrailers:  {5<<3 | 2, 0},
	ResponseTrailers: {6<<3 | 2, 0},
}

// Header is a header to set.
type Header struct{ Name, Value string }

// Mutation changes the request's headers. The zero value changes nothing.
type Mutation struct {
	Set             []Header // overwrites what the client sent
	Remove          []string
	ClearRouteCache bool // the header picks the route: look it up again
}

// Headers returns the reply to a headers message that applies a mutation.
func Headers(p Phase, m Mutation) Frame {
	if len(m.Set) == 0 && len(m.Remove) == 0 && !m.ClearRouteCache {
		return Continue(p)
	}
	var mutation []byte
	for _, h := range m.Set {
		mutation = appendMessage(mutation, 1, headerOption(h))
	}
	for _, name := range m.Remove {
		mutation = appendMessage(mutation, 2, []byte(name))
	}
	common := appendMessage(nil, 2, mutation)
	if m.ClearRouteCache {
		common = protowire.AppendTag(common, 5, protowire.VarintType)
		common = protowire.AppendVarint(common, 1)
	}
	number := protowire.Number(1)
	if p == ResponseHeaders {
		number = 2
	}
	return appendMessage(nil, number, appendMessage(nil, 1, common))
}

// headerOption encodes a HeaderValueOption: the value as raw_value, since Envoy ignores value, and the append action
// said explicitly, since proxies differ on what an unset one means. OVERWRITE_IF_EXISTS_OR_ADD is 2.
func headerOption(h Header) []byte {
	value := appendMessage(nil, 1, []byte(h.Name))
	value = appendMessage(value, 3, []byte(h.Value))
	option := appendMessage(nil, 1, value)
	option = protowire.AppendTag(option, 3, protowire.VarintType)
	return protowire.AppendVarint(option, 2)
}

// maxEcho bounds one echoed piece: a proxy may refuse a larger message.
const maxEcho = 64 << 10

// Echo returns the frames that hand a chunk back in full-duplex mode, in pieces of at most 64 KiB. The frames own
// their bytes, each copied once.
func Echo(m *Message) []Frame {
	left := m.BodyLen()
	frames := make([]Frame, 0, max(1, (left+maxEcho-1)/maxEcho))
	missing := 0 // of the last frame
	m.EachChunk(func(chunk []byte) {
		for len(chunk) > 0 {
			if missing == 0 {
				missing = min(left, maxEcho)
				left -= missing
				frames = append(frames, echo(m.Phase, missing, m.EndOfStream && left == 0))
			}
			n := min(len(chunk), missing)
			last := &frames[len(frames)-1]
			*last = append(*last, chunk[:n]...)
			chunk, missing = chunk[n:], missing-n
		}
	})
	if len(frames) == 0 {
		frames = append(frames, echo(m.Phase, 0, m.EndOfStream))
	}
	return frames
}

// echo is a frame that hands back a piece of n bytes, without these: they are appended to it. It is a BodyResponse with a
// CommonResponse with a BodyMutation with a StreamedBodyResponse, whose end_of_stream comes first, so that the bytes are last.
func echo(p Phase, n int, end bool) Frame {
	streamed := 0
	if end {
		streamed += 2
	}
	if n > 0 {
		streamed += sizeMessage(n)
	}
	mutation := sizeMessage(streamed)
	common := sizeMessage(mutation)
	response := sizeMessage(common)
	number := protowire.Number(3)
	if p == ResponseBody {
		number = 4
	}
	f := make(Frame, 0, sizeMessage(response))
	f = appendHead(f, number, response)
	f = appendHead(f, 1, common)
	f = appendHead(f, 3, mutation)
	f = appendHead(f, 3, streamed)
	if end {
		f = protowire.AppendTag(f, 2, protowire.VarintType)
		f = protowire.AppendVarint(f, 1)
	}
	if n > 0 {
		f = appendHead(f, 1, n)
	}
	return f
}

// Value is one value of the dynamic metadata: a string, or a number where Text is empty.
type Value struct {
	Key    string
	Text   string
	Number float64
}

// WithMetadata returns the frame with dynamic metadata in a namespace: a google.protobuf.Struct with one field, whose
// value is the struct of the values. The frame itself is not changed. Sizes are computed first, so that the whole is
// written once.
func (f Frame) WithMetadata(namespace string, values []Value) Frame {
	fields := 0
	for i := range values {
		fields += sizeMessage(values[i].sizeEntry())
	}
	value := sizeMessage(fields)
	entry := sizeMessage(len(namespace)) + sizeMessage(value)
	structure := sizeMessage(entry)

	out := make(Frame, 0, len(f)+sizeMessage(structure))
	out = append(out, f...)
	out = appendHead(out, 8, structure)
	out = appendHead(out, 1, entry)
	out = appendText(out, 1, namespace)
	out = appendHead(out, 2, value)
	out = appendHead(out, 5, fields)
	for i := range values {
		out = values[i].appendEntry(out)
	}
	return out
}

// sizeValue is the size of the google.protobuf.Value: a string_value, or a number_value.
func (v *Value) sizeValue() int {
	if v.Text != "" {
		return sizeMessage(len(v.Text))
	}
	return 1 + 8
}

func (v *Value) sizeEntry() int { return sizeMessage(len(v.Key)) + sizeMessage(v.sizeValue()) }

func (v *Value) appendEntry(dst []byte) []byte {
	dst = appendHead(dst, 1, v.sizeEntry())
	dst = appendText(dst, 1, v.Key)
	dst = appendHead(dst, 2, v.sizeValue())
	if v.Text != "" {
		return appendText(dst, 3, v.Text)
	}
	dst = protowire.AppendTag(dst, 2, protowire.Fixed64Type)
	return protowire.AppendFixed64(dst, math.Float64bits(v.Number))
}

// sizeMessage is the size of a length-delimited field of n bytes whose number is below 16.
func sizeMessage(n int) int { return 1 + protowire.SizeBytes(n) }

// appendHead begins a length-delimited field of n bytes.
func appendHead(dst []byte, number protowire.Number, n int) []byte {
	dst = protowire.AppendTag(dst, number, protowire.BytesType)
	return protowire.AppendVarint(dst, uint64(n)) //nolint:gosec // a length
}

func appendText(dst []byte, number protowire.Number, text string) []byte {
	return append(appendHead(dst, number, len(text)), text...)
}

func appendMessage(dst []byte, number protowire.Number, message []byte) []byte {
	dst = protowire.AppendTag(dst, number, protowire.BytesType)
	return protowire.AppendBytes(dst, message)
}
