package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// What is here is common to the scenarios in which the process that loads comes
// to grief: crash and pause.

// tuneLoads is how many loads each process does before, so that its leases
// follow their length. The slowest counts for nothing then.
const tuneLoads = 4

// tuneAll lets all processes load a few products.
func tuneAll(ctx context.Context, sh *show) error {
	errs := make([]error, len(sh.fleet.replicas))
	var wg sync.WaitGroup
	for i, r := range sh.fleet.replicas {
		wg.Go(func() { errs[i] = sh.tune(ctx, r, fmt.Sprintf("tuning%d", i)) })
	}
	wg.Wait()
	return firstOf(errs)
}

// tune lets one process load a few products, under keys with a prefix, if it is
// of a mode that has leases.
func (sh *show) tune(ctx context.Context, r *replica, prefix string) error {
	if sh.mode != "guard" {
		return nil
	}
	for n := range tuneLoads {
		key := prefix + "-" + sh.key(n)
		sh.origin.create(key)
		if err := sh.firstCallerOf(r).get(ctx, productPath(key)).problem(key); err != nil {
			return fmt.Errorf("tuning: %w", err)
		}
	}
	return nil
}

func firstOf(errs []error) error {
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		return errs[i]
	}
	return nil
}

// takeover is a round in which one process loads, the callers of all others
// wait for that, and the load never ends.
type takeover struct {
	*show
	holder *replica
	rest   *fleet      // without the holder
	before []counters  // of the rest
	first  chan answer // to the caller of the holder
	others chan []answer
}

// begin lets one process load key and the callers of the others wait, and
// returns in the middle of the load. Its caller must collect all answers. In
// each round the process is another one.
func (sh *show) begin(ctx context.Context, n int, key string) (t *takeover, err error) {
	holder := sh.fleet.replicas[n%len(sh.fleet.replicas)]
	t = &takeover{show: sh, holder: holder, rest: sh.fleet.without(holder), first: make(chan answer, 1), others: make(chan []answer, 1)}
	if t.before, err = t.rest.counters(ctx); err != nil {
		return nil, err
	}
	sh.origin.create(key)
	go func() { t.first <- sh.firstCallerOf(holder).get(ctx, productPath(key)) }()
	// Nobody else has asked: once the origin is asked, it is by the holder.
	if err := sh.awaitLoad(ctx); err != nil {
		<-t.first
		return nil, err
	}
	middle := time.Now().Add(sh.opts.load / 2)
	go func() { t.others <- askNow(ctx, sh.callersBut(holder), key) }()
	if err := pause(ctx, time.Until(middle)); err != nil {
		<-t.first
		<-t.others
		return nil, err
	}
	return t, nil
}

// callersBut returns the callers that are connected to other processes.
func (sh *show) callersBut(r *replica) []*caller {
	return slices.DeleteFunc(slices.Clone(sh.callers), func(c *caller) bool { return c.replica == r })
}

// end adds to the round what was counted since it began: by the origin, and by
// the others' processes.
func (t *takeover) end(ctx context.Context, r *round) error {
	if err := t.origin.settle(ctx); err != nil {
		return err
	}
	r.takeovers = t.origin.loads(r.key) - 1
	after, err := t.rest.counters(ctx)
	if err != nil {
		return err
	}
	for i := range after {
		r.unanswered += after[i].unanswered - t.before[i].unanswered
	}
	return nil
}

// askNow lets callers ask for a product and returns their answers.
func askNow(ctx context.Context, callers []*caller, key string) []answer {
	answers := make([]answer, len(callers))
	var wg sync.WaitGroup
	for i, c := range callers {
		wg.Go(func() { answers[i] = c.get(ctx, productPath(key)) })
	}
	wg.Wait()
	return answers
}

// again runs a round until the load was still under way when it was to be: a
// machine that stops for half a load ends it too early.
func (sh *show) again(n int, run func(key string) (r round, inTime bool, err error)) (round, error) {
	for attempt := range maxAttempts {
		r, inTime, err := run(fmt.Sprintf("%s-%d", sh.key(n), attempt))
		if err != nil || inTime {
			return r, err
		}
	}
	return round{}, fmt.Errorf("the load was over before anything could be done to its process, %d times in a row; use a longer -load than %v", maxAttempts, sh.opts.load)
}

const maxAttempts = 3
