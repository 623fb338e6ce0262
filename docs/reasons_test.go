package docs

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/headgate/headgate/pkg/extproc"
)

// site is a function of the repository.
type site struct{ file, function string }

func (s site) String() string { return fmt.Sprintf("[%s](../%s)", s.function, s.file) }

// mentions are the functions of some folders by what they mention: names of constants, and texts as they stand in literals.
type mentions map[string][]site

// TestEveryReasonHasALineAndATest: for every reason there are functions that decide on it and a test that names it, and
// verdicts.md links to them. A link that is older than the code is good as long as the function still mentions the reason.
func TestEveryReasonHasALineAndATest(t *testing.T) {
	names := namesOfReasons(t)
	isTest := func(file string) bool { return strings.HasSuffix(file, "_test.go") }
	code := mentionsIn(t, func(file string) bool {
		return !isTest(file) && file != "../pkg/extproc/verdict.go" && file != "../pkg/lease/refusal.go" // the tables
	}, "pkg/extproc", "pkg/budget", "pkg/adaptive", "pkg/lease")
	tests := mentionsIn(t, func(file string) bool {
		return isTest(file) && !strings.HasSuffix(file, "/verdict_test.go") && !strings.HasSuffix(file, "/shape_test.go") // of all rows
	}, "test/e2e", "pkg/extproc", "pkg/budget", "pkg/adaptive", "pkg/lease")
	var b strings.Builder
	b.WriteString("| reason | decided in | tested in |\n|---|---|---|\n")
	for _, v := range extproc.Verdicts() {
		decided, tested := code.of(names[v.Reason]), tests.of(names[v.Reason])
		if len(decided) == 0 || len(tested) == 0 {
			t.Errorf("%s (%q) is decided in %v and tested in %v, want a function and a test", v.Reason, names[v.Reason], decided, tested)
			continue
		}
		row := fmt.Sprintf("| `%s` | ", v.Reason)
		if *update {
			fmt.Fprintf(&b, "%s%s | %s |\n", row, join(decided), join(onePerFolder(tested)))
			continue
		}
		_, written, found := strings.Cut(read(t, "verdicts.md"), "\n"+row)
		written, _, _ = strings.Cut(written, "\n")
		if !found {
			t.Errorf("verdicts.md does not say where %s is decided: run make generate", v.Reason)
		}
		for _, link := range regexp.MustCompile(`\[\w+\]\([^)]+\)`).FindAllString(written, -1) {
			if all := join(append(decided, tested...)); !strings.Contains(all, link) {
				t.Errorf("%s: %s does not mention it: run make generate", v.Reason, link)
			}
		}
	}
	if *update {
		generated(t, "verdicts.md", "places", b.String())
	}
}

// namesOfReasons are the constants by which code means a reason, and the reason itself.
func namesOfReasons(t *testing.T) map[string][]string {
	t.Helper()
	table, leases := read(t, "../pkg/extproc/verdict.go"), read(t, "../pkg/lease/refusal.go")
	names, gates := map[string][]string{}, map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^\t(\w+): +\{"(\w+)", `).FindAllStringSubmatch(table, -1) {
		names[m[2]], gates[m[1]] = []string{m[1], strconv.Quote(m[2])}, m[2]
	}
	for _, m := range regexp.MustCompile(`case (?:budget|adaptive)\.(\w+):\n\t\treturn (\w+)`).FindAllStringSubmatch(table, -1) {
		names[gates[m[2]]] = append(names[gates[m[2]]], m[1])
	}
	for _, m := range regexp.MustCompile(`(?m)^\t(\w+) +(?:Reason )?= "(LEASE_\w+)"`).FindAllStringSubmatch(leases, -1) {
		names[m[2]] = []string{m[1], strconv.Quote(m[2])}
	}
	return names
}

// mentionsIn reads the Go files of the folders that are wanted.
func mentionsIn(t *testing.T, wanted func(file string) bool, folders ...string) mentions {
	t.Helper()
	found := mentions{}
	for _, folder := range folders {
		files, err := filepath.Glob("../" + folder + "/*.go")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			if !wanted(name) {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range file.Decls {
				if f, ok := d.(*ast.FuncDecl); ok && (!strings.HasSuffix(name, "_test.go") || strings.HasPrefix(f.Name.Name, "Test")) {
					found.add(f, site{strings.TrimPrefix(name, "../"), f.Name.Name})
				}
			}
		}
	}
	return found
}

func (m mentions) add(f *ast.FuncDecl, s site) {
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Ident:
			m[n.Name] = append(m[n.Name], s)
		case *ast.BasicLit:
			m[n.Value] = append(m[n.Value], s)
		}
		return true
	})
}

// of are the functions that mention one of the names, each once and sorted.
func (m mentions) of(names []string) (found []site) {
	for _, name := range names {
		found = append(found, m[name]...)
	}
	slices.SortFunc(found, func(a, b site) int {
		return cmp.Or(strings.Compare(a.file, b.file), strings.Compare(a.function, b.function))
	})
	return slices.Compact(found)
}

// onePerFolder keeps the first function of each folder, so that rows stay short.
func onePerFolder(all []site) []site {
	seen := map[string]bool{}
	return slices.DeleteFunc(slices.Clone(all), func(s site) bool {
		folder := filepath.Dir(s.file)
		defer func() { seen[folder] = true }()
		return seen[folder]
	})
}

func join(all []site) string {
	texts := make([]string, len(all))
	for i, s := range all {
		texts[i] = s.String()
	}
	return strings.Join(texts, ", ")
}
