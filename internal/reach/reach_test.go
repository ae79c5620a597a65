package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var everything = wantedBy(regexp.MustCompile(""))

// later are benchmarks that a figure names and that are not there yet.
var later = map[string]bool{"Hit/redis-pipelined/1KiB/goroutines=256": true}

func TestEveryFigureOfABenchmarkIsMeasured(t *testing.T) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("CACHEGUARD_REQUIRE_REDIS") != "" {
			t.Fatal(err)
		}
		t.Skip("SKIPPED, NOT TESTED: no redis-server on PATH")
	}
	dir, err := repository()
	if err != nil {
		t.Fatal(err)
	}
	m := measured{samples: samples{}}
	printed := map[string][]byte{} // by package
	for _, b := range everything.benchmarks() {
		if printed[b.pkg] == nil {
			cmd := exec.CommandContext(t.Context(), "go", "test", "-run", "^$", "-bench", ".", "-benchtime", "1x", b.pkg)
			cmd.Dir = dir
			if printed[b.pkg], err = cmd.Output(); err != nil {
				t.Fatalf("%s: %v\n%s", b.pkg, err, printed[b.pkg])
			}
		}
		if err := m.samples.read(b, printed[b.pkg]); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range everything {
		for _, l := range c.lines {
			f, ok := l.figure.(benchFigure)
			if !ok {
				continue
			}
			if _, ok := f.of(m); ok == later[f.name] {
				t.Errorf("%s: measured: %v; it is of %s %s", l.what, ok, f.pkg, f.name)
			}
		}
	}
}

