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
	m := &manyLoad{client: s.client, reads: make([]manyRead, len(keys))}
	reads := m.reads
	asked := false // a single server is asked for its time once
	for n, key := range keys {
		name := entryName(key)
		r := manyRead{name: name, clock: s.clock.of(name).Load()}
		if (s.clock.slots != nil || !asked) && needsTime(r.clock, began) {
			r.withTime, asked = true, true
		}
		reads[n] = r
	}
	err, abandoned := s.read(ctx, began, m, m.exec)
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
	for n, r := range reads {
		if s.clock.slots == nil && told != nil {
			r.clock = told
		}
		entries[n], errs[n] = s.entryOf(r.name, r.body, r.err, r.clock, began)
	}
	return entries, nilIfNone(errs)
}

// manyLoad is the reads of a LoadMany on their way.
type manyLoad struct {
	client redis.UniversalClient
	reads  []manyRead
}

// manyRead is one read of a LoadMany.
type manyRead struct {
	name     string
	clock    *sample
	withTime bool
	get      onceGet
	time     once // if withTime

	body   []byte
	err    error
	server int64 // the server's time, if asked for and told
}

func (m *manyLoad) exec(ctx context.Context) error {
	m.prepare(ctx)
	pipe := m.client.Pipeline()
	_ = pipe.BatchProcess(ctx, m.queue(nil)...) // queued; their own errors are collected
	_, _ = pipe.Exec(ctx)
	return m.collect()
}

func (m *manyLoad) prepare(ctx context.Context) {
	for n := range m.reads {
		r := &m.reads[n]
		r.get = onceGet{redis.NewStringCmd(ctx, "get", r.name)}
		if r.withTime {
			r.time = once{redis.NewCmd(ctx, "eval", timeScript, 1, r.name)}
		}
	}
}

func (m *manyLoad) queue(to []redis.Cmder) []redis.Cmder {
	for _, r := range m.reads {
		to = append(to, r.get)
		if r.withTime {
			to = append(to, r.time)
		}
	}
	return to
}

func (m *manyLoad) size() int { return 2 * len(m.reads) }

// collect has no error of its own: each read has one.
func (m *manyLoad) collect() error {
	for n := range m.reads {
		r := &m.reads[n]
		r.body, r.err = r.get.Bytes()
		if r.withTime && r.time.Err() == nil {
			r.server, _ = readTime(r.time.Val()) // entryOf refuses a hit without it
		}
	}
	return nil
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
