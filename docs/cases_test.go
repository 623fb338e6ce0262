package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestCasesHaveTheirTests: every test that cases.md names exists, and every case names one or says why it needs none.
func TestCasesHaveTheirTests(t *testing.T) {
	have := map[string]bool{}
	function := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	err := filepath.WalkDir("..", func(path string, d os.DirEntry, err error) error {
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
	named := regexp.MustCompile("`((?:Test|Fuzz)\\w+)`")
	cases := 0
	for _, row := range rows(t, "cases.md") {
		if len(row) != 3 || row[1] == "reported" {
			continue
		}
		cases++
		tests := named.FindAllStringSubmatch(row[2], -1)
		if len(tests) == 0 && !strings.HasSuffix(row[2], ".") {
			t.Errorf("%q names no test and no reason why it needs none", row[0])
		}
		for _, m := range tests {
			if !have[m[1]] {
				t.Errorf("%q names %s, which does not exist", row[0], m[1])
			}
		}
	}
	if cases < 80 {
		t.Errorf("%d cases, want at least 80: is the page still read as tables?", cases)
	}
}
