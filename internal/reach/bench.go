package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/perf/benchfmt"
	"golang.org/x/perf/benchmath"
)

// A benchmark is one that Go runs, by its name without the word Benchmark and
// without the number of processors.
type benchmark struct {
	pkg, name string
	times     string // as -benchtime takes it; empty: the flag's
}

// samples are what each benchmark has reported, by unit.
type samples map[benchmark]map[string][]float64

// A benchFigure is a figure of one benchmark.
type benchFigure struct {
	benchmark
	ours, bare string // units; no bare: there is nothing beside it
	unit       string // of the figure
	compare    string // the unit that holds the comparison; empty: ours, less bare if there is one
}

// faster is how many times as fast as bare it is.
func faster(name string) figure {
	return benchFigure{benchmark{pkg: root, name: name}, "ns/op", "bare-ns/op", "x", "x-of-bare"}
}

// slower is how much longer one operation takes than in a smaller crowd.
func slower(name string) figure {
	return benchFigure{benchmark{pkg: guard, name: name}, "ns/op", "small-ns/op", "x", "x-of-small"}
}

// serverTime is how much more processor time of the server it takes.
func serverTime(name string) figure {
	return benchFigure{benchmark{pkg: root, name: name}, "redis-ns/op", "bare-redis-ns/op", "x", "redis-x-of-bare"}
}

func moreAllocs(name string) figure {
	return benchFigure{benchmark{pkg: root, name: name}, "allocs/op", "bare-allocs/op", "allocs/op", "more-allocs/op"}
}

// more is by how much it exceeds bare.
func more(name, unit string) figure {
	return benchFigure{benchmark{pkg: root, name: name}, unit, "bare-" + unit, unit, ""}
}

func ours(name, unit string) figure { return inPackage(root, name, unit) }

func inPackage(pkg, name, unit string) figure {
	return benchFigure{benchmark{pkg: pkg, name: name}, unit, "", unitOf(unit), ""}
}

// unitOf is the unit of a reported unit: ratios all have one of their own.
func unitOf(unit string) string {
	if strings.Contains(unit, "x-of-") {
		return "x"
	}
	return unit
}

func wake(name, unit, times string) figure {
	return benchFigure{benchmark{pkg: root, name: name, times: times}, unit, "", unit, ""}
}

// A reading is a figure that was measured, with the two that it compares.
type reading struct {
	bare, ours string // for people; may be empty
	value      float64
	lo, hi     float64 // what it lies between with 95 % confidence
	unit       string
}

func (f benchFigure) of(m measured) (r reading, ok bool) {
	units := m.samples[f.benchmark]
	all := units[f.compare]
	if f.compare == "" {
		all = less(units[f.ours], units[f.bare])
	}
	if len(all) == 0 {
		return r, false
	}
	r = summary(all)
	r.unit = f.unit
	if f.bare != "" {
		r.bare = number(summary(units[f.bare]).value, f.bare)
		r.ours = number(summary(units[f.ours]).value, f.ours)
	}
	return r, true
}

// less is a less b, run by run; without b it is a.
func less(a, b []float64) []float64 {
	if len(b) != len(a) {
		return a
	}
	d := make([]float64, len(a))
	for i := range a {
		d[i] = a[i] - b[i]
	}
	return d
}

// summary is the median of some runs.
func summary(all []float64) (r reading) {
	if len(all) == 0 {
		return r
	}
	s := benchmath.AssumeNothing.Summary(benchmath.NewSample(slices.Clone(all), &benchmath.DefaultThresholds), 0.95)
	r.value, r.lo, r.hi = s.Center, s.Lo, s.Hi
	return r
}

// measure runs the benchmarks, one after the other.
func (s samples) measure(ctx context.Context, o options, all []benchmark, log io.Writer) error {
	for i, b := range all {
		fmt.Fprintf(log, "%d of %d: %s %s\n", i+1, len(all), b.pkg, b.name)
		times := b.times
		if times == "" {
			times = o.time.String()
		}
		cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", b.pattern(), "-benchtime", times,
			"-count", fmt.Sprint(o.count), b.pkg)
		cmd.Dir = o.root
		var errs bytes.Buffer
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("%s: %w\n%s%s", strings.Join(cmd.Args, " "), err, out, &errs)
		}
		if err := s.read(b, out); err != nil {
			return err
		}
	}
	return nil
}

// pattern matches this benchmark alone: go test wants a pattern for each part of
// the name.
func (b benchmark) pattern() string {
	parts := strings.Split("Benchmark"+b.name, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return strings.Join(parts, "/")
}

// read takes what go test has printed of b.
func (s samples) read(b benchmark, out []byte) error {
	r := benchfmt.NewReader(bytes.NewReader(out), b.name)
	for r.Scan() {
		switch rec := r.Result().(type) {
		case *benchfmt.SyntaxError:
			return rec
		case *benchfmt.Result:
			if !b.is(string(rec.Name.Full())) {
				continue
			}
			if s[b] == nil {
				s[b] = map[string][]float64{}
			}
			for _, v := range rec.Values {
				value, unit := v.Value, v.Unit
				if v.OrigUnit != "" { // benchfmt makes seconds of ns
					value, unit = v.OrigValue, v.OrigUnit
				}
				s[b][unit] = append(s[b][unit], value)
			}
		}
	}
	return r.Err()
}

// is tells whether go test means b by name, to which it adds the number of
// processors if that is not one.
func (b benchmark) is(name string) bool {
	added, ok := strings.CutPrefix(name, b.name)
	_, err := strconv.ParseUint(strings.TrimPrefix(added, "-"), 10, 16)
	return ok && (added == "" || added[0] == '-' && err == nil)
}
