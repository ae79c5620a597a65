// Package deploy_test checks what operators load: the rules, the dashboard and
// the page that explains them, against the code, against promtool, and, where
// there is a Prometheus, against a fleet under load.
package deploy_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/promguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
)

const (
	rulesFile     = "prometheus/cacheguard.rules.yml"
	rulesTest     = "prometheus/cacheguard.test.yml"
	dashboardFile = "grafana/cacheguard.json"
	guideFile     = "../docs/observability.md"
)

var update = flag.Bool("update", false, "write the table of metrics into docs/observability.md")

func read(t testing.TB, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// tool is the path of a program of the Debian package prometheus.
func tool(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	switch {
	case err == nil:
	case os.Getenv("CACHEGUARD_REQUIRE_PROMTOOL") == "1":
		t.Fatalf("%s is not on PATH, and CACHEGUARD_REQUIRE_PROMTOOL=1 forbids to skip this test; install the Debian package prometheus", name)
	default:
		t.Skipf("SKIPPED, NOT TESTED: %s is not on PATH (install the Debian package prometheus, or set CACHEGUARD_REQUIRE_PROMTOOL=1 to make this a failure)", name)
	}
	return path
}

func TestRulesPassTheirTests(t *testing.T) {
	promtool := tool(t, "promtool")
	for _, args := range [][]string{
		{"check", "rules", rulesFile},
		{"check", "config", "prometheus/prometheus.yml"},
		{"test", "rules", rulesTest},
	} {
		if out, err := exec.CommandContext(t.Context(), promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// metric is one of the metrics as a scrape shows it.
type metric struct {
	name, kind, help string
	labels           map[string]map[string]bool // the values that each label takes
}

// metrics are all that promguard has.
func metrics(t testing.TB) map[string]*metric {
	t.Helper()
	reg := prometheus.NewRegistry()
	c, err := promguard.Register(reg, promguard.Options{})
	if err != nil {
		t.Fatal(err)
	}
	g, err := cacheguard.New(memstore.New(memstore.Options{}), cacheguard.Options[string]{Hooks: c.Hooks("g")})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	c.HTTP("g")
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string]*metric)
	for _, f := range families {
		m := &metric{name: f.GetName(), kind: strings.ToLower(f.GetType().String()), help: f.GetHelp(), labels: map[string]map[string]bool{}}
		for _, series := range f.GetMetric() {
			for _, l := range series.GetLabel() {
				if m.labels[l.GetName()] == nil {
					m.labels[l.GetName()] = map[string]bool{}
				}
				m.labels[l.GetName()][l.GetValue()] = true
			}
		}
		found[m.name] = m
	}
	return found
}

// named returns the metric that an expression calls by name, or by the name of
// a part of a histogram.
func named(all map[string]*metric, name string) *metric {
	if m := all[name]; m != nil {
		return m
	}
	for _, part := range []string{"_bucket", "_sum", "_count"} {
		if m := all[strings.TrimSuffix(name, part)]; m != nil && m.kind == "histogram" && strings.HasSuffix(name, part) {
			return m
		}
	}
	return nil
}

var (
	record   = regexp.MustCompile(`(?m)^ +- record: (\S+)`)
	alert    = regexp.MustCompile(`(?m)^ +- alert: (\S+)`)
	runbook  = regexp.MustCompile(`(?m)^ +runbook_url: \S+/docs/observability.md#(\S+)$`)
	selector = regexp.MustCompile(`\b((?:guard:)?cacheguard_[a-z_]+(?::[a-z0-9_]+)?)(?:\{([^}]*)\})?`)
	matcher  = regexp.MustCompile(`([a-z_]+)(=~|!~|!=|=)"([^"]*)"`)
)

// wrong tells what an expression asks for that no scrape will ever have.
func wrong(all map[string]*metric, records []string, expr string) (faults []string) {
	for _, s := range selector.FindAllStringSubmatch(expr, -1) {
		name, matchers := s[1], s[2]
		if slices.Contains(records, name) {
			continue
		}
		m := named(all, name)
		if m == nil {
			faults = append(faults, "there is no "+name)
			continue
		}
		for _, q := range matcher.FindAllStringSubmatch(matchers, -1) {
			label, values := q[1], strings.Split(q[3], "|")
			switch {
			case label == "job" || label == "guard":
			case m.labels[label] == nil:
				faults = append(faults, fmt.Sprintf("%s has no label %s", name, label))
			default:
				for _, v := range values {
					if !m.labels[label][v] {
						faults = append(faults, fmt.Sprintf("%s is never %q of %s", label, v, name))
					}
				}
			}
		}
	}
	return faults
}

func firsts(matches [][]string) (all []string) {
	for _, m := range matches {
		all = append(all, m[1])
	}
	return all
}

func TestRulesAskForSeriesThatExist(t *testing.T) {
	rules := read(t, rulesFile)
	records := firsts(record.FindAllStringSubmatch(rules, -1))
	if len(records) == 0 {
		t.Fatal("no recording rules found: is the file still of that form?")
	}
	for _, fault := range wrong(metrics(t), records, regexp.MustCompile(`(?m)^ +- (record|alert): .*$|^ *#.*$`).ReplaceAllString(rules, "")) {
		t.Error(fault)
	}
}

func TestRulesOfSeriesThatDoNotExistAreFound(t *testing.T) {
	all := metrics(t)
	for _, expr := range []string{
		`cacheguard_nothing_total`,
		`rate(cacheguard_loads_total_bucket[5m])`,
		`cacheguard_fills_total{outcome="flown"}`,
		`cacheguard_fills_total{outcome=~"landed|flown"}`,
		`cacheguard_fills_total{result="landed"}`,
		`guard:cacheguard_nothing:rate5m`,
	} {
		if len(wrong(all, nil, expr)) != 1 {
			t.Errorf("nothing wrong is seen in %s", expr)
		}
	}
}

func TestEveryAlertHasARunbookAndATest(t *testing.T) {
	rules, guide, tests := read(t, rulesFile), read(t, guideFile), read(t, rulesTest)
	alerts, runbooks := firsts(alert.FindAllStringSubmatch(rules, -1)), firsts(runbook.FindAllStringSubmatch(rules, -1))
	if len(alerts) == 0 || len(alerts) != len(runbooks) {
		t.Fatalf("%d alerts and %d runbook lines", len(alerts), len(runbooks))
	}
	for i, name := range alerts {
		if runbooks[i] != strings.ToLower(name) {
			t.Errorf("%s: the runbook line points to #%s, want #%s", name, runbooks[i], strings.ToLower(name))
		}
		if !strings.Contains(guide, "\n### "+name+"\n") {
			t.Errorf("%s has no section in docs/observability.md", name)
		}
		if strings.Count(tests, "alertname: "+name+"\n") < 2 {
			t.Errorf("%s has no test in which it fires and one in which it does not", name)
		}
	}
}

// query is one of the dashboard's.
type query struct{ panel, expr string }

func dashboardQueries(t testing.TB) (queries []query) {
	t.Helper()
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(read(t, dashboardFile)), &dashboard); err != nil {
		t.Fatal(err)
	}
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			queries = append(queries, query{p.Title, target.Expr})
		}
	}
	if len(queries) == 0 {
		t.Fatal("the dashboard asks for nothing")
	}
	return queries
}

