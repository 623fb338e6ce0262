package bodyscan

// state is what the scan expects next.
type state uint8

const (
	start      state = iota // the document, or a byte order mark before it
	mark2                   // second byte of the mark
	mark3                   // third byte of the mark
	document                // the document, after a mark
	value                   // a value
	firstValue              // a value, or the end of an empty array
	firstName               // a name, or the end of an empty object
	name                    // a name
	colon                   // the colon after a name
	next                    // a comma, or the end of the container
	inString                // see string.go
	inNumber                // see number.go
	inLiteral               // the rest of true, false or null
	inDeep                  // see deep.go
	done                    // nothing: the document has ended
	failed                  // nothing: not JSON
)

// maxName is longer than any name that matters.
const maxName = 24

// Scanner reads one body. The zero value is ready; after Reset it is ready for another. It is not safe for concurrent use.
type Scanner struct {
	state  state
	depth  int             // open containers, < maxDepth
	places [maxDepth]place // of the open containers, from index 1
	member member          // what the name before the value to come means
	counts counts
	deep   deepState
	// exhausted says that the body is too much to be worth a close look: too many values, or too deep. The scan goes on within
	// the first mostRead bytes, since what matters may come later, and no fault can undo it.
	exhausted bool
	read      int // bytes so far

	text    textState
	number  numberState
	literal string // what is left of true, false or null
	short   [maxName]byte
	length  int // bytes in short; maxName+1 when there were more
	model   modelName
}

// Reset makes the scanner ready for another body.
func (s *Scanner) Reset() { *s = Scanner{} }

// mostRead is how much of an exhausting body is read, which bounds what it costs to scan.
const mostRead = 1 << 20

// Write reads the next chunk. The chunk is not kept.
func (s *Scanner) Write(p []byte) {
	before := s.read
	s.read += len(p)
	for i := 0; i < len(p); {
		if s.exhausted {
			if p = p[:min(len(p), max(i, mostRead-before))]; i == len(p) {
				return
			}
		}
		switch s.state {
		case inString:
			i = s.scanString(p, i)
		case inNumber:
			i = s.scanNumber(p, i)
		case inLiteral:
			i = s.scanLiteral(p, i)
		case inDeep:
			i = s.scanDeep(p, i)
		case mark2, mark3:
			s.scanMark(p[i])
			i++
		case failed, done: // what follows a document is nobody's: some decoders stop there, the others refuse it
			return
		default:
			if i = skipSpace(p, i); i < len(p) {
				s.scanToken(p[i])
				i++
			}
		}
	}
}

// Close says that the body has ended: a document that has not is malformed. It returns the final features.
func (s *Scanner) Close() Features {
	if s.state == inNumber && s.depth == 0 && s.number.complete() {
		s.state = done
	}
	if s.state != done {
		s.state = failed
	}
	return s.Features()
}

// NotJSON says that the bytes so far cannot be the beginning of a JSON document: compressed, malformed or something else.
// After Close it also covers bodies that are empty or cut short. Once true it stays true.
func (s *Scanner) NotJSON() bool { return s.state == failed && !s.exhausted }

// Done says that nothing that is written can change anything more: the document has ended, or is none, or was too much.
func (s *Scanner) Done() bool {
	return s.state == done || s.state == failed || s.exhausted && s.read >= mostRead
}

// Features returns what is known so far. It may be called at any time.
func (s *Scanner) Features() Features {
	if s.NotJSON() || s.counts.nodes == 0 {
		return Features{}
	}
	stream := s.counts.stream[0]
	if !stream.known {
		stream = s.counts.stream[1]
	}
	return Features{
		Messages:    s.counts.messages,
		Tools:       s.counts.tools,
		Fanout:      s.counts.fanout,
		Tokens:      s.counts.quarters / 4,
		Stream:      stream.value,
		StreamKnown: stream.known,
		Known:       true,
		Exhausted:   s.exhausted,
		Complete:    s.state == done && !s.exhausted,
	}
}

