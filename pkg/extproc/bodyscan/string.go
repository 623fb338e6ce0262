package bodyscan

// textState is where the scan is inside a string.
type textState struct {
	isName  bool
	isModel bool   // the decoded bytes go to Scanner.model
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

// quartersPerToken is what one token makes.
const quartersPerToken = 4

func (s *Scanner) beginName() {
	p := s.places[s.depth]
	s.text = textState{isName: true, matters: p.namesMatter(), counts: !p.isFeatureLevel()}
	s.length = 0
	s.state = inString
}

func (s *Scanner) beginText() {
	s.text = textState{counts: true, empty: true, isModel: s.member == modelMember}
	if s.text.isModel {
		s.model = modelName{}
	}
	s.state = inString
}

// scanString takes bytes of a string, up to its end at most.
func (s *Scanner) scanString(p []byte, i int) int {
	t := &s.text
	for i < len(p) {
		if t.escape != 0 {
			if i = s.scanEscape(p, i); s.state == failed {
				return i
			}
			continue
		}
		if i = s.scanRun(p, i); i == len(p) {
			return i
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

// scanRun takes bytes as long as the state inside the string stays the same. In names that matter these are the bytes
// that stand for themselves, elsewhere whole escapes too.
func (s *Scanner) scanRun(p []byte, i int) int {
	t := &s.text
	var n, quarters int
	switch {
	case t.matters:
		n, quarters = plain(p[i:])
		s.keep(p[i : i+n])
	case t.isModel:
		n, quarters = plain(p[i:])
		s.model.add(p[i : i+n])
	default:
		n, quarters = text(p[i:])
	}
	if n > 0 {
		t.empty = false
		t.high = false
	}
	if t.counts {
		s.counts.quarters += int64(quarters)
	}
	return i + n
}

// keep appends to the short copy of a name, as long as it can still be one that matters.
func (s *Scanner) keep(run []byte) {
	if s.length+len(run) > maxName {
		s.length = maxName + 1
		return
	}
	s.length += copy(s.short[s.length:], run)
}

// scanEscape takes bytes after a backslash, up to the end of the escape at most.
func (s *Scanner) scanEscape(p []byte, i int) int {
	t := &s.text
	if t.escape == escapeBegun {
		c := p[i]
		i++
		if c != 'u' {
			decoded := unescape(c)
			if decoded == 0 {
				s.state = failed
				return i
			}
			t.escape = 0
			s.addCode(decoded, 1)
			return i
		}
		t.escape, t.unit = 4, 0
	}
	for ; i < len(p) && t.escape > 0; i++ {
		digit := hexDigit(p[i])
		if digit > 15 {
			s.state = failed
			return i
		}
		t.unit = t.unit<<4 | digit
		t.escape--
	}
	if t.escape == 0 {
		s.addUnit(t.unit)
	}
	return i
}

// addUnit takes the UTF-16 code unit of a \u escape. Half of a surrogate pair without the other is a code point, as
// decoders put the replacement character in its place.
func (s *Scanner) addUnit(unit uint16) {
	second := s.text.high && unit >= 0xDC00 && unit < 0xE000
	switch {
	case unit < 0x80:
		s.addCode(byte(unit), 1)
	case second:
		s.text.high = false // the pair was counted with its first half
	case unit == 0x17F: // folds to s, as in memberNamed
		s.addCode('s', quartersPerRune)
	case unit == 0x212A: // folds to k
		s.addCode('k', quartersPerRune)
	default:
		s.addCode(0xFF, quartersPerRune) // no name that matters has such a byte
		s.text.high = unit >= 0xD800 && unit < 0xDC00
	}
}

// addCode takes the code point of an escape.
func (s *Scanner) addCode(decoded byte, quarters int64) {
	s.text.empty = false
	s.text.high = false
	if s.text.counts {
		s.counts.quarters += quarters
	}
	switch {
	case s.text.matters:
		s.keep([]byte{decoded})
	case s.text.isModel && quarters > 1: // no model's name is spelled so
		s.model.unknown = true
	case s.text.isModel:
		s.model.add([]byte{decoded})
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
	if (s.member == messagesMember || s.member == inputMember) && !s.text.empty {
		s.counts.messages++
	}
	s.model.known = s.model.known || s.text.isModel
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
