package main

import (
	"math"
	"slices"
	"time"
)

// change is a moment at which a load of a product began (+1) or ended (-1).
type change struct {
	at    time.Time
	loads int
}

// fault is when something was done to a process or to Redis in a round, and when
// it was over. Zero: nothing was, or it was never over.
type fault struct{ from, to time.Time }

// evidence is what the plots of one result are drawn from, in a size that does
// not grow with the number of callers.
type evidence struct {
	latency latencies
	floor   latencies // empty: not measured
	loads   [][]point // under way, of each round, from its fault or its first load on
	faults  []float64 // how long they lasted, of each round that had one which ended, in ms
	faulty  bool      // the rounds have a fault
	line    *timeline // of requests that came at a rate; nil: none did
}

// point is a value from a time on, in ms.
type point struct{ at, value float64 }

// plottedRounds bounds the rounds whose loads are kept for the plots.
const plottedRounds = 50

func (t tally) evidence(latency, floor latencies) evidence {
	e := evidence{latency: latency, floor: floor}
	for _, r := range t.rounds[:min(len(t.rounds), plottedRounds)] {
		if r.steady != nil {
			e.line = r.steady.line
		}
		if len(r.changes) == 0 {
			continue
		}
		zero := r.changes[0].at
		if !r.fault.from.IsZero() {
			zero, e.faulty = r.fault.from, true
			if !r.fault.to.IsZero() {
				e.faults = append(e.faults, milliseconds(r.fault.to.Sub(r.fault.from)))
			}
		}
		var points []point
		underWay := 0
		for _, c := range r.changes {
			underWay += c.loads
			points = append(points, point{milliseconds(c.at.Sub(zero)), float64(underWay)})
		}
		e.loads = append(e.loads, points)
	}
	return e
}

// plot is one drawing. Its fields are what the page's script reads.
type plot struct {
	Kind   string    `json:"kind"` // one of kinds in report.html
	Title  string    `json:"-"`
	Says   string    `json:"-"` // what is to be seen
	X      []float64 `json:"x"`
	Series []series  `json:"series"`
	Band   []float64 `json:"band,omitzero"` // from where to where the fault lasted; one value: it did not end
}

// series is one line of it. NaN cannot be written as JSON: what is not there is
// nil.
type series struct {
	Name string     `json:"name"`
	Y    []*float64 `json:"y"`
}

const gridPoints = 240

// latencyPlot is the share of the callers that were answered within a time, in
// each mode, and at the floor.
func latencyPlot(results []result) (plot, bool) {
	curves := curvesOf(results)
	if len(curves) == 0 {
		return plot{}, false
	}
	p := sharesOf(curves)
	p.Title, p.Says = "How long callers waited", "Share of the callers that were answered within a time. Further left is sooner."
	return p, true
}

// curve is a distribution that has a name.
type curve struct {
	name string
	latencies
}

// curvesOf are what callers waited, in each mode and at the floor.
func curvesOf(results []result) (curves []curve) {
	for _, r := range results {
		if r.seen.latency.h != nil && r.seen.latency.h.TotalCount() > 0 {
			curves = append(curves, curve{r.Mode, r.seen.latency})
		}
	}
	if len(curves) == 0 {
		return nil
	}
	for _, r := range results {
		if r.seen.floor.h != nil && r.seen.floor.h.TotalCount() > 0 {
			return append(curves, curve{"floor", r.seen.floor})
		}
	}
	return curves
}

// sharesOf draws the share of the callers that were answered within a time.
func sharesOf(curves []curve) plot {
	low, high := math.Inf(1), 0.0
	for _, c := range curves {
		low, high = min(low, float64(c.h.Min())/1000), max(high, float64(c.h.Max())/1000)
	}
	p := plot{Kind: "latency"}
	low, high = max(low, 0.01)/1.02, max(high, 0.02)*1.02
	for i := range gridPoints {
		p.X = append(p.X, low*math.Pow(high/low, float64(i)/(gridPoints-1)))
	}
	for _, c := range curves {
		p.Series = append(p.Series, series{c.name, c.answeredWithin(p.X)})
	}
	return p
}

// tailPlot is the latency that a share of the callers did not exceed, with more
// room the fewer are left: one in ten, in a hundred, in a thousand.
func tailPlot(curves []curve) (plot, bool) {
	p := plot{Kind: "tail", Title: "How long the slowest waited", Says: "The latency that all but so many of the requests did not exceed. Lower is sooner."}
	if len(curves) == 0 {
		return p, false
	}
	least := curves[0].h.TotalCount() // whose slowest is one in so many
	for _, c := range curves {
		least = min(least, c.h.TotalCount())
	}
	if least < 10 {
		return p, false
	}
	for i := range gridPoints {
		p.X = append(p.X, math.Pow(float64(least), float64(i)/(gridPoints-1)))
	}
	for _, c := range curves {
		s := series{Name: c.name}
		for _, oneIn := range p.X {
			took := c.quantile(1 - 1/oneIn)
			s.Y = append(s.Y, &took)
		}
		p.Series = append(p.Series, s)
	}
	return p, true
}

