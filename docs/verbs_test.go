package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// verbs are the functions and methods that a user calls, and that an example is
// to show. Methods of a backend are called by guards and lockers.
var verbs = map[string][]string{
	"cacheguard":                  {"New", "JoinHooks", "Bytes", "Guard", "Settings"},
	"cacheguard/lease":            {"New", "TokenFromContext", "Locker", "Lease", "Fence"},
	"cacheguard/store/redisstore": {"New"},
	"cacheguard/store/memstore":   {"New"},
	"cacheguard/promguard":        {"New", "Register"},
	"cacheguard/slogguard":        {"New", "Logger"},
	"cacheguard/compressed":       {"New"},
	"cacheguard/sealed":           {"New"},
	"middleware":                  {"New", "Cache"},
}

func TestEveryVerbHasAnExample(t *testing.T) {
	checked := 0
	for dir, owners := range verbs {
		declared, shown := map[string]bool{}, map[string]bool{}
		files, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, decl := range f.Decls {
				d, ok := decl.(*ast.FuncDecl)
				if !ok {
					continue
				}
				switch test := strings.HasSuffix(file, "_test.go"); {
				case test && strings.HasPrefix(filepath.Base(file), "example"):
					calledIn(d, shown)
				case !test && d.Name.IsExported() && isVerb(d, owners):
					declared[d.Name.Name] = true
				}
			}
		}
		for name := range declared {
			checked++
			if !shown[name] {
				t.Errorf("%s: no example calls %s", dir, name)
			}
		}
	}
	if checked < 30 {
		t.Errorf("only %d verbs found", checked)
	}
}

// isVerb tells whether a function, or its receiver, is one of owners.
func isVerb(d *ast.FuncDecl, owners []string) bool {
	name := d.Name.Name
	if d.Recv != nil {
		name = typeName(d.Recv.List[0].Type)
	}
	return slices.Contains(owners, name)
}

// calledIn adds the names of what a function calls.
func calledIn(d *ast.FuncDecl, names map[string]bool) {
	ast.Inspect(d, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			fun := call.Fun
			if generic, ok := fun.(*ast.IndexExpr); ok {
				fun = generic.X
			}
			if s, ok := fun.(*ast.SelectorExpr); ok {
				names[s.Sel.Name] = true
			}
		}
		return true
	})
}
