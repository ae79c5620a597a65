package main

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
)

// printReport prints what a person reads at the end: what was done, the table,
// what each promise came to, and one closing line.
func printReport(out io.Writer, opts options, rep report) {
	fmt.Fprintf(out, "\n%d demo-api processes with %d callers each (%d in all) ask for one product at once; the origin takes %v to answer.\n",
		opts.replicas, opts.clients, opts.callers(), opts.load)
	fmt.Fprintf(out, "Cache: %s. Machine: %d CPUs, which the callers share with the processes. Rounds: %d of each storm.\n\n",
		rep.Redis.describe(), runtime.NumCPU(), opts.rounds)
	printTable(out, rep.Results)
	fmt.Fprint(out, legendOf(rep.Results))
	printPromises(out, rep.Results)
	printShort(out, opts, rep.Results)
	fmt.Fprintf(out, "\n%s\n", closing(rep, "above"))
}

// legendOf is the legend of a table of results: what is not in it is not told.
func legendOf(results []result) string {
	if slices.ContainsFunc(results, func(r result) bool { return len(r.RecoveryMS) > 0 }) {
		return legend
	}
	before, rest, _ := strings.Cut(legend, "\nrecovery")
	_, after, _ := strings.Cut(rest, "\nerrors")
	return before + "\nerrors" + after
}

const legend = `
modes     what is in front of the origin; guard: cacheguard, one load for the fleet; local: singleflight, one for each process; none: one for each request
loads     questions to the origin in one storm: the fewest and the most of all rounds
p50 p99   milliseconds that half, and all but the slowest 1%, of the callers waited at most
floor     p99 of the same callers at a handler that only sleeps; over: how much later the storm's was, each after its own load (median of the rounds)
commands  the most that one process sent to Redis in one storm
recovery  milliseconds until all was well again: crash, pause, partition: all callers of the other processes were answered; redis-hang,
          redis-restart: every process used Redis again; failing-origin: the product was there; the shortest and the longest of all rounds
errors    no answer; wrong: not what was asked for; stale: older than a write that was answered before; promises: made by mode guard, listed below; -: does not apply
`

// tableHead names the cells of a row.
var tableHead = []string{"scenario", "mode", "loads", "p50", "p90", "p99", "max", "floor", "over", "commands", "recovery", "errors", "wrong", "stale", "promises"}

func printTable(out io.Writer, results []result) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	head, rows := tableOf(results)
	for _, cells := range append([][]string{head}, rows...) {
		fmt.Fprintln(w, strings.Join(append(cells, ""), "\t"))
	}
	w.Flush()
}

// tableOf returns the head and the rows of a table, without the columns of what
// applies to no row; the last, of the promises, is there in any case.
func tableOf(results []result) (head []string, rows [][]string) {
	for _, r := range results {
		rows = append(rows, r.cells())
	}
	head = slices.Clone(tableHead)
	for i := len(head) - 2; i >= 0; i-- {
		if slices.ContainsFunc(rows, func(cells []string) bool { return cells[i] != "-" }) {
			continue
		}
		head = slices.Delete(head, i, i+1)
		for n := range rows {
			rows[n] = slices.Delete(rows[n], i, i+1)
		}
	}
	return head, rows
}

// cells are a row of the table. What does not apply is a dash.
func (r result) cells() []string {
	cells := []string{r.Scenario, r.Mode, span(r.OriginLoads)}
	if q := r.LatencyMS; q != nil {
		cells = append(cells, ms(q.P50), ms(q.P90), ms(q.P99), ms(q.Max))
	} else {
		cells = append(cells, "-", "-", "-", "-")
	}
	if r.FloorMS != nil {
		cells = append(cells, ms(r.FloorMS.P99), fmt.Sprintf("%+.1f", median(r.OverFloorMS)))
	} else {
		cells = append(cells, "-", "-")
	}
	if r.CommandsSent != nil {
		cells = append(cells, fmt.Sprint(r.perRound))
	} else {
		cells = append(cells, "-")
	}
	return append(cells, spanMS(r.RecoveryMS), count(r.Errors), count(r.WrongValues), count(r.StaleValues), r.verdict())
}

func (r result) verdict() string {
	switch {
	case r.Pass == nil:
		return "-"
	case !*r.Pass:
		return "BROKEN"
	case len(r.Promises) < len(r.verdicts):
		return fmt.Sprintf("%d of %d kept", len(r.Promises), len(r.verdicts))
	}
	return "kept"
}

func ms(v float64) string { return fmt.Sprintf("%.1f", v) }

func count(n *int64) string {
	if n == nil {
		return "-"
	}
	return fmt.Sprint(*n)
}

// span is "1" if all values are 1, else "1-4".
func span(values []int64) string {
	if len(values) == 0 {
		return "-"
	}
	low, high := slices.Min(values), slices.Max(values)
	if low == high {
		return fmt.Sprint(low)
	}
	return fmt.Sprintf("%d-%d", low, high)
}

// spanMS is the shortest and the longest of some times, in milliseconds.
func spanMS(values []float64) string {
	if len(values) == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f-%.0f", slices.Min(values), slices.Max(values))
}

func printPromises(out io.Writer, results []result) {
	for _, r := range results {
		if len(r.verdicts) == 0 {
			continue
		}
		fmt.Fprintf(out, "\n%s, mode %s:\n", r.Scenario, r.Mode)
		for _, v := range r.verdicts {
			fmt.Fprintf(out, "  %-10s %s (%s)\n", v.word(), v.text, v.Why)
		}
	}
}

func (v verdict) word() string {
	switch {
	case !v.Judged:
		return "not judged"
	case v.Kept:
		return "kept"
	}
	return "BROKEN"
}

// closing is the last line.
func closing(rep report, where string) string {
	judged, unclear := 0, 0
	for _, r := range rep.Results {
		judged += len(r.Promises)
		unclear += len(r.verdicts) - len(r.Promises)
	}
	var line string
	switch broken := rep.broken(); {
	case judged == 0:
		return "No promise was judged: they are made by mode guard alone."
	case broken > 0:
		line = fmt.Sprintf("%d of %d promises were BROKEN.", broken, judged)
	default:
		line = fmt.Sprintf("All %d promises that could be judged were kept.", judged)
	}
	if unclear > 0 {
		line += fmt.Sprintf(" %d could not be judged; it says %s why.", unclear, where)
	}
	return line
}
