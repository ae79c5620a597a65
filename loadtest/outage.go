package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/cacheguard-go/cacheguard/internal/faultproxy"
)

// What is here is common to the scenarios in which all processes lose Redis:
// redis-hang and redis-restart.

// outage is what a round with an outage of Redis brought.
type outage struct {
	first  time.Duration // that the slowest callers of the first storm waited over the floor
	median time.Duration // that half of the callers waited over the floor once Redis was not asked any more
	atOnce int64         // loads of the product at once
	most   int64         // loads of it in one storm
	after  int64         // loads of it in the storm that came when Redis was back
}

const (
	// storeTimeout bounds a call to Redis, by default; see redisstore.Options.
	storeTimeout = 100 * time.Millisecond

	// outageStorms open each process' breaker: it takes three calls that fail.
	outageStorms = 4

	// away is how long Redis is away at least.
	away = time.Second

	// backLimit bounds the wait for the fleet to use Redis again.
	backLimit = 30 * time.Second
)

// outageRound lets Redis go away and come back under storms.
func outageRound(ctx context.Context, sh *show, n int, leave func(), comeBack func() error) (r round, err error) {
	r = round{key: sh.key(n), outage: new(outage)}
	probe := "back-" + r.key
	for _, key := range []string{r.key, probe} {
		sh.origin.create(key)
		for _, replica := range sh.fleet.replicas {
			if err := sh.firstCallerOf(replica).get(ctx, productPath(key)).problem(key); err != nil {
				return r, fmt.Errorf("warming: %w", err)
			}
		}
	}
	floor := storm(ctx, sh.callers, floorPath(r.key, sh.opts.load))
	if err := firstError(floor); err != nil {
		return r, fmt.Errorf("floor: %w", err)
	}
	atFloor := round{answers: floor}.latencies()
	over := func(share float64, l latencies, load time.Duration) time.Duration {
		ms := (l.quantile(share) - milliseconds(load)) - (atFloor.quantile(share) - milliseconds(sh.opts.load))
		return time.Duration(ms * float64(time.Millisecond))
	}

	begin := time.Now()
	leave()
	sh.origin.forgetLoads(r.key)
	first, load, err := sh.outageStorm(ctx, &r)
	if err != nil {
		return r, err
	}
	r.outage.first = over(0.99, first, load)
	for range outageStorms {
		if _, _, err := sh.outageStorm(ctx, &r); err != nil {
			return r, err
		}
	}
	opened, load, err := sh.outageStorm(ctx, &r)
	if err != nil {
		return r, err
	}
	r.outage.median = over(0.5, opened, load)
	r.outage.atOnce = sh.origin.most(r.key)

	if err := pause(ctx, away-time.Since(begin)); err != nil {
		return r, err
	}
	if err := comeBack(); err != nil {
		return r, fmt.Errorf("Redis does not come back: %w", err)
	}
	back := time.Now()
	r.fault = fault{begin, back}
	if err := sh.awaitFresh(ctx, probe); err != nil {
		return r, err
	}
	r.recovery = time.Since(back)

	r.changes = sh.origin.changes(r.key)
	sh.origin.forgetLoads(r.key)
	err = r.countingUnanswered(ctx, sh, func() error {
		last := round{key: r.key, answers: storm(ctx, sh.callers, productPath(r.key))}
		last.judge(1, 1)
		r.add(last)
		return sh.origin.settle(ctx)
	})
	r.outage.after = sh.origin.loads(r.key)
	return r, err
}

// outageStorm is one storm while Redis is away. It returns how long the callers
// waited, and how long a load took, as the processes saw it.
func (sh *show) outageStorm(ctx context.Context, r *round) (l latencies, load time.Duration, err error) {
	before, err := sh.fleet.counters(ctx)
	if err != nil {
		return l, 0, err
	}
	asked := sh.origin.loads(r.key)
	part := round{key: r.key, answers: storm(ctx, sh.callers, productPath(r.key))}
	if err := sh.origin.settle(ctx); err != nil {
		return l, 0, err
	}
	after, err := sh.fleet.counters(ctx)
	if err != nil {
		return l, 0, err
	}
	r.outage.most = max(r.outage.most, sh.origin.loads(r.key)-asked)
	part.judge(1, 1)
	r.add(part)
	var loads int64
	var loading time.Duration
	for i := range after {
		loads += after[i].loads - before[i].loads
		loading += after[i].loading - before[i].loading
	}
	if loads > 0 {
		load = loading / time.Duration(loads)
	}
	return part.latencies(), load, ctx.Err()
}

