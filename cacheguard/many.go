package cacheguard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// ManyLoader asks the origin for the values of several keys at once. A key that
// is missing from the map does not exist. With an error, the keys that are in
// the map are loaded and the others have failed; a *ManyError says which have
// failed, so that the rest do not exist.
//
// What [Loader] says of the context holds here, too, except that there is no
// fencing token in it: each key has one of its own.
type ManyLoader[V any] func(ctx context.Context, keys []string) (map[string]V, error)

// ManyError tells which keys of a GetMany, or of a ManyLoader, have failed, and
// why. errors.Is and errors.As look into all of them.
type ManyError struct {
	Errs map[string]error // by key; never empty, no nil
}

func (e *ManyError) Error() string {
	for _, err := range e.Errs {
		if len(e.Errs) == 1 {
			return err.Error()
		}
		return fmt.Sprintf("cacheguard: %d keys failed, one of them: %v", len(e.Errs), err)
	}
	return "cacheguard: no key failed"
}

// Unwrap returns the errors.
func (e *ManyError) Unwrap() []error {
	errs := make([]error, 0, len(e.Errs))
	for _, err := range e.Errs {
		errs = append(errs, err)
	}
	return errs
}

// maxMany bounds the keys of one GetMany.
const maxMany = 10_000

// GetMany is Get for several keys: what is stored comes in one round trip, the
// missing are claimed in another, and load is called once for those that fall
// to this process, while other processes, and flights that run already, bring
// the rest. Keys may repeat, and at most 10,000 may differ.
//
// The map has the keys that exist. A key that is missing from it does not
// exist, unless the error is a *ManyError that names it. Any other error, such
// as ctx's, is about all keys that are missing.
func (g *Guard[V]) GetMany(ctx context.Context, keys []string, load ManyLoader[V]) (map[string]V, error) {
	if load == nil {
		return nil, errors.New("cacheguard: the loader is nil; pass a function that asks the origin")
	}
	m := &many[V]{g: g, load: load, want: make(map[string]uint64, len(keys)), values: make(map[string]V, len(keys))}
	for _, key := range keys {
		if _, known := m.want[key]; known {
			continue
		}
		if err := g.admit(ctx, key, &question[V]{asks: true}); err != nil {
			return nil, err
		}
		m.want[key] = g.shards.of(key).arrive()
	}
	if len(m.want) > maxMany {
		return nil, fmt.Errorf("cacheguard: GetMany of %d keys; use at most %d", len(m.want), maxMany)
	}
	m.fromNear()
	for range maxRounds {
		if len(m.want) == 0 {
			return m.result(nil)
		}
		if err := m.round(ctx); err != nil {
			return m.result(err)
		}
	}
	return m.result(fmt.Errorf("%w: %d answers in a row were not for this caller", ErrWaitLimit, maxRounds))
}

// many is a GetMany under way.
type many[V any] struct {
	g    *Guard[V]
	load ManyLoader[V]

	want   map[string]uint64 // what has no answer yet, with its caller's number
	values map[string]V
	errs   map[string]error

	waited  time.Duration // for flights, in earlier rounds
	waiting time.Time     // since when, in this one; zero: not
}

// result is what the caller gets; err is about all that is still wanted.
func (m *many[V]) result(err error) (map[string]V, error) {
	if err == nil && len(m.errs) > 0 {
		err = &ManyError{Errs: m.errs}
	}
	return m.values, err
}

// settle takes the answer to one key.
func (m *many[V]) settle(key string, via Via, e Entry[V], err error) {
	delete(m.want, key)
	e, err = m.g.answered(key, how{via: via, waited: m.waitedFor()}, e, err)
	switch {
	case err == nil:
		m.values[key] = e.Value
	case errors.Is(err, ErrNotFound):
	default:
		if m.errs == nil {
			m.errs = make(map[string]error)
		}
		m.errs[key] = err
	}
}

