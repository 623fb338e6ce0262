// Package size reads and prints numbers of bytes as the configuration writes them: 262144, 256KiB, 1MB.
package size

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Bytes is a number of bytes. In text it is a plain integer or one with a unit: KiB, MiB, GiB, TiB (powers of 1024) or
// KB, MB, GB, TB (powers of 1000).
type Bytes int64

// sizeUnits in the order in which text is looked at; the powers of 1024 also serve to print, largest first.
func sizeUnits() []sizeUnit {
	return []sizeUnit{
		{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
		{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3},
	}
}

const binaryUnits = 4

type sizeUnit struct {
	name  string
	bytes int64
}

var errSizeSyntax = errors.New("want a whole number of bytes, or one with KiB, MiB, GiB, TiB, KB, MB, GB or TB")

// Parse reads a size. Units are case-sensitive and follow the number directly; signs, fractions, spaces and other
// units are errors, and so is what does not fit an int64.
func Parse(text string) (Bytes, error) {
	digits, unit := text, int64(1)
	for _, u := range sizeUnits() {
		if number, ok := strings.CutSuffix(text, u.name); ok {
			digits, unit = number, u.bytes
			break
		}
	}
	if digits == "" || strings.Trim(digits, "0123456789") != "" {
		return 0, fmt.Errorf("size %q%s: %w", text, sizeHint(text), errSizeSyntax)
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n > math.MaxInt64/unit {
		return 0, fmt.Errorf("size %q is too large: at most %d bytes", text, int64(math.MaxInt64))
	}
	return Bytes(n * unit), nil
}

// sizeHint says how a Kubernetes quantity, or a unit in another case, is written here.
func sizeHint(text string) string {
	number := strings.TrimRight(text, "kKmMgGtTiIbB")
	unit := strings.ToUpper(text[len(number):])
	number = strings.TrimSpace(number)
	if number == "" || strings.Trim(number, "0123456789") != "" || unit == "" {
		return ""
	}
	for _, u := range sizeUnits() {
		if name := strings.ToUpper(u.name); unit == name || unit == strings.TrimSuffix(name, "B") {
			return " (write " + number + u.name + ")"
		}
	}
	return ""
}

// String prints the size so that Parse reads it back exactly: in the largest power of 1024 that divides it.
func (s Bytes) String() string {
	for _, u := range sizeUnits()[:binaryUnits] {
		if s > 0 && int64(s)%u.bytes == 0 {
			return strconv.FormatInt(int64(s)/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(s), 10)
}

// UnmarshalText is Parse.
func (s *Bytes) UnmarshalText(text []byte) error {
	parsed, err := Parse(string(text))
	if err != nil {
		return err
	}
	*s = parsed
	return nil
}

// MarshalText is String.
func (s Bytes) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
