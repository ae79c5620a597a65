package main

import (
	"context"
	"time"
)

// crash: the process that loads is killed in the middle of the load, with a
// signal that it cannot catch. Its lease runs out, and one of the others loads.
var crash = scenario{
	name:        "crash",
	about:       "the process that loads is killed in the middle of the load, while the callers of all others wait for it",
	lifetime:    longLife,
	minReplicas: 2,
	prepare:     tuneAll,
	round:       crashRound,
	promises:    []promise{oneTakesOver, shortRecovery, rightAnswers},
}

func crashRound(ctx context.Context, sh *show, n int) (round, error) {
	return sh.again(n, func(key string) (r round, inTime bool, err error) {
		t, err := sh.begin(ctx, n, key)
		if err != nil {
			return r, false, err
		}
		killed := time.Now()
		killErr := t.holder.Kill()
		r = round{key: key, answers: <-t.others, recovery: time.Since(killed), fault: fault{from: killed}}
		r.judge(1, 1)
		// The killed process' own caller gets nothing, unless the load was over.
		inTime = (<-t.first).failed()
		if killErr != nil {
			return r, false, killErr
		}
		if err := t.end(ctx, &r); err != nil {
			return r, false, err
		}
		return r, inTime, sh.replace(ctx, t.holder, "after-"+key)
	})
}

// replace starts a process in the place of one that is gone, connects its
// callers anew and tunes it.
func (sh *show) replace(ctx context.Context, gone *replica, prefix string) error {
	r, err := sh.fleet.replace(ctx, gone)
	if err != nil {
		return err
	}
	for _, c := range sh.callers {
		if c.replica != gone {
			continue
		}
		if c.conn != nil {
			c.conn.Close()
		}
		c.replica = r
		if err := c.dial(ctx); err != nil {
			return err
		}
	}
	return sh.tune(ctx, r, prefix)
}
