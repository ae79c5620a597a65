package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// measured is one number of one row of a table.
type measured struct {
	name  string
	value float64
}

// contest is a column in which rows can be better than others.
type contest struct {
	what   string
	higher bool    // is better
	margin float64 // differences up to it say nothing
	format func(float64) string
}

// verdict says in words who is better than ours in one column; "" without a
// row of that name, or of another one.
func (c contest) verdict(ours string, rows []measured) string {
	i := slices.IndexFunc(rows, func(m measured) bool { return m.name == ours })
	if i < 0 || len(rows) < 2 || math.IsNaN(rows[i].value) {
		return ""
	}
	mine := rows[i].value
	var better, level []measured
	for _, m := range rows {
		gain := mine - m.value // how much better it is than ours
		if c.higher {
			gain = -gain
		}
		switch {
		case m.name == ours || math.IsNaN(gain):
		case gain > c.margin:
			better = append(better, m)
		case gain >= -c.margin:
			level = append(level, m)
		}
	}
	if len(better) == 0 {
		if len(level) == 0 {
			return fmt.Sprintf("%s: %s is best, with %s.", c.what, ours, c.format(mine))
		}
		return fmt.Sprintf("%s: none is better than %s, with %s; as good: %s.", c.what, ours, c.format(mine), names(level, nil))
	}
	slices.SortStableFunc(better, func(a, b measured) int {
		if c.higher {
			a, b = b, a
		}
		return int(math.Copysign(1, a.value-b.value))
	})
	return fmt.Sprintf("%s: **better than %s**, with %s: %s.", c.what, ours, c.format(mine), names(better, c.format))
}

// names lists rows, with their values if format is given.
func names(rows []measured, format func(float64) string) string {
	var all []string
	for _, m := range rows {
		if format != nil {
			m.name += " (" + format(m.value) + ")"
		}
		all = append(all, m.name)
	}
	return strings.Join(all, ", ")
}

// judge is verdict for what results hold; ok tells which do.
func judge(results []*result, ours string, c contest, value func(*result) (v float64, ok bool)) string {
	var rows []measured
	for _, r := range results {
		if v, ok := value(r); ok {
			rows = append(rows, measured{r.Strategy, v})
		}
	}
	return c.verdict(ours, rows)
}

// The units of verdicts.
func count(v float64) string      { return fmt.Sprintf("%.0f", v) }
func millis(v float64) string     { return number(v) + " ms" }
func overMillis(v float64) string { return fmt.Sprintf("%+.1f ms", v) }
func micros(v float64) string     { return fmt.Sprintf("%.2f µs", v) }
func percent(v float64) string    { return fmt.Sprintf("%.0f %%", 100*v) }
func perSecond(v float64) string  { return number(v) + " a second" }
func secs(v float64) string       { return fmt.Sprintf("%.2f s", v) }
