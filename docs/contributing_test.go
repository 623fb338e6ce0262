package docs

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestContributingNamesEveryFolder: the table of folders has each of those that hold code, tests or tools, and no other.
func TestContributingNamesEveryFolder(t *testing.T) {
	_, table, _ := strings.Cut(read(t, "../CONTRIBUTING.md"), "\n| folder | holds |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	named := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| ((?:`[\\w/]+`(?:, )?)+) \\|").FindAllStringSubmatch(table, -1) {
		for folder := range strings.SplitSeq(row[1], ", ") {
			folder = strings.Trim(folder, "`")
			named[folder] = true
			if _, err := os.Stat("../" + folder); err != nil {
				t.Errorf("CONTRIBUTING.md names %s: %v", folder, err)
			}
		}
	}
	n := 0
	for _, parent := range []string{"cmd", "pkg", "internal", "deploy", "test", "tools"} {
		folders, err := os.ReadDir("../" + parent)
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range folders {
			if !entry.IsDir() {
				continue
			}
			n++
			if folder := parent + "/" + entry.Name(); !named[folder] {
				t.Errorf("CONTRIBUTING.md does not say what %s holds", folder)
			}
		}
	}
	if n < 20 {
		t.Errorf("%d folders found, want 20 at least", n)
	}
}

// TestGlossaryHasTheTerms: each term that the code uses throughout is explained once.
func TestGlossaryHasTheTerms(t *testing.T) {
	_, table, _ := strings.Cut(read(t, "../CONTRIBUTING.md"), "\n| word | means |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	for _, term := range []string{
		"permit", "lane", "weight", "reservation", "waiter", "verdict", "fence", "generation", "fencing token",
		"cooldown", "renewal", "deadline", "budget", "working set",
	} {
		if n := strings.Count(table, "\n| "+term+" | "); n != 1 {
			t.Errorf("CONTRIBUTING.md explains %q %d times, want once", term, n)
		}
	}
}