func (m *many[V]) fromNear() {
	if m.g.near == nil {
		return
	}
	at := m.g.now()
	now := func() time.Duration { return at }
	for key := range m.want {
		if e, ok := m.g.near.served(key, now); ok {
			m.settle(key, ViaNear, e, e.absent())
		}
	}
}

// round looks for all that is wanted, and lets flights bring what is missing.
// The error is ctx's.
func (m *many[V]) round(ctx context.Context) error {
	keys := make([]string, 0, len(m.want))
	for key := range m.want {
		keys = append(keys, key)
	}
	looks, err := m.look(ctx, keys)
	if err != nil {
		return err
	}
	b := newBatch(m.g, ctx, m.load)
	var flights []*flight[V]
	var passed []string
	for i, key := range keys {
		l := looks[i]
		switch l.found {
		case pass:
			if !m.cooling(key, ViaPass) {
				passed = append(passed, key)
			}
			continue
		case hit:
			if l.entry.State == Stale || m.g.drawsEarly(l) {
				b.rebuild(key, l)
			}
			m.settle(key, ViaStore, l.entry, l.entry.absent())
			continue
		case outage:
			if m.outage(key, l) {
				continue
			}
		}
		if m.cooling(key, ViaFlight) {
			continue
		}
		flights = append(flights, b.flight(key, l))
	}
	return m.wait(ctx, b, flights, passed)
}

// cooling answers a key with the cooldown that binds it here, if one does.
func (m *many[V]) cooling(key string, via Via) bool {
	out := m.g.shards.of(key).cooling(key)
	if out == nil {
		return false
	}
	m.settle(key, via, Entry[V]{}, out.err)
	return true
}

// outage answers a key without the store, if that can be.
func (m *many[V]) outage(key string, l *look[V]) bool {
	if l.untrusted {
		return false
	}
	if e, ok := m.g.nearKnown(key); ok {
		m.settle(key, ViaNear, e, e.absent())
		return true
	}
	if m.g.opts.Outage == FailFast {
		m.settle(key, 0, Entry[V]{}, l.err)
		return true
	}
	return false
}

