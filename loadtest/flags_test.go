package main

import (
	"bytes"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestWrongFlagsAreErrorsThatSayWhatToWrite(t *testing.T) {
	for _, c := range []struct{ args, says string }{
		{"-scenario storm", "use all or some of cold,expiry,invalidate"},
		{"-scenario cold,pause -replicas 1", "use -replicas 2 or more"},
		{"-scenario ", "use all or some of"},
		{"-mode best", "use some of guard,local,none"},
		{"-replicas 0", "use 1 to 64"},
		{"-replicas 65", "use 1 to 64"},
		{"-clients 0", "use at least 1"},
		{"-replicas 64 -clients 1000", "at most 10000 in all"},
		{"-load 0", "use 1ms to 20s"},
		{"-load 21s", "use 1ms to 20s"},
		{"-rounds 0", "use 1 to 1000"},
		{"-excuse latency", "use some of P1,"},
		{"-plot x", "not defined"},
		{"cold", "is not a flag"},
	} {
		_, err := parseFlags(strings.Split(c.args, " "), io.Discard)
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: error %v, want one that says %q", c.args, err, c.says)
		}
	}
}

func TestListsNameEachScenarioAndModeOnce(t *testing.T) {
	o, err := parseFlags([]string{"-scenario", "expiry, cold,expiry", "-mode", "none,guard,none"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if len(o.scenarios) != 2 || o.scenarios[0].name != "expiry" || o.scenarios[1].name != "cold" {
		t.Errorf("scenarios %v", o.scenarios)
	}
	if strings.Join(o.modes, " ") != "none guard" {
		t.Errorf("modes %v", o.modes)
	}
}

func TestWithoutFlagsTheStormsAreRunInAllModes(t *testing.T) {
	o, err := parseFlags(nil, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if len(o.scenarios) != 3 || len(o.modes) != 3 || o.callers() != 200 || o.rounds != 5 {
		t.Errorf("options %+v", o)
	}
}

func TestAllScenariosAreAllThatEndByThemselves(t *testing.T) {
	o, err := parseFlags([]string{"-scenario", "all"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	// But for the soak, which takes as long as one wants.
	if len(o.scenarios) != len(scenarios)-1 || slices.ContainsFunc(o.scenarios, func(sc scenario) bool { return sc.apart }) {
		t.Errorf("options %+v", o)
	}
}

func TestOneProcessRunsWhatOneCan(t *testing.T) {
	o, err := parseFlags([]string{"-scenario", "all", "-replicas", "1"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(o.scenarios); n == 0 || n == len(scenarios) {
		t.Errorf("%d of %d scenarios", n, len(scenarios))
	}
	for _, sc := range o.scenarios {
		if sc.minReplicas > 1 {
			t.Errorf("%s takes %d processes", sc.name, sc.minReplicas)
		}
	}
}

func TestListTellsEachScenarioAndItsPromises(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), []string{"-list"}, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, sc := range scenarios {
		if !strings.Contains(out.String(), sc.about) {
			t.Errorf("-list does not explain %s", sc.name)
		}
		for _, p := range sc.promises {
			if !strings.Contains(out.String(), p.text) {
				t.Errorf("-list does not tell promise %s of %s", p.name, sc.name)
			}
		}
	}
}

func TestScenarioNamesAreDistinct(t *testing.T) {
	seen := map[string]bool{}
	for _, name := range scenarioNames() {
		if seen[name] {
			t.Errorf("two scenarios are called %s", name)
		}
		seen[name] = true
	}
}

func TestCountersLeaveOutUpkeepAndWrongAnswers(t *testing.T) {
	page := `# TYPE demo_origin_loads_total counter
demo_origin_loads_total 4
# TYPE demo_origin_load_seconds_total counter
demo_origin_load_seconds_total 0.5
# TYPE demo_redis_commands_sent_total counter
demo_redis_commands_sent_total{command="get"} 2
demo_redis_commands_sent_total{command="evalsha"} 5
demo_redis_commands_sent_total{command="eval"} 2
demo_redis_commands_sent_total{command="hello"} 30
# TYPE demo_store_faults_total counter
demo_store_faults_total{class="timeout"} 3
demo_store_faults_total{class="data"} 40
`
	if c, err := readCounters([]byte(page)); err != nil || c != (counters{commands: 9, evals: 2, unanswered: 3, loads: 4, loading: 500 * time.Millisecond}) {
		t.Errorf("readCounters = %+v, %v; want 9 commands, 2 of them evals, 3 unanswered, 4 loads in half a second", c, err)
	}
	for _, page := range []string{"", "# nothing\n", "{"} {
		if _, err := readCounters([]byte(page)); err == nil {
			t.Errorf("the page %q is no error: nothing would pass for a count", page)
		}
	}
}

func TestServedAtFindsTheAddress(t *testing.T) {
	for line, want := range map[string]string{
		"demo-api: serving on http://127.0.0.1:4711 (mode guard, store: in memory)": "127.0.0.1:4711",
		"demo-api: draining":             "",
		"demo-api: serving on ":          "",
		"demo-api: serving on localhost": "",
	} {
		if got, _ := servedAt(line); got != want {
			t.Errorf("servedAt(%q) = %q, want %q", line, got, want)
		}
	}
}

func TestTailKeepsTheEnd(t *testing.T) {
	var tl tail
	for range 3 * tailLength {
		tl.Write([]byte("x"))
	}
	tl.Write([]byte("the end"))
	if got := tl.String(); len(got) != tailLength || !strings.HasSuffix(got, "xthe end") {
		t.Errorf("tail of %d bytes ends in %q", len(got), got[len(got)-10:])
	}
}

// An excused promise is shown as broken and does not decide the exit status.
func TestExcusedPromisesDoNotCountAsBroken(t *testing.T) {
	rep := report{Results: []result{
		{Promises: map[string]bool{"P1": true, "floor": false}},
		{Promises: map[string]bool{"P1": false, "floor": false}},
	}}
	if n := rep.broken(); n != 3 {
		t.Errorf("%d broken, want 3", n)
	}
	if n := rep.broken("floor", "commands"); n != 1 {
		t.Errorf("%d broken besides the excused ones, want 1", n)
	}
}

func TestEveryFlagIsOnThePageAboutTheLoadTest(t *testing.T) {
	page, err := os.ReadFile("../docs/loadtest.md")
	if err != nil {
		t.Fatal(err)
	}
	var help bytes.Buffer
	if err := run(t.Context(), []string{"-help"}, &help, io.Discard); err != nil {
		t.Fatal(err)
	}
	flags := regexp.MustCompile(`(?m)^  (-[a-z]+)`).FindAllStringSubmatch(help.String(), -1)
	if len(flags) < 10 {
		t.Fatalf("the help names %d flags:\n%s", len(flags), &help)
	}
	for _, f := range flags {
		if !bytes.Contains(page, []byte("| `"+f[1]+"` |")) {
			t.Errorf("the table of docs/loadtest.md lacks %s", f[1])
		}
	}
}
