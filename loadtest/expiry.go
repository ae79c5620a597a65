package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// expiry: a key whose TTL has run out, within its grace, and which the origin
// has changed meanwhile. One process loads it; nobody waits for that.
var expiry = scenario{
	name:  "expiry",
	about: "a key has just expired and is within its grace when all callers ask for it at one instant",
	lifetime: func(load time.Duration) (ttl, grace time.Duration) {
		// Long against the load, so that no early refresh is drawn for what a
		// storm has rebuilt: the chance is below e^-18.
		return max(2*time.Second, 20*load), time.Hour
	},
	prepare: func(ctx context.Context, sh *show) error {
		if err := sh.warmAll(ctx); err != nil {
			return err
		}
		ttl, _ := sh.scenario.lifetime(sh.opts.load)
		sh.progress.say(fmt.Sprintf("expiry, mode %s: waiting %v for the keys to expire", sh.mode, ttl))
		return pause(ctx, ttl+50*time.Millisecond)
	},
	round: func(ctx context.Context, sh *show, n int) (round, error) {
		key := sh.key(n)
		sh.origin.forgetLoads(key)
		newest := sh.origin.write(key)
		r, err := sh.measured(ctx, n, productPath(key), 0)
		r.key = key
		r.judge(newest-1, newest)
		for _, a := range r.answers {
			if a.state == "rebuilt" || a.state == "followed" {
				r.waited++
			}
		}
		return r, err
	},
	promises: []promise{oneLoad, nobodyWaits, rightAnswers, nearFloor, fewCommands},
}

// warmAll puts the keys of all rounds into the cache, a few at a time, each
// through one process.
func (sh *show) warmAll(ctx context.Context) error {
	errs := make([]error, sh.opts.rounds)
	var wg sync.WaitGroup
	for i, replica := range sh.fleet.replicas {
		wg.Go(func() {
			for n := i; n < sh.opts.rounds; n += len(sh.fleet.replicas) {
				sh.origin.create(sh.key(n))
				a := sh.firstCallerOf(replica).get(ctx, productPath(sh.key(n)))
				errs[n] = a.problem(sh.key(n))
			}
		})
	}
	wg.Wait()
	return errors.Join(slices.DeleteFunc(errs, func(err error) bool { return err == nil })...)
}
