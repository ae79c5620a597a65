package main

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// inShort is what one scenario shows, in words for who has read nothing.
type inShort struct {
	Head  string // what happens
	Modes []shortMode
}

// shortMode is what came of it in one mode.
type shortMode struct{ Who, Asked, Waited string }

// who protects the origin, in each mode.
var who = map[string]string{
	"guard": "cacheguard (mode guard)",
	"local": "singleflight alone (mode local)",
	"none":  "no protection (mode none)",
}

// shortly returns the scenarios that show the difference between the modes, if
// more than one was run. What else is promised, the others show.
func shortly(opts options, results []result) (all []inShort) {
	for _, group := range byScenario(results) {
		for _, sc := range scenarios {
			if sc.name != group[0].Scenario || sc.short == nil || len(group) < 2 {
				continue
			}
			s := inShort{Head: sc.short(opts)}
			for _, r := range group {
				s.Modes = append(s.Modes, r.short())
			}
			all = append(all, s)
		}
	}
	return all
}

func (r result) short() shortMode {
	s := shortMode{Who: who[r.Mode], Asked: "asks the origin " + times(span(r.OriginLoads))}
	if q := r.LatencyMS; q != nil {
		s.Waited = fmt.Sprintf("half of the callers wait at most %s ms, 99%% of them %s ms", shortMS(q.P50), shortMS(q.P99))
	}
	if r.StaleValues != nil {
		s.Waited += fmt.Sprintf("; %d old values served", *r.StaleValues)
	}
	return s
}

// shortMS is a time to two digits or more.
func shortMS(v float64) string {
	if v < 10 {
		return ms(v)
	}
	return fmt.Sprintf("%.0f", v)
}

func times(n string) string {
	if n == "1" {
		return "once"
	}
	return n + " times"
}

func printShort(out io.Writer, opts options, results []result) {
	all := shortly(opts, results)
	if len(all) == 0 {
		return
	}
	fmt.Fprintln(out, "\nIn short:")
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, s := range all {
		fmt.Fprintf(w, "  %s.\n", s.Head)
		for _, m := range s.Modes {
			fmt.Fprintf(w, "    %s\t%s\t%s\n", m.Who, m.Asked, m.Waited)
		}
	}
	w.Flush()
}
