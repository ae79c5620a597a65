package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// section is a part of the comparison that can be asked for by its name, and
// that has a place of its own in the document.
type section struct {
	name string
	what string // it puts to the test
	run  func(ctx context.Context, r *run) error

	// steps is how many it announces, so that progress can say how far it is.
	steps func(o options) int

	show func(r report) []table

	// beside: it needs nothing of the machine but time, and runs while the
	// others do.
	beside bool
}

// sections are all there are, in the order in which they run and are shown.
var sections = []section{
	{name: "storm", what: "one missing key, all callers at once", run: runStorms, steps: eachFleet, show: report.stormTables},
	{name: "fault", what: "a holder is killed or stopped, a key is deleted in mid-load", run: runFaults, steps: eachFleet, show: report.faultTables},
	{name: "slow", what: "loads that take longer than a lock lives", run: runSlow, steps: one, show: report.slowTables},
	{name: "failing", what: "an origin that always fails", run: runFailing, steps: one, show: report.failingTables},
	{name: "outage", what: "Redis does not answer for a while", run: runOutage, steps: one, show: report.outageTables},
	{name: "hits", what: "reads of a key that is there", run: runHits, steps: func(o options) int { return len(o.only) + 1 }, show: report.hitTables},
	{name: "wake", what: "how soon those who wait have the value", run: runWake, steps: func(options) int { return len(ways) }, show: report.wakeTables},
	{name: "inside", what: "what it costs Redis, and a client", run: runInside, steps: func(options) int { return insideSteps }, show: report.insideTables},
	{name: "hang", what: "how long a call can hang when Redis does", run: runHang, steps: one, show: report.hangTables, beside: true},
}

func one(options) int         { return 1 }
func eachFleet(o options) int { return len(o.fleets()) }

// fleets are the strategies that more processes than one make sense of.
func (o options) fleets() (fleets []strategy) {
	for _, s := range o.only {
		if !s.hitsOnly {
			fleets = append(fleets, s)
		}
	}
	return fleets
}

func sectionNames() string {
	var names []string
	for _, s := range sections {
		names = append(names, s.name)
	}
	return strings.Join(names, ", ")
}

// sectionsNamed returns what list names, in the order of sections.
func sectionsNamed(list string) (found []section, err error) {
	if list == "all" {
		return sections, nil
	}
	asked := strings.Split(list, ",")
	for i := range asked {
		asked[i] = strings.TrimSpace(asked[i])
		if !slices.ContainsFunc(sections, func(s section) bool { return s.name == asked[i] }) {
			return nil, fmt.Errorf("-section %q: there are %s, and all", asked[i], sectionNames())
		}
	}
	for _, s := range sections {
		if slices.Contains(asked, s.name) {
			found = append(found, s)
		}
	}
	return found, nil
}
