package wire

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// errMalformed is returned for bytes that are not a ProcessingRequest.
var errMalformed = errors.New("malformed ProcessingRequest")

// phaseOf maps the field numbers of ProcessingRequest's oneof.
var phaseOf = [...]Phase{
	2: RequestHeaders, 3: ResponseHeaders, 4: RequestBody, 5: ResponseBody, 6: RequestTrailers, 7: ResponseTrailers,
}

// Decode fills the message from an encoded ProcessingRequest. Where the request carries body bytes, the message takes
// a reference to data until Free; everything else is copied into the message's own buffers.
func (m *Message) Decode(data mem.BufferSlice) error {
	m.reset()
	c := cursor{rest: data, left: data.Len()}
	for c.left > 0 {
		if err := m.decodeField(&c); err != nil {
			m.reset()
			return err
		}
	}
	if len(m.body) > 0 {
		data.Ref()
		m.loan = data
	}
	return nil
}

func (m *Message) decodeField(c *cursor) error {
	num, typ, err := c.tag()
	if err != nil {
		return err
	}
	switch {
	case typ == protowire.VarintType:
		v, err := c.varint()
		if num == 10 {
			m.Observability = v != 0
		}
		return err
	case typ != protowire.BytesType:
		return c.skipValue(typ)
	}
	n, err := c.length()
	if err != nil {
		return err
	}
	switch num {
	case 2, 3, 7:
		return m.decodeHeaders(phaseOf[num], c, n)
	case 4, 5:
		return m.decodeBody(phaseOf[num], c, n)
	case 6: // nothing looks at request trailers
		m.setPhase(phaseOf[num])
		return c.skip(n)
	case 8:
		m.metadata = c.appendTo(m.metadata[:0], n)
	case 9:
		m.attributes = protowire.AppendVarint(m.attributes, uint64(n))
		m.attributes = c.appendTo(m.attributes, n)
	case 11:
		return m.decodeProtocol(c, n)
	default:
		return c.skip(n)
	}
	return nil
}

// setPhase starts the oneof anew: the last one on the wire wins.
func (m *Message) setPhase(p Phase) {
	m.Phase, m.EndOfStream = p, false
	m.headers, m.body, m.bodyLen = m.headers[:0], m.body[:0], 0
}

func (m *Message) decodeHeaders(p Phase, c *cursor, n int) error {
	m.setPhase(p)
	return m.decodePart(c, n, 3, func(n int) { m.headers = c.appendTo(m.headers, n) })
}

func (m *Message) decodeBody(p Phase, c *cursor, n int) error {
	m.setPhase(p)
	return m.decodePart(c, n, 2, func(n int) { m.body, m.bodyLen = c.lend(m.body[:0], n), n })
}

// decodePart reads an embedded message whose first field is its content and whose field end is end_of_stream.
func (m *Message) decodePart(c *cursor, n int, end protowire.Number, content func(n int)) error {
	return c.within(n, func(num protowire.Number, typ protowire.Type) error {
		switch {
		case num == 1 && typ == protowire.BytesType:
			n, err := c.length()
			if err == nil {
				content(n)
			}
			return err
		case num == end && typ == protowire.VarintType:
			v, err := c.varint()
			m.EndOfStream = v != 0
			return err
		}
		return c.skipValue(typ)
	})
}

func (m *Message) decodeProtocol(c *cursor, n int) error {
	m.Protocol.Known = true
	return c.within(n, func(num protowire.Number, typ protowire.Type) error {
		if typ != protowire.VarintType {
			return c.skipValue(typ)
		}
		v, err := c.varint()
		switch num {
		case 1:
			m.Protocol.RequestBody = BodyMode(min(v, 255))
		case 2:
			m.Protocol.ResponseBody = BodyMode(min(v, 255))
		case 3:
			m.Protocol.EarlyBody = v != 0
		}
		return err
	})
}

// cursor reads an encoded message that lies in several buffers.
type cursor struct {
	rest mem.BufferSlice
	at   int // position in rest[0]
	left int // bytes left in the message
}

func (c *cursor) readByte() (byte, error) {
	if c.left == 0 {
		return 0, errMalformed
	}
	for c.at == c.rest[0].Len() {
		c.rest, c.at = c.rest[1:], 0
	}
	b := c.rest[0].ReadOnlyData()[c.at]
	c.at++
	c.left--
	return b, nil
}

func (c *cursor) varint() (uint64, error) {
	var v uint64
	for shift := 0; shift < 70; shift += 7 {
		b, err := c.readByte()
		if err != nil {
			return 0, err
		}
		if shift == 63 && b > 1 {
			return 0, errMalformed
		}
		v |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return v, nil
		}
	}
	return 0, errMalformed
}

func (c *cursor) tag() (protowire.Number, protowire.Type, error) {
	v, err := c.varint()
	if err != nil {
		return 0, 0, err
	}
	num, typ := protowire.DecodeTag(v)
	if num < protowire.MinValidNumber {
		return 0, 0, errMalformed
	}
	return num, typ, nil
}

// length reads the length of a length-delimited field and checks that the field is all there.
func (c *cursor) length() (int, error) {
	v, err := c.varint()
	if err != nil {
		return 0, err
	}
	if v > uint64(c.left) { //nolint:gosec // left is never negative
		return 0, errMalformed
	}
	return int(v), nil //nolint:gosec // bounded by left
}

// pieces calls yield with the next n bytes, buffer by buffer. The caller has checked that they are there.
func (c *cursor) pieces(n int, yield func([]byte)) {
	c.left -= n
	for n > 0 {
		data := c.rest[0].ReadOnlyData()[c.at:]
		if len(data) == 0 {
			c.rest, c.at = c.rest[1:], 0
			continue
		}
		data = data[:min(n, len(data))]
		yield(data)
		c.at += len(data)
		n -= len(data)
	}
}

func (c *cursor) appendTo(dst []byte, n int) []byte {
	c.pieces(n, func(p []byte) { dst = append(dst, p...) })
	return dst
}

func (c *cursor) lend(dst [][]byte, n int) [][]byte {
	c.pieces(n, func(p []byte) { dst = append(dst, p) })
	return dst
}

func (c *cursor) skip(n int) error {
	if n > c.left {
		return errMalformed
	}
	c.pieces(n, func([]byte) {})
	return nil
}

func (c *cursor) skipValue(typ protowire.Type) error {
	switch typ {
	case protowire.VarintType:
		_, err := c.varint()
		return err
	case protowire.Fixed32Type:
		return c.skip(4)
	case protowire.Fixed64Type:
		return c.skip(8)
	case protowire.BytesType:
		n, err := c.length()
		if err != nil {
			return err
		}
		return c.skip(n)
	}
	return fmt.Errorf("%w: wire type %d", errMalformed, typ)
}

// within reads the fields of an embedded message of n bytes.
func (c *cursor) within(n int, field func(protowire.Number, protowire.Type) error) error {
	outside := c.left - n
	c.left = n
	for c.left > 0 {
		num, typ, err := c.tag()
		if err != nil {
			return err
		}
		if err := field(num, typ); err != nil {
			return err
		}
	}
	c.left = outside
	return nil
}
