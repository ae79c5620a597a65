package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// manyKeys: a shop that was just opened. A few products are asked for all the
// time and many now and then, and no cache has any of them.
var manyKeys = scenario{
	name:     "many-keys",
	about:    fmt.Sprintf("all callers ask for %d products that no cache has, some of them much more often than others (Zipf)", manyProducts),
	lifetime: longLife,
	round:    manyRound,
	promises: []promise{oneLoadEach, rightAnswers},
}

const (
	manyProducts = 2000
	manyFor      = 2 * time.Second

	// zipfS is how unequal the products are: at 1.2 the first of them has a
	// sixth of all questions.
	zipfS = 1.2
)

// spread is what a round with many products brought.
type spread struct {
	asked int64 // products that somebody asked for
	most  int64 // loads of one of them
}

func manyRound(ctx context.Context, sh *show, n int) (r round, err error) {
	keys := make([]string, manyProducts)
	for i := range keys {
		keys[i] = fmt.Sprintf("%s-%d", sh.key(n), i)
		sh.origin.create(keys[i])
	}
	r = round{key: keys[0], spread: new(spread)}
	before, err := sh.fleet.counters(ctx)
	if err != nil {
		return r, err
	}
	asking, cancel := context.WithTimeout(ctx, manyFor)
	defer cancel()
	think := time.Duration(len(sh.callers)) * time.Second / readRate
	parts := make([]round, len(sh.callers))
	var wg sync.WaitGroup
	for i, c := range sh.callers {
		wg.Go(func() { parts[i] = readZipf(asking, c, keys, think) })
	}
	wg.Wait()
	for _, part := range parts {
		r.add(part)
	}
	if err := sh.origin.settle(ctx); err != nil {
		return r, err
	}
	after, err := sh.fleet.counters(ctx)
	if err != nil {
		return r, err
	}
	for i := range after {
		r.unanswered += after[i].unanswered - before[i].unanswered
	}
	for _, key := range keys {
		loads := sh.origin.loads(key)
		r.spread.asked += min(loads, 1)
		if loads > r.spread.most {
			r.spread.most, r.key = loads, key
		}
	}
	return r, ctx.Err()
}

// readZipf reads products until ctx ends, the first ones more often.
func readZipf(ctx context.Context, c *caller, keys []string, think time.Duration) (part round) {
	zipf := rand.NewZipf(rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())), zipfS, 1, uint64(len(keys)-1))
	for pause(ctx, rand.N(2*think)) == nil {
		one := round{key: keys[zipf.Uint64()]}
		one.answers = []answer{c.get(context.WithoutCancel(ctx), productPath(one.key))}
		one.judge(1, 1)
		part.add(one)
	}
	return part
}

var oneLoadEach = promise{
	name: "P1", text: "the origin is asked once for each product, whatever the number of processes and callers",
	judge: func(t tally) verdict {
		v := judgeRounds(t, "one load each", func(r round) bool { return r.spread.most == 1 })
		var asked int64
		for _, r := range t.rounds {
			asked += r.spread.asked
		}
		v.Why += fmt.Sprintf(", of %d products", asked)
		return v
	},
}
