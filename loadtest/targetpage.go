package main

import (
	"fmt"
	"runtime"
	"strings"
	"time"
)

// newTargetPage is the report on somebody's running service.
func newTargetPage(opts options, rep targetReport, now time.Time) pageData {
	d := pageData{
		Date:   now.Format(pageDate),
		Head:   targetHead,
		Words:  1,
		Legend: []fact{{"times", targetLegend}},
		Facts: []fact{
			{"Service", strings.Join(rep.URLs, ", ")},
			{"Asked", fmt.Sprintf("%d storms of %d callers for each URL, then %d requests a second for %v, sent when they were due", opts.rounds, opts.clients, opts.rate, opts.span)},
			{"Callers", fmt.Sprintf("on %s/%s, %d CPUs; %s", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version())},
		},
	}
	failed, all := 0, 0
	for _, r := range []*targetResult{rep.Storms, rep.Steady} {
		if r != nil {
			failed, all = failed+r.Errors, all+r.Requests
		}
	}
	d.Broken = failed > 0
	d.Closing = fmt.Sprintf("All %d requests were answered.", all)
	if d.Broken {
		d.Closing = fmt.Sprintf("%d of %d requests brought no good answer.", failed, all)
	}
	d.Closing += " What the service asked its origin cannot be seen from here."
	for _, cells := range rep.rows() {
		d.Rows = append(d.Rows, pageRow{Cells: cells})
	}
	if r := rep.Storms; r != nil && r.Requests > 0 {
		p := sharesOf([]curve{{"storms", r.latencies}})
		p.Title, p.Says = "How long callers waited", "Share of the callers that were answered within a time. Further left is sooner."
		d.Sections = append(d.Sections, section{Name: "storms", About: "All callers ask at one instant.", Plots: []plot{p}})
	}
	if r := rep.Steady; r != nil && r.Requests > 0 {
		s := section{Name: "steady", About: "Requests at a rate: " + counts(r.States) + "."}
		if p, ok := tailPlot([]curve{{"steady", r.latencies}}); ok {
			s.Plots = append(s.Plots, p)
		}
		if p, ok := slowestPlot([]namedLine{{"steady", r.line}}); ok {
			s.Plots = append(s.Plots, p)
		}
		s.Plots = append(s.Plots, statesPlot(r.line))
		d.Sections = append(d.Sections, s)
	}
	return d
}
