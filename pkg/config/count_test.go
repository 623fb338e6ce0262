package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestFramedBodiesHaveNoCap: what is not read cannot be capped by what it holds.
func TestFramedBodiesHaveNoCap(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "headgate.yaml")
	if err := os.WriteFile(file, []byte("bytes: {count: framed, structure: {hardMaxMessages: 10}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Load(file, nil)
	if err == nil || !strings.Contains(err.Error(), "bytes.count") || !strings.Contains(err.Error(), "hardMaxMessages, 10") {
		t.Errorf("got %v, want an error at bytes.count that names hardMaxMessages", err)
	}
}
