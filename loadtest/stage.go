package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"
)

// stage is what all scenarios share.
type stage struct {
	opts     options
	binary   string // of demo-api
	redis    *redisServer
	origin   *origin
	progress *progress
}

// tally is what the rounds of one scenario in one mode brought.
type tally struct {
	scenario scenario
	mode     string
	opts     options
	rounds   []round
}

// run runs the rounds of a scenario against a fleet of its own, which is gone
// when it returns. The tally holds what was measured before an error.
func (st *stage) run(ctx context.Context, sc scenario, mode string) (t tally, err error) {
	t = tally{scenario: sc, mode: mode, opts: st.opts}
	st.progress.say(fmt.Sprintf("%s, mode %s: starting %d processes", sc.name, mode, st.opts.replicas))
	ttl, grace := sc.lifetime(st.opts.load)
	fleet, err := startFleet(ctx, st.opts.replicas, st.binary, fleetArgs{
		redis: st.redis.addr, origin: st.origin.url, mode: mode, ttl: ttl, grace: grace, proxied: sc.proxied,
	})
	if err != nil {
		return t, err
	}
	defer func() { err = errors.Join(err, fleet.stop()) }()

	fleet.answered = &st.progress.answered
	callers, err := connect(ctx, fleet, st.opts.clients)
	if err != nil {
		return t, err
	}
	defer hangUp(callers)
	sh := &show{stage: st, scenario: sc, mode: mode, fleet: fleet, callers: callers}
	if err := sh.rehearse(ctx); err != nil {
		return t, err
	}
	if sc.prepare != nil {
		if err := sc.prepare(ctx, sh); err != nil {
			return t, err
		}
	}
	defer func() { st.countLoads(t.rounds) }()
	rounds := st.opts.rounds
	if sc.once {
		rounds = 1
	}
	for n := range rounds {
		st.progress.round(sc.name, mode, n+1, rounds)
		r, err := sc.round(ctx, sh, n)
		if err != nil {
			return t, errors.Join(err, fleet.died())
		}
		t.rounds = append(t.rounds, r)
	}
	return t, st.origin.settle(ctx)
}

// countLoads reads the origin's counters once all is over, so that a load that
// came late is counted to its round.
func (st *stage) countLoads(rounds []round) {
	for i := range rounds {
		r := &rounds[i]
		keys := r.keys
		if keys == nil {
			keys = []string{r.key}
		}
		for _, key := range keys {
			r.loads += st.origin.loads(key)
		}
		if r.changes == nil {
			r.changes = st.origin.changes(keys...)
		}
	}
}

// rehearse runs the storm twice without looking at it, after each process has
// asked the origin, so that everything that is opened on first use is open:
// connections to Redis and to the origin, the subscription.
func (sh *show) rehearse(ctx context.Context) error {
	if err := sh.warm(ctx, "warming", len(sh.fleet.replicas)); err != nil {
		return fmt.Errorf("rehearsal: %w", err)
	}
	for n := range 2 {
		key := fmt.Sprintf("rehearsal-%s", sh.key(n))
		sh.origin.create(key)
		if err := firstError(storm(ctx, sh.callers, productPath(key))); err != nil {
			return fmt.Errorf("rehearsal: %w", err)
		}
		if err := firstError(storm(ctx, sh.callers, floorPath(key, 0))); err != nil {
			return fmt.Errorf("rehearsal of the floor: %w", err)
		}
	}
	return sh.origin.settle(ctx)
}

// firstCallerOf returns one caller that is connected to a process.
func (sh *show) firstCallerOf(r *replica) *caller {
	return sh.callers[slices.IndexFunc(sh.callers, func(c *caller) bool { return c.replica == r })]
}

// measured runs the storm of round n and what belongs to it: the floor in the
// same minute, before the storm in even rounds and after it in odd ones so
// that neither has the warmer machine, and what the processes counted in it.
func (sh *show) measured(ctx context.Context, n int, sleep time.Duration) (r round, err error) {
	r.key = sh.key(n)
	floor := func() error {
		answers := storm(ctx, sh.callers, floorPath(r.key, sleep))
		for _, a := range answers {
			r.floor = append(r.floor, a.latency)
		}
		return firstError(answers)
	}
	if n%2 == 0 {
		if err := floor(); err != nil {
			return r, fmt.Errorf("floor: %w", err)
		}
	}
	before, err := sh.fleet.counters(ctx)
	if err != nil {
		return r, err
	}
	r.answers = storm(ctx, sh.callers, productPath(r.key))
	after, err := sh.fleet.settledCounters(ctx, sh.origin)
	if err != nil {
		return r, err
	}
	for _, replica := range sh.fleet.replicas {
		r.found = append(r.found, sh.found(r.answers, replica))
	}
	var loads int64
	var loading time.Duration
	for i := range after {
		// One look at the server's clock comes with time, not with the storm.
		clock := min(1, after[i].evals-before[i].evals)
		r.commands = append(r.commands, after[i].commands-before[i].commands-clock)
		r.unanswered += after[i].unanswered - before[i].unanswered
		loads += after[i].loads - before[i].loads
		loading += after[i].loading - before[i].loading
	}
	if r.slept = sleep; sleep > 0 && loads > 0 {
		r.took = loading / time.Duration(loads)
	}
	if n%2 == 1 {
		if err := floor(); err != nil {
			return r, fmt.Errorf("floor: %w", err)
		}
	}
	return r, ctx.Err()
}

// found counts the answers of one process that were in the cache when the caller
// came.
func (sh *show) found(answers []answer, r *replica) (n int64) {
	for i, a := range answers {
		if sh.callers[i].replica == r && (a.state == "fresh" || a.state == "stale") {
			n++
		}
	}
	return n
}

// storm lets all callers ask for path at one instant and returns their answers.
// The requests are sent before and held by the processes until that instant,
// from which latency counts: a caller that is late waits longer, not shorter.
func storm(ctx context.Context, callers []*caller, path string) []answer {
	answers := askAtOnce(ctx, callers, func(i int, at time.Time) []byte { return callers[i].requestAt(path, at) })
	for i := range answers {
		answers[i].decode()
	}
	return answers
}

// askAtOnce is a storm in which each caller has a request of its own. The
// answers are not decoded.
func askAtOnce(ctx context.Context, callers []*caller, request func(i int, at time.Time) []byte) []answer {
	runtime.GC() // now rather than in the middle
	answers := make([]answer, len(callers))
	begin := time.Now().Add(stormLead + time.Duration(len(callers))*stormLeadEach)
	var wg sync.WaitGroup
	for i, c := range callers {
		wg.Go(func() { answers[i] = c.roundTrip(ctx, request(i, begin), begin) })
	}
	wg.Wait()
	return answers
}

// A storm begins this long after its first request is sent, which is several
// times what it takes until the last has been read.
const (
	stormLead     = 50 * time.Millisecond
	stormLeadEach = 200 * time.Microsecond
)

func firstError(answers []answer) error {
	for _, a := range answers {
		if a.failed() {
			return a.err
		}
	}
	return nil
}
