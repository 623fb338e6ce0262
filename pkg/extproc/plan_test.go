package extproc

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"
)

// TestOnlyThePlanAsksAboutModes: what a processing mode means stands in plan.go, so that the request path reads the same in
// all of them.
func TestOnlyThePlanAsksAboutModes(t *testing.T) {
	t.Parallel()
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	read := 0
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") || e.Name() == "plan.go" {
			continue
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, e.Name(), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		read++
		ast.Inspect(file, func(n ast.Node) bool {
			selector, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			where := files.Position(n.Pos())
			if of, ok := selector.X.(*ast.Ident); ok && of.Name == "wire" && strings.HasPrefix(selector.Sel.Name, "Body") {
				t.Errorf("%s asks for the mode wire.%s", where, selector.Sel.Name)
			}
			if of, ok := selector.X.(*ast.SelectorExpr); ok && of.Sel.Name == "plan" {
				switch selector.Sel.Name {
				case "request", "response", "early":
					t.Errorf("%s looks into the plan: %s", where, selector.Sel.Name)
				}
			}
			return true
		})
	}
	if read < 10 {
		t.Errorf("%d files read, want the whole package", read)
	}
}
