package main

import (
	"fmt"
	"regexp"
)

// A reach is one line of the table: a figure, and what it is to be. This file
// is the only place where that is written.
type reach struct {
	what   string
	figure figure
	goal   goal
}

// A goal is what a figure is to reach; the zero goal is a figure that is only
// shown.
type goal struct {
	atLeast, atMost float64
	bound           bool
}

func least(v float64) goal { return goal{atLeast: v, bound: true} }
func most(v float64) goal  { return goal{atMost: v, bound: true} }

// shown is a figure without a goal.
var shown goal

// reached tells whether v is at the goal.
func (g goal) reached(v float64) bool {
	if g.atLeast > 0 {
		return v >= g.atLeast
	}
	return v <= g.atMost
}

func (g goal) text(unit string) string {
	switch {
	case !g.bound:
		return ""
	case unit == "kept":
		return "kept"
	case g.atLeast > 0:
		return "≥ " + number(g.atLeast, unit)
	}
	return "≤ " + number(g.atMost, unit)
}

// Where a figure comes from: a benchmark, or the load test.
type figure interface {
	// of reads the figure; ok is false if it was not measured.
	of(m measured) (r reading, ok bool)
}

// Packages with benchmarks.
const (
	root       = "."
	guard      = "./cacheguard"
	redisstore = "./cacheguard/store/redisstore"
	overHTTP   = "./middleware"
)

