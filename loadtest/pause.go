package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"time"
)

// stopped: the process that loads is stopped past its lease, as a long
// collection or a full machine stops one. One of the others takes over, the
// value is written, and then the process goes on where it was: with an old value
// in its hands, about to store it.
//
//	holder: claim, load v1 ... (stopped) ........................ store v1: refused
//	others: ............... claim, load v1, store; write v2 .................
var stopped = scenario{
	name:  "pause",
	about: "the process that loads is stopped past its lease, the product is written through another, and the process goes on with the old value",
	short: func(options) string {
		return "The process that loads is stopped for a while, and the product is written meanwhile"
	},
	lifetime:    longLife,
	minReplicas: 2,
	prepare:     tuneAll,
	round:       pauseRound,
	promises:    []promise{noOldFill, oneTakesOver, shortRecovery, rightAnswers},
}

func pauseRound(ctx context.Context, sh *show, n int) (round, error) {
	return sh.again(n, func(key string) (r round, inTime bool, err error) {
		t, err := sh.begin(ctx, n, key)
		if err != nil {
			return r, false, err
		}
		stop := time.Now()
		signalErr := t.holder.Signal(syscall.SIGSTOP)
		inTime = len(t.first) == 0
		// Whoever waited is answered by another's load: so the lease is over.
		r = round{key: key, answers: <-t.others, recovery: time.Since(stop), staleFor: true}
		r.judge(1, 1)
		endErr := t.end(ctx, &r)

		writer := sh.fleet.replicas[(n+1)%len(sh.fleet.replicas)]
		writeErr := sh.write(ctx, writer, key, new(atomic.Int64))
		signalErr = errors.Join(signalErr, t.holder.Signal(syscall.SIGCONT))
		r.fault = fault{stop, time.Now()}
		// Its caller asked before the write and may get the old value, but not
		// before the process has tried to store it.
		late := round{key: key, answers: []answer{<-t.first}}
		late.judge(1, 2)
		late.answers = nil // its latency is that of the stop
		r.add(late)
		if signalErr != nil {
			signalErr = fmt.Errorf("a process cannot be stopped and continued: %w", signalErr)
		}
		if err := errors.Join(signalErr, endErr, writeErr); err != nil {
			return r, false, err
		}
		kept, err := sh.kept(ctx, key, 2)
		kept.answers = nil // these did not wait
		r.add(kept)
		return r, inTime, err
	})
}