// slowestPlot is the slowest answer over time.
func slowestPlot(lines []namedLine) (plot, bool) {
	p := plot{Kind: "slowest", Title: "The slowest answer over time", Says: "Of the requests that were due in the same moment. A peak is an expiry for which somebody waited, or the machine at other work."}
	for _, l := range lines {
		p.X = l.seconds()
		p.Series = append(p.Series, series{l.name, l.slowest})
	}
	return p, len(lines) > 0
}

// statesPlot is where answers came from over time.
func statesPlot(l *timeline) plot {
	p := plot{Kind: "states", Title: "Requests by state", Says: "Answers a second, by what they say of the cache that they came from, or by their status.", X: l.seconds()}
	for _, state := range l.order {
		p.Series = append(p.Series, series{state, l.perSecond(state)})
	}
	return p
}

// namedLine is a timeline that has a name.
type namedLine struct {
	name string
	*timeline
}

func linesOf(results []result) (lines []namedLine) {
	for _, r := range results {
		if r.seen.line != nil {
			lines = append(lines, namedLine{r.Mode, r.seen.line})
		}
	}
	return lines
}

// answeredWithin returns, for each time in ms, the percentage of callers that
// waited no longer.
func (l latencies) answeredWithin(times []float64) (shares []*float64) {
	bars := l.h.Distribution()
	var n int64
	for _, at := range times {
		for len(bars) > 0 && float64(bars[0].From)/1000 <= at {
			n += bars[0].Count
			bars = bars[1:]
		}
		share := hundredth(100 * float64(n) / float64(l.h.TotalCount()))
		shares = append(shares, &share)
	}
	return shares
}

// loadsPlot is how many loads of the product were under way over time, in each
// mode: the mean of the rounds.
func loadsPlot(results []result) (plot, bool) {
	low, high := math.Inf(1), math.Inf(-1)
	for _, r := range results {
		for _, points := range r.seen.loads {
			low, high = min(low, points[0].at), max(high, points[len(points)-1].at)
		}
	}
	if low > high {
		return plot{}, false
	}
	p := plot{Kind: "loads", Title: "Load on the origin", Says: "Loads under way, mean of the rounds."}
	margin := max(1, (high-low)/20)
	low, high = low-margin, high+margin
	for i := range gridPoints {
		p.X = append(p.X, hundredth(low+(high-low)*float64(i)/(gridPoints-1)))
	}
	for _, r := range results {
		if len(r.seen.loads) > 0 {
			p.Series = append(p.Series, series{r.Mode, meanOf(r.seen.loads, p.X)})
		}
		if r.seen.faulty && p.Band == nil {
			p.Band = []float64{0}
			p.Says = "Loads of the product under way, mean of the rounds; at the line: the fault."
			if len(r.seen.faults) > 0 {
				p.Band = append(p.Band, hundredth(median(r.seen.faults)))
				p.Says = "Loads of the product under way, mean of the rounds; shaded: the fault."
			}
		}
	}
	return p, true
}

// meanOf is the mean of the rounds at each time.
func meanOf(rounds [][]point, times []float64) []*float64 {
	mean := make([]*float64, len(times))
	for i := range mean {
		mean[i] = new(float64)
	}
	for _, points := range rounds {
		value := 0.0
		for i, at := range times {
			for len(points) > 0 && points[0].at <= at {
				value, points = points[0].value, points[1:]
			}
			*mean[i] += value / float64(len(rounds))
		}
	}
	for _, m := range mean {
		*m = hundredth(*m)
	}
	return mean
}

// recoveryPlot is how long the others waited after each fault.
func recoveryPlot(results []result) (plot, bool) {
	p := plot{Kind: "recovery", Title: "Wait after the fault", Says: "Until all was well again, in each round: what recovery means above."}
	rounds := 0
	for _, r := range results {
		rounds = max(rounds, len(r.RecoveryMS))
	}
	for n := range rounds {
		p.X = append(p.X, float64(n+1))
	}
	for _, r := range results {
		if len(r.RecoveryMS) == 0 {
			continue
		}
		s := series{Name: r.Mode, Y: make([]*float64, rounds)}
		for n, v := range r.RecoveryMS {
			s.Y[n] = &v
		}
		p.Series = append(p.Series, s)
	}
	return p, rounds > 0
}

// plotsOf returns the drawings that one scenario has.
func plotsOf(results []result) []plot {
	var all []plot
	waits := []func([]result) (plot, bool){latencyPlot}
	if lines := linesOf(results); lines != nil {
		waits = []func([]result) (plot, bool){
			func([]result) (plot, bool) { return tailPlot(curvesOf(results)) },
			func([]result) (plot, bool) { return slowestPlot(lines) },
		}
	}
	for _, draw := range append(waits, loadsPlot, recoveryPlot) {
		if p, ok := draw(results); ok {
			all = append(all, p)
		}
	}
	return all
}

// byScenario groups results, in their order.
func byScenario(results []result) (groups [][]result) {
	for _, r := range results {
		i := slices.IndexFunc(groups, func(g []result) bool { return g[0].Scenario == r.Scenario })
		if i < 0 {
			groups = append(groups, []result{r})
			continue
		}
		groups[i] = append(groups[i], r)
	}
	return groups
}
