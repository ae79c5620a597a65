package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	vegeta "github.com/tsenart/vegeta/v12/lib"
)

// atARate: what callers see in ordinary operation. Requests come at a rate,
// whatever the answers do, and products expire all the time. The storms show how
// many callers one expiry can hurt; this shows how many it does.
var atARate = scenario{
	name: "steady",
	about: fmt.Sprintf("requests come at a rate (-rate, for -for), whatever the answers do, for %d products that expire all the time, some of them asked for much more often than others (Zipf)",
		steadyProducts),
	short: func(o options) string {
		return fmt.Sprintf("%d requests a second, for %d products that expire all the time", o.rate, steadyProducts)
	},
	lifetime: expiry.lifetime,
	once:     true,
	round:    steadyRound,
	promises: []promise{oneLoadAtOnce, nobodyWaitsAtARate, rightAnswers},
}

const (
	steadyProducts = 50

	// steadyRate is how many requests a second come, unless -rate says otherwise:
	// a load that two processors bear in each mode, callers included.
	steadyRate = 1000

	// One request for the floor comes with so many others, and minFloorRate in any
	// case.
	floorShare   = 5
	minFloorRate = 20
)

// steadied is what requests at a rate brought.
type steadied struct {
	rate   float64 // a second, that were sent
	late   int     // of these, sent too late
	atOnce int64   // most loads of one product at once
	most   int64   // most loads of one product
	limit  int64   // that one product may have in that time
	line   *timeline
}

func steadyRound(ctx context.Context, sh *show, n int) (r round, err error) {
	ttl, _ := sh.scenario.lifetime(sh.opts.load)
	client, end := newOpenClient(ctx)
	defer end()
	loop := openLoop{rate: perSecond(sh.opts.rate), span: steadySpan(sh.opts, ttl), client: client, maxBody: -1}
	r = round{key: sh.key(n), steady: &steadied{limit: 1 + 2*int64(loop.span/ttl), line: newTimeline(loop.span)}}
	for i := range steadyProducts {
		r.keys = append(r.keys, fmt.Sprintf("%s-%d", r.key, i))
		sh.origin.create(r.keys[i])
	}
	if err := sh.fillOver(ctx, r.keys, ttl, loop); err != nil {
		return r, fmt.Errorf("warming: %w", err)
	}
	for _, key := range r.keys {
		sh.origin.forgetLoads(key)
	}
	err = r.countingUnanswered(ctx, sh, func() error {
		sh.progress.say(fmt.Sprintf("steady, mode %s: %d requests a second for %v", sh.mode, sh.opts.rate, loop.span))
		var floor []time.Duration
		var floorErr error
		var asking sync.WaitGroup
		asking.Go(func() { floor, floorErr = sh.steadyFloor(ctx, r.keys, loop) })
		err := sh.askAtRate(ctx, &r, loop)
		asking.Wait()
		r.floor = floor
		return errors.Join(err, floorErr, sh.origin.settle(ctx))
	})
	for _, key := range r.keys {
		r.steady.atOnce = max(r.steady.atOnce, sh.origin.most(key))
		r.steady.most = max(r.steady.most, sh.origin.loads(key))
	}
	return r, err
}

// steadySpan is for how long products that live for ttl are asked for: long
// enough that each expires at least once.
func steadySpan(o options, ttl time.Duration) time.Duration { return max(o.span, 2*ttl) }

// steadyFloor asks what needs no cache, at the same time as the others ask: what
// delays both is the machine.
func (sh *show) steadyFloor(ctx context.Context, keys []string, loop openLoop) (floor []time.Duration, err error) {
	client, end := newOpenClient(ctx)
	defer end()
	loop.client, loop.maxBody = client, 0
	loop.rate = perSecond(max(loop.rate.Freq/floorShare, minFloorRate))
	var failed error
	_, err = loop.run(ctx, sh.newAsks(keys, func(key string) string { return floorPath(key, 0) }).zipf(), func(a reply) {
		if a.Code != http.StatusOK {
			failed = fmt.Errorf("floor: status %d: %s", a.Code, a.Error)
		}
		floor = append(floor, a.latency)
	})
	return floor, errors.Join(err, failed)
}

