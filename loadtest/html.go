package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"runtime"
	"slices"
	"strings"
	"time"
)

// The page and what it is drawn with. uPlot is embedded as it was published
// (npm, uplot 1.6.32), with its licence.
var (
	//go:embed report.html
	pageText string
	//go:embed uplot/uPlot.iife.min.js
	uplotScript string
	//go:embed uplot/uPlot.min.css
	uplotStyle string
	//go:embed uplot/LICENSE
	uplotLicence string
)

var pageTemplate = template.Must(template.New("report").Parse(pageText))

// pageData is what the page says.
type pageData struct {
	Date     string
	Facts    []fact
	Closing  string
	Broken   bool
	Short    []inShort
	Head     []string
	Words    int // how many columns at the left are no numbers
	Rows     []pageRow
	Legend   []fact
	Sections []section

	Script  template.JS
	Style   template.CSS
	Licence string
}

const pageDate = "2 January 2006, 15:04 MST"

// fact is a name and what is to be said of it.
type fact struct{ Name, Text string }

// Words are the parts of a command that are not torn apart: each flag with what
// it is set to.
func (f fact) Words() []string {
	words := strings.Split(f.Text, " -")
	for i := range words[1:] {
		words[i+1] = "-" + words[i+1]
	}
	return words
}

type pageRow struct {
	Mode  string
	Class string // of what came of its promises
	Cells []string
}

// section is one scenario.
type section struct {
	Name, About string
	Promises    []judged
	Plots       []plot
}

// judged is a promise and what came of it.
type judged struct{ Name, Word, Class, Text, Why string }

func newPage(opts options, rep report, now time.Time) pageData {
	d := pageData{
		Date:    now.Format(pageDate),
		Closing: closing(rep, "below"), Broken: rep.broken() > 0,
		Short: shortly(opts, rep.Results),
		Words: 3, Legend: legendFacts(legendOf(rep.Results)),
		Facts: []fact{
			{"Command", opts.command()},
			{"Fleet", fmt.Sprintf("%d demo-api processes with %d callers each, %d in all", opts.replicas, opts.clients, opts.callers())},
			{"Rounds", fmt.Sprintf("%d of each storm", opts.rounds)},
			{"Origin", fmt.Sprintf("takes %v to answer", opts.load)},
			{"Cache", rep.Redis.describe()},
			{"Machine", fmt.Sprintf("%s/%s, %d CPUs, which the callers share with the processes; %s", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version())},
		},
	}
	head, rows := tableOf(rep.Results)
	d.Head = promisesFirst(head)
	for i, r := range rep.Results {
		d.Rows = append(d.Rows, pageRow{r.Mode, r.class(), promisesFirst(rows[i])})
	}
	for _, group := range byScenario(rep.Results) {
		d.Sections = append(d.Sections, newSection(group))
	}
	return d
}

func newSection(group []result) section {
	s := section{Name: group[0].Scenario, Plots: plotsOf(group)}
	for _, sc := range scenarios {
		if sc.name == s.Name {
			s.About = sc.about
		}
	}
	for _, r := range group {
		for _, v := range r.verdicts {
			class := map[string]string{"kept": "good", "BROKEN": "bad"}[v.word()]
			s.Promises = append(s.Promises, judged{v.name, strings.ToLower(v.word()), class, v.text, v.Why})
		}
	}
	return s
}

// class is the colour of a result's promises.
func (r result) class() string {
	switch {
	case r.Pass == nil:
		return ""
	case *r.Pass:
		return "good"
	}
	return "bad"
}

// promisesFirst moves the last cell of a row behind its scenario and mode: on a
// phone the end of a row is out of sight.
func promisesFirst(cells []string) []string {
	last := len(cells) - 1
	return slices.Insert(slices.Clone(cells[:last]), 2, cells[last])
}

// command is what to type for the same run, but for the Redis: its address may
// tell a password.
func (o options) command() string {
	var names []string
	for _, sc := range o.scenarios {
		names = append(names, sc.name)
	}
	has := func(sc scenario) bool { return slices.Contains(names, sc.name) }
	var more string
	if has(atARate) {
		more += fmt.Sprintf(" -rate %d -for %v", o.rate, o.span)
	}
	if has(soak) {
		more += fmt.Sprintf(" -duration %v", o.duration)
	}
	if all, err := scenariosNamed("all", o.replicas); err == nil && slices.EqualFunc(o.scenarios, all, func(a, b scenario) bool { return a.name == b.name }) {
		names = []string{"all"}
	}
	return fmt.Sprintf("go run ./loadtest -scenario %s -mode %s -replicas %d -clients %d -load %v -rounds %d%s",
		strings.Join(names, ","), strings.Join(o.modes, ","), o.replicas, o.clients, o.load, o.rounds, more)
}

// legendFacts are the entries of the table's legend. A line that is set in goes
// on with the entry before it.
func legendFacts(legend string) (facts []fact) {
	for line := range strings.Lines(strings.Trim(legend, "\n")) {
		name, text, _ := strings.Cut(strings.TrimRight(line, "\n"), "  ")
		if text = strings.TrimSpace(text); name == "" && len(facts) > 0 {
			facts[len(facts)-1].Text += " " + text
			continue
		}
		facts = append(facts, fact{name, text})
	}
	return facts
}

// writePage writes a report as one page that needs nothing else. The file is
// there as a whole or not at all.
func writePage(file string, d pageData) error {
	d.Script, d.Style, d.Licence = template.JS(uplotScript), template.CSS(uplotStyle), uplotLicence
	var page bytes.Buffer
	err := pageTemplate.Execute(&page, d)
	if err == nil {
		err = writeWhole(file, page.Bytes())
	}
	if err != nil {
		return fmt.Errorf("cannot write the report (%w); use -html with a file that can be written", err)
	}
	return nil
}
