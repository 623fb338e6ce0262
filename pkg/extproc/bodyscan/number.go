package bodyscan

// numberState is where the scan is inside a number.
type numberState uint8

const (
	minus    numberState = iota // a digit must follow
	zero                        // a leading zero: no digit may follow
	integer                     // digits before the point
	point                       // a digit must follow
	fraction                    // digits after the point
	exponent                    // a sign or digit must follow
	sign                        // a digit must follow
	power                       // digits of the exponent
)

// complete says whether the number may end here.
func (n numberState) complete() bool {
	return n == zero || n == integer || n == fraction || n == power
}

// isDigits says whether any number of digits may follow.
func (n numberState) isDigits() bool { return n == integer || n == fraction || n == power }

// lastDigit returns the index of the last digit after i in a row, i when there is none.
func lastDigit(p []byte, i int) int {
	for i+1 < len(p) && p[i+1]-'0' <= 9 {
		i++
	}
	return i
}

// beginNumber takes the first byte of a number.
func (s *Scanner) beginNumber(c byte) {
	switch {
	case c == '-':
		s.number = minus
	case c == '0':
		s.number = zero
	case c >= '1' && c <= '9':
		s.number = integer
	default:
		s.state = failed
		return
	}
	s.state = inNumber
	if s.member == fanoutMember {
		s.short[0] = c
		s.length = 1
	}
}

// scanNumber takes bytes of a number, up to the byte after it at most.
func (s *Scanner) scanNumber(p []byte, i int) int {
	if s.number == minus && p[i] == 'I' { // Python's -Infinity
		s.beginLiteral('I')
		return i + 1
	}
	begin := i
	for ; i < len(p); i++ {
		to, ok := s.number.after(p[i])
		if !ok {
			break
		}
		s.number = to
		if to.isDigits() {
			i = lastDigit(p, i)
		}
	}
	if s.member == fanoutMember {
		s.keep(p[begin:i])
	}
	if i == len(p) {
		return i
	}
	if !s.number.complete() {
		s.state = failed
		return i
	}
	if s.member == fanoutMember {
		s.endFanout()
	}
	s.endValue()
	return i
}

func (s *Scanner) endFanout() {
	long := s.length > maxName
	s.counts.addFanout(s.short[:min(s.length, maxName)], long)
}

// after is the state after c, or false when c does not belong to the number.
func (n numberState) after(c byte) (numberState, bool) {
	digit := c >= '0' && c <= '9'
	switch n {
	case minus:
		if c == '0' {
			return zero, true
		}
		return integer, digit
	case integer:
		if digit {
			return integer, true
		}
		fallthrough
	case zero:
		if c == '.' {
			return point, true
		}
		return exponent, c == 'e' || c == 'E'
	case point:
		return fraction, digit
	case fraction:
		if digit {
			return fraction, true
		}
		return exponent, c == 'e' || c == 'E'
	case exponent:
		if c == '+' || c == '-' {
			return sign, true
		}
		return power, digit
	default: // sign, power
		return power, digit
	}
}