// fillOver puts products into the cache one after the other, in the time in
// which they expire: so they will go on expiring one after the other.
func (sh *show) fillOver(ctx context.Context, keys []string, ttl time.Duration, loop openLoop) error {
	loop.rate, loop.span = vegeta.Rate{Freq: len(keys), Per: ttl}, ttl
	loop.maxBody = 0
	var failed error
	_, err := loop.run(ctx, sh.newAsks(keys, productPath).inTurn(), func(a reply) {
		if a.Code != http.StatusOK {
			failed = fmt.Errorf("status %d: %s", a.Code, a.Error)
		}
	})
	if err := errors.Join(err, failed); err != nil {
		return err
	}
	return sh.origin.settle(ctx)
}

func (sh *show) askAtRate(ctx context.Context, r *round, loop openLoop) (err error) {
	asks := sh.newAsks(r.keys, productPath)
	r.steady.rate, err = loop.run(ctx, asks.zipf(), func(a reply) {
		if a.late > lateAfter {
			r.steady.late++
		}
		got := answer{latency: a.latency, status: int(a.Code), state: a.Headers.Get("X-Cacheguard-State"), body: a.Body}
		if a.Code == 0 {
			got.err = errors.New(a.Error)
		}
		got.decode()
		one := round{key: asks.keyOf[a.URL], answers: []answer{got}}
		one.judge(1, 1)
		if got.state == "rebuilt" || got.state == "followed" {
			r.waited++
		}
		one.answers = []answer{{latency: got.latency, err: got.err}}
		r.add(one)
		sh.progress.answered.Add(1)
		r.steady.line.add(a.due, a.latency, got.state)
	})
	return err
}

// asks are the requests for some products at the processes of a fleet.
type asks struct {
	urls  [][]string        // of each product, at each process
	keyOf map[string]string // the product that a URL is of
}

func (sh *show) newAsks(keys []string, path func(key string) string) asks {
	a := asks{keyOf: map[string]string{}}
	for _, key := range keys {
		var at []string
		for _, replica := range sh.fleet.replicas {
			at = append(at, "http://"+replica.addr+path(key))
			a.keyOf[at[len(at)-1]] = key
		}
		a.urls = append(a.urls, at)
	}
	return a
}

// inTurn asks for one product after the other, at one process after the other.
func (a asks) inTurn() vegeta.Targeter {
	return a.targeter(func(n int) int { return n % len(a.urls) })
}

// zipf asks for the first products more often, in the same order each time.
func (a asks) zipf() vegeta.Targeter {
	zipf := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), zipfS, 1, uint64(len(a.urls)-1))
	return a.targeter(func(int) int { return int(zipf.Uint64()) })
}

// targeter asks for the product that pick says, given how many were asked for
// before.
func (a asks) targeter(pick func(n int) int) vegeta.Targeter {
	var mu sync.Mutex
	n := 0
	return func(t *vegeta.Target) error {
		mu.Lock()
		defer mu.Unlock()
		at := a.urls[pick(n)]
		t.Method, t.URL = http.MethodGet, at[n%len(at)]
		n++
		return nil
	}
}

// oneLoadAtOnce: a load that begins while another of the product is under way
// would be a second one for the same expiry. That there are not more than so
// many in all: neither is there one without an expiry.
var oneLoadAtOnce = promise{
	name: "P1", text: "the origin is asked once each time that a product expires: never while it is being asked for it already, and not more often than products expire",
	judge: func(t tally) verdict {
		v := judgeRounds(t, "never more than one load of a product at once", func(r round) bool {
			return r.steady.atOnce == 1 && r.steady.most <= r.steady.limit
		})
		s := t.rounds[0].steady
		v.Why = fmt.Sprintf("at most %d at once, and %d of one product, of %d that may be", s.atOnce, s.most, s.limit)
		return v
	},
}

// nobodyWaitsAtARate presumes that Redis answers: who cannot see the stale value
// must wait for a load.
var nobodyWaitsAtARate = promise{
	name: nobodyWaits.name, text: nobodyWaits.text,
	judge: func(t tally) verdict {
		return judgeRounds(t, "nobody waited", func(r round) bool { return r.waited == 0 })
	},
}
