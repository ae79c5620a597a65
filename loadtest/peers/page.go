package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
)

// page is what a run brought, for people: on the terminal, and as a section of
// a document.
type page struct {
	about  string
	tables []table
}

// table is rows of cells below a head.
type table struct {
	title string
	notes string // what the columns mean
	head  []string
	rows  [][]string
}

// print writes the page for a terminal.
func (p page) print(out io.Writer) {
	fmt.Fprintf(out, "\n%s\n", p.about)
	for _, t := range p.tables {
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
	}
}

// markdown is the same for a document.
func (p page) markdown() string {
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
	}
	return b.String()
}

// The section of a document that is ours.
const (
	docBegin = "<!-- peers: begin (written by go run . -doc) -->\n"
	docEnd   = "<!-- peers: end -->\n"
)

// writeInto replaces the section of a document.
func (p page) writeInto(file string) error {
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
