package telemetry

import (
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/encoding/protowire"
)

// appendSpan appends a plain span, one that has no links and no list among its attributes, as a field of ScopeSpans
// (opentelemetry/proto/trace/v1/trace.proto, OTLP 1.11). The numbers are those of the fields there. Of one that is not plain
// it appends nothing.
func appendSpan(b []byte, s sdktrace.ReadOnlySpan) (with []byte, plain bool) {
	if len(s.Links()) > 0 || s.DroppedLinks() > 0 {
		return b, false
	}
	without := b
	b, start := open(b, 2) // spans
	self, parent := s.SpanContext(), s.Parent()
	id, span := self.TraceID(), self.SpanID()
	b = appendBytes(b, 1, id[:])
	b = appendBytes(b, 2, span[:])
	b = appendString(b, 3, self.TraceState().String())
	if above := parent.SpanID(); above.IsValid() {
		b = appendBytes(b, 4, above[:])
	}
	b = appendString(b, 5, s.Name())
	b = appendVarint(b, 6, uint64(s.SpanKind())) // OTLP numbers kinds as the API does
	b = appendTime(b, 7, s.StartTime())
	b = appendTime(b, 8, s.EndTime())
	if b, plain = appendAttributes(b, 9, s.Attributes()); !plain {
		return without, false
	}
	b = appendVarint(b, 10, uint64(max(s.DroppedAttributes(), 0)))
	for _, e := range s.Events() {
		if b, plain = appendEvent(b, e); !plain {
			return without, false
		}
	}
	b = appendVarint(b, 12, uint64(max(s.DroppedEvents(), 0)))
	b = appendStatus(b, s.Status())
	b = protowire.AppendFixed32(protowire.AppendTag(b, 16, protowire.Fixed32Type), spanFlags(self, parent))
	return shut(b, start), true
}

// spanFlags are the trace flags of the span, and whether its parent is in another process.
func spanFlags(self, parent trace.SpanContext) uint32 {
	const known, remote = 0x100, 0x200
	flags := uint32(self.TraceFlags()) | known
	if parent.IsRemote() {
		flags |= remote
	}
	return flags
}

func appendEvent(b []byte, e sdktrace.Event) (with []byte, plain bool) {
	b, start := open(b, 11)
	b = appendTime(b, 1, e.Time)
	b = appendString(b, 2, e.Name)
	b, plain = appendAttributes(b, 3, e.Attributes)
	b = appendVarint(b, 4, uint64(max(e.DroppedAttributeCount, 0)))
	return shut(b, start), plain
}

// appendStatus appends the status, which is there even if unset. OTLP numbers ok and error the other way round.
func appendStatus(b []byte, s sdktrace.Status) []byte {
	b, start := open(b, 15)
	b = appendString(b, 2, s.Description)
	switch s.Code {
	case codes.Ok:
		b = appendVarint(b, 3, 1)
	case codes.Error:
		b = appendVarint(b, 3, 2)
	case codes.Unset:
	}
	return shut(b, start)
}

// appendAttributes stops at an attribute that is not plain.
func appendAttributes(b []byte, field protowire.Number, attributes []attribute.KeyValue) (with []byte, plain bool) {
	for _, a := range attributes {
		var start, value int
		b, start = open(b, field)
		b = appendString(b, 1, string(a.Key))
		b, value = open(b, 2)
		switch a.Value.Type() { // of a oneof, where zero is a value too
		case attribute.STRING:
			b = appendText(b, 1, a.Value.AsString())
		case attribute.BOOL:
			b = protowire.AppendVarint(protowire.AppendTag(b, 2, protowire.VarintType), protowire.EncodeBool(a.Value.AsBool()))
		case attribute.INT64:
			b = protowire.AppendVarint(protowire.AppendTag(b, 3, protowire.VarintType), uint64(a.Value.AsInt64()))
		case attribute.FLOAT64:
			b = protowire.AppendFixed64(protowire.AppendTag(b, 4, protowire.Fixed64Type), math.Float64bits(a.Value.AsFloat64()))
		default:
			return b, false
		}
		b = shut(shut(b, value), start)
	}
	return b, true
}

// The functions below append one field; as proto3 has it, zero is left out.

func appendBytes(b []byte, field protowire.Number, v []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), v)
}

func appendString(b []byte, field protowire.Number, v string) []byte {
	if v == "" {
		return b
	}
	return appendText(b, field, v)
}

// appendText also appends an empty text. Text that is not UTF-8 would have the whole batch refused.
func appendText(b []byte, field protowire.Number, v string) []byte {
	if !utf8.ValidString(v) {
		v = strings.ToValidUTF8(v, "\uFFFD")
	}
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), v)
}

func appendVarint(b []byte, field protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), v)
}

func appendTime(b []byte, field protowire.Number, at time.Time) []byte {
	nanos := at.UnixNano()
	if nanos <= 0 {
		return b
	}
	return protowire.AppendFixed64(protowire.AppendTag(b, field, protowire.Fixed64Type), uint64(nanos))
}

// open begins a message whose length is not known yet; shut puts it in front of what follows start. There is room for one
// byte, which is enough for most.
func open(b []byte, field protowire.Number) (message []byte, start int) {
	b = append(protowire.AppendTag(b, field, protowire.BytesType), 0)
	return b, len(b)
}

func shut(b []byte, start int) []byte {
	n := len(b) - start
	more := protowire.SizeVarint(uint64(n)) - 1
	for range more {
		b = append(b, 0)
	}
	if more > 0 {
		copy(b[start+more:], b[start:start+n])
	}
	protowire.AppendVarint(b[:start-1], uint64(n))
	return b
}
