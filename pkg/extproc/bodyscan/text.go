package bodyscan

import (
	"encoding/binary"
	"math/bits"
)

// Eight copies of a byte, for looking at eight bytes at once.
const (
	ones     = 0x0101010101010101
	highBits = 0x80 * ones
)

// text finds how many bytes of p are plain or whole escapes of anything but halves of surrogate pairs, and how many
// quarters of a token their code points make. It stops where the state inside the string changes.
func text(p []byte) (n, quarters int) {
	for len(p)-n >= 8 {
		w := binary.LittleEndian.Uint64(p[n:])
		hits := specials(w)
		if hits == 0 {
			quarters += wordQuarters(w)
			n += 8
			continue
		}
		length := bits.TrailingZeros64(hits) / 8
		quarters += wordQuarters(w&(1<<(8*length)-1)) - (8 - length)
		n += length
		begin := n
		for n+1 < len(p) && p[n] == '\\' {
			if isEscape(p[n+1]) {
				n += 2
				quarters++
				continue
			}
			size, worth := unicodeEscape(p[n:])
			if size == 0 {
				return n, quarters
			}
			n += size
			quarters += worth
		}
		if n == begin { // a quote, a control character or the beginning of an escape
			return n, quarters
		}
	}
	rest, worth := plain(p[n:])
	return n + rest, quarters + worth
}

// unicodeEscape returns the size of the \u escape that p begins with and its worth in quarters; 0 when it is none, not
// whole or half of a surrogate pair.
func unicodeEscape(p []byte) (size, quarters int) {
	if len(p) < 6 || p[1] != 'u' {
		return 0, 0
	}
	unit, ok := hexadecimal(p[2:])
	switch {
	case !ok, unit >= 0xD800 && unit < 0xE000:
		return 0, 0
	case unit < 0x80:
		return 6, 1
	}
	return 6, quartersPerRune
}

// isEscape says whether a backslash and c are a whole escape. It is a look into a set of bits, because a switch on what
// is in the body is a branch nobody can predict.
func isEscape(c byte) bool {
	const (
		low  uint64 = 1<<'"' | 1<<'/'
		high uint64 = 1<<('\\'-64) | 1<<('b'-64) | 1<<('f'-64) | 1<<('n'-64) | 1<<('r'-64) | 1<<('t'-64)
	)
	set := low
	if c >= 64 {
		set = high
	}
	return set>>(c&63)&1 != 0 && c < 128
}

// plain finds how many bytes of p come before the first quote, backslash or control character, and how many quarters of a
// token their code points make. A code point is counted with its first byte.
func plain(p []byte) (n, quarters int) {
	for ; len(p)-n >= 8; n += 8 {
		w := binary.LittleEndian.Uint64(p[n:])
		if hits := specials(w); hits != 0 {
			length := bits.TrailingZeros64(hits) / 8
			return n + length, quarters + wordQuarters(w&(1<<(8*length)-1)) - (8 - length)
		}
		quarters += wordQuarters(w)
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

// specials marks quotes, backslashes and control characters among eight bytes; marks above the lowest may be wrong.
//
// For bytes under 0x80, (b^0x02)-0x21 borrows exactly for control characters and the quote, because the exclusive or
// moves the quote (0x22) to 0x20 and maps control characters among themselves; (b^0x5C)-1 borrows exactly for the
// backslash. A borrow can spoil only bytes after the one that caused it.
func specials(w uint64) uint64 {
	return (((w ^ 0x02*ones) - 0x21*ones) | ((w ^ '\\'*ones) - ones)) &^ w & highBits
}

// wordQuarters counts the code points that begin in eight bytes, in quarters.
func wordQuarters(w uint64) int {
	high := w & highBits
	if high == 0 {
		return 8
	}
	first := high & (w << 1) // the top two bits set: 0xC0 and up
	return 8 - bits.OnesCount64(high) + quartersPerRune*bits.OnesCount64(first)
}

// hexadecimal reads four digits at once. Adding 0x80-b to a byte under 0x80 sets its high bit exactly from b on.
func hexadecimal(p []byte) (unit uint16, ok bool) {
	const ones, high = ones & 0xFFFFFFFF, highBits & 0xFFFFFFFF
	w := binary.LittleEndian.Uint32(p)
	lower := w | 0x20*ones
	digits := (w + (0x80-'0')*ones) &^ (w + (0x80-'9'-1)*ones)
	letters := (lower + (0x80-'a')*ones) &^ (lower + (0x80-'f'-1)*ones)
	if w&high != 0 || (digits|letters)&high != high {
		return 0, false
	}
	v := w&(0x0F*ones) + 9*(w>>6&ones)
	return uint16(v<<12 | v&0x0F00 | v>>12&0xF0 | v>>24), true
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
