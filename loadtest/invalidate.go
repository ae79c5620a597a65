package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// invalidate: everybody reads a key while it is written through one process
// after another, once when it is cached and once in the middle of the load that
// follows. Whoever asks after a write was answered must see it.
var invalidate = scenario{
	name:  "invalidate",
	about: "callers of all processes go on reading a key while it is written twice, the second time in the middle of the load that the first write caused",
	short: func(o options) string {
		return fmt.Sprintf("%d callers go on reading a product that is written twice", o.callers())
	},
	lifetime: longLife,
	round:    invalidateRound,
	promises: []promise{noOldValue, rightAnswers},
}

func invalidateRound(ctx context.Context, sh *show, n int) (round, error) {
	r := round{key: sh.key(n), staleFor: true}
	sh.origin.create(r.key)
	for _, replica := range sh.fleet.replicas {
		if err := sh.firstCallerOf(replica).get(ctx, productPath(r.key)).problem(r.key); err != nil {
			return r, fmt.Errorf("warming: %w", err)
		}
	}
	sh.origin.forgetLoads(r.key)

	var known atomic.Int64 // the newest version whose write was answered
	known.Store(1)
	reads := sh.readUntil(ctx, r.key, &known)
	err := sh.writeTwice(ctx, r.key, n, &known)
	for _, part := range reads() {
		r.add(part)
	}
	if err != nil {
		return r, err
	}

	last, err := sh.kept(ctx, r.key, known.Load())
	r.add(last)
	return r, err
}

// kept asks each process for a product that nobody writes any more: what they
// answer is what is kept. It must be of that version.
func (sh *show) kept(ctx context.Context, key string, version int64) (round, error) {
	last := round{key: key}
	if err := sh.origin.settle(ctx); err != nil {
		return last, err
	}
	for _, replica := range sh.fleet.replicas {
		last.answers = append(last.answers, sh.firstCallerOf(replica).get(ctx, productPath(key)))
	}
	last.judge(version, version)
	return last, ctx.Err()
}

// writeTwice writes through one process, and then through the next while the
// load that follows the first write is under way.
func (sh *show) writeTwice(ctx context.Context, key string, n int, known *atomic.Int64) error {
	replicas := sh.fleet.replicas
	if err := pause(ctx, sh.opts.load/2); err != nil {
		return err
	}
	if err := sh.write(ctx, replicas[n%len(replicas)], key, known); err != nil {
		return err
	}
	if err := sh.awaitLoad(ctx); err != nil {
		return err
	}
	if err := pause(ctx, sh.opts.load/2); err != nil {
		return err
	}
	if err := sh.write(ctx, replicas[(n+1)%len(replicas)], key, known); err != nil {
		return err
	}
	return pause(ctx, 2*sh.opts.load)
}

// write writes through one process. From its answer on the version is known.
// A 503 says that Redis could not be told in time, and that the write is to be
// tried again; nothing is known from that.
func (sh *show) write(ctx context.Context, r *replica, key string, known *atomic.Int64) error {
	body, err := sh.fleet.put(ctx, r, productPath(key))
	for range maxRetries {
		if !errors.Is(err, statusError(http.StatusServiceUnavailable)) {
			break
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
		body, err = sh.fleet.put(ctx, r, productPath(key))
	}
	if err != nil {
		return fmt.Errorf("writing: %w", err)
	}
	var p product
	if err := json.Unmarshal(body, &p); err != nil {
		return fmt.Errorf("writing: %w", err)
	}
	known.Store(p.Version)
	return nil
}

// maxRetries bounds how often a write is tried again.
const maxRetries = 10

// awaitLoad waits until the origin is asked, as it is once a reader finds the
// key gone.
func (sh *show) awaitLoad(ctx context.Context) error {
	for range 5000 {
		if sh.origin.busy() > 0 {
			return nil
		}
		if err := pause(ctx, time.Millisecond); err != nil {
			return err
		}
	}
	return errors.New("no reader caused a load within 5s of a write")
}

// readUntil lets all callers read key again and again, with pauses, until the
// returned function is called, which returns what they got.
func (sh *show) readUntil(ctx context.Context, key string, known *atomic.Int64) (stop func() []round) {
	ctx, cancel := context.WithCancel(ctx)
	parts := make([]round, len(sh.callers))
	think := time.Duration(len(sh.callers)) * time.Second / readRate
	var wg sync.WaitGroup
	for i, c := range sh.callers {
		wg.Go(func() { parts[i] = sh.read(ctx, c, key, known, think) })
	}
	return func() []round {
		cancel()
		wg.Wait()
		return parts
	}
}

// readRate is about how many reads a second all callers do together: dense
// enough that many fall into every millisecond around a write, and light
// enough that they do not queue for the processors.
const readRate = 4000

// read reads until ctx ends. An answer may be as old as what was known when it
// was asked for, and as new as what the origin has now.
func (sh *show) read(ctx context.Context, c *caller, key string, known *atomic.Int64, think time.Duration) round {
	part := round{key: key}
	for pause(ctx, rand.N(2*think)) == nil {
		oldest := known.Load()
		// A call that is under way at the end is waited for: its answer counts.
		a := c.get(context.WithoutCancel(ctx), productPath(key))
		one := round{key: key, answers: []answer{a}}
		one.judge(oldest, sh.origin.version(key))
		part.add(one)
	}
	return part
}

// add adds another part of the same round.
func (r *round) add(part round) {
	r.answers = append(r.answers, part.answers...)
	r.errors += part.errors
	r.wrong += part.wrong
	r.stale += part.stale
}
