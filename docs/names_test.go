package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/promguard"
)

// api are the exported names of this module's public packages.
type api struct {
	members map[string]map[string]bool // of a package, or of a type: Guard -> Get
	names   map[string]bool            // all of them
}

// publicPackages are where a user finds them.
var publicPackages = []string{
	"cacheguard", "cacheguard/store", "cacheguard/store/redisstore", "cacheguard/store/memstore", "cacheguard/store/storetest",
	"cacheguard/lease", "cacheguard/promguard", "cacheguard/slogguard",
	"cacheguard/compressed", "cacheguard/sealed", "middleware",
}

func exported(t *testing.T) api {
	t.Helper()
	a := api{members: map[string]map[string]bool{}, names: map[string]bool{}}
	for _, dir := range publicPackages {
		files, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v, %d files", dir, err, len(files))
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			a.add(filepath.Base(dir), f)
		}
	}
	return a
}

func (a api) add(pkg string, f *ast.File) {
	for _, decl := range f.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil {
				a.set(pkg, d.Name)
			} else {
				a.set(typeName(d.Recv.List[0].Type), d.Name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				a.addSpec(pkg, spec)
			}
		}
	}
}

func (a api) addSpec(pkg string, spec ast.Spec) {
	switch s := spec.(type) {
	case *ast.ValueSpec:
		for _, name := range s.Names {
			a.set(pkg, name)
		}
	case *ast.TypeSpec:
		a.set(pkg, s.Name)
		ast.Inspect(s.Type, func(n ast.Node) bool {
			if field, ok := n.(*ast.Field); ok {
				for _, name := range field.Names {
					a.set(s.Name.Name, name)
					if of := typeName(field.Type); ast.IsExported(of) && a.members[name.Name] == nil {
						a.alias(name.Name, of)
					}
				}
			}
			return true
		})
	}
}

// alias lets pages write Lease.Max for the field Max of the field Lease.
func (a api) alias(field, typ string) {
	if field != typ {
		if a.members[typ] == nil {
			a.members[typ] = map[string]bool{}
		}
		a.members[field] = a.members[typ]
	}
}

func (a api) set(owner string, name *ast.Ident) {
	if !name.IsExported() {
		return
	}
	if a.members[owner] == nil {
		a.members[owner] = map[string]bool{}
	}
	a.members[owner][name.Name], a.names[name.Name] = true, true
}

func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return typeName(e.X)
	case *ast.IndexExpr:
		return typeName(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

var (
	dotted = regexp.MustCompile(`^\*?([A-Za-z]\w*)((?:\.[A-Z]\w*)+)$`)
	errVar = regexp.MustCompile(`^Err[A-Z]\w*$`)
)

// missing tells which part of a code span names nothing of ours, or "". What
// begins with a word that is none of ours may be anybody's.
func (a api) missing(text string) string {
	text, _, _ = strings.Cut(text, "(")
	if errVar.MatchString(text) && !a.names[text] {
		return text
	}
	m := dotted.FindStringSubmatch(text)
	if m == nil || a.members[m[1]] == nil {
		return ""
	}
	owner := m[1]
	for _, name := range strings.Split(m[2][1:], ".") {
		if members := a.members[owner]; members != nil && !members[name] {
			return owner + "." + name
		}
		owner = name
	}
	return ""
}

func TestEveryIdentifierThatAPageNamesIsExported(t *testing.T) {
	a := exported(t)
	for text, want := range map[string]string{
		"Guard.Get": "", "cacheguard.New": "", "Lease.Max": "", "Options.Lease": "", "ErrWaitLimit": "", "http.Handler": "",
		"Guard.Got": "Guard.Got", "lease.Acquire": "lease.Acquire", "ErrNothing": "ErrNothing", "cacheguard.Guard.Gone": "Guard.Gone",
	} {
		if got := a.missing(text); got != want {
			t.Fatalf("missing(%q) = %q, want %q: this test would be of no use", text, got, want)
		}
	}
	for _, p := range pages(t) {
		for _, s := range p.spans {
			if m := a.missing(s.text); m != "" {
				t.Errorf("%s:%d: `%s`: there is no %s", p.path, s.line, s.text, m)
			}
		}
	}
}

var metric = regexp.MustCompile(`\b(?:guard:)?(?:cacheguard|demo)_[a-z0-9_]+(?::[a-z0-9_]+)?`)

// metricNames are those of promguard, of the demo and of the recording rules.
func metricNames(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	reg := prometheus.NewRegistry()
	c, err := promguard.Register(reg, promguard.Options{})
	if err != nil {
		t.Fatal(err)
	}
	c.HTTP("g")(promguard.HTTPOutcome{})
	g, err := cacheguard.New(inMemory(), cacheguard.Options[string]{Hooks: c.Hooks("g")})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	c.HTTP("http")
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		names[f.GetName()] = true
	}
	rules, err := os.ReadFile(filepath.Join(root, "deploy/prometheus/cacheguard.rules.yml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`record: (\S+)`).FindAllSubmatch(rules, -1) {
		names[string(m[1])] = true
	}
	err = filepath.WalkDir(filepath.Join(root, "cmd/demo-api"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		data, err := os.ReadFile(path)
		for _, m := range regexp.MustCompile(`"(demo_[a-z_]+)"`).FindAllSubmatch(data, -1) {
			names[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestEveryMetricThatAPageNamesIsThere(t *testing.T) {
	names := metricNames(t)
	if len(names) < 30 {
		t.Fatalf("only %d metrics found", len(names))
	}
	parts := []string{"", "_bucket", "_sum", "_count"}
	for _, c := range calls(pages(t)) {
		for _, name := range metric.FindAllString(c.text, -1) {
			if !slices.ContainsFunc(parts, func(part string) bool { return names[strings.TrimSuffix(name, part)] }) {
				t.Errorf("%s:%d: there is no metric %s", c.page, c.line, name)
			}
		}
	}
}
