package cacheguard

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// batch lets the flights of one GetMany claim, load and fill together. Each is
// a flight like any other, with its own lease, callers and outcome; only the
// calls are shared. A flight that has to follow first loads later, by itself.
type batch[V any] struct {
	g    *Guard[V]
	ctx  context.Context // of the caller: only its values are used
	many ManyLoader[V]

	rebuilds []*flight[V] // to be begun when all flights have been made, or the first would not wait for the others

	place sharedPlace // for those that load without a lease

	claims gathering[store.Claim, store.Verdict]
	loads  gathering[joint, V]
	fills  gathering[store.Filling, struct{}]
}

// joint is one flight's part in a load.
type joint struct {
	key string
	ctx context.Context // of the flight's load
}

func newBatch[V any](g *Guard[V], ctx context.Context, load ManyLoader[V]) *batch[V] {
	b := &batch[V]{g: g, ctx: ctx, many: load, place: newSharedPlace()}
	b.claims.do = func(claims []store.Claim) ([]store.Verdict, []error) {
		verdicts, errs := g.store.ClaimMany(g.ctx, claims)
		loads := 0
		for i, v := range verdicts {
			// Who cannot claim loads without a lease.
			if v.Outcome == store.Granted || isUnstored(v) || errs != nil && errs[i] != nil {
				loads++
			}
		}
		b.loads.expect(loads)
		return verdicts, errs
	}
	b.loads.do = b.loadJointly
	b.fills.do = func(fills []store.Filling) ([]struct{}, []error) {
		return make([]struct{}, len(fills)), g.store.FillMany(context.Background(), fills)
	}
	return b
}

// flight makes a flight of this batch.
func (b *batch[V]) flight(key string, l *look[V]) *flight[V] {
	f := b.g.newFlight(b.ctx, b.g.shards.of(key), key, b.reloader(key), l)
	f.batch = b
	if f.alone {
		b.loads.expect(1)
	} else {
		b.claims.expect(1)
	}
	return f
}

// rebuild makes a flight that nobody waits for.
func (b *batch[V]) rebuild(key string, l *look[V]) {
	sh := b.g.shards.of(key)
	if _, _, resting := sh.resting(key); resting || sh.flight(key) != nil || b.g.heldOff(sh, key) {
		return
	}
	f := b.flight(key, l)
	f.inBackground(l.entry.State == Fresh)
	b.rebuilds = append(b.rebuilds, f)
}

// leaveBatch says that the flight will not take part in what it was expected
// for.
func (f *flight[V]) leaveBatch() {
	if f.alone {
		f.batch.loads.without()
	} else {
		f.batch.claims.without()
	}
}

func (b *batch[V]) reloader(key string) Reloader[V] {
	return func(ctx context.Context, _ Entry[V]) (V, error) {
		v, err := b.loads.with(joint{key: key, ctx: ctx})
		if err != nil && !errors.Is(err, ErrNotFound) {
			b.fills.without()
		}
		return v, err
	}
}

// loadJointly calls the ManyLoader once for several flights. It ends when the
// load does, or when none of them wants it any more.
func (b *batch[V]) loadJointly(parts []joint) ([]V, []error) {
	b.fills.expect(len(parts))
	keys := make([]string, len(parts))
	for i, p := range parts {
		keys[i] = p.key
	}
	ctx := b.g.loaderContext(context.WithoutCancel(b.ctx), keys...)
	run := startLoad(b.g, ctx, time.Now(), SpanInfo{Span: SpanLoad, Keys: len(keys)}, func(ctx context.Context) (map[string]V, error) {
		return b.many(ctx, slices.Clone(keys))
	})
	defer run.end()
	var wanted atomic.Int64
	wanted.Store(int64(len(parts)))
	for _, p := range parts {
		stop := context.AfterFunc(p.ctx, func() {
			if wanted.Add(-1) == 0 {
				run.cancel(context.Cause(p.ctx))
			}
		})
		defer stop()
	}
	r := run.await()
	values, errs := make([]V, len(parts)), make([]error, len(parts))
	for i, key := range keys {
		values[i], errs[i] = pick(r, key)
	}
	return values, errs
}
