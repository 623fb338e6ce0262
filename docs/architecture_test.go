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

// TestPictureOfThePackages: every arrow of the picture is an import, and every package is drawn, but for the one of sizes.
func TestPictureOfThePackages(t *testing.T) {
	page, err := os.ReadFile("architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	drawn := map[string]string{} // folder of each node
	for _, m := range regexp.MustCompile(`(?m)^ +(\w+)\["([\w/]+)<br/>`).FindAllSubmatch(page, -1) {
		drawn[string(m[1])] = string(m[2])
	}
	folders := map[string]bool{}
	for _, folder := range drawn {
		folders[folder] = true
	}
	err = filepath.WalkDir(filepath.Join("..", "pkg"), func(path string, entry fs.DirEntry, err error) error {
		if folder := strings.TrimPrefix(filepath.ToSlash(path), "../"); entry.Name() == "doc.go" && !folders[strings.TrimSuffix(folder, "/doc.go")] {
			t.Errorf("%s is not drawn", folder)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	arrows := 0
	for _, line := range regexp.MustCompile(`(?m)^ +\w+( --> \w+)+$`).FindAllString(string(page), -1) {
		nodes := strings.Split(strings.TrimSpace(line), " --> ")
		for i := range nodes[1:] {
			arrows++
			if from, to := drawn[nodes[i]], drawn[nodes[i+1]]; !imports(t, from, to) {
				t.Errorf("an arrow leads from %q to %q, which it does not import", from, to)
			}
		}
	}
	if arrows < 10 {
		t.Errorf("%d arrows are drawn, want 10 at least", arrows)
	}
}

// imports reports whether a file of the folder imports the other.
func imports(t *testing.T, folder, other string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", folder, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		source, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(name, "_test.go") && strings.Contains(string(source), `"github.com/headgate/headgate/`+other+`"`) {
			return true
		}
	}
	return false
}

// TestChangingNamesWhatIsThere: every file and folder that the page on changes names is there, from the root of the repository.
func TestChangingNamesWhatIsThere(t *testing.T) {
	page, err := os.ReadFile("changing.md")
	if err != nil {
		t.Fatal(err)
	}
	paths := regexp.MustCompile("`([\\w./-]+/[\\w./-]+)`").FindAllSubmatch(page, -1)
	if len(paths) < 25 {
		t.Fatalf("%d paths found, want 25 at least", len(paths))
	}
	for _, m := range paths {
		if _, err := os.Stat(filepath.Join("..", string(m[1]))); err != nil {
			t.Errorf("the page names %s: %v", m[1], err)
		}
	}
	if sections := strings.Count(string(page), "\n## "); sections != 5 {
		t.Errorf("%d changes are described, want 5", sections)
	}
}
