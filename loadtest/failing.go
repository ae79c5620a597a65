package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"
)

// failingOrigin: the origin fails for a while. A product that nobody has is asked
// for by everybody, and one that has expired is served stale.
var failingOrigin = scenario{
	name:  "failing-origin",
	about: "the origin fails for a while, and all callers go on asking for a product that no cache has, and for one that has expired within its grace",
	lifetime: func(time.Duration) (ttl, grace time.Duration) {
		return failingTTL, time.Hour
	},
	round:    failingRound,
	promises: []promise{fewFailedLoads, ifRedisAnswers(staleOnError), soonLoaded, ifRedisAnswers(rightAnswers)},
}

const (
	failingTTL = time.Second
	failFor    = 2500 * time.Millisecond

	// cooldown is the guard's, by default.
	cooldown = time.Second
)

// failing is what a round with a failing origin brought.
type failing struct {
	lasted        time.Duration
	absent, stale int64 // loads of the product that nobody had, and of the one that had expired
	refused       int64 // callers of the first who were told so
	unstale       int64 // callers of the second who did not get it
}

func failingRound(ctx context.Context, sh *show, n int) (r round, err error) {
	r = round{key: sh.key(n), failing: new(failing)}
	expired := "expired-" + r.key
	sh.origin.create(r.key)
	sh.origin.create(expired)
	if err := sh.callers[0].get(ctx, productPath(expired)).problem(expired); err != nil {
		return r, fmt.Errorf("warming: %w", err)
	}
	if err := pause(ctx, failingTTL); err != nil {
		return r, err
	}
	sh.origin.forgetLoads(expired)
	sh.origin.fail(r.key, true)
	sh.origin.fail(expired, true)
	began := time.Now()
	err = r.countingUnanswered(ctx, sh, func() error {
		for _, part := range sh.askFailing(ctx, r.key, expired) {
			r.add(part)
			r.failing.refused += part.failing.refused
			r.failing.unstale += part.failing.unstale
		}
		return nil
	})
	if err != nil {
		return r, err
	}
	r.failing.lasted = time.Since(began)
	r.failing.absent, r.failing.stale = sh.origin.loads(r.key), sh.origin.loads(expired)

	sh.origin.fail(r.key, false)
	sh.origin.fail(expired, false)
	healed := time.Now()
	for sh.callers[0].get(ctx, productPath(r.key)).failed() {
		if time.Since(healed) > backLimit {
			return r, fmt.Errorf("a product is not loaded %v after the origin could be asked again", backLimit)
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return r, err
		}
	}
	r.recovery = time.Since(healed)
	last := round{key: r.key, answers: askNow(ctx, sh.callers, r.key)}
	last.judge(1, 1)
	r.add(last)
	return r, sh.origin.settle(ctx)
}

// askFailing lets all callers ask for both products while the origin fails.
func (sh *show) askFailing(ctx context.Context, absent, expired string) []round {
	ctx, cancel := context.WithTimeout(ctx, failFor)
	defer cancel()
	think := time.Duration(len(sh.callers)) * time.Second / readRate
	parts := make([]round, len(sh.callers))
	var wg sync.WaitGroup
	for i, c := range sh.callers {
		wg.Go(func() {
			part := round{key: expired, failing: new(failing)}
			for pause(ctx, rand.N(2*think)) == nil {
				a := c.get(context.WithoutCancel(ctx), productPath(absent))
				switch a.status {
				case http.StatusBadGateway, http.StatusServiceUnavailable:
					part.failing.refused++
				default:
					part.wrong++ // there is nothing that could have been answered
				}
				one := round{key: expired, answers: []answer{c.get(context.WithoutCancel(ctx), productPath(expired))}}
				one.judge(1, 1)
				part.failing.unstale += one.errors + one.wrong
				part.add(one)
			}
			parts[i] = part
		})
	}
	wg.Wait()
	return parts
}

var fewFailedLoads = promise{
	name: "P6", text: fmt.Sprintf("a failing origin is asked at most twice, by two processes, in each cooldown of %v, whatever the number of callers", cooldown),
	judge: func(t tally) verdict {
		return judgeRounds(t, "no more loads than that", func(r round) bool {
			// One cooldown more for the first failures, which begin the first one.
			limit := 2 * (int64(r.failing.lasted/cooldown) + 2)
			return r.failing.absent <= limit && r.failing.stale <= limit
		})
	},
}

var staleOnError = promise{
	name: "stale", text: "whoever asks for a product that has expired gets it all the same, for as long as the origin fails",
	judge: func(t tally) verdict {
		var without, refused int64
		for _, r := range t.rounds {
			without += r.failing.unstale
			refused += r.failing.refused
		}
		return kept(without == 0 && refused > 0, "%d callers did not get it; %d of the other product were told that the origin fails", without, refused)
	},
}

var soonLoaded = promise{
	name: "back", text: fmt.Sprintf("%v after the origin can be asked again at the latest, besides the load, the product is there", normalIn),
	judge: func(t tally) verdict {
		var worst time.Duration
		for _, r := range t.rounds {
			worst = max(worst, r.recovery)
		}
		return kept(worst <= normalIn+t.opts.load, "it took %v at most", worst.Round(time.Millisecond))
	},
}
