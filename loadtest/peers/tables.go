package main

import (
	"fmt"
	"math"
	"slices"
)

// The tables of strategies, with words on who is better than cacheguard.

func (r report) stormTables() (all []table) {
	for i, s := range shapes {
		if slices.ContainsFunc(r.Results, func(res *result) bool { return i < len(res.Storms) }) {
			all = append(all, r.stormTable(s, i))
		}
	}
	return all
}

func (r report) stormTable(s shape, i int) table {
	t := table{
		title: fmt.Sprintf("Storm: %d processes, %d callers in each, one missing key, a load of %v", s.Processes, s.Callers, stormLoad),
		notes: "Loads: of the origin in one storm, fewest to most. p99: of the callers, less the time of the load; median of the storms. " +
			"Over the floor: how much later that is than for the same callers in the same processes who only sleep as long. " +
			"Redis gets a processor before the fleet, if the user may let it, as it would on a machine of its own. " +
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
	judge := func(c contest, value func(storms) float64) string {
		return judge(r.Results, guarded.name, c, func(res *result) (float64, bool) {
			if i >= len(res.Storms) {
				return 0, false
			}
			return value(res.Storms[i]), true
		})
	}
	noise := r.stormNoise(i)
	t.words = []string{
		judge(contest{what: "Loads", format: count}, func(s storms) float64 { return float64(slices.Max(s.Loads)) }),
		judge(contest{what: fmt.Sprintf("The tail over the floor (less than %.1f ms says nothing)", noise), margin: noise, format: overMillis}, storms.overFloor),
		judge(contest{what: "Commands", margin: 0.5, format: number}, func(s storms) float64 { return median(s.Commands) }),
	}
	t.words = append(t.words, r.missing("storm")...)
	return t
}

// stormNoise is how much the storms and floors of one strategy differ among
// themselves, at least a millisecond: the median over the strategies of half
// the distance of their quartiles.
func (r report) stormNoise(i int) float64 {
	var spreads []float64
	for _, res := range r.Results {
		if i < len(res.Storms) {
			spreads = append(spreads, halfSpread(res.Storms[i].P99)+halfSpread(res.Storms[i].Floor))
		}
	}
	return max(1, median(spreads))
}

func halfSpread(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[n-1-n/4] - sorted[n/4]) / 2
}

func (r report) faultTables() []table {
	t := table{
		title: fmt.Sprintf("A holder is killed or stopped, a key is deleted: %d processes, a load of %v", faultFleet, faultLoad),
		notes: fmt.Sprintf("Killed: how long the slowest caller of the other processes waited after the holder was killed %v into its load "+
			"(of which a load is %v), median and most of the keys, the loads of one key, the killed one's among them, and how many of the others' callers got an error. "+
			"Stopped: the holder is stopped in mid-load, past any lease; the value changes, the key is deleted, another process stores the new value; the holder goes on. "+
			"Deleted: the value changes and the key is deleted in mid-load; nobody reads it until all is quiet. Read: the same, but two processes read it at once. "+
			"All three: keys that some process answers with the old value in the end, of all. "+
			"Late reads: those reads, which began after the delete had returned, that got the old value, of all.", inLoad, faultLoad),
		head: []string{"strategy", "killed: wait s", "killed: loads", "killed: errors", "stopped: old", "deleted: old", "read: old", "late reads: old"},
	}
	for _, res := range r.Results {
		f := res.Faults
		if f == nil {
			continue
		}
		t.rows = append(t.rows, []string{res.Strategy,
			fmt.Sprintf("%.2f / %.2f", median(f.KillWait)/1000, slices.Max(f.KillWait)/1000), span(f.KillLoads), fmt.Sprint(f.KillErrors),
			of(f.StopStale, f.StopKeys), of(f.DeleteStale, f.DeleteKeys), of(f.ReadStale, f.ReadKeys), of(f.LateStale, f.LateReads)})
	}
	judge := func(c contest, value func(*faults) float64) string {
		return judge(r.Results, guarded.name, c, func(res *result) (float64, bool) {
			if res.Faults == nil {
				return 0, false
			}
			return value(res.Faults), true
		})
	}
	t.words = []string{
		judge(contest{what: "The wait after a kill", margin: 0.05, format: secs}, func(f *faults) float64 { return median(f.KillWait) / 1000 }),
		judge(contest{what: "Loads of a key whose holder is killed", format: count}, func(f *faults) float64 { return float64(slices.Max(f.KillLoads)) }),
		judge(contest{what: "Old values in the end, of all three", format: count}, func(f *faults) float64 { return float64(f.StopStale + f.DeleteStale + f.ReadStale) }),
		judge(contest{what: "Late reads that are old", format: count}, func(f *faults) float64 { return float64(f.LateStale) }),
	}
	t.words = append(t.words, r.missing("fault")...)
	return []table{t}
}

