package bodyscan

// deepState is where the scan is in containers that are too deep to matter. There it only looks for their end.
type deepState struct {
	open    int // containers
	quoted  bool
	escaped bool // the byte after a backslash is to come
}

func (s *Scanner) beginDeep() {
	s.exhausted = true
	s.deep = deepState{open: 1}
	s.state = inDeep
}

// scanDeep takes bytes up to the end of the containers at most.
func (s *Scanner) scanDeep(p []byte, i int) int {
	d := &s.deep
	for ; i < len(p); i++ {
		switch {
		case d.escaped:
			d.escaped = false
		case d.quoted:
			n, _ := plain(p[i:])
			if i += n; i == len(p) {
				return i
			}
			d.quoted, d.escaped = p[i] != '"', p[i] == '\\'
		case p[i] == '"':
			d.quoted = true
		case p[i] == '[', p[i] == '{':
			d.open++
		case p[i] == ']', p[i] == '}':
			if d.open--; d.open == 0 {
				s.endValue()
				return i + 1
			}
		}
	}
	return i
}
