package stack

import (
	"bytes"
	"context"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestLoad: a short run without lanes and one with them end in a table with a line for each tenant, and what is written
// on the way is whole lines where nobody watches. An interrupted one says what it saw.
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
	t.Run("to its end", func(t *testing.T) {
		t.Parallel()
		var table, steps bytes.Buffer
		if err := Load(t.Context(), LoadOptions{Root: root, Duration: 6 * time.Second, Out: &table, Progress: &steps, Sidecar: sidecar}); err != nil {
			t.Fatal(err)
		}
		rows := loadRows(table.String())
		for _, lanes := range []string{"off", "on"} {
			for _, tenant := range loadTenants {
				if served, there := rows[lanes+" "+tenant.name]; !there || served == "0" {
					t.Errorf("lanes %s: %s is missing or was served nothing, want some of its requests served:\n%s", lanes, tenant.name, table.String())
				}
			}
		}
		if text := steps.String(); strings.ContainsAny(text, "\r\x1b") || !strings.Contains(text, "lanes on ") {
			t.Errorf("written to a pipe: %q, want whole lines and nothing that moves a cursor", text)
		}
	})
	t.Run("interrupted", func(t *testing.T) {
		t.Parallel()
		ctx, stop := context.WithCancel(t.Context())
		var table bytes.Buffer
		steps := writerFunc(func(b []byte) (int, error) {
			if bytes.Contains(b, []byte("lanes off")) {
				stop()
			}
			return len(b), nil
		})
		err := Load(ctx, LoadOptions{Root: root, Duration: time.Hour, Out: &table, Progress: steps, Terminal: true, Sidecar: sidecar})
		if err != nil {
			t.Errorf("ended with %v, want nil", err)
		}
		if rows := loadRows(table.String()); len(rows) != len(loadTenants) {
			t.Errorf("%d rows, want one for each of %d tenants of the first run:\n%s", len(rows), len(loadTenants), table.String())
		}
	})
	t.Run("no duration", func(t *testing.T) {
		t.Parallel()
		err := Load(t.Context(), LoadOptions{Root: root, Out: io.Discard, Progress: io.Discard, Sidecar: sidecar})
		if err == nil || !strings.Contains(err.Error(), "duration") {
			t.Errorf("a run of no duration: %v, want an error that names it", err)
		}
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// loadRows returns how many requests were served, by lanes and tenant.
func loadRows(table string) map[string]string {
	rows := map[string]string{}
	for _, line := range strings.Split(table, "\n") {
		if cells := strings.Fields(line); len(cells) > 3 && (cells[0] == "on" || cells[0] == "off") {
			rows[cells[0]+" "+cells[1]] = cells[3]
		}
	}
	return rows
}
