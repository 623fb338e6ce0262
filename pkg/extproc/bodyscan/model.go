package bodyscan

// maxModel is the longest name of a model that is reported.
const maxModel = 512

// modelName is the text under "model".
type modelName struct {
	known   bool // there is one, and it has ended
	unknown bool // longer than maxModel, or spelled with escapes outside ASCII
	length  int
	bytes   [maxModel]byte
}

func (m *modelName) add(run []byte) {
	if m.unknown = m.unknown || m.length+len(run) > maxModel; !m.unknown {
		m.length += copy(m.bytes[m.length:], run)
	}
}

// Model is the text of the member "model", the last of them, as decoders take it; it is valid until the next Write. known is
// false while there is none, wherever in the document it may be; a text of more than 512 bytes is known and empty.
func (s *Scanner) Model() (name []byte, known bool) {
	if !s.model.known || s.model.unknown || s.NotJSON() {
		return nil, s.model.known && !s.NotJSON()
	}
	return s.model.bytes[:s.model.length], true
}
