package structure

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
	for {
		more, worth := plain(p[n:])
		n += more
		quarters += worth
		length, worth := escapes(p[n:])
		if length == 0 {
			return n, quarters
		}
		n += length
		quarters += worth
	}
}

// escapes does what text does for a row of escapes.
func escapes(p []byte) (n, quarters int) {
	for n+1 < len(p) && p[n] == '\\' {
		if p[n+1] != 'u' {
			if unescape(p[n+1]) == 0 {
				break
			}
			n += 2
			quarters++
			continue
		}
		if n+6 > len(p) {
			break
		}
		unit, ok := hexadecimal(p[n+2:])
		if !ok || unit >= 0xD800 && unit < 0xE000 {
			break
		}
		n += 6
		quarters++
		if unit >= 0x80 {
			quarters += quartersPerRune - 1
		}
	}
	return n, quarters
}

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