// skipSpace returns the index of the first byte from i on that is no white space.
func skipSpace(p []byte, i int) int {
	const space = 1<<' ' | 1<<'\n' | 1<<'\r' | 1<<'\t'
	for i < len(p) && p[i] <= ' ' && space&(uint64(1)<<p[i]) != 0 {
		i++
	}
	return i
}

// scanMark takes the rest of a UTF-8 byte order mark.
func (s *Scanner) scanMark(c byte) {
	switch {
	case s.state == mark2 && c == 0xBB:
		s.state = mark3
	case s.state == mark3 && c == 0xBF:
		s.state = document
	default:
		s.state = failed
	}
}

// scanToken takes a byte outside strings, numbers and literals that is no white space.
func (s *Scanner) scanToken(c byte) {
	switch s.state {
	case start:
		if c == 0xEF {
			s.state = mark2
			return
		}
		s.beginValue(c)
	case document, value:
		s.beginValue(c)
	case firstValue:
		if c == ']' {
			s.endContainer()
			return
		}
		s.beginValue(c)
	case firstName, name:
		switch {
		case c == '"':
			s.beginName()
		case c == '}' && s.state == firstName:
			s.endContainer()
		default:
			s.state = failed
		}
	case colon:
		s.state = failed
		if c == ':' {
			s.state = value
		}
	case next:
		s.scanNext(c)
	}
}

// scanNext takes the byte after a value inside a container.
func (s *Scanner) scanNext(c byte) {
	array := s.places[s.depth].isArray()
	switch {
	case c == ',' && array:
		s.state = value
	case c == ',':
		s.state = name
	case c == ']' && array, c == '}' && !array:
		s.endContainer()
	default:
		s.state = failed
	}
}

// beginValue takes the first byte of a value.
func (s *Scanner) beginValue(c byte) {
	if s.counts.nodes++; s.counts.nodes > maxNodes {
		s.exhausted = true
	}
	parent := s.places[s.depth]
	if parent.isArray() {
		s.member = otherMember
		s.counts.addElement(parent, c)
	}
	switch c {
	case '"':
		s.beginText()
	case '{':
		s.beginObject(parent)
	case '[':
		s.beginArray(parent)
	case 't', 'f':
		if s.member == streamMember {
			s.counts.setStream(parent, c == 't')
		}
		s.beginLiteral(c)
	case 'n', 'N', 'I':
		s.beginLiteral(c)
	default:
		s.beginNumber(c)
	}
}

func (s *Scanner) beginObject(parent place) {
	if s.depth == 0 {
		s.beginContainer(topObject, firstName)
		return
	}
	if s.member == messagesMember || s.member == inputMember {
		s.counts.messages++
	}
	s.beginContainer(objectPlace(parent, s.member), firstName)
}

func (s *Scanner) beginArray(parent place) {
	place := arrayPlace(parent, s.member)
	if s.depth == 0 {
		place = batchArray
	}
	s.beginContainer(place, firstValue)
}

func (s *Scanner) beginContainer(p place, first state) {
	if s.depth+1 >= maxDepth {
		s.beginDeep()
		return
	}
	s.depth++
	s.places[s.depth] = p
	s.state = first
}

func (s *Scanner) endContainer() {
	s.depth--
	s.endValue()
}

func (s *Scanner) endValue() {
	s.state = next
	if s.depth == 0 {
		s.state = done
	}
}

// beginLiteral expects the rest of true, false or null after its first byte, or of NaN and Infinity, which are no JSON but
// which Python's decoder takes.
func (s *Scanner) beginLiteral(first byte) {
	switch first {
	case 't':
		s.literal = "rue"
	case 'f':
		s.literal = "alse"
	case 'N':
		s.literal = "aN"
	case 'I':
		s.literal = "nfinity"
	default:
		s.literal = "ull"
	}
	s.state = inLiteral
}

// scanLiteral takes bytes of true, false and null.
func (s *Scanner) scanLiteral(p []byte, i int) int {
	for ; i < len(p) && len(s.literal) > 0; i++ {
		if p[i] != s.literal[0] {
			s.state = failed
			return i
		}
		s.literal = s.literal[1:]
	}
	if len(s.literal) == 0 {
		s.endValue()
	}
	return i
}
