package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
)

// page is what a run brought, for people: on the terminal, and as sections of
// a document.
type page struct{ parts []part }

// part is what has a place of its own in a document.
type part struct {
	name   string
	about  string // when, on what, and by which command
	tables []table
}

// table is rows of cells below a head.
type table struct {
	title string
	notes string // what the columns mean
	head  []string
	rows  [][]string
	words []string // what the rows say of who is better; "" are left out
}

// print writes the page for a terminal.
func (p page) print(out io.Writer) {
	for _, part := range p.parts {
		fmt.Fprintf(out, "\n%s\n", part.about)
		for _, t := range part.tables {
			t.print(out)
		}
	}
}

func (t table) print(out io.Writer) {
	fmt.Fprintf(out, "\n%s\n\n", t.title)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, strings.Join(t.head, "\t"))
	for _, row := range t.rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	w.Flush()
	if t.notes != "" {
		fmt.Fprintf(out, "\n%s\n", t.notes)
	}
	for i, s := range t.said() {
		if i == 0 {
			fmt.Fprintln(out)
		}
		fmt.Fprintf(out, "- %s\n", strings.ReplaceAll(s, "**", ""))
	}
}

// said are the words that there are.
func (t table) said() []string {
	return slices.DeleteFunc(slices.Clone(t.words), func(s string) bool { return s == "" })
}

// markdown is the same for a document.
func (p part) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", p.about)
	for _, t := range p.tables {
		fmt.Fprintf(&b, "\n### %s\n\n", t.title)
		fmt.Fprintf(&b, "| %s |\n|%s\n", strings.Join(t.head, " | "), strings.Repeat("---|", len(t.head)))
		for _, row := range t.rows {
			fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
		}
		if t.notes != "" {
			fmt.Fprintf(&b, "\n%s\n", t.notes)
		}
		for i, s := range t.said() {
			if i == 0 {
				b.WriteByte('\n')
			}
			fmt.Fprintf(&b, "- %s\n", s)
		}
	}
	return b.String()
}

// The marks of a part's section in a document.
func docBegin(name string) string {
	return "<!-- peers " + name + ": begin (written by go run . -doc) -->\n"
}

func docEnd(name string) string { return "<!-- peers " + name + ": end -->\n" }

// writeInto replaces the sections of a document that the page has a part for.
func (p page) writeInto(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	for _, part := range p.parts {
		begin, end := []byte(docBegin(part.name)), []byte(docEnd(part.name))
		before, rest, begun := bytes.Cut(text, begin)
		_, after, ended := bytes.Cut(rest, end)
		if !begun || !ended {
			return fmt.Errorf("%s has no section %q for the tables", file, part.name)
		}
		text = slices.Concat(before, begin, []byte("\n"+part.markdown()+"\n"), end, after)
	}
	return os.WriteFile(file, text, 0o644)
}
