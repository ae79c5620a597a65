package redisstore

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// LoadMany implements [store.Store]: one pipeline of GETs. Where the server's
// clock has to be asked for, that goes along.
func (s *Store) LoadMany(ctx context.Context, keys []store.Key) ([]store.Entry, []error) {
	if len(keys) == 0 {
		return nil, nil
	}
	began := time.Now()
	reads := make([]manyRead, len(keys))
	asked := false // a single server is asked for its time once
	for n, key := range keys {
		name := entryName(key)
		r := manyRead{name: name, clock: s.clock.of(name).Load()}
		if (s.clock.slots != nil || !asked) && needsTime(r.clock, began) {
			r.withTime, asked = true, true
		}
		reads[n] = r
	}
	err, abandoned := s.run.do(ctx, began, func(ctx context.Context) error {
		readAll(ctx, s.client, reads)
		return nil
	})
	entries, errs := make([]store.Entry, len(keys)), make([]error, len(keys))
	if abandoned || err != nil {
		for n := range keys {
			errs[n] = s.fault("load", entryName(keys[n]), err) // reads is still run's
		}
		return entries, errs
	}
	var told *sample // the single server's answer serves all
	for n := range reads {
		if r := &reads[n]; r.server > 0 {
			r.clock = s.clock.learn(r.name, r.server, began)
			told = r.clock
		}
	}
	now := time.Now()
	for n, r := range reads {
		if s.clock.slots == nil && told != nil {
			r.clock = told
		}
		entries[n], errs[n] = s.entryOf(r.name, r.body, r.err, r.clock, now)
	}
	return entries, nilIfNone(errs)
}

// manyRead is one read of a LoadMany.
type manyRead struct {
	name     string
	clock    *sample
	withTime bool

	body   []byte
	err    error
	server int64 // the server's time, if asked for and told
}

func readAll(ctx context.Context, client redis.UniversalClient, reads []manyRead) {
	gets, clocks := make([]onceGet, len(reads)), make([]once, len(reads))
	pipe := client.Pipeline()
	for n, r := range reads {
		gets[n] = onceGet{redis.NewStringCmd(ctx, "get", r.name)}
		_ = pipe.Process(ctx, gets[n]) // queued; its own error is read below
		if r.withTime {
			clocks[n] = once{redis.NewCmd(ctx, "eval", timeScript, 1, r.name)}
			_ = pipe.Process(ctx, clocks[n])
		}
	}
	_, _ = pipe.Exec(ctx)
	for n := range reads {
		r := &reads[n]
		r.body, r.err = gets[n].Bytes()
		if r.withTime && clocks[n].Err() == nil {
			r.server, _ = readTime(clocks[n].Val()) // entryOf refuses a hit without it
		}
	}
}

// ClaimMany implements [store.Store]: all claims are one pipeline.
func (s *Store) ClaimMany(ctx context.Context, claims []store.Claim) ([]store.Verdict, []error) {
	invocations := make([]invocation, len(claims))
	for n, c := range claims {
		if err := checkClaim(c); err != nil {
			return make([]store.Verdict, len(claims)), allOf(len(claims), err)
		}
		invocations[n] = claimInvocation(c)
	}
	replies, errs := s.invokeAll(ctx, "claim", invocations)
	verdicts := make([]store.Verdict, len(claims))
	for n, r := range replies {
		if errs[n] != nil {
			continue
		}
		v, ok := readVerdict(r, claims[n])
		if !ok {
			errs[n] = fault("claim", errReply)
			continue
		}
		verdicts[n] = v
	}
	return verdicts, nilIfNone(errs)
}

// FillMany implements [store.Store]: all fills are one pipeline, each large one
// with its staging in front of it.
func (s *Store) FillMany(ctx context.Context, fills []store.Filling) []error {
	errs := make([]error, len(fills))
	var invocations []invocation
	var places []int
	for n, f := range fills {
		w, err := s.filling(f.Grant, f.Content)
		if err != nil {
			errs[n] = err
			continue
		}
		invocations, places = append(invocations, s.invocation(w)), append(places, n)
	}
	replies, faults := s.invokeAll(ctx, "fill", invocations)
	for i, n := range places {
		if errs[n] = faults[i]; errs[n] == nil {
			errs[n] = writeOutcome("fill", replies[i])
		}
	}
	return nilIfNone(errs)
}

func allOf(n int, err error) []error {
	errs := make([]error, n)
	for i := range errs {
		errs[i] = err
	}
	return errs
}