func (r report) slowTables() []table {
	t := table{
		title: fmt.Sprintf("Loads of %v, under locks of %v: %d clients", slowLoad, lockLife, slowFleet),
		notes: fmt.Sprintf("All strategies at one time, each client a process that asks again and again for one key. A lock that its holder renews, or whose length follows the loads, does not end in mid-load. "+
			"At once: loads of it under way at one time, at most. Cached: calls that were answered within %v, of all. Failed: calls without a value within %v.", answersAtOnce, slowDeadline),
		head: []string{"strategy", "loads", "at once", "cached", "failed"},
	}
	for _, res := range r.Results {
		if s := res.Slow; s != nil {
			t.rows = append(t.rows, []string{res.Strategy, fmt.Sprint(s.Loads), fmt.Sprint(s.AtOnce), of(s.Cached, s.Calls), fmt.Sprint(s.Failed)})
		}
	}
	judge := func(c contest, value func(*slow) float64) string {
		return judge(r.Results, guarded.name, c, func(res *result) (float64, bool) {
			if res.Slow == nil {
				return 0, false
			}
			return value(res.Slow), true
		})
	}
	t.words = []string{
		judge(contest{what: "Loads", format: count}, func(s *slow) float64 { return float64(s.Loads) }),
		judge(contest{what: "Calls answered from a cache", higher: true, margin: 0.02, format: percent},
			func(s *slow) float64 { return float64(s.Cached) / float64(s.Calls) }),
	}
	return []table{t}
}

func (r report) failingTables() []table {
	t := table{
		title: fmt.Sprintf("An origin that always fails, after %v: %d processes, %d callers in each", stormLoad, crowd, crowdCallers),
		notes: "All strategies at one time. Once: all callers ask for one key at one instant: the loads of it, and how long the slowest waited for the error. " +
			"Again: they ask as soon as they have had the error and a pause: loads a second of all processes together, and the longest wait.",
		head: []string{"strategy", "once: loads", "once: slowest ms", "again: loads/s", "again: slowest ms"},
	}
	for _, res := range r.Results {
		if f := res.Failing; f != nil {
			t.rows = append(t.rows, []string{res.Strategy, fmt.Sprint(f.OnceLoads), number(f.OnceWait), number(float64(f.Loads) / f.For), number(f.Wait)})
		}
	}
	judge := func(c contest, value func(*failing) float64) string {
		return judge(r.Results, guarded.name, c, func(res *result) (float64, bool) {
			if res.Failing == nil {
				return 0, false
			}
			return value(res.Failing), true
		})
	}
	t.words = []string{
		judge(contest{what: "Loads for all callers at once", format: count}, func(f *failing) float64 { return float64(f.OnceLoads) }),
		judge(contest{what: "The slowest of them", margin: 20, format: millis}, func(f *failing) float64 { return f.OnceWait }),
		judge(contest{what: "Loads a second", margin: 0.3, format: perSecond}, func(f *failing) float64 { return float64(f.Loads) / f.For }),
		judge(contest{what: "The longest wait", margin: 20, format: millis}, func(f *failing) float64 { return f.Wait }),
	}
	return []table{t}
}

func (r report) outageTables() []table {
	t := table{
		title: fmt.Sprintf("Redis does not answer for some seconds: %d processes, %d callers in each", crowd, crowdCallers),
		notes: fmt.Sprintf("All strategies at one time. Calls, each with a deadline of %v, for a key that was there before: how many got no value, the median and the slowest, "+
			"and the loads of the origin instead, of %v. Normal again: from Redis' return to the last call that failed or took more than %v.", hangDeadline, stormLoad, slowCall),
		head: []string{"strategy", "no value", "median ms", "slowest ms", "loads", "normal again s"},
	}
	share := func(o *outage) float64 { return float64(o.Failed) / float64(o.Calls) }
	for _, res := range r.Results {
		if o := res.Outage; o != nil {
			t.rows = append(t.rows, []string{res.Strategy, percent(share(o)), number(o.Median), number(o.Slowest),
				fmt.Sprint(o.HangLoads), fmt.Sprintf("%.1f", o.Recovery/1000)})
		}
	}
	judge := func(c contest, value func(*outage) float64) string {
		return judge(r.Results, guarded.name, c, func(res *result) (float64, bool) {
			if res.Outage == nil {
				return 0, false
			}
			return value(res.Outage), true
		})
	}
	t.words = []string{
		judge(contest{what: "Calls without a value", margin: 0.005, format: percent}, share),
		judge(contest{what: "The median call", margin: 5, format: millis}, func(o *outage) float64 { return o.Median }),
		judge(contest{what: "The slowest call", margin: 20, format: millis}, func(o *outage) float64 { return o.Slowest }),
		judge(contest{what: "Loads", margin: 5, format: count}, func(o *outage) float64 { return float64(o.HangLoads) }),
	}
	return []table{t}
}

