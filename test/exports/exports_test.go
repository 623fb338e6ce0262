// Package exports checks that what packages export is used outside of them.
package exports

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/headgate/headgate"

// called has methods that the standard library and others call through interfaces.
var called = []string{
	"Close", "Collect", "Describe", "Error", "ForceFlush", "Is", "Len", "Less", "LogValue", "MarshalJSON", "MarshalText", "MarshalYAML", "OnEnd",
	"OnStart", "Pop", "Push", "Read", "ServeHTTP", "String", "Swap", "UnmarshalJSON", "UnmarshalText", "Unwrap", "Write",
}

// file is one parsed Go file.
type file struct {
	dir    string
	syntax *ast.File
	test   bool
}

// TestEveryExportIsUsed: what is exported has a user in another package, or an example.
func TestEveryExportIsUsed(t *testing.T) {
	t.Parallel()
	files := parse(t, filepath.Join("..", ".."))
	used, methods := uses(files)
	errorTypes := map[string]bool{} // for errors.As
	for _, f := range files {
		for _, d := range f.syntax.Decls {
			if m, ok := d.(*ast.FuncDecl); ok && m.Recv != nil && m.Name.Name == "Error" {
				errorTypes[f.dir+"."+receiver(m)] = true
			}
		}
	}
	for _, f := range files {
		if strings.HasPrefix(f.dir, "pkg/") && !f.test {
			for name := range ownTypes(f.syntax) {
				used[f.dir+"."+name] = true
			}
		}
	}
	for _, f := range files {
		if f.test || !strings.HasPrefix(f.dir, "pkg/") {
			continue
		}
		for _, name := range exported(f.syntax) {
			if !used[f.dir+"."+name] && !errorTypes[f.dir+"."+name] {
				t.Errorf("%s.%s has no user outside of its package and no example: unexport or delete it", f.dir, name)
			}
		}
		for _, name := range exportedMethods(f.syntax) {
			if !usedElsewhere(methods[name], f.dir) && !slices.Contains(called, name) {
				t.Errorf("method %s of %s has no user outside of its package and no example: unexport or delete it", name, f.dir)
			}
		}
	}
}

func parse(t *testing.T, root string) (files []file) {
	t.Helper()
	fset := token.NewFileSet()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := d.Name(); d.IsDir() && (name == ".tools" || name == "node_modules" || name == "build" || name == ".git") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") {
			return nil
		}
		syntax, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		files = append(files, file{filepath.ToSlash(dir), syntax, strings.HasSuffix(path, "_test.go")})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// uses returns which names of which directory are used by other packages, and in which directories each selector occurs. A
// package's tests are no users; its external tests are, where they are examples.
func uses(files []file) (used map[string]bool, selectors map[string]map[string]bool) {
	used, selectors = map[string]bool{}, map[string]map[string]bool{}
	for _, f := range files {
		if f.test && strings.HasSuffix(f.syntax.Name.Name, "_test") && !hasExamples(f.syntax) {
			continue
		}
		imports := importsOf(f.syntax)
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if x, ok := s.X.(*ast.Ident); ok && imports[x.Name] != "" {
				used[imports[x.Name]+"."+s.Sel.Name] = true
			}
			if selectors[s.Sel.Name] == nil {
				selectors[s.Sel.Name] = map[string]bool{}
			}
			dir := f.dir
			if strings.HasSuffix(f.syntax.Name.Name, "_test") {
				dir = "example of " + dir
			}
			selectors[s.Sel.Name][dir] = true
			return true
		})
	}
	return used, selectors
}

func hasExamples(syntax *ast.File) bool {
	return slices.ContainsFunc(syntax.Decls, func(d ast.Decl) bool {
		f, ok := d.(*ast.FuncDecl)
		return ok && strings.HasPrefix(f.Name.Name, "Example")
	})
}

func usedElsewhere(dirs map[string]bool, own string) bool {
	for dir := range dirs {
		if dir != own {
			return true
		}
	}
	return false
}

// importsOf maps the local names of the module's packages to their directories.
func importsOf(syntax *ast.File) map[string]string {
	imports := map[string]string{}
	for _, i := range syntax.Imports {
		path := strings.Trim(i.Path.Value, `"`)
		dir, ok := strings.CutPrefix(path, module+"/")
		if !ok {
			continue
		}
		name := path[strings.LastIndex(path, "/")+1:]
		if i.Name != nil {
			name = i.Name.Name
		}
		imports[name] = dir
	}
	return imports
}

// ownTypes returns the names of the package's own types that its exported functions and fields speak of: whoever calls those
// uses them without naming them.
func ownTypes(syntax *ast.File) map[string]bool {
	names := map[string]bool{}
	add := func(list *ast.FieldList, all bool) {
		if list == nil {
			return
		}
		for _, field := range list.List {
			if all || len(field.Names) == 0 || field.Names[0].IsExported() {
				ast.Inspect(field.Type, func(n ast.Node) bool {
					if id, ok := n.(*ast.Ident); ok {
						names[id.Name] = true
					}
					return true
				})
			}
		}
	}
	for _, d := range syntax.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() {
				add(d.Type.Params, true)
				add(d.Type.Results, true)
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if typ, ok := s.(*ast.TypeSpec); ok && typ.Name.IsExported() {
					switch t := typ.Type.(type) {
					case *ast.StructType:
						add(t.Fields, false)
					case *ast.InterfaceType:
						add(t.Methods, true)
					default:
						add(&ast.FieldList{List: []*ast.Field{{Type: typ.Type}}}, true)
					}
				}
			}
		}
	}
	return names
}

// exported returns the exported names of a file's top level, but for the constants of an enumeration: they are exported
// together or not at all.
func exported(syntax *ast.File) (names []string) {
	for _, d := range syntax.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil && d.Name.IsExported() {
				names = append(names, d.Name.Name)
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					if s.Name.IsExported() {
						names = append(names, s.Name.Name)
					}
				case *ast.ValueSpec:
					if s.Type != nil || len(s.Values) == 0 { // one of an enumeration
						continue
					}
					for _, n := range s.Names {
						if n.IsExported() {
							names = append(names, n.Name)
						}
					}
				}
			}
		}
	}
	return names
}

func receiver(m *ast.FuncDecl) string {
	t := m.Recv.List[0].Type
	if p, ok := t.(*ast.StarExpr); ok {
		t = p.X
	}
	id, _ := t.(*ast.Ident)
	if id == nil {
		return ""
	}
	return id.Name
}

func exportedMethods(syntax *ast.File) (names []string) {
	for _, d := range syntax.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Recv != nil && f.Name.IsExported() {
			names = append(names, f.Name.Name)
		}
	}
	return names
}
