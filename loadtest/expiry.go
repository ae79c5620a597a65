package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// expiry: a key whose TTL has run out, within its grace, and which the origin
// has changed meanwhile. One process loads it; nobody waits for that.
var expiry = scenario{
	name:  "expiry",
	about: "a key has just expired and is within its grace when all callers ask for it at one instant",
	short: func(o options) string {
		return fmt.Sprintf("%d callers ask at once for a product that has just expired", o.callers())
	},
	lifetime: func(load time.Duration) (ttl, grace time.Duration) {
		// Long against the load, so that no early refresh is drawn for what a
		// storm has rebuilt: the chance is below e^-18.
		return max(2*time.Second, 20*load), time.Hour
	},
	prepare: func(ctx context.Context, sh *show) error {
		if err := sh.warm(ctx, "", sh.opts.rounds); err != nil {
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
		r, err := sh.measured(ctx, n, 0)
		r.judge(newest-1, newest)
		for _, a := range r.answers {
			if a.state == "rebuilt" || a.state == "followed" {
				r.waited++
			}
		}
		return r, err
	},
	promises: []promise{oneLoad, nobodyWaits, rightAnswers, nearFloor},
}

// warm makes n products, under the rounds' keys with a prefix, and puts them
// into the cache: each through one process, and each process one at a time.
func (sh *show) warm(ctx context.Context, prefix string, n int) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i, replica := range sh.fleet.replicas {
		wg.Go(func() {
			for i := i; i < n; i += len(sh.fleet.replicas) {
				key := prefix + sh.key(i)
				sh.origin.create(key)
				errs[i] = sh.firstCallerOf(replica).get(ctx, productPath(key)).problem(key)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