// look reads all keys in one round trip.
func (m *many[V]) look(ctx context.Context, keys []string) ([]*look[V], error) {
	g := m.g
	looks := make([]*look[V], len(keys))
	events := make([]uint64, len(keys))
	var ask []store.Key
	var places []int
	for i, key := range keys {
		sh := g.shards.of(key)
		looks[i] = &look[V]{upTo: sh.sofar()}
		if g.pending.has(key) {
			looks[i].found, looks[i].untrusted = outage, true
			continue
		}
		events[i] = sh.events.Load()
		ask, places = append(ask, g.key(key)), append(places, i)
	}
	_, spanned := g.tells.begin(ctx, SpanInfo{Span: SpanLookup, Keys: len(ask)})
	entries, errs := g.store.LoadMany(ctx, ask)
	if spanned != nil {
		spanned(SpanEnd{Err: errors.Join(errs...)})
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if g.ctx.Err() != nil {
		return nil, ErrClosed
	}
	for n, i := range places {
		var err error
		if errs != nil {
			err = errs[n]
		}
		g.seen(g.shards.of(keys[i]), keys[i], looks[i], entries[n], err, g.instant(entries[n].At), events[i])
	}
	return looks, nil
}

// wait collects what the flights bring.
func (m *many[V]) wait(ctx context.Context, b *batch[V], flights []*flight[V], passed []string) (err error) {
	since := m.g.now()
	waiters := make(map[string]*waiter[V], len(flights))
	defer func() {
		for key, w := range waiters {
			m.g.shards.of(key).left(w)
		}
	}()
	for _, f := range flights {
		done, err := m.g.waitsFor(ctx, f.key)
		if err != nil {
			m.settle(f.key, 0, Entry[V]{}, err)
			f.leaveBatch()
			continue
		}
		defer done()
		w := new(waiter[V])
		waiters[f.key] = w
		if begin, _ := f.sh.joins(f.key, w, f, since); !begin {
			f.leaveBatch()
			continue
		}
		f.begin()
	}
	for _, f := range b.rebuilds {
		if !f.sh.starts(f) {
			f.leaveBatch()
			continue
		}
		f.begin()
	}
	if len(flights) > 0 {
		defer m.beginWait(ctx, len(flights))(&err)
	}
	if err := m.loadPassed(ctx, passed); err != nil {
		return err
	}
	for key, w := range waiters {
		if err := m.g.shards.of(key).await(ctx, w); err != nil {
			return err
		}
		m.brought(key, w)
	}
	return nil
}

// beginWait tells of the wait for flights, until the function it returns is
// called with what it ended with.
func (m *many[V]) beginWait(ctx context.Context, flights int) (end func(err *error)) {
	m.waiting = time.Now()
	_, spanned := m.g.tells.begin(ctx, SpanInfo{Span: SpanWait, Keys: flights})
	return func(err *error) {
		m.waited, m.waiting = m.waitedFor(), time.Time{}
		if spanned != nil {
			spanned(SpanEnd{Err: *err})
		}
	}
}

// waitedFor is how long this caller has waited for flights until now.
func (m *many[V]) waitedFor() time.Duration {
	if m.waiting.IsZero() {
		return m.waited
	}
	return m.waited + time.Since(m.waiting)
}

// brought takes what a flight has brought, if it is for this caller.
func (m *many[V]) brought(key string, w *waiter[V]) {
	var p *PassError
	out := w.out
	switch {
	case !out.isFor(m.want[key], w.since, false):
	case errors.As(out.err, &p) && !(w.flew() && out.led):
		// For its own caller alone: the next round finds the mark.
	case out.err == nil || p != nil:
		e := out.entry
		e.Coalesced = !w.flew()
		m.settle(key, ViaFlight, e, e.absent())
	default:
		m.settle(key, ViaFlight, Entry[V]{}, out.err)
	}
}

// loadPassed loads the keys that are not to be shared: at once, in one call,
// under the caller's own context. What is itself part of a load of a key does not
// get it loaded once more: that would ask again, and so on.
func (m *many[V]) loadPassed(ctx context.Context, passed []string) error {
	keys := make([]string, 0, len(passed))
	for _, key := range passed {
		done, err := m.g.waitsFor(ctx, key)
		if err != nil {
			m.settle(key, ViaPass, Entry[V]{}, err)
			continue
		}
		defer done()
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil
	}
	if !m.g.tasks.enter() {
		return ErrClosed
	}
	defer m.g.tasks.leave()
	run := startLoad(m.g, m.g.loaderContext(ctx, keys...), time.Now(), SpanInfo{Span: SpanLoad, Keys: len(keys)}, func(ctx context.Context) (map[string]V, error) {
		return m.load(ctx, slices.Clone(keys)) // it may change them, also after LoadLimit, while they are gone through here
	})
	defer run.end()
	r := run.await()
	if err := ctx.Err(); err != nil && r.err != nil {
		return err
	}
	for _, key := range keys {
		v, err := pick(r, key)
		sh := m.g.shards.of(key)
		m.g.loaded(&flight[V]{key: key}, LoadInfo{Took: r.took, Err: err})
		out := sh.unstored(m.g, key, result[V]{value: v, err: err, took: r.took}, everybody)
		if out.err == nil {
			out.err = out.entry.absent()
		}
		m.settle(key, ViaPass, out.entry, out.err)
	}
	return nil
}

// pick is the part of a ManyLoader's result that concerns one key.
func pick[V any](r result[map[string]V], key string) (v V, err error) {
	if v, ok := r.value[key]; ok {
		return v, nil
	}
	var each *ManyError
	if errors.As(r.err, &each) {
		if err := each.Errs[key]; err != nil {
			return v, err
		}
		return v, ErrNotFound
	}
	if r.err != nil {
		return v, r.err
	}
	return v, ErrNotFound
}