// chapters are the tables.
var chapters = []chapter{
	{"Hits", "1 KiB, values that are bytes. Bare is the GET of the same client.", []reach{
		{"hit in Redis, distinct keys, 1 goroutine", faster("Hit/redis/1KiB/goroutines=1"), least(0.95)},
		{"hit in Redis, distinct keys, 32 goroutines", faster("Hit/redis/1KiB/goroutines=32"), least(0.95)},
		{"allocations of a hit in Redis", moreAllocs("Hit/redis/1KiB/goroutines=1"), most(4)},
		{"allocations of a hit in Redis, 32 goroutines", moreAllocs("Hit/redis/1KiB/goroutines=32"), most(4)},
		{"hit in Redis, one hot key, 32 goroutines", faster("Hit/redis-hotkey/1KiB/goroutines=32"), least(4)},
		{"hit in Redis, pipelined, distinct keys, 256 goroutines", together("Crowd/distinct/goroutines=256"), least(4)},
		{"hit in the near cache", ours("Hit/near/1KiB/goroutines=1", "ns/op"), most(100)},
		{"allocations of a hit in the near cache", ours("Hit/near/1KiB/goroutines=1", "allocs/op"), most(0)},
		{"hit in Redis, 16 KiB, 1 goroutine", faster("Hit/redis/16KiB/goroutines=1"), shown},
		{"hit in Redis, 16 KiB, 32 goroutines", faster("Hit/redis/16KiB/goroutines=32"), shown},
		{"100 hits in one GetMany, beside MGET", faster("GetMany/redis"), shown},
	}},
	{"HTTP middleware", "1 KiB, from the near cache, without a socket. Bare is the handler.", []reach{
		{"hit", more("Middleware/hit", "ns/op"), most(600)},
		{"allocations of a hit", moreAllocs("Middleware/hit"), most(8)},
		{"request that is passed by", more("Middleware/bypass", "ns/op"), most(200)},
		{"allocations of that", moreAllocs("Middleware/bypass"), shown},
	}},
	{"Fills and misses", "Processor time of the server. Bare is a SET of as many bytes; of a miss, a GET and a SET.", []reach{
		{"fill of 256 KiB", serverTime("Fill/fill/256KiB"), most(1.2)},
		{"SET of 256 KiB and a script that does nothing, in one pipeline", serverTime("Fill/floor/256KiB"), shown},
		{"fill of 1 MiB", serverTime("Fill/fill/1MiB"), shown},
		{"fill of 16 KiB", serverTime("Fill/fill/16KiB"), shown},
		{"fill of 1 KiB", serverTime("Fill/fill/1KiB"), shown},
		{"miss, 1 KiB: read, claim and fill", serverTime("Miss/redis"), shown},
	}},
	{"Followers", "4 processes; from when the holder knows that its fill has landed to when a follower has the value.", []reach{
		{"one key, median", wake("Wake/keys=1", "p50-ms", "200x"), most(0.5)},
		{"one key, slowest 1 %", wake("Wake/keys=1", "p99-ms", "200x"), most(3)},
		{"1,000 keys one after the other, slowest 1 %", wake("Wake/keys=1000", "p99-ms", "2x"), most(5)},
	}},
	{"Storms", "A key that no cache has; processes × callers in each. From the load test, with processes of their own.", storms()},
	{"Faults", "From the load test: 4 processes with 50 callers each.", []reach{
		{"holder killed in a load of 300 ms: until all others have the value, longest (lease 600 ms, load 300 ms, 5 ms)", slowestRecovery{crash}, most(905)},
		{"stale values after a write in mid-load", staleValues{faults, "invalidate"}, most(0)},
		{"stale values after a holder was stopped past its lease", staleValues{faults, "pause"}, most(0)},
		{"stale values after a holder was cut off from Redis", staleValues{faults, "partition"}, most(0)},
		{"failing origin: at most two loads in a cooldown", kept{faults, "failing-origin", "P6"}, least(1)},
		{"Redis hangs: first calls within the store's timeout", kept{faults, "redis-hang", "first"}, least(1)},
		{"Redis hangs: then half of the calls within 1 ms of none", kept{faults, "redis-hang", "open"}, least(1)},
		{"Redis hangs: one load at a time for each process", kept{faults, "redis-hang", "P8"}, least(1)},
		{"Redis hangs: used again after 2 s", kept{faults, "redis-hang", "back"}, least(1)},
	}},
	{"Crowds", "In one process, on a store that answers at once. Bare is a call in a crowd of 100 callers, or of 1,000 keys. A crowd of 10,000 costs a plain singleflight more for each, too, than one of 100 does: that is the floor.", []reach{
		{"10,000 callers of one key: how much more than at the floor a call costs", inPackage(guard, "Crowd/callers=10000", "x-of-floor"), most(1.5)},
		{"10,000 callers of one key, each", slower("Crowd/callers=10000"), shown},
		{"the same, processor time", inPackage(guard, "Crowd/callers=10000", "cpu-x-of-small"), shown},
		{"100,000 keys, each", slower("Crowd/keys=100000"), most(1.5)},
		{"the same, processor time", inPackage(guard, "Crowd/keys=100000", "cpu-x-of-small"), most(1.5)},
	}},
	{"Memory", "Heap and stacks.", []reach{
		{"a caller that waits, with its goroutine", inPackage(guard, "Memory/caller", "bytes"), shown},
		{"a goroutine that is blocked on a channel, and nothing else", inPackage(guard, "Memory/goroutine", "bytes"), shown},
		{"a caller that waits, with a context that can end", inPackage(guard, "Memory/cancellable", "bytes"), shown},
		{"a key whose load is under way, with its first caller", inPackage(guard, "Memory/flight", "bytes"), shown},
		{"a request that waits for a page, with its recorder", inPackage(overHTTP, "Memory/request", "bytes"), shown},
		{"a request that waits in a bare handler, with its recorder", inPackage(overHTTP, "Memory/bare", "bytes"), shown},
		{"a key that is idle", inPackage(guard, "Memory/idle", "bytes"), shown},
		{"a copy of 1 KiB in the near cache", inPackage(guard, "Memory/near", "bytes"), shown},
	}},
	{"Steps", "What a hit, a miss and a fill are made of.", []reach{
		{"guard: a hit, on a store that answers at once", ours("Step/guard", "ns/op"), shown},
		{"store: the name of a key", inPackage(redisstore, "Step/name", "ns/op"), shown},
		{"store: decoding an entry of 1 KiB", inPackage(redisstore, "Step/decode/1KiB", "ns/op"), shown},
		{"store: decoding an entry of 256 KiB", inPackage(redisstore, "Step/decode/256KiB", "ns/op"), shown},
		{"store: encoding an entry of 1 KiB", inPackage(redisstore, "Step/encode/1KiB", "ns/op"), shown},
		{"store: encoding an entry of 256 KiB", inPackage(redisstore, "Step/encode/256KiB", "ns/op"), shown},
		{"client: GET of 1 KiB", ours("Hit/redis/1KiB/goroutines=1", "bare-ns/op"), shown},
		{"client: PING", ours("Step/read", "bare-ns/op"), shown},
		{"read of what is not there", ours("Step/read", "ns/op"), shown},
		{"claim", ours("Step/claim", "ns/op"), shown},
		{"fill of 1 KiB", ours("Fill/fill/1KiB", "ns/op"), shown},
		{"fill of 256 KiB", ours("Fill/fill/256KiB", "ns/op"), shown},
		{"Redis: PING", ours("Step/read", "bare-redis-ns/op"), shown},
		{"Redis: read of what is not there", ours("Step/read", "redis-ns/op"), shown},
		{"Redis: claim", ours("Step/claim", "redis-ns/op"), shown},
		{"Redis: fill of 1 KiB", ours("Fill/fill/1KiB", "redis-ns/op"), shown},
		{"Redis: fill of 256 KiB", ours("Fill/fill/256KiB", "redis-ns/op"), shown},
	}},
}

