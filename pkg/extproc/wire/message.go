package wire

import (
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// Phase is the part of the HTTP exchange that a message carries.
type Phase uint8

// The phases, in the order of an exchange. None is a message without a request, such as a pure flow-control update.
const (
	None Phase = iota
	RequestHeaders
	RequestBody
	RequestTrailers
	ResponseHeaders
	ResponseBody
	ResponseTrailers
)

// BodyMode is how Envoy sends a body, as announced in the first message.
type BodyMode uint8

// The body modes of ProcessingMode.BodySendMode, with its numbers.
const (
	BodyNone            BodyMode = 0
	BodyStreamed        BodyMode = 1
	BodyBuffered        BodyMode = 2
	BodyBufferedPartial BodyMode = 3
	BodyFullDuplex      BodyMode = 4
	BodyGRPC            BodyMode = 5
)

// Protocol is the filter configuration that Envoy announces in its first message.
type Protocol struct {
	Known        bool // false: the message carries no announcement
	RequestBody  BodyMode
	ResponseBody BodyMode
	EarlyBody    bool // send_body_without_waiting_for_header_response
}

// Message is the view of one ProcessingRequest. It is reused: decoding overwrites it, and what the look-ups return is
// valid until then. The zero value is ready.
type Message struct {
	Phase         Phase
	EndOfStream   bool
	Observability bool
	Protocol      Protocol

	headers    []byte // encoded HeaderMap
	attributes []byte // encoded values of the attributes map, one after the other, length-prefixed
	metadata   []byte // encoded core.Metadata
	body       [][]byte
	bodyLen    int
	loan       mem.BufferSlice
}

// BodyLen is the number of body bytes.
func (m *Message) BodyLen() int { return m.bodyLen }

// EachChunk lends the body's bytes, in order. They must not be kept or changed.
func (m *Message) EachChunk(yield func([]byte)) {
	for _, chunk := range m.body {
		yield(chunk)
	}
}

// Free ends the loan of the body's bytes. It may be called more than once.
func (m *Message) Free() {
	if m.loan == nil {
		return
	}
	m.loan.Free()
	clear(m.body)
	m.body, m.loan = m.body[:0], nil
}

// What bounds the buffers that a message has when it is used again.
const (
	maxRecycledBytes  = 64 << 10 // of each
	maxRecycledPieces = 1 << 10  // of a body
)

// Recycle ends the use of the message, as Free does, and makes it ready for another exchange: nothing of what it said is left.
// Buffers of usual size stay.
func (m *Message) Recycle() {
	m.reset()
	for _, buffer := range []*[]byte{&m.headers, &m.attributes, &m.metadata} {
		if cap(*buffer) > maxRecycledBytes {
			*buffer = nil
		}
		clear((*buffer)[:cap(*buffer)])
	}
	if cap(m.body) > maxRecycledPieces {
		m.body = nil
	}
	clear(m.body[:cap(m.body)])
}

// reset makes the message ready for the next decoding and keeps its buffers.
func (m *Message) reset() {
	m.Free()
	*m = Message{headers: m.headers[:0], attributes: m.attributes[:0], metadata: m.metadata[:0], body: m.body[:0]}
}

// EachHeader calls yield with every header in order, names as Envoy sends them (lower case). The value is raw_value,
// or value where that is empty.
func (m *Message) EachHeader(yield func(name, value []byte)) {
	eachField(m.headers, func(num protowire.Number, entry []byte) {
		if num != 1 {
			return
		}
		var name, value, raw []byte
		eachField(entry, func(num protowire.Number, v []byte) {
			switch num {
			case 1:
				name = v
			case 2:
				value = v
			case 3:
				raw = v
			}
		})
		if len(raw) > 0 {
			value = raw
		}
		yield(name, value)
	})
}

// Header returns the first value of a header and how often the header occurs.
func (m *Message) Header(name string) (first []byte, count int) {
	m.EachHeader(func(n, v []byte) {
		if string(n) != name {
			return
		}
		if count == 0 {
			first = v
		}
		count++
	})
	return first, count
}

// Attribute returns a request attribute that is a string, or "" where Envoy sent none.
func (m *Message) Attribute(name string) (value string) {
	for rest := m.attributes; len(rest) > 0 && value == ""; {
		entry, n := protowire.ConsumeBytes(rest)
		if n < 0 {
			return ""
		}
		rest = rest[n:]
		value = structString(mapValue(entry, 2), name)
	}
	return value
}

// Metadata returns a string of the dynamic metadata by its path: the filter's namespace, then keys of nested structs.
// It is "" where there is none.
func (m *Message) Metadata(path []string) string {
	if len(path) < 2 {
		return ""
	}
	structure := mapLookup(m.metadata, 1, path[0])
	return structString(structure, path[1:]...)
}

// structString walks an encoded google.protobuf.Struct along keys and returns the string at the end.
func structString(structure []byte, keys ...string) string {
	for i, key := range keys {
		value := mapLookup(structure, 1, key)
		if value == nil {
			return ""
		}
		if i == len(keys)-1 {
			return string(fieldBytes(value, 3)) // Value.string_value
		}
		structure = fieldBytes(value, 5) // Value.struct_value
	}
	return ""
}

// mapLookup returns the encoded value of a map entry with a string key, nil where there is none. The last entry of a
// key wins, as the encoding rules say.
func mapLookup(message []byte, field protowire.Number, key string) (value []byte) {
	eachField(message, func(num protowire.Number, entry []byte) {
		if num == field && string(fieldBytes(entry, 1)) == key {
			value = mapValue(entry, 2)
		}
	})
	return value
}

// mapValue is fieldBytes, but an absent value is empty, not nil.
func mapValue(entry []byte, field protowire.Number) []byte {
	if v := fieldBytes(entry, field); v != nil {
		return v
	}
	return []byte{}
}

// fieldBytes returns the last length-delimited field of a number, nil where there is none.
func fieldBytes(message []byte, field protowire.Number) (value []byte) {
	eachField(message, func(num protowire.Number, v []byte) {
		if num == field {
			value = v
		}
	})
	return value
}

// eachField calls yield with every length-delimited field of an encoded message and stops at the first fault.
func eachField(message []byte, yield func(protowire.Number, []byte)) {
	for len(message) > 0 {
		num, typ, n := protowire.ConsumeTag(message)
		if n < 0 {
			return
		}
		message = message[n:]
		if typ == protowire.BytesType {
			v, n := protowire.ConsumeBytes(message)
			if n < 0 {
				return
			}
			yield(num, v)
			message = message[n:]
			continue
		}
		if n = protowire.ConsumeFieldValue(num, typ, message); n < 0 {
			return
		}
		message = message[n:]
	}
}
