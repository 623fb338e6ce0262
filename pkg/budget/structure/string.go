package structure

import (
	"encoding/binary"
	"math/bits"
)

// textState is where the scan is inside a string.
type textState struct {
	isName  bool
	matters bool   // the decoded bytes go to Scanner.short
	counts  bool   // the code points count as text
	empty   bool   // nothing yet
	high    bool   // the last code point was the first half of a surrogate pair, already counted
	escape  uint8  // 0 outside escapes, escapeBegun, or 1 to 4 hexadecimal digits to come
	unit    uint16 // of a \u escape
}

const escapeBegun = 5

// quartersPerRune is the estimate for a code point outside ASCII; one inside is a single quarter.
const quartersPerRune = 4

func (s *Scanner) beginName() {
	p := s.places[s.depth]
	s.text = textState{isName: true, matters: p.namesMatter(), counts: !p.isFeatureLevel()}
	s.length = 0
	s.state = inString
}

func (s *Scanner) beginText() {
	s.text = textState{counts: true, empty: true}
	s.state = inString
}

// scanString takes bytes of a string, up to its end at most.
func (s *Scanner) scanString(p []byte, i int) int {
	t := &s.text
	for i < len(p) {
		if t.escape != 0 {
			s.scanEscape(p[i])
			if i++; s.state == failed {
				return i
			}
			continue
		}
		if n, quarters := plain(p[i:]); n > 0 {
			s.addText(p[i:i+n], quarters)
			if i += n; i == len(p) {
				return i
			}
		}
		switch p[i] {
		case '"':
			s.endString()
			return i + 1
		case '\\':
			t.escape = escapeBegun
			i++
		default: // a control character
			s.state = failed
			return i
		}
	}
	return i
}

// addText takes a run of bytes that stand for themselves.
func (s *Scanner) addText(run []byte, quarters int) {
	s.text.empty = false
	s.text.high = false
	if s.text.counts {
		s.counts.quarters += int64(quarters)
	}
	if s.text.matters {
		s.keep(run)
	}
}

// keep appends to the short copy of a name, as long as it can still be one that matters.
func (s *Scanner) keep(run []byte) {
	if s.length+len(run) > maxName {
		s.length = maxName + 1
		return
	}
	s.length += copy(s.short[s.length:], run)
}

// scanEscape takes a byte after a backslash.
func (s *Scanner) scanEscape(c byte) {
	t := &s.text
	if t.escape == escapeBegun {
		if c == 'u' {
			t.escape, t.unit = 4, 0
			return
		}
		decoded := unescape(c)
		if decoded == 0 {
			s.state = failed
			return
		}
		t.escape = 0
		s.addText([]byte{decoded}, 1)
		return
	}
	digit := hexDigit(c)
	if digit > 15 {
		s.state = failed
		return
	}
	t.unit = t.unit<<4 | digit
	if t.escape--; t.escape == 0 {
		s.addUnit(t.unit)
	}
}

// addUnit takes the UTF-16 code unit of a \u escape. Half of a surrogate pair without the other is a code point, as
// decoders put the replacement character in its place.
func (s *Scanner) addUnit(unit uint16) {
	second := s.text.high && unit >= 0xDC00 && unit < 0xE000
	switch {
	case unit < 0x80:
		s.addText([]byte{byte(unit)}, 1)
	case second:
		s.text.high = false // the pair was counted with its first half
	default:
		s.addText([]byte{0xFF}, quartersPerRune) // no name that matters has such a byte
		s.text.high = unit >= 0xD800 && unit < 0xDC00
	}
}

func (s *Scanner) endString() {
	if s.text.isName {
		s.member = otherMember
		if s.text.matters && s.length <= maxName {
			s.member = memberNamed(s.places[s.depth], s.short[:s.length])
		}
		s.state = colon
		return
	}
	if s.member == messagesMember && !s.text.empty {
		s.counts.messages++
	}
	s.endValue()
}

// unescape is what the byte after a backslash stands for, 0 when it is no escape.
func unescape(c byte) byte {
	switch c {
	case '"', '\\', '/':
		return c
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	}
	return 0
}

// hexDigit is the value of a hexadecimal digit, over 15 when c is none.
func hexDigit(c byte) uint16 {
	switch {
	case c >= '0' && c <= '9':
		return uint16(c - '0')
	case c >= 'a' && c <= 'f':
		return uint16(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return uint16(c-'A') + 10
	}
	return 16
}

// Eight copies of a byte, for looking at eight bytes at once.
const (
	ones     = 0x0101010101010101
	highBits = 0x80 * ones
)

// plain finds how many bytes of p come before the first quote, backslash or control character, and how many quarters of a
// token their code points make. A code point is counted with its first byte.
//
// It looks at eight bytes at a time. For bytes under 0x80, (b^0x02)-0x21 borrows exactly for control characters and the
// quote, because the exclusive or moves the quote (0x22) to 0x20 and maps control characters among themselves; (b^0x5C)-1
// borrows exactly for the backslash. A borrow can spoil only bytes after the one that caused it, so the first hit is right.
func plain(p []byte) (n, quarters int) {
	for ; len(p)-n >= 8; n += 8 {
		w := binary.LittleEndian.Uint64(p[n:])
		hits := ((w ^ 0x02*ones) - 0x21*ones) | ((w ^ '\\'*ones) - ones)
		if hits &= ^w & highBits; hits != 0 {
			length := bits.TrailingZeros64(hits) / 8
			return n + length, quarters + wordQuarters(w&(1<<(8*length)-1)) - (8 - length)
		}
		quarters += 8
		if w&highBits != 0 {
			quarters += wordQuarters(w) - 8
		}
	}
	for ; n < len(p); n++ {
		switch c := p[n]; {
		case c < 0x20 || c == '"' || c == '\\':
			return n, quarters
		case c < 0x80:
			quarters++
		case c >= 0xC0:
			quarters += quartersPerRune
		}
	}
	return n, quarters
}

// wordQuarters counts the code points that begin in eight bytes, in quarters.
func wordQuarters(w uint64) int {
	high := w & highBits
	first := high & (w << 1) // the top two bits set: 0xC0 and up
	return 8 - bits.OnesCount64(high) + quartersPerRune*bits.OnesCount64(first)
}
