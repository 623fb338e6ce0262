package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// loadText loads YAML from a file of its own; an empty text means no file.
func loadText(t *testing.T, text string, environ ...string) (*Config, error) {
	t.Helper()
	if text == "" {
		return Load("", environ)
	}
	return Load(writeFile(t, t.TempDir(), text), environ)
}

func mustLoad(t *testing.T, text string, environ ...string) *Config {
	t.Helper()
	c, err := loadText(t, text, environ...)
	if err != nil {
		t.Fatalf("given:\n%s\nenvironment %q\nexpected no fault, got %v", text, environ, err)
	}
	return c
}

func writeFile(t *testing.T, dir, text string) string {
	t.Helper()
	path := filepath.Join(dir, "headgate.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// faultsOf returns the faults of a load that must have failed with nothing but faults.
func faultsOf(t *testing.T, text string, environ ...string) []Fault {
	t.Helper()
	c, err := loadText(t, text, environ...)
	var faults *Error
	if !errors.As(err, &faults) {
		t.Fatalf("given:\n%s\nenvironment %q\nexpected faults, got configuration %v and error %v", text, environ, c != nil, err)
	}
	if c != nil {
		t.Errorf("a faulty load returned a configuration too")
	}
	return faults.Faults
}

// expectFault expects exactly one fault, rendered with all the given parts.
func expectFault(t *testing.T, faults []Fault, parts ...string) {
	t.Helper()
	if len(faults) != 1 {
		t.Fatalf("expected 1 fault with %q, got %d: %v", parts, len(faults), faults)
	}
	for _, part := range parts {
		if !strings.Contains(faults[0].String(), part) {
			t.Errorf("expected %q in fault %q", part, faults[0])
		}
	}
}
