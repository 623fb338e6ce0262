package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestArchitectureIsOfThisCode: the gates stand in the picture in the order in which a request passes them, and every file that
// the page names is there.
func TestArchitectureIsOfThisCode(t *testing.T) {
	page, err := os.ReadFile("architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile(filepath.Join("..", "pkg", "extproc", "gates.go"))
	if err != nil {
		t.Fatal(err)
	}
	gates := regexp.MustCompile(`\{\(\*exchange\)\.(\w+)Gate, `).FindAllSubmatch(source, -1)
	drawn := regexp.MustCompile(`(?m)^ {34}(\w+) `).FindAllSubmatch(page, -1)
	if len(gates) < 5 || len(gates) != len(drawn) {
		t.Fatalf("%d gates are drawn, want the %d of gates.go", len(drawn), len(gates))
	}
	for i := range gates {
		if gate, word := string(gates[i][1]), string(drawn[i][1]); !strings.Contains(strings.ToLower(gate), word) {
			t.Errorf("gate %d is drawn as %q, want a word of %q", i+1, word, gate)
		}
	}

	files := map[string]bool{}
	err = filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		files[filepath.Base(path)] = true
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range regexp.MustCompile(`\w+\.go\b`).FindAllString(string(page), -1) {
		if !files[name] {
			t.Errorf("the page names %s, which does not exist", name)
		}
	}
}
