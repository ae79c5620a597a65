package main

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"os"
	"path/filepath"
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
	Head     []string
	Rows     []pageRow
	Legend   []fact
	Sections []section

	Script  template.JS
	Style   template.CSS
	Licence string
}

// fact is a name and what is to be said of it.
type fact struct{ Name, Text string }

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
		Date:    now.Format("2 January 2006, 15:04 MST"),
		Closing: closing(rep, "below"), Broken: rep.broken() > 0,
		Head: promisesFirst(tableHead), Legend: legendFacts(),
		Script: template.JS(uplotScript), Style: template.CSS(uplotStyle), Licence: uplotLicence,
		Facts: []fact{
			{"Command", opts.command()},
			{"Fleet", fmt.Sprintf("%d demo-api processes with %d callers each, %d in all; each storm %d times", opts.replicas, opts.clients, opts.callers(), opts.rounds)},
			{"Origin", fmt.Sprintf("takes %v to answer", opts.load)},
			{"Cache", rep.Redis.describe()},
			{"Machine", fmt.Sprintf("%s/%s, %d CPUs, which the callers share with the processes; %s", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version())},
		},
	}
	for _, r := range rep.Results {
		d.Rows = append(d.Rows, pageRow{r.Mode, r.class(), promisesFirst(r.cells())})
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
	if len(names) == len(scenarios) {
		names = []string{"all"}
	}
	return fmt.Sprintf("go run ./loadtest -scenario %s -mode %s -replicas %d -clients %d -load %v -rounds %d",
		strings.Join(names, ","), strings.Join(o.modes, ","), o.replicas, o.clients, o.load, o.rounds)
}

// legendFacts are the entries of the table's legend. A line that is set in goes
// on with the entry before it.
func legendFacts() (facts []fact) {
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

// writeHTML writes the report as one page that needs nothing else. The file is
// there as a whole or not at all.
func writeHTML(file string, opts options, rep report, now time.Time) error {
	var page bytes.Buffer
	err := pageTemplate.Execute(&page, newPage(opts, rep, now))
	if err == nil {
		err = writeWhole(file, page.Bytes())
	}
	if err != nil {
		return fmt.Errorf("cannot write the report (%w); use -html with a file that can be written", err)
	}
	return nil
}

func writeWhole(file string, data []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(file), ".loadtest-*.html")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(data)
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), file)
}

// mayWrite says now that a file cannot be written, rather than after a run.
func mayWrite(file string) error {
	if info, err := os.Stat(file); err == nil && info.IsDir() {
		return fmt.Errorf("%s is a folder; use a file's name", file)
	}
	f, err := os.CreateTemp(filepath.Dir(file), ".loadtest-*.html")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}
