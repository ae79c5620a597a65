package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// report is what -json writes. What was not measured is absent.
type report struct {
	Date     string
	Go       string
	CPUs     int
	Redis    string
	Load     string       // of the machine when it began
	Sections []sectionRun // that came to their end
	Results  []*result

	Reads    []read     `json:",omitempty"`
	Wake     []wake     `json:",omitempty"`
	Inside   []inside   `json:",omitempty"`
	Writes   []inside   `json:",omitempty"`
	Decoding []decoding `json:",omitempty"`
	Readers  []reading  `json:",omitempty"`
	Hangs    []hang     `json:",omitempty"`
}

// sectionRun is a section that was measured.
type sectionRun struct {
	Name    string
	Seconds float64
}

// result is all of one strategy.
type result struct {
	Strategy string
	How      string
	Version  string            `json:",omitempty"`
	Missing  map[string]string `json:",omitempty"` // why it is not in a section
	Storms   []storms          `json:",omitempty"`
	Faults   *faults           `json:",omitempty"`
	Slow     *slow             `json:",omitempty"`
	Failing  *failing          `json:",omitempty"`
	Outage   *outage           `json:",omitempty"`
	Hits     []hit             `json:",omitempty"`
	memory   bool
}

func newReport(begin time.Time, o options) report {
	rep := report{Date: begin.Format(time.DateOnly), Go: runtime.Version(), CPUs: runtime.NumCPU(), Load: loadAverage()}
	for _, s := range o.only {
		rep.Results = append(rep.Results, &result{Strategy: s.name, How: s.how, Version: version(s.module), memory: s.memory})
	}
	return rep
}

func (r report) of(s strategy) *result {
	return r.Results[slices.IndexFunc(r.Results, func(res *result) bool { return res.Strategy == s.name })]
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

// version of a module in this build.
func version(module string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok || module == "" {
		return ""
	}
	for _, dep := range info.Deps {
		if dep.Path == module {
			if dep.Replace != nil {
				return "this repository"
			}
			return dep.Version
		}
	}
	return "unknown"
}

func redisVersion(ctx context.Context, addr string) (string, error) {
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	text, err := client.Info(ctx, "server").Result()
	for line := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "redis_version:"); ok {
			return v, nil
		}
	}
	return "unknown", err
}

// page is the report for people: what was compared, and a part for each section
// that came to its end.
func (r report) page() page {
	p := page{[]part{{"strategies", r.about(), []table{r.strategyTable()}}}}
	for _, ran := range r.Sections {
		s := sections[slices.IndexFunc(sections, func(s section) bool { return s.name == ran.Name })]
		p.parts = append(p.parts, part{s.name,
			fmt.Sprintf("`go run . -section %s`, in %.0f s. %s", s.name, ran.Seconds, r.about()), s.show(r)})
	}
	return p
}

func (r report) about() string {
	return fmt.Sprintf("%s, %s, redis-server %s on the loopback, %d CPUs for everything; load of the machine at the beginning: %s.",
		r.Date, r.Go, r.Redis, r.CPUs, r.Load)
}

// missing says which strategies are not in a section's tables, and why.
func (r report) missing(section string) (words []string) {
	for _, res := range r.Results {
		if why, ok := res.Missing[section]; ok {
			words = append(words, fmt.Sprintf("%s could not be measured: %s", res.Strategy, why))
		}
	}
	return words
}

func (r report) strategyTable() table {
	t := table{title: "What was compared", head: []string{"strategy", "version", "how"}}
	for _, res := range r.Results {
		t.rows = append(t.rows, []string{res.Strategy, res.Version, res.How})
	}
	return t
}

// span is "1" if all values are 1, else "1-4".
func span(values []int) string {
	low, high := slices.Min(values), slices.Max(values)
	if low == high {
		return fmt.Sprint(low)
	}
	return fmt.Sprintf("%d-%d", low, high)
}

// number has a digit behind the point where that says something.
func number(v float64) string {
	if v >= 100 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.1f", v)
}

func of(n, all int) string { return fmt.Sprintf("%d of %d", n, all) }

func writeJSON(file string, results any) error {
	data, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(data, '\n'), 0o644)
}
