package stack

import (
	"bytes"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestLoad: a short run without lanes and one with them end in a table with a line for each tenant.
func TestLoad(t *testing.T) {
	t.Parallel()
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	sidecar := filepath.Join(t.TempDir(), "extproc")
	if err := BuildSidecar(t.Context(), root, sidecar); err != nil {
		t.Fatal(err)
	}
	var table bytes.Buffer
	if err := Load(t.Context(), LoadOptions{Root: root, Duration: 2 * time.Second, Out: &table, Progress: io.Discard, Sidecar: sidecar}); err != nil {
		t.Fatal(err)
	}
	rows := map[string]bool{}
	for _, line := range strings.Split(table.String(), "\n") {
		if cells := strings.Fields(line); len(cells) > 3 && (cells[0] == "on" || cells[0] == "off") {
			rows[cells[0]+" "+cells[1]] = cells[3] != "0"
		}
	}
	for _, lanes := range []string{"off", "on"} {
		for _, tenant := range loadTenants {
			if !rows[lanes+" "+tenant.name] {
				t.Errorf("lanes %s: %s is missing or was served nothing, want some of its requests served:\n%s", lanes, tenant.name, table.String())
			}
		}
	}
}