func (r report) hitTables() []table {
	t := table{
		title: "Hits: one process, one hot key of 1 KiB",
		notes: "Microseconds of the clock for each read, by so many goroutines at once, all together, and allocations of one read. Those with a memory answer from it, " +
			"and may so be behind another process' delete. So may those that read inside a singleflight, which give a caller the answer to a GET that was sent before it came: " +
			"that is the old value of the late reads. cacheguard gives it the next one.",
		head: []string{"strategy", "from"},
	}
	for _, n := range goroutines {
		t.head = append(t.head, fmt.Sprintf("µs, %d at once", n))
	}
	t.head = append(t.head, "allocs")
	from := map[bool]string{false: "Redis", true: "memory"}
	for _, res := range r.Results {
		if len(res.Hits) == 0 {
			continue
		}
		row := []string{res.Strategy, from[res.memory]}
		for _, h := range res.Hits {
			row = append(row, fmt.Sprintf("%.2f", h.NanosEach/1000))
		}
		t.rows = append(t.rows, append(row, fmt.Sprintf("%.0f", res.Hits[0].Allocs)))
	}
	for _, ours := range []strategy{guarded, guardedNear} {
		for i, n := range goroutines {
			c := contest{what: fmt.Sprintf("From %s, %d at once", from[ours.memory], n), format: micros}
			// A tenth of ours says nothing.
			if at := slices.IndexFunc(r.Results, func(res *result) bool { return res.Strategy == ours.name && i < len(res.Hits) }); at >= 0 {
				c.margin = r.Results[at].Hits[i].NanosEach / 1000 / 10
			}
			t.words = append(t.words, judge(r.Results, ours.name, c, func(res *result) (float64, bool) {
				if res.memory != ours.memory || i >= len(res.Hits) {
					return 0, false
				}
				return res.Hits[i].NanosEach / 1000, true
			}))
		}
	}
	return []table{t, r.readTable()}
}

func (r report) readTable() table {
	t := table{title: "Hits: what they are made of", head: []string{"what", "KiB"},
		notes: "One process, one key. Microseconds of the clock for each, by so many goroutines at once, all together; allocations of one."}
	for _, n := range readsAtOnce {
		t.head = append(t.head, fmt.Sprintf("µs, %d at once", n))
	}
	t.head = append(t.head, "allocs")
	for _, read := range r.Reads {
		size := "-"
		if read.Bytes > 0 {
			size = fmt.Sprint(read.Bytes >> 10)
		}
		row := []string{read.What, size}
		for _, v := range read.Nanos {
			row = append(row, fmt.Sprintf("%.3f", v/1000))
		}
		t.rows = append(t.rows, append(row, fmt.Sprintf("%.0f", read.Allocs)))
	}
	return t
}

func (r report) wakeTables() []table {
	t := table{
		title: fmt.Sprintf("Wake-up: %d processes, one of which fills", wakeFleet),
		notes: "From the instant at which the holder has the value and sends it to Redis, until another process has it, ms. One key: that three processes wait for, again and again. " +
			"At once: so many keys, filled one after another as fast as the holder can, after a load of " + stormLoad.String() + ", and what Redis' processor did from the first wait to the last value. " +
			"All but cacheguard only wake: nobody is elected, and a wake-up that is lost is not made good. cacheguard's Redis includes a look and a claim of each process.",
		head: []string{"how", "one key p50", "one key p99", "at once", "p99 of these", "Redis ms"},
	}
	column := func(what string, margin float64, value func(wake) float64) string {
		var rows []measured
		for _, w := range r.Wake {
			rows = append(rows, measured{w.Way, value(w)})
		}
		return contest{what: what, margin: margin, format: func(v float64) string { return fmt.Sprintf("%.2f ms", v) }}.verdict(wakeOurs, rows)
	}
	for _, w := range r.Wake {
		t.rows = append(t.rows, []string{w.Way, fmt.Sprintf("%.2f", w.P50), fmt.Sprintf("%.2f", w.P99), fmt.Sprint(w.Keys),
			fmt.Sprintf("%.2f", w.ManyP99), number(w.ManyCPU)})
	}
	t.words = []string{
		column("One key, p50", 0.1, func(w wake) float64 { return w.P50 }),
		column("One key, p99", 1, func(w wake) float64 { return w.P99 }),
		column("Many keys, p99", 1, func(w wake) float64 { return w.ManyP99 }),
		column("Redis' processor", 10, func(w wake) float64 { return w.ManyCPU }),
	}
	return []table{t}
}

