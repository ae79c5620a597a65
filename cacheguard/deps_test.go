package cacheguard_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/cacheguard-go/cacheguard/"

// pkg is a package of this module, as go list tells it.
type pkg struct {
	ImportPath string
	Dir        string
	GoFiles    []string
	Imports    []string // by its own files, without tests
	Deps       []string // by these, and so on
}

// name is the path below the module.
func (p pkg) name() string { return strings.TrimPrefix(p.ImportPath, module) }

// packages lists the module.
func packages(t *testing.T) (all []pkg) {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,GoFiles,Imports,Deps", "./...")
	cmd.Dir = ".."
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v: %s", err, &stderr)
	}
	dec := json.NewDecoder(bytes.NewReader(out))
	for {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if p.ImportPath+"/" != module { // the root holds only benchmarks
			all = append(all, p)
		}
	}
	if len(all) < 8 {
		t.Fatalf("go list found %d packages only: nothing would be checked", len(all))
	}
	return all
}

// layer is a place for packages.
type layer struct {
	name    string   // of a package, or of all below a folder with /... at the end
	imports []string // of this module, that it may have
	why     string   // not more
}

// layers are all there are, lowest first; the first that matches counts.
var layers = []layer{
	{"cacheguard/store", nil, "it is words only: every other package speaks them"},
	{"cacheguard/store/storetest", []string{"cacheguard/store"}, "it checks any backend, so it knows none"},
	{"cacheguard/store/memstore", []string{"cacheguard/store"}, "a backend knows neither the guard nor another backend"},
	{"cacheguard/store/redisstore", []string{"cacheguard/store"}, "a backend knows neither the guard nor another backend"},
	{"cacheguard/lease", []string{"cacheguard/store", "internal/..."}, "a lease is of use without a cache, over any backend"},
	{"cacheguard", []string{"cacheguard/store", "cacheguard/lease", "internal/..."}, "the guard works over any backend: a user who has one must not get the other"},
	{"cacheguard/promguard", []string{"cacheguard", "cacheguard/store"}, "metrics are built on hooks, as a user's own would be"},
	{"cacheguard/slogguard", []string{"cacheguard", "cacheguard/store"}, "logs are built on hooks, as a user's own would be"},
	{"cacheguard/compressed", []string{"cacheguard"}, "it is a codec around another one, as a user's own would be"},
	{"cacheguard/sealed", []string{"cacheguard/store"}, "it is a store around any other one"},
	{"middleware", []string{"cacheguard", "cacheguard/compressed", "cacheguard/sealed", "cacheguard/store", "internal/..."}, "the HTTP cache works over any backend"},
	{"cmd/demo-api", []string{"cacheguard/...", "cacheguard", "middleware"}, "the demo uses what a user can use, and no internal package"},
	{"loadtest", []string{"internal/child", "internal/faultproxy", "internal/redistest"}, "the load test knows the fleet only by HTTP, as its clients do"},
	{"deploy", nil, "it is what operators load, with nothing but tests in Go"},
	{"docs", nil, "it is what people read, with nothing but tests in Go"},
	{"internal/redistest", []string{"internal/child"}, "tests of every layer start servers with it"},
	{"internal/pgtest", []string{"internal/child"}, "tests of every layer start servers with it"},
	{"internal/child", nil, "it starts processes, whatever they are"},
	{"internal/...", []string{"cacheguard/store", "internal/..."}, "what is shared by the lease and the guard is below both"},
}

func TestNoPackageImportsAnythingAboveItsLayer(t *testing.T) {
	for _, p := range packages(t) {
		i := slices.IndexFunc(layers, func(l layer) bool { return matches(l.name, p.name()) })
		if i < 0 {
			t.Errorf("%s is in no layer; give it a place in this test", p.name())
			continue
		}
		for _, path := range p.Imports {
			name, ours := strings.CutPrefix(path, module)
			if ours && !slices.ContainsFunc(layers[i].imports, func(pattern string) bool { return matches(pattern, name) }) {
				t.Errorf("%s imports %s, but %s", p.name(), name, layers[i].why)
			}
		}
	}
}

// matches tells whether a package is meant by its name or by "folder/...".
func matches(pattern, name string) bool {
	if folder, all := strings.CutSuffix(pattern, "/..."); all {
		return strings.HasPrefix(name, folder+"/")
	}
	return pattern == name
}

