package config

import (
	"errors"
	"testing"
	"time"
)

// FuzzParse expects of any file: no panic, an answer in bounded time, and if it is accepted a configuration that is
// valid and is read back from what it is written as.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		example, "", "{}", "a: &a [*a]", "clusters: {\"*\": {lanes: {mode: off}}, a: }", "? x\n: y", "\xff", "bytes:\n\tqueue: 1",
		"bytes: {budget: {override: 1.5}}", "tenant: {weights: {<<: 1, ~: 2, 1: 3}}", "leases: {pools: {p: {connections: [{id: c}]}}}",
		"clusters: &c {a: {lanes: {}}}\nleases: *c", "listen: {grpc: !!binary aGVsbG8=}", "log: {level: |\n  info}",
	} {
		f.Add(seed, "HEADGATE_LOG_LEVEL", "debug")
	}
	f.Add("{}", "ADAPTIVE_ADMISSION_MAX_WAIT_MS", "99999999999999")
	f.Add("{}", "HEADGATE_LEASES_STORE_REDIS_ADDRS", "a:1,b:2")
	f.Add("{}", "HEADGATE_LEASES_STORE_REDIS_ADDRS", "\xce:1")
	f.Fuzz(func(t *testing.T, text, name, value string) {
		c, err := parse("fuzz", []byte(text), []string{name + "=" + value})
		if err != nil {
			var faults *Error
			if !errors.As(err, &faults) || len(faults.Faults) == 0 || c != nil {
				t.Fatalf("expected a list of faults and no configuration, got %v", err)
			}
			return
		}
		if err := c.Validate(); err != nil {
			t.Fatalf("accepted and yet not valid: %v", err)
		}
		data, err := c.encode(false)
		if err != nil {
			t.Fatal(err)
		}
		back, err := parse("fuzz", data, nil)
		if err != nil {
			t.Fatalf("not read back: %v\n%s", err, data)
		}
		if changed := changedPaths(c, back); len(changed) > 0 || c.Hash() != back.Hash() {
			t.Fatalf("%q differ after reading back\n%s", changed, data)
		}
	})
}

// FuzzScalars expects that whatever is accepted is written back to something equal.
func FuzzScalars(f *testing.F) {
	for _, seed := range []string{"1", "1KiB", "1e6", "-1", "1m30s", "0", "00", "1.5", ".5", "0x1p-2", "NaN", "9223372036854775807", "1h1h", "+5s", "µs"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if d, err := parseDuration(text); err == nil {
			if back, err := parseDuration(formatDuration(d)); err != nil || back != d || d < 0 {
				t.Errorf("duration %q is %v, read back as %v, %v", text, d, back, err)
			}
		}
		if d, err := parseMilliseconds(text); err == nil && (d < 0 || d%time.Millisecond != 0) {
			t.Errorf("milliseconds %q are %v", text, d)
		}
		if x, err := parseFloat(text); err == nil && (x != x || x-x != 0) {
			t.Errorf("number %q is %v", text, x)
		}
		for _, k := range []kind{kindInt, kindFloat, kindSize, kindDuration, kindBool} {
			for _, l := range staticLeaves() {
				if l.field.kind != k {
					continue
				}
				v, err := l.field.parseScalar(text)
				if err != nil {
					continue
				}
				back, err := l.field.parseScalar(formatScalar(l.field, v))
				if err != nil || back.Interface() != v.Interface() {
					t.Errorf("%s: %q is %v, read back as %v, %v", l.path, text, v, back, err)
				}
			}
		}
	})
}
