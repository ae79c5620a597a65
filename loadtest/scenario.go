package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// scenario is one kind of storm. To add one is to add a row to scenarios.
type scenario struct {
	name  string
	about string // what happens, for -list

	// short is what happens, in few words, where the modes differ in what a
	// stranger wants to know; nil: it is a promise that the scenario is about.
	short func(o options) string

	// lifetime of what the fleet caches, given the time that a load takes.
	lifetime func(load time.Duration) (ttl, grace time.Duration)

	// minReplicas is how many processes it takes; 0: one.
	minReplicas int

	// apart: it is run only when it is named.
	apart bool

	// once: it has one round, whose length a flag says.
	once bool

	// proxied: each process has a proxy between itself and Redis, to be cut off.
	proxied bool

	// prepare, if set, runs once before the rounds.
	prepare func(ctx context.Context, sh *show) error

	// round runs the storm once, under a key of its own.
	round func(ctx context.Context, sh *show, n int) (round, error)

	// promises that mode guard must keep.
	promises []promise
}

// scenarios are all there are, in the order in which they run.
var scenarios = []scenario{cold, expiry, invalidate, crash, stopped, partition, redisHang, redisRestart, failingOrigin, manyKeys, deploy, httpStorm, uncacheable, vary, atARate, soak}

// show is one scenario in one mode: the fleet that is on the stage, and the
// callers that are connected to it.
type show struct {
	*stage
	scenario scenario
	mode     string
	fleet    *fleet
	callers  []*caller
}

// key names what is asked for in round n. Keys of other runs may still be in a
// Redis that was given to us, so it names the run too.
func (sh *show) key(n int) string {
	return fmt.Sprintf("%s-%s-%s-%d", sh.scenario.name, sh.mode, runID, n)
}

// runID tells this run from every other.
var runID = fmt.Sprintf("%x", time.Now().UnixMicro())

// round is what one storm brought.
type round struct {
	key        string
	keys       []string        // whose loads are counted together; nil: key alone; none: the origin is not asked
	answers    []answer        // of the storm's callers
	floor      []time.Duration // latencies of the same callers at the floor; nil: not measured
	slept      time.Duration   // by the handler of the floor
	took       time.Duration   // the load that the storm's callers waited for, as its process saw it; 0: they did not
	loads      int64           // of the key by the origin; the stage counts them
	commands   []int64         // sent by each process; nil: not counted
	found      []int64         // answers of each process that were in the cache already
	unanswered int64           // calls of the fleet that Redis did not answer in time
	errors     int64           // answers that were none: no connection, no status 200
	wrong      int64           // answers that are not a product that was asked for
	stale      int64           // answers older than what the scenario allows
	staleFor   bool            // stale was looked for
	waited     int64           // callers who waited for a load though they need not
	takeovers  int64           // loads by others after the process that loaded was gone
	outage     *outage         // what an outage of Redis brought; nil: there was none
	failing    *failing        // what a failing origin brought; nil: it did not fail
	spread     *spread         // of many products; nil: there is one
	rolled     *rolled         // what restarts brought; nil: there were none
	paged      *paged          // what was asked for over the HTTP cache; nil: nothing was
	soaked     *soaked         // what a long time brought; nil: it was short
	steady     *steadied       // what requests at a rate brought; nil: callers wait for their answers
	changes    []change        // in the loads under way; nil: the stage notes them at the end
	fault      fault           // what was done to a process or to Redis, and when
	recovery   time.Duration   // until all was well again, as the scenario means it; 0: nothing went wrong
}

// sent is how many commands the whole fleet has sent.
func (r round) sent() (n int64) {
	for _, each := range r.commands {
		n += each
	}
	return n
}

// judge counts what is wrong with the answers. An answer's version must lie
// from oldest to newest.
func (r *round) judge(oldest, newest int64) {
	for _, a := range r.answers {
		switch problem := a.problem(r.key); {
		case a.failed():
			r.errors++
		case problem != nil || a.product.Version > newest:
			r.wrong++
		case a.product.Version < oldest:
			r.stale++
		}
	}
}

// longLife is a lifetime in which nothing expires while the test runs.
func longLife(time.Duration) (ttl, grace time.Duration) { return time.Hour, time.Hour }

func listScenarios(out io.Writer, o options) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, sc := range scenarios {
		fmt.Fprintf(w, "%s\t%s (about %s in each mode)\n", sc.name, sc.about, roughly(sc.takes(o)))
		for _, p := range sc.promises {
			fmt.Fprintf(w, "\t  %s: %s\n", p.name, p.text)
		}
	}
	w.Flush()
	fmt.Fprintf(out, "\nRun one with: go run ./loadtest -scenario %s\n", strings.Join(scenarioNames(), ","))
}