// only are the libraries that have one place.
var only = []struct {
	library string // its import path, and all below it
	by      []string
	why     string
}{
	{"github.com/redis/go-redis", []string{"cacheguard/store/redisstore", "cmd/demo-api", "loadtest"},
		"the guard must work over any backend, and a user of memstore must not build a Redis client"},
	{"github.com/prometheus", []string{"cacheguard/promguard", "cmd/demo-api", "loadtest"},
		"metrics are a choice of the user's: the guard has hooks"},
	{"golang.org/x/sync/singleflight", []string{"cacheguard", "cmd/demo-api"},
		"one process has one place where callers join; the demo shows what it does alone (-mode local)"},
	{"github.com/go-chi/chi", []string{"middleware", "cmd/demo-api"},
		"the HTTP cache is for net/http; it only has to copy chi's pooled route context"},
	{"github.com/klauspost/compress", []string{"cacheguard/compressed"},
		"who compresses nothing must not build a compressor; those who do share one bound on what comes out"},
	{"github.com/tsenart/vegeta", []string{"loadtest"},
		"load is made by the load test alone"},
	{"github.com/alicebob/miniredis", []string{"loadtest"},
		"a stand-in for Redis is for tests and demonstrations"},
	{"github.com/jackc/pgx", []string{"cmd/demo-api", "internal/pgtest"},
		"which database a token is compared in is the user's affair"},
	{"testing", []string{"cacheguard/store/storetest", "internal/redistest", "internal/pgtest"},
		"what a service runs does not carry a test framework"},
}

func TestALibraryWithOnePlaceIsImportedNowhereElse(t *testing.T) {
	for _, p := range packages(t) {
		for _, rule := range only {
			if slices.Contains(rule.by, p.name()) {
				continue
			}
			for _, path := range p.Imports {
				if path == rule.library || strings.HasPrefix(path, rule.library+"/") {
					t.Errorf("%s imports %s, but %s", p.name(), path, rule.why)
				}
			}
		}
	}
}

// without are libraries that a user of a package must not get by any way.
var without = []struct {
	name      string
	libraries []string
}{
	{"cacheguard", []string{"github.com/redis/", "github.com/prometheus/", "github.com/go-chi/", "net/http"}},
	{"cacheguard/lease", []string{"github.com/redis/", "github.com/prometheus/", "github.com/go-chi/", "net/http"}},
	{"cacheguard/store/memstore", []string{"github.com/"}},
	{"cacheguard/store/redisstore", []string{"github.com/prometheus/", "github.com/go-chi/", "net/http"}},
	{"middleware", []string{"github.com/redis/", "github.com/prometheus/"}},
	{"cacheguard/promguard", []string{"github.com/redis/", "github.com/go-chi/"}},
}

func TestAUserGetsNoLibraryThatThePackageDoesNotNeed(t *testing.T) {
	for _, p := range packages(t) {
		for _, rule := range without {
			if rule.name != p.name() {
				continue
			}
			for _, dep := range p.Deps {
				for _, library := range rule.libraries {
					if strings.HasPrefix(dep, library) && !strings.HasPrefix(dep, module) {
						t.Errorf("%s brings %s", p.name(), dep)
					}
				}
			}
		}
	}
}

func TestOneFileOfTheMiddlewareKnowsChi(t *testing.T) {
	for _, p := range packages(t) {
		if p.name() != "middleware" {
			continue
		}
		var files []string
		for _, file := range p.GoFiles {
			parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, file), nil, parser.ImportsOnly)
			if err != nil {
				t.Fatal(err)
			}
			for _, spec := range parsed.Imports {
				if strings.Contains(spec.Path.Value, "go-chi/chi") {
					files = append(files, file)
				}
			}
		}
		if len(files) > 1 {
			t.Errorf("chi is imported by %v; one file copies its route context, nothing else needs it", files)
		}
	}
}

// The words are put together here so that this file does not find itself.
var ofOneMachine = regexp.MustCompile(strings.Join([]string{
	`/` + `(work|root|tmp)/[\w.]`, `/home/` + `\w`, `/Users/` + `\w`, `[A-Z]:\\` + `Users`,
}, "|"))

func TestNoFileNamesAPlaceOfOneMachine(t *testing.T) {
	seen := 0
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "node_modules" || d.Name() == "bin"):
			return fs.SkipDir
		case !d.Type().IsRegular() || d.Name() == ".git": // a file in a worktree
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if bytes.IndexByte(data, 0) >= 0 {
			return nil // what a compiler or a profiler has left
		}
		seen++
		if i := ofOneMachine.FindIndex(data); i != nil {
			line := 1 + bytes.Count(data[:i[0]], []byte("\n"))
			t.Errorf("%s:%d names %s", path, line, data[i[0]:i[1]])
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen < 20 {
		t.Fatalf("%d files only: nothing was checked", seen)
	}
}