// awaitFresh waits until every process serves a product from Redis.
func (sh *show) awaitFresh(ctx context.Context, key string) error {
	deadline := time.Now().Add(backLimit)
	waiting := slices.Clone(sh.fleet.replicas)
	for len(waiting) > 0 {
		waiting = slices.DeleteFunc(waiting, func(r *replica) bool {
			a := sh.firstCallerOf(r).get(ctx, productPath(key))
			return !a.failed() && a.state == "fresh"
		})
		if time.Now().After(deadline) {
			return fmt.Errorf("%d processes do not use Redis again %v after it came back", len(waiting), backLimit)
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// redisHang: Redis is there and does not answer. Connections stay open, new ones
// are accepted, and no byte comes back.
var redisHang = scenario{
	name:     "redis-hang",
	about:    "Redis stops answering, with all connections open, while all callers ask for a product that it has, again and again; then it goes on",
	lifetime: longLife,
	proxied:  true,
	round: func(ctx context.Context, sh *show, n int) (round, error) {
		return outageRound(ctx, sh, n,
			func() { sh.fleet.network(faultproxy.Faults{Hang: true}) },
			func() error { sh.fleet.network(faultproxy.Faults{}); return nil })
	},
	promises: []promise{oneTimeout, noWaitForRedis, boundedLoads, soonNormal, noLoadAfter(0), rightAnswers},
}

// redisRestart: Redis ends, and begins again with nothing in it.
var redisRestart = scenario{
	name:     "redis-restart",
	about:    "Redis ends while all callers ask for a product that it has, again and again, and comes back empty (one that was given with -redis is only out of reach, and keeps what it has)",
	lifetime: longLife,
	proxied:  true,
	round: func(ctx context.Context, sh *show, n int) (round, error) {
		return outageRound(ctx, sh, n,
			func() { sh.fleet.network(faultproxy.Faults{Refuse: true}) },
			func() (err error) {
				if sh.redis.restart != nil {
					err = sh.redis.restart(ctx)
				}
				sh.fleet.network(faultproxy.Faults{})
				return err
			})
	},
	promises: []promise{oneTimeout, noWaitForRedis, boundedLoads, soonNormal, noLoadAfter(1), rightAnswers},
}

// outages are the rounds' values of one thing, in milliseconds.
func outages(t tally, of func(*outage) time.Duration) []float64 {
	var all []float64
	for _, r := range t.rounds {
		all = append(all, hundredth(milliseconds(of(r.outage))))
	}
	return all
}

const (
	firstOver  = storeTimeout + 5*time.Millisecond
	openedOver = time.Millisecond
	normalIn   = 2 * time.Second
)

var oneTimeout = promise{
	name: "first", text: fmt.Sprintf("whoever asks when Redis goes away waits for it no longer than one call may take: the slowest 1%% at most %v over the floor", firstOver),
	judge: func(t tally) verdict {
		return judgeOver(outages(t, func(o *outage) time.Duration { return o.first }), milliseconds(firstOver))
	},
}

// Who comes in the middle of a load that has no lease waits for another one, so
// that an old value cannot be shared (P2). In a storm that is a part of the
// callers; the median tells what Redis costs the others.
var noWaitForRedis = promise{
	name: "open", text: fmt.Sprintf("after a few failed calls nobody waits for Redis: half of the callers are at most %v over the floor", openedOver),
	judge: func(t tally) verdict {
		return judgeOver(outages(t, func(o *outage) time.Duration { return o.median }), milliseconds(openedOver))
	},
}

var boundedLoads = promise{
	name: "P8", text: "while Redis is away each process asks the origin for the product once at a time, and at most twice in a storm",
	judge: func(t tally) verdict {
		var atOnce, most int64
		for _, r := range t.rounds {
			atOnce, most = max(atOnce, r.outage.atOnce), max(most, r.outage.most)
		}
		n := int64(t.opts.replicas)
		return kept(atOnce <= n && most <= 2*n, "at most %d loads at once and %d in a storm, of %d processes", atOnce, most, n)
	},
}

var soonNormal = promise{
	name: "back", text: fmt.Sprintf("%v after Redis is back at the latest, every process uses it", normalIn),
	judge: func(t tally) verdict {
		var worst time.Duration
		for _, r := range t.rounds {
			worst = max(worst, r.recovery)
		}
		return kept(worst <= normalIn, "it took %v at most", worst.Round(time.Millisecond))
	},
}

// noLoadAfter is that the storm after an outage is at most so many loads.
func noLoadAfter(most int64) promise {
	return promise{
		name: "P1", text: fmt.Sprintf("the storm after Redis is back causes at most %d load in the whole fleet", most),
		judge: func(t tally) verdict {
			return judgeRounds(t, fmt.Sprintf("at most %d", most), func(r round) bool { return r.outage.after <= most })
		},
	}
}
