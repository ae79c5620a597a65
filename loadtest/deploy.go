package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"
)

// deploy: one process after the other is told to end (SIGTERM) and replaced by a
// new one, each in the middle of a load that all the others wait for. As a load
// balancer does, new requests are no longer sent to a process before it is told.
var deploy = scenario{
	name:        "deploy",
	about:       "one process after the other is told to end in the middle of a load and replaced by a new one, while the callers of all others wait for that load, and further ones read another product",
	lifetime:    longLife,
	minReplicas: 2,
	round:       deployRound,
	promises:    []promise{oneLoadPerRestart, nobodyIsCutOff, rightAnswers},
}

// rolled is what a round of restarts brought.
type rolled struct {
	restarts, loads int64
	cutOff          int64 // callers of a process that was to end who were not answered
}

func deployRound(ctx context.Context, sh *show, n int) (r round, err error) {
	r = round{key: sh.key(n), rolled: new(rolled)}
	sh.origin.create(r.key)
	for _, replica := range sh.fleet.replicas {
		if err := sh.firstCallerOf(replica).get(ctx, productPath(r.key)).problem(r.key); err != nil {
			return r, fmt.Errorf("warming: %w", err)
		}
	}
	bal, err := startBalanced(ctx, sh, r.key)
	if err != nil {
		return r, err
	}
	for i := range sh.fleet.replicas {
		if err = sh.restart(ctx, i, fmt.Sprintf("%s-%d", r.key, i), &r, bal); err != nil {
			break
		}
	}
	for _, part := range bal.stop() {
		r.add(part)
	}
	return r, err
}

// restart ends process i in the middle of a load and replaces it.
func (sh *show) restart(ctx context.Context, i int, key string, r *round, bal *balanced) error {
	bal.slots[i].Lock() // nobody else is sent there
	defer bal.slots[i].Unlock()
	t, err := sh.begin(ctx, i, key)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- t.holder.Stop(stopLimit) }()
	waited := round{key: key, answers: <-t.others}
	waited.judge(1, 1)
	r.add(waited)
	first := <-t.first
	if first.status != http.StatusOK { // that the connection is closed after it is in order
		r.rolled.cutOff++
	}
	if err := <-ended; err != nil {
		return fmt.Errorf("a process does not end in order: %w: %s", err, t.holder.log)
	}
	counted := round{key: key}
	if err := t.end(ctx, &counted); err != nil {
		return err
	}
	r.unanswered += counted.unanswered
	r.rolled.restarts++
	r.rolled.loads += counted.takeovers + 1
	gone := t.holder
	if err := sh.replace(ctx, gone, "after-"+key); err != nil {
		return err
	}
	return bal.moved(ctx, i, sh.fleet.replicas[i])
}

// balanced are readers behind a load balancer: one for each process, that waits
// while its process is away.
type balanced struct {
	slots   []sync.Mutex // held by a reader in a call, and by who replaces the process
	callers []*caller    // each guarded by its slot
	parts   []round
	cancel  context.CancelFunc
	all     sync.WaitGroup
}

func startBalanced(ctx context.Context, sh *show, key string) (*balanced, error) {
	callers, err := connect(ctx, sh.fleet, 1)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	b := &balanced{slots: make([]sync.Mutex, len(callers)), callers: callers, parts: make([]round, len(callers)), cancel: cancel}
	for i := range callers {
		b.all.Go(func() { b.read(ctx, i, key) })
	}
	return b, nil
}

func (b *balanced) read(ctx context.Context, i int, key string) {
	const think = 2 * time.Millisecond
	for pause(ctx, rand.N(2*think)) == nil {
		b.slots[i].Lock()
		one := round{key: key, answers: []answer{b.callers[i].get(context.WithoutCancel(ctx), productPath(key))}}
		b.slots[i].Unlock()
		one.judge(1, 1)
		b.parts[i].add(one)
	}
}

// moved sends the reader of slot i, which is held, to another process.
func (b *balanced) moved(ctx context.Context, i int, to *replica) error {
	c := b.callers[i]
	if c.conn != nil {
		c.conn.Close()
	}
	c.replica = to
	return c.dial(ctx)
}

func (b *balanced) stop() []round {
	b.cancel()
	b.all.Wait()
	hangUp(b.callers)
	return b.parts
}

var oneLoadPerRestart = promise{
	name: "P1", text: "a process that is told to end brings its load to an end for all, or gives its lease back: one load, and nobody waits for a lease to run out",
	judge: func(t tally) verdict {
		return judgeRounds(t, "one load for each restart", func(r round) bool {
			return r.rolled.restarts > 0 && r.rolled.loads == r.rolled.restarts
		})
	},
}

var nobodyIsCutOff = promise{
	name: "drain", text: "whoever has asked a process before it is told to end is answered by it",
	judge: func(t tally) verdict {
		var cut, restarts int64
		for _, r := range t.rounds {
			cut += r.rolled.cutOff
			restarts += r.rolled.restarts
		}
		return kept(cut == 0 && restarts > 0, "%d callers were not, in %d restarts", cut, restarts)
	},
}