// A chapter is a table of its own.
type chapter struct {
	title, notes string
	lines        []reach
}

// The load test's runs.
var (
	crash  = stage{scenarios: "crash", replicas: 4, clients: 50, load: "300ms", rounds: 5}
	faults = stage{scenarios: "invalidate,pause,partition,failing-origin,redis-hang", replicas: 4, clients: 50, load: "100ms", rounds: 5}
)

// storms are the lines of all shapes.
func storms() (lines []reach) {
	var all []stage
	for _, s := range []stage{
		{replicas: 4, clients: 50, load: "100ms"}, {replicas: 8, clients: 50, load: "100ms"},
		{replicas: 4, clients: 250, load: "100ms"}, {replicas: 8, clients: 250, load: "100ms"},
		{replicas: 4, clients: 50, load: "10ms"}, {replicas: 4, clients: 50, load: "1s"},
	} {
		s.scenarios = "cold"
		all = append(all, s)
		lines = append(lines, reach{
			fmt.Sprintf("%d×%d, load of %s: slowest 1 %% over the floor", s.replicas, s.clients, s.load), overFloor{s}, most(1.5)})
	}
	return append(lines,
		reach{"loads in one storm, most in any of them", mostLoads(all), most(1)},
		reach{"commands that a process sends, mean of the busiest storm", mostCommands(all), most(3)})
}

// lines are those whose text matches.
func wantedBy(only *regexp.Regexp) (w chaptersWanted) {
	for _, c := range chapters {
		kept := chapter{title: c.title, notes: c.notes}
		for _, l := range c.lines {
			if only.MatchString(c.title + ": " + l.what) {
				kept.lines = append(kept.lines, l)
			}
		}
		if len(kept.lines) > 0 {
			w = append(w, kept)
		}
	}
	return w
}

type chaptersWanted []chapter

// benchmarks are the benchmarks that the lines need, each once.
func (w chaptersWanted) benchmarks() (all []benchmark) {
	seen := map[benchmark]bool{}
	for _, c := range w {
		for _, l := range c.lines {
			if f, ok := l.figure.(benchFigure); ok && !seen[f.benchmark] {
				seen[f.benchmark] = true
				all = append(all, f.benchmark)
			}
		}
	}
	return all
}

// stages are the runs of the load test that the lines need, each once.
func (w chaptersWanted) stages() (all []stage) {
	seen := map[stage]bool{}
	for _, c := range w {
		for _, l := range c.lines {
			if f, ok := l.figure.(interface{ stages() []stage }); ok {
				for _, s := range f.stages() {
					if !seen[s] {
						seen[s] = true
						all = append(all, s)
					}
				}
			}
		}
	}
	return all
}
