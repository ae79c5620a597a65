package cacheguard

import (
	"context"
	"errors"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// withoutLease is what a flight does when the store cannot be asked for a
// lease: its callers are answered by a load of their own process or, with
// FailFast, by why; a background rebuild is left for later. A nil why means that
// the store is not to be believed.
func (f *flight[V]) withoutLease(why error) outcome[V] {
	switch {
	case f.g.ctx.Err() != nil:
		return failed[V](ErrClosed)
	case f.background:
		f.sh.rest(f.key, around(backgroundRest), nil)
		return outcome[V]{err: errPutOff}
	case why != nil && f.g.opts.Outage == FailFast:
		return failed[V](why)
	}
	return f.loadAlone()
}

// errPutOff is for the report: nobody waits for what it ends.
var errPutOff = errors.New("cacheguard: the store is out of reach; the rebuild is put off")

// backgroundRest is how long a rebuild that could not reach the store, or found
// another at work, is left alone at most: the value is stale, not missing, and
// each attempt costs a claim or a time-out.
const backgroundRest = time.Second

// loadAlone loads without a lease. Nothing is stored for the fleet, and nothing proves that
// the value is not older than an invalidation: it is for those who were there
// before the load began (S30).
//
// There is a bound on these loads over all keys: see takePlace.
func (f *flight[V]) loadAlone() outcome[V] {
	f.alone = true
	wait := f.sh.sofar()
	leave, err := f.takePlace()
	if err != nil {
		return outcome[V]{answers: true, err: err, upTo: wait}
	}
	defer leave()
	time.Sleep(aloneGather)
	f.held = f.g.heldOff(f.sh, f.key)
	since, began := time.Now(), f.sh.sofar()
	run := f.startLoad(since, 0)
	defer run.end()
	r := run.await()
	f.g.loaded(f, LoadInfo{Took: r.took, Err: r.err})
	out := f.sh.unstored(f.g, f.key, r, began)
	if f.g.near != nil && out.err == nil {
		f.keepNear(out.entry, since)
	}
	return out
}

// keepNear lets the near cache have what was loaded without a lease, for its
// TTL: in an outage the origin is then asked once in that time, instead of all
// the time. What another process writes meanwhile is seen here a TTL later, as
// ever with a near cache; what this one writes, at once.
func (f *flight[V]) keepNear(e Entry[V], sent time.Time) {
	c := store.Content{TTL: f.g.opts.NegativeTTL}
	if !e.isAbsent() {
		var err error
		if c, err = f.g.content(f.key, e.Value); err != nil {
			return
		}
	}
	if c.TTL <= 0 || f.heldOff() {
		return
	}
	e.Age, e.Left, e.TTL = 0, c.TTL, c.TTL
	f.sh.copyNear(f.g, f.key, func() bool { return !f.overtaken }, e, sent.Sub(f.g.epoch), min(f.g.near.ttl, c.TTL), len(c.Payload))
}

// aloneGather is how long a load without a lease lets others come before it
// begins. A herd does not arrive at one instant, and who comes after the
// beginning has to wait for the rest of this load and for another one: half a
// millisecond for everybody instead of a load for most.
const aloneGather = 500 * time.Microsecond

// unstored is the outcome of a load without a lease. A process whose load
// without a lease failed leaves the key alone for a cooldown: there is no
// record that would tell it to.
func (s *shard[V]) unstored(g *Guard[V], key string, r result[V], began uint64) outcome[V] {
	out := outcome[V]{answers: true, led: true, upTo: began, began: began, asOf: g.now()}
	var p *PassError
	switch {
	case errors.Is(r.err, ErrNotFound):
		out.entry = Entry[V]{State: Absent, Age: r.took}
	case r.err == nil, errors.As(r.err, &p):
		out.entry = Entry[V]{Value: r.value, State: Rebuilt, Age: r.took}
		if p != nil {
			out.err, out.upTo = p, everybody
		}
	default:
		out.err, out.upTo = r.err, everybody
		if g.ctx.Err() == nil {
			s.rest(key, g.cooldownOf(r.err), &CooldownError{Reason: reason(r.err)})
		}
	}
	return out
}

// await waits for the loader's result, which comes by LoadLimit or Close.
func (l *loading[T]) await() result[T] {
	select {
	case r := <-l.loaded:
		return l.finished(r)
	case <-l.ctx.Done():
		return l.cut()
	}
}

// pass answers a caller of a key that is not to be shared: a Do by telling it
// so, a Get by its own load.
func (g *Guard[V]) pass(ctx context.Context, sh *shard[V], key string, q *question[V], p *PassError) (Entry[V], error) {
	q.via = ViaPass
	if q.asks {
		return q.turnedDown, p
	}
	if p, left, ok := sh.resting(key); ok && p.err != nil {
		return Entry[V]{}, cooling(p.err, left)
	}
	done, err := g.waitsFor(ctx, key)
	if err != nil {
		return Entry[V]{}, err
	}
	defer done()
	return g.loadUnshared(ctx, sh, key, q.reloader(key))
}

// loadUnshared loads for one caller, under its own context. Nobody shares it:
// it begins after its only caller came.
func (g *Guard[V]) loadUnshared(ctx context.Context, sh *shard[V], key string, load Reloader[V]) (Entry[V], error) {
	if !g.tasks.enter() {
		return Entry[V]{}, ErrClosed
	}
	defer g.tasks.leave()
	run := startLoad(g, g.loaderContext(ctx, key), time.Now(), SpanInfo{Span: SpanLoad, Key: key}, func(ctx context.Context) (V, error) {
		return load(ctx, Entry[V]{})
	})
	defer run.end()
	r := run.await()
	if err := ctx.Err(); err != nil && r.err != nil {
		return Entry[V]{}, err // the caller left; that says nothing about the origin
	}
	g.loaded(&flight[V]{key: key}, LoadInfo{Took: r.took, Err: r.err})
	out := sh.unstored(g, key, r, everybody)
	var p *PassError
	if errors.As(out.err, &p) {
		out.err = nil
	}
	if out.err == nil {
		out.err = out.entry.absent()
	}
	return out.entry, out.err
}
