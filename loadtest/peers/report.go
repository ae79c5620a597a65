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

// report is what -json writes.
type report struct {
	Date    string
	Go      string
	CPUs    int
	Redis   string
	Load    string // of the machine when it began
	Seconds float64
	Results []*result
}

// result is all of one strategy. What was not measured is absent.
type result struct {
	Strategy string
	How      string
	Version  string   `json:",omitempty"`
	Storms   []storms `json:",omitempty"`
	Faults   *faults  `json:",omitempty"`
	Outage   *outage  `json:",omitempty"`
	Hits     []hit    `json:",omitempty"`
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

// tables are the whole report for people.
func (r report) tables() []table {
	all := []table{r.strategyTable()}
	for i, s := range shapes {
		if t := r.stormTable(s, i); len(t.rows) > 0 {
			all = append(all, t)
		}
	}
	for _, t := range []table{r.faultTable(), r.outageTable(), r.hitTable()} {
		if len(t.rows) > 0 {
			all = append(all, t)
		}
	}
	return all
}

func (r report) strategyTable() table {
	t := table{title: "What was compared", head: []string{"strategy", "version", "how"}}
	for _, res := range r.Results {
		t.rows = append(t.rows, []string{res.Strategy, res.Version, res.How})
	}
	return t
}

func (r report) stormTable(s shape, i int) table {
	t := table{
		title: fmt.Sprintf("Storm: %d processes, %d callers in each, one missing key, a load of %v", s.Processes, s.Callers, stormLoad),
		notes: "Loads: of the origin in one storm, fewest to most. p99: of the callers, less the time of the load; median of the storms. " +
			"Over the floor: how much later that is than for the same callers in the same processes who only sleep as long. " +
			"Commands: that one process sent to Redis, on average, in the median storm.",
		head: []string{"strategy", "loads", "p99 ms", "over the floor ms", "commands", "errors"},
	}
	for _, res := range r.Results {
		if i >= len(res.Storms) {
			continue
		}
		st := res.Storms[i]
		t.rows = append(t.rows, []string{res.Strategy, span(st.Loads), fmt.Sprintf("%+.1f", median(st.P99)-ms(stormLoad)),
			fmt.Sprintf("%+.1f", st.overFloor()), number(median(st.Commands)), fmt.Sprint(st.Errors + st.Wrong)})
	}
	return t
}

func (r report) faultTable() table {
	t := table{
		title: fmt.Sprintf("A holder is killed or stopped, a key is deleted: 4 processes, a load of %v", faultLoad),
		notes: fmt.Sprintf("Killed: how long the slowest caller of the other processes waited after the holder was killed %v into its load "+
			"(of which a load is %v), median and most of the keys, the loads of one key, the killed one's among them, and how many of the others' callers got an error. "+
			"Stopped: the holder is stopped in mid-load, past any lease; the value changes, the key is deleted, another process stores the new value; the holder goes on. "+
			"Deleted: the value changes and the key is deleted in mid-load. Both: keys that some process answers with the old value in the end, of all. "+
			"Late reads: reads that began after the delete had returned and got the old value, of all.", inLoad, faultLoad),
		head: []string{"strategy", "killed: wait s", "killed: loads", "killed: errors", "stopped: old in the end", "deleted: old in the end", "late reads: old"},
	}
	for _, res := range r.Results {
		f := res.Faults
		if f == nil {
			continue
		}
		t.rows = append(t.rows, []string{res.Strategy,
			fmt.Sprintf("%.2f / %.2f", median(f.KillWait)/1000, slices.Max(f.KillWait)/1000), span(f.KillLoads), fmt.Sprint(f.KillErrors),
			fmt.Sprintf("%d of %d", f.StopStale, f.StopKeys), fmt.Sprintf("%d of %d", f.DeleteStale, f.DeleteKeys),
			fmt.Sprintf("%d of %d", f.LateStale, f.LateReads)})
	}
	return t
}

func (r report) outageTable() table {
	t := table{
		title: fmt.Sprintf("The origin fails; Redis is stopped for %v: %d processes, %d callers in each", hangFor, crowd, crowdCallers),
		notes: fmt.Sprintf("All strategies at one time. Failing: loads of one key that always fails, of %v, in a second, all processes together, and the longest wait for the error. "+
			"Stopped: calls for a key that was there before, with a deadline of %v: how many got no value, the median and the slowest, "+
			"and the loads of the origin instead. Normal again: from Redis' return to the last call that failed or took more than %v.", stormLoad, hangDeadline, slowCall),
		head: []string{"strategy", "failing: loads/s", "longest wait ms", "stopped: no value", "median ms", "slowest ms", "loads", "normal again s"},
	}
	for _, res := range r.Results {
		o := res.Outage
		if o == nil {
			continue
		}
		t.rows = append(t.rows, []string{res.Strategy, fmt.Sprintf("%.1f", float64(o.FailLoads)/o.FailFor), number(o.FailWait),
			fmt.Sprintf("%.0f %%", 100*float64(o.Failed)/float64(o.Calls)), number(o.Median), number(o.Slowest),
			fmt.Sprint(o.HangLoads), fmt.Sprintf("%.1f", o.Recovery/1000)})
	}
	return t
}

func (r report) hitTable() table {
	t := table{
		title: "Hits: one process, one hot key of 1 KiB",
		notes: "Microseconds of the clock for each read, all goroutines together, and allocations of one read. Those with a memory answer from it, " +
			"and may so be behind another process' delete.",
		head: []string{"strategy", "from"},
	}
	for _, n := range goroutines {
		t.head = append(t.head, fmt.Sprintf("%d goroutines µs", n))
	}
	t.head = append(t.head, "allocs")
	for _, res := range r.Results {
		if len(res.Hits) == 0 {
			continue
		}
		from := "Redis"
		if res.memory {
			from = "memory"
		}
		row := []string{res.Strategy, from}
		for _, h := range res.Hits {
			row = append(row, fmt.Sprintf("%.2f", h.NanosEach/1000))
		}
		t.rows = append(t.rows, append(row, fmt.Sprintf("%.0f", res.Hits[0].Allocs)))
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

func (r report) about() string {
	return fmt.Sprintf("%s, %s, redis-server %s on the loopback, %d CPUs for everything; load of the machine at the beginning: %s; took %.0f s.",
		r.Date, r.Go, r.Redis, r.CPUs, r.Load, r.Seconds)
}

// page is the report for people.
func (r report) page() page { return page{r.about(), r.tables()} }

func writeJSON(file string, results any) error {
	data, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(data, '\n'), 0o644)
}
