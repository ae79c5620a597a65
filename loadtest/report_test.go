package main

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares got with a file of testdata.
func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	file = filepath.Join("testdata", file)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("differs from %s (go test ./loadtest -update writes it anew):\n%s", file, got)
	}
}

// aReport has a storm that kept its promises, one that did not, one that
// promises nothing, one without a floor, and one with times of recovery.
func aReport() (options, report) {
	opts := options{replicas: 2, clients: 1, load: 100 * time.Millisecond, rounds: 5}
	storm := func(sc scenario, mode string, loads int64, stale int64) tally {
		t := tally{scenario: sc, mode: mode, opts: opts}
		for n := range opts.rounds {
			r := round{key: "k", loads: loads, commands: []int64{3, 3}, found: []int64{0, 0}, stale: stale}
			for i := range opts.callers() {
				r.answers = append(r.answers, answer{status: 200, latency: time.Duration(101+n+i) * time.Millisecond, product: productOf("k", 1)})
				r.floor = append(r.floor, time.Duration(100+n+i)*time.Millisecond)
			}
			if sc.name == invalidate.name {
				r.commands, r.floor, r.staleFor = nil, nil, true
			}
			if sc.name == crash.name {
				r.commands, r.floor, r.takeovers = nil, nil, 1
				r.recovery = time.Duration(300+n) * time.Millisecond
			}
			t.rounds = append(t.rounds, r)
		}
		return t
	}
	return opts, report{
		Redis: redisInfo{Kind: kindServer, Version: "7.0.15"},
		Results: []result{
			storm(cold, "guard", 1, 0).result(true),
			storm(cold, "none", 2, 0).result(true),
			storm(invalidate, "guard", 2, 1).result(true),
			storm(crash, "guard", 2, 0).result(true),
		},
	}
}

func TestJSONHasTheFieldsThatApplyAndNoOthers(t *testing.T) {
	_, rep := aReport()
	file := filepath.Join(t.TempDir(), "r.json")
	if err := writeJSON(file, rep); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "report.json", got)
}

func TestJSONThatCannotBeWrittenIsAnError(t *testing.T) {
	_, rep := aReport()
	err := writeJSON(filepath.Join(t.TempDir(), "no", "such", "folder.json"), rep)
	if err == nil || !strings.Contains(err.Error(), "cannot write the results") {
		t.Errorf("writeJSON = %v", err)
	}
}

func TestTableIsReadableByItself(t *testing.T) {
	opts, rep := aReport()
	var out bytes.Buffer
	printReport(&out, opts, rep)
	// The number of processors is the machine's.
	_, rest, _ := strings.Cut(out.String(), "share with the processes. ")
	golden(t, "table.txt", []byte(rest))
}

func TestRoundsThatWereNotAllRunAreNotJudged(t *testing.T) {
	tl := aTally()
	tl.rounds[0].loads = 7
	res := tl.result(false)
	if res.Pass != nil || res.Promises != nil {
		t.Errorf("pass %v, promises %v; want none", res.Pass, res.Promises)
	}
	if res.Rounds != 2 || len(res.OriginLoads) != 2 {
		t.Errorf("%d rounds, loads %v; want what was measured", res.Rounds, res.OriginLoads)
	}
}

func TestLatencyOfErrorsIsNotCounted(t *testing.T) {
	r := round{answers: []answer{{latency: 5 * time.Millisecond}, {latency: time.Hour, err: os.ErrDeadlineExceeded}}}
	if l := r.latencies(); l.h.TotalCount() != 1 || l.max() > 5.01 {
		t.Errorf("%d latencies, the longest %v ms; want the one of 5 ms", l.h.TotalCount(), l.max())
	}
}

func TestQuantilesAreThoseOfTheCallers(t *testing.T) {
	l := newLatencies()
	for i := range 1000 {
		l.add(time.Duration(i+1) * time.Millisecond)
	}
	for share, want := range map[float64]float64{0.5: 500, 0.9: 900, 0.99: 990} {
		if got := l.quantile(share); got < want*0.999 || got > want*1.002 {
			t.Errorf("quantile(%v) = %v ms, want %v", share, got, want)
		}
	}
	if got := l.max(); got < 1000 || got > 1001 {
		t.Errorf("max = %v ms, want 1000", got)
	}
}

func TestWhatAppliesToNoRowIsNotInTheTable(t *testing.T) {
	_, rep := aReport()
	head, rows := tableOf(rep.Results[:2]) // a cold key: nothing recovers, nothing is stale
	for _, gone := range []string{"recovery", "stale"} {
		if slices.Contains(head, gone) {
			t.Errorf("the table has a column %s", gone)
		}
	}
	for _, cells := range rows {
		if len(cells) != len(head) || cells[len(cells)-1] != "kept" && cells[len(cells)-1] != "-" {
			t.Errorf("head %q, row %q", head, cells)
		}
	}
	if l := legendOf(rep.Results[:2]); strings.Contains(l, "recovery") || !strings.Contains(l, "\nerrors ") || !strings.Contains(l, "\ncommands ") {
		t.Errorf("the legend is\n%s", l)
	}
	if legendOf(rep.Results) != legend {
		t.Error("the legend lacks something when all applies")
	}
}

func TestInShortSaysWhatTheModesDifferIn(t *testing.T) {
	opts, rep := aReport()
	all := shortly(opts, rep.Results)
	if len(all) != 1 || all[0].Head != "2 callers ask at once for a product that no cache has" {
		t.Fatalf("in short: %+v; want the one scenario of more than one mode", all)
	}
	want := shortMode{"no protection (mode none)", "asks the origin 2 times", "half of the callers wait at most 103 ms, 99% of them 106 ms"}
	if len(all[0].Modes) != 2 || all[0].Modes[1] != want {
		t.Errorf("modes %+v, want %+v", all[0].Modes, want)
	}
	stale := int64(7)
	if got := (result{Mode: "guard", OriginLoads: []int64{1}, StaleValues: &stale}).short(); !strings.HasSuffix(got.Waited, "7 old values served") || got.Asked != "asks the origin once" {
		t.Errorf("short = %+v", got)
	}
}