func (r report) insideTables() []table {
	return []table{r.commandTable(), r.writeTable(), r.decodingTable(), r.readerTable()}
}

func (r report) commandTable() table {
	t := table{title: "Inside Redis: what a read, a claim and a fill of 1 KiB are made of", head: []string{"what", "in the commands µs", "processor µs"},
		notes: "In the commands: by Redis' own count (`INFO commandstats`). Processor: all that its process used (`INFO cpu`), with reading and writing the socket, for one call after another on one connection."}
	for _, c := range r.Inside {
		t.rows = append(t.rows, []string{c.What, fmt.Sprintf("%.2f", c.Command), number(c.Processor)})
	}
	read, get := find(r.Inside, oursReads, 1<<10), find(r.Inside, "GET", 1<<10)
	t.words = []string{fmt.Sprintf("A read of cacheguard costs Redis %.2f times a GET.", read.Processor/get.Processor)}
	return t
}

// find is a cost, of NaN if there is none.
func find(costs []inside, what string, bytes int) inside {
	i := slices.IndexFunc(costs, func(c inside) bool { return c.What == what && c.Bytes == bytes })
	if i < 0 {
		return inside{Command: math.NaN(), Processor: math.NaN()}
	}
	return costs[i]
}

func (r report) writeTable() table {
	t := table{title: "Inside Redis: how a value gets under its key", head: []string{"what", "KiB", "in the commands µs", "processor µs", "of a SET"},
		notes: "All but the plain SET compare first whether they may still write. Of a SET: the processor's time, in parts of that of the plain SET of the same size."}
	for _, c := range r.Writes {
		share := c.Processor / find(r.Writes, plainSet, c.Bytes).Processor
		t.rows = append(t.rows, []string{c.What, fmt.Sprint(c.Bytes >> 10), fmt.Sprintf("%.2f", c.Command), number(c.Processor), fmt.Sprintf("%.2f", share)})
		if c.What == oursFill {
			t.words = append(t.words, fmt.Sprintf("A fill of %d KiB costs Redis %.2f times a plain SET.", c.Bytes>>10, share))
		}
	}
	return t
}

func (r report) decodingTable() table {
	t := table{title: "Inside a client: taking an entry apart", head: []string{"how"},
		notes: "Nanoseconds, of a struct of three numbers and the value. cacheguard's entries have a fixed binary header, and a checksum over it."}
	for _, size := range decodingSizes {
		t.head = append(t.head, fmt.Sprintf("%d KiB ns", size>>10))
	}
	for _, d := range r.Decoding {
		row := []string{d.How}
		for _, v := range d.Nanos {
			row = append(row, number(v))
		}
		t.rows = append(t.rows, row)
	}
	return t
}

func (r report) readerTable() table {
	t := table{title: fmt.Sprintf("Inside a client: %d goroutines that GET a key of their own each", readerGoroutines),
		head: []string{"client", "thousands a second"}}
	var rows []measured
	for _, c := range r.Readers {
		rows = append(rows, measured{c.Client, c.PerSecond / 1000})
		t.rows = append(t.rows, []string{c.Client, number(c.PerSecond / 1000)})
	}
	t.words = []string{contest{what: "Thousands of reads a second", higher: true, margin: 3, format: number}.verdict(readerOurs, rows)}
	return t
}

func (r report) hangTables() []table {
	t := table{title: "How long a call can hang when Redis does", head: []string{"client", "callers", "the slowest ms"},
		notes: "Redis was stopped (SIGSTOP) after each client had a connection. A bound that depends on the client's options holds only for clients that have them; cacheguard's is its own."}
	for _, h := range r.Hangs {
		slowest := number(h.Slowest)
		if h.Over {
			slowest = "more than " + slowest
		}
		t.rows = append(t.rows, []string{h.What, fmt.Sprint(h.Callers), slowest})
	}
	return []table{t}
}
