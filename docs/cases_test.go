package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestCasesHaveTheirTests: every test that cases.md names exists, and every case names one or says why it needs none.
func TestCasesHaveTheirTests(t *testing.T) {
	if n := checkTests(t, "cases.md"); n < 130 {
		t.Errorf("%d cases, want at least 130: is the page still read as tables?", n)
	}
}

// TestThreatsHaveTheirTests: the threat model has a table for each trust boundary, and every line of it tests that exist.
func TestThreatsHaveTheirTests(t *testing.T) {
	if n := checkTests(t, "threats.md"); n < 40 {
		t.Errorf("%d threats, want at least 40: is the page still read as tables?", n)
	}
	var headings []string
	for _, m := range regexp.MustCompile(`(?m)^## (.+)$`).FindAllStringSubmatch(read(t, "threats.md"), -1) {
		headings = append(headings, m[1])
	}
	if want := []string{"Client", "Envoy", "Upstream", "Redis", "Operator", "Neighbour pod"}; !slices.Equal(headings, want) {
		t.Errorf("threats.md has the boundaries %q, want %q", headings, want)
	}
}

// checkTests checks the last of the three columns of a page's tables, and returns how many rows there are.
func checkTests(t *testing.T, page string) int {
	t.Helper()
	have := testNames(t)
	named := regexp.MustCompile("`((?:Test|Fuzz)\\w+)`")
	n := 0
	for _, row := range rows(t, page) {
		if len(row) != 3 || row[2] == "tests" {
			continue
		}
		n++
		tests := named.FindAllStringSubmatch(row[2], -1)
		if len(tests) == 0 && !strings.HasSuffix(row[2], ".") {
			t.Errorf("%s: %q names no test and no reason why it needs none", page, row[0])
		}
		for _, m := range tests {
			if !have[m[1]] {
				t.Errorf("%s: %q names %s, which does not exist", page, row[0], m[1])
			}
		}
	}
	return n
}

// testNames are those of all tests and fuzz targets of the repository.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	have := map[string]bool{}
	function := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	err := filepath.WalkDir("..", func(path string, _ os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, m := range function.FindAllSubmatch(source, -1) {
			have[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return have
}
