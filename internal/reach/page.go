package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// measured is everything that was.
type measured struct {
	samples samples
	storms  stormResults
}

// A page is what was measured, for people: on the terminal, and as a section of
// a document.
type page struct {
	about   string
	tables  []table
	goals   int // that were measured
	reached int
}

type table struct {
	title, notes string
	rows         [][]string
}

var head = []string{"what", "bare", "ours", "figure", "95 % between", "to reach", ""}

func newPage(ctx context.Context) *page {
	about := fmt.Sprintf("%s, %s, %d CPUs for everything; load of the machine at the beginning: %s.",
		time.Now().Format(time.DateOnly), runtime.Version(), runtime.NumCPU(), loadAverage())
	if v, err := exec.CommandContext(ctx, "redis-server", "--version").Output(); err == nil {
		about += " " + strings.TrimSpace(string(v)) + "."
	}
	return &page{about: about}
}

// loadAverage is what the machine was doing besides, where it can be told.
func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	one, _, _ := strings.Cut(string(text), " ")
	return one
}

// fill makes rows of what was measured.
func (p *page) fill(all []chapter, m measured) {
	for _, c := range all {
		t := table{title: c.title, notes: c.notes}
		for _, l := range c.lines {
			t.rows = append(t.rows, p.row(l, m))
		}
		p.tables = append(p.tables, t)
	}
}

// row is one line, and counts what is reached.
func (p *page) row(l reach, m measured) []string {
	r, ok := l.figure.of(m)
	if !ok {
		return []string{l.what, "", "", "not measured", "", l.goal.text(""), ""}
	}
	verdict := ""
	if l.goal.bound {
		p.goals++
		verdict = "NOT REACHED"
		if l.goal.reached(r.value) {
			p.reached++
			verdict = "reached"
		}
	}
	between := ""
	if r.lo != r.hi && !math.IsInf(r.lo, 0) && !math.IsInf(r.hi, 0) {
		between = number(r.lo, r.unit) + " - " + number(r.hi, r.unit)
	}
	figure := number(r.value, r.unit)
	if r.unit != "x" && r.unit != "kept" && r.bare != "" {
		figure = "+" + figure
	}
	return []string{l.what, r.bare, r.ours, figure, between, l.goal.text(r.unit), verdict}
}

// verdict is the sum of it.
func (p *page) verdict() string {
	return fmt.Sprintf("%d of %d figures reached.", p.reached, p.goals)
}

// number writes a value for people.
func number(v float64, unit string) string {
	switch {
	case unit == "kept" && v == 1:
		return "kept"
	case unit == "kept":
		return "broken"
	case unit == "x":
		return fmt.Sprintf("%.2fx", v)
	case strings.HasSuffix(unit, "ns/op") && math.Abs(v) < 1000:
		return fmt.Sprintf("%.3g ns", v)
	case strings.HasSuffix(unit, "ns/op") && math.Abs(v) < 1e6:
		return fmt.Sprintf("%.3g µs", v/1e3)
	case strings.HasSuffix(unit, "ns/op"):
		return fmt.Sprintf("%.3g ms", v/1e6)
	case strings.HasSuffix(unit, "allocs/op"):
		return fmt.Sprintf("%.0f", v)
	case strings.HasSuffix(unit, "ms"):
		return fmt.Sprintf("%.2f ms", v)
	case unit == "bytes":
		return fmt.Sprintf("%.0f bytes", v)
	}
	return fmt.Sprintf("%.3g", v)
}

// print writes the page for a terminal.
func (p *page) print(out io.Writer) {
	fmt.Fprintf(out, "\n%s\n", p.about)
	for _, t := range p.tables {
		fmt.Fprintf(out, "\n%s. %s\n\n", t.title, t.notes)
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		for _, row := range append([][]string{head}, t.rows...) {
			fmt.Fprintln(w, strings.Join(row, "\t"))
		}
		w.Flush()
	}
	fmt.Fprintf(out, "\n%s\n", p.verdict())
}

// markdown is the same for a document.
func (p *page) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n**%s**\n", p.about, p.verdict())
	for _, t := range p.tables {
		fmt.Fprintf(&b, "\n### %s\n\n%s\n\n", t.title, t.notes)
		fmt.Fprintf(&b, "| %s |\n|%s\n", strings.Join(head, " | "), strings.Repeat("---|", len(head)))
		for _, row := range t.rows {
			fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
		}
	}
	return b.String()
}

// The section of a document that is ours.
const (
	docBegin = "<!-- reach: begin (written by go run . -doc) -->\n"
	docEnd   = "<!-- reach: end -->\n"
)

// writeInto replaces the section of a document.
func (p *page) writeInto(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, begun := bytes.Cut(text, []byte(docBegin))
	_, after, ended := bytes.Cut(rest, []byte(docEnd))
	if !begun || !ended {
		return errors.New(file + " has no section for the tables")
	}
	return os.WriteFile(file, slices.Concat(before, []byte(docBegin+"\n"+p.markdown()+"\n"+docEnd), after), 0o644)
}
