package size

import (
	"strings"
	"testing"
)

func TestParseSize(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text string
		want Bytes // -1 is an error
		back string
	}{
		{"0", 0, "0"},
		{"1", 1, "1"},
		{"134217728", 128 << 20, "128MiB"},
		{"256KiB", 256 << 10, "256KiB"},
		{"50MiB", 50 << 20, "50MiB"},
		{"2GiB", 2 << 30, "2GiB"},
		{"3TiB", 3 << 40, "3TiB"},
		{"1KB", 1000, "1000"},
		{"1MB", 1e6, "1000000"},
		{"1GB", 1e9, "1000000000"},
		{"1TB", 1e12, "976562500KiB"},
		{"0KiB", 0, "0"},
		{"1024KiB", 1 << 20, "1MiB"},
		{"9223372036854775807", 1<<63 - 1, "9223372036854775807"},
		{"9223372036854775808", -1, ""},
		{"8388608TiB", -1, ""},
		{"8388607TiB", 8388607 << 40, "8388607TiB"},
		{"", -1, ""},
		{"KiB", -1, ""},
		{"-1", -1, ""},
		{"+1", -1, ""},
		{"1.5MiB", -1, ""},
		{"1 MiB", -1, ""},
		{" 1", -1, ""},
		{"1\n", -1, ""},
		{"1mib", -1, ""},
		{"1Mi", -1, ""},
		{"1M", -1, ""},
		{"1B", -1, ""},
		{"1KiBKiB", -1, ""},
		{"0x10", -1, ""},
		{"1e6", -1, ""},
		{"1_000", -1, ""},
		{"٣", -1, ""},
		{"garbage", -1, ""},
	} {
		got, err := Parse(c.text)
		switch {
		case c.want < 0:
			if err == nil || !strings.Contains(err.Error(), "size") {
				t.Errorf("Parse(%q) = %d, %v; want an error about the size", c.text, got, err)
			}
		case err != nil || got != c.want || got.String() != c.back:
			t.Errorf("Parse(%q) = %d (%v), %v; want %d (%s)", c.text, int64(got), got, err, int64(c.want), c.back)
		}
	}
}

// What is refused leaves the size as it was.
func TestSizeUnmarshalKeepsOldValue(t *testing.T) {
	t.Parallel()
	s := Bytes(7)
	if err := s.UnmarshalText([]byte("many")); err == nil || s != 7 {
		t.Errorf("UnmarshalText(many) = %v, size %d; want an error and 7", err, s)
	}
}

// Any text is read or refused, and what was read is printed so that it reads back.
func FuzzSize(f *testing.F) {
	for _, seed := range []string{"1", "256KiB", "9223372036854775807", "1MB", "-1KiB", "1.5GiB", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse(text)
		if err != nil {
			return
		}
		if s < 0 {
			t.Fatalf("Parse(%q) = %d", text, int64(s))
		}
		printed, _ := s.MarshalText()
		var back Bytes
		if err := back.UnmarshalText(printed); err != nil || back != s {
			t.Fatalf("%q is %d, printed %s, read back %d, %v", text, int64(s), printed, int64(back), err)
		}
	})
}