func TestEveryFigureOfTheLoadTestIsRead(t *testing.T) {
	yes := func(names ...string) map[string]bool {
		kept := map[string]bool{}
		for _, n := range names {
			kept[n] = true
		}
		return kept
	}
	none := 0.0
	file := filepath.Join(t.TempDir(), "results.json")
	text, err := json.Marshal(map[string]any{"results": []stormResult{
		{Scenario: "cold", Replicas: 4, OriginLoads: []float64{1, 2}, OverFloorMS: []float64{1, 3, 1.25}, CommandsSent: []float64{12, 10}},
		{Scenario: "crash", RecoveryMS: []float64{500, 910}},
		{Scenario: "invalidate", StaleValues: &none}, {Scenario: "pause", StaleValues: &none}, {Scenario: "partition", StaleValues: &none},
		{Scenario: "failing-origin", Promises: yes("P6")},
		{Scenario: "redis-hang", Promises: map[string]bool{"first": true, "open": false, "P8": true, "back": true}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	m := measured{storms: stormResults{}}
	for _, s := range everything.stages() {
		if m.storms[s], err = readStorms(file); err != nil {
			t.Fatal(err)
		}
	}
	got := map[string]string{}
	for _, c := range everything {
		for _, l := range c.lines {
			if _, ok := l.figure.(benchFigure); ok {
				continue
			}
			row := (&page{}).row(l, m)
			got[l.what] = row[3] + ", " + row[6]
		}
	}
	for what, want := range map[string]string{
		"4×50, load of 100ms: slowest 1 % over the floor":                                                               "1.25 ms, reached",
		"loads in one storm, most in any of them":                                                                       "2, NOT REACHED",
		"commands that a process sends, mean of the busiest storm":                                                      "3, reached",
		"holder killed in a load of 300 ms: until all others have the value, longest (lease 600 ms, load 300 ms, 5 ms)": "910.00 ms, NOT REACHED",
		"stale values after a holder was stopped past its lease":                                                        "0, reached",
		"failing origin: at most two loads in a cooldown":                                                               "kept, reached",
		"Redis hangs: then half of the calls within 1 ms of none":                                                       "broken, NOT REACHED",
	} {
		if got[what] != want {
			t.Errorf("%s: %q, want %q", what, got[what], want)
		}
	}
	for what, is := range got {
		if strings.HasPrefix(is, "not measured") {
			t.Errorf("%s: %s", what, is)
		}
	}
}

// printed is what go test prints for one benchmark that ran seven times, beside
// another whose name begins like it.
const printed = `goos: linux
BenchmarkHit/redis-2   100  1000 ns/op   900 bare-ns/op  0.91 x-of-bare
BenchmarkHit/redis-2   100  5000 ns/op  4750 bare-ns/op  0.95 x-of-bare
BenchmarkHit/redis-2   100  1100 ns/op  1070 bare-ns/op  0.97 x-of-bare
BenchmarkHit/redis-2   100  1100 ns/op  1040 bare-ns/op  0.94 x-of-bare
BenchmarkHit/redis-2   100  1200 ns/op  1130 bare-ns/op  0.93 x-of-bare
BenchmarkHit/redis-2   100  1000 ns/op   900 bare-ns/op  0.96 x-of-bare
BenchmarkHit/redis-2   100  1100 ns/op  1090 bare-ns/op  0.98 x-of-bare
BenchmarkHit/redis-hotkey-2  100  10 ns/op  100 bare-ns/op  10 x-of-bare
PASS
`

func TestARowIsTheMedianOfTheRuns(t *testing.T) {
	s := samples{}
	b := benchmark{pkg: root, name: "Hit/redis"}
	if err := s.read(b, []byte(printed)); err != nil {
		t.Fatal(err)
	}
	p := &page{}
	for _, c := range []struct {
		line reach
		want []string
	}{
		{reach{"a hit", faster("Hit/redis"), least(0.95)}, []string{"a hit", "1.07 µs", "1.1 µs", "0.95x", "0.91x - 0.98x", "≥ 0.95x", "reached"}},
		{reach{"a hit", faster("Hit/redis"), least(0.96)}, []string{"a hit", "1.07 µs", "1.1 µs", "0.95x", "0.91x - 0.98x", "≥ 0.96x", "NOT REACHED"}},
		{reach{"more", more("Hit/redis", "ns/op"), most(69)}, []string{"more", "1.07 µs", "1.1 µs", "+70 ns", "10 ns - 250 ns", "≤ 69 ns", "NOT REACHED"}},
		{reach{"shown", ours("Hit/redis", "ns/op"), shown}, []string{"shown", "", "", "1.1 µs", "1 µs - 5 µs", "", ""}},
		{reach{"nothing", faster("Hit/other"), least(4)}, []string{"nothing", "", "", "not measured", "", "≥ 4", ""}},
	} {
		got := p.row(c.line, measured{samples: s})
		if strings.Join(got, "|") != strings.Join(c.want, "|") {
			t.Errorf("row %q, want %q", got, c.want)
		}
	}
	if got := p.verdict(); got != "1 of 3 figures reached." {
		t.Error(got)
	}
}

func TestADocumentKeepsWhatIsNotOurs(t *testing.T) {
	file := filepath.Join(t.TempDir(), "page.md")
	before, after := "# Page\n\n"+docBegin, docEnd+"\nThe end.\n"
	if err := os.WriteFile(file, []byte(before+"old\n"+after), 0o600); err != nil {
		t.Fatal(err)
	}
	p := &page{about: "about", tables: []table{{title: "Table", rows: [][]string{{"a", "b", "c", "d", "e", "f", "g"}}}}}
	if err := p.writeInto(file); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(got, []byte(before)) || !bytes.HasSuffix(got, []byte(after)) || bytes.Contains(got, []byte("old")) ||
		!bytes.Contains(got, []byte("| a | b | c | d | e | f | g |")) {
		t.Errorf("%s", got)
	}
	if err := os.WriteFile(file, []byte("# Page\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := p.writeInto(file); err == nil {
		t.Error("a page without the section was taken")
	}
}

func TestFlags(t *testing.T) {
	for _, args := range []string{"-count 0", "-time 0s", "-rounds 0", "-only (", "more"} {
		if _, err := parseFlags(strings.Fields(args), &bytes.Buffer{}); err == nil {
			t.Errorf("%s: taken", args)
		}
	}
	o, err := parseFlags([]string{"-only", "Storms"}, &bytes.Buffer{})
	if err != nil {
		t.Fatal(err)
	}
	if w := wantedBy(o.only); len(w) != 1 || len(w.benchmarks()) != 0 || len(w.stages()) != 6 {
		t.Errorf("-only Storms: %d chapters, %d benchmarks, %d stages", len(w), len(w.benchmarks()), len(w.stages()))
	}
}