func TestDashboardAsksForSeriesThatExist(t *testing.T) {
	all := metrics(t)
	for _, q := range dashboardQueries(t) {
		for _, fault := range wrong(all, nil, q.expr) {
			t.Errorf("panel %q: %s", q.panel, fault)
		}
	}
}

func TestEveryMetricIsOnTheDashboardOrInARule(t *testing.T) {
	shown := read(t, rulesFile)
	for _, q := range dashboardQueries(t) {
		shown += q.expr
	}
	for name := range metrics(t) {
		if !strings.Contains(shown, name) {
			t.Errorf("nobody looks at %s", name)
		}
	}
}

const tableBegin, tableEnd = "<!-- metrics: written by `go test ./deploy -update` -->\n", "<!-- end of metrics -->\n"

func TestGuideListsEveryMetric(t *testing.T) {
	guide := read(t, guideFile)
	before, rest, found := strings.Cut(guide, tableBegin)
	_, after, ended := strings.Cut(rest, tableEnd)
	if !found || !ended {
		t.Fatal("docs/observability.md has lost the marks around its table of metrics")
	}
	want := before + tableBegin + metricsTable(metrics(t)) + tableEnd + after
	if want == guide {
		return
	}
	if !*update {
		t.Fatal("docs/observability.md does not list the metrics as they are; run go test ./deploy -update")
	}
	if err := os.WriteFile(guideFile, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

func metricsTable(all map[string]*metric) string {
	var b strings.Builder
	b.WriteString("\n| metric | kind | labels besides `guard` | meaning |\n|---|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(all)) {
		m := all[name]
		var labels []string
		for _, label := range slices.Sorted(maps.Keys(m.labels)) {
			if label != "guard" {
				labels = append(labels, fmt.Sprintf("`%s`: %s", label, strings.Join(slices.Sorted(maps.Keys(m.labels[label])), ", ")))
			}
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.name, m.kind, strings.Join(labels, "; "), m.help)
	}
	b.WriteString("\n")
	return b.String()
}
