package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cacheguard-go/cacheguard/internal/faultproxy"
)

// partition: the process that loads is cut off from Redis in the middle of the
// load. What it sends is held up on the way and arrives when the way is there
// again, which is after another has taken over and the product was written.
//
//	holder: claim, load v1 ... (cut off) fill v1 ~~~~~~~~~~~~~~~~~~~~ arrives: refused
//	others: .............................. claim, load v1, store; write v2 ..
var partition = scenario{
	name:        "partition",
	about:       "the process that loads is cut off from Redis, another takes over and the product is written through it, and then all that the first one has sent arrives",
	lifetime:    longLife,
	minReplicas: 2,
	proxied:     true,
	prepare:     tuneAll,
	round:       partitionRound,
	promises:    []promise{noOldFill, oneTakesOver, shortRecovery, rightAnswers},
}

func partitionRound(ctx context.Context, sh *show, n int) (round, error) {
	return sh.again(n, func(key string) (r round, inTime bool, err error) {
		t, err := sh.begin(ctx, n, key)
		if err != nil {
			return r, false, err
		}
		cut := time.Now()
		t.holder.proxy.Set(faultproxy.Faults{Hang: true})
		inTime = len(t.first) == 0
		r = round{key: key, answers: <-t.others, recovery: time.Since(cut), staleFor: true}
		r.judge(1, 1)
		endErr := t.end(ctx, &r)
		// The process that is cut off answers its own caller all the same.
		own := round{key: key, answers: []answer{<-t.first}}
		own.judge(1, 1)
		own.answers = nil
		r.add(own)

		writer := sh.fleet.replicas[(n+1)%len(sh.fleet.replicas)]
		writeErr := sh.write(ctx, writer, key, new(atomic.Int64))
		t.holder.proxy.Set(faultproxy.Faults{})
		r.fault = fault{cut, time.Now()}
		if err := errors.Join(endErr, writeErr); err != nil {
			return r, false, err
		}
		if err := sh.awaitHealed(ctx, t.holder, "healed-"+key); err != nil {
			return r, false, err
		}
		kept, err := sh.kept(ctx, key, 2)
		kept.answers = nil // these did not wait
		r.add(kept)
		return r, inTime, err
	})
}

// awaitHealed waits until one process uses Redis again: what it has sent before
// has arrived by then.
func (sh *show) awaitHealed(ctx context.Context, r *replica, key string) error {
	sh.origin.create(key)
	deadline := time.Now().Add(backLimit)
	for time.Now().Before(deadline) {
		if a := sh.firstCallerOf(r).get(ctx, productPath(key)); !a.failed() && a.state == "fresh" {
			return nil
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	return fmt.Errorf("a process does not use Redis again %v after it could", backLimit)
}
