package cacheguard

import (
	"context"
	"errors"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// Set stores v under key, for the fleet. Whatever is being loaded for the key
// is not stored over it.
//
// It is for values whose writers take turns. If two writers of one key can
// overlap, from the origin's write to Set's return, the older value may stay:
// use Update, or Invalidate.
//
// A *store.Fault says that the store was not reached, or did not answer: the
// value may or may not be stored. It is then taken back, in the background, by
// an Invalidate, and until that has landed this process loads the key instead
// of believing what is stored.
func (g *Guard[V]) Set(ctx context.Context, key string, v V) error {
	if g.ctx.Err() != nil {
		return ErrClosed
	}
	c, err := g.content(key, v)
	if err != nil {
		return err
	}
	return g.write(ctx, []string{key}, g.invalidateLater, func(ctx context.Context) []error {
		return one(g.store.Set(ctx, store.Write{Key: g.key(key), Content: c}))
	})
}

// Update writes through: it takes a token, calls write, which writes the origin
// and returns the value that is there now, and stores that value, unless the
// key was written or invalidated since the token was taken; then it is
// invalidated. However writers overlap, no older value stays.
//
// It returns write's value and error. With a nil error of write, a *store.Fault
// says that the origin was written and that the store could not be told; that
// is mended in the background, as for Set. If write fails or panics the key is
// invalidated: it may have been committed all the same.
func (g *Guard[V]) Update(ctx context.Context, key string, write func(context.Context) (V, error)) (V, error) {
	var none V
	if g.ctx.Err() != nil {
		return none, ErrClosed
	}
	if err := checkKey(key); err != nil {
		return none, err // nothing has been written
	}
	begun, beginErr := g.store.Begin(ctx, g.key(key), g.opts.LoadLimit)
	if beginErr != nil {
		g.fault(key, beginErr)
		if err := ctx.Err(); err != nil {
			return none, err // nothing has been written
		}
	}
	written := false
	defer func() {
		if !written { // write panicked
			_ = g.invalidate(context.WithoutCancel(ctx), key)
		}
	}()
	v, err := write(ctx)
	written = true
	// The origin may have been written: the store must hear of it even if the
	// caller has left, or the guard was closed meanwhile.
	ctx = context.WithoutCancel(ctx)
	if err != nil || beginErr != nil {
		return v, errors.Join(err, g.invalidate(ctx, key))
	}
	c, err := g.content(key, v)
	if err != nil {
		return v, errors.Join(err, g.invalidate(ctx, key))
	}
	return v, g.write(ctx, []string{key}, g.invalidateLater, func(ctx context.Context) []error {
		err := g.store.Set(ctx, store.Write{Key: g.key(key), Content: c, Begun: &begun})
		if errors.Is(err, store.ErrFenced) {
			err = nil // another write came between: it was invalidated instead
		}
		return one(err)
	})
}

// Invalidate removes keys from the store, to be called after the origin's write
// has been committed. After it has returned nil, no Get that begins later, in
// any process, returns a value that was loaded or stored before, whatever is
// under way: a load that has read the old value is not stored, and not given to
// those who come later.
//
// Readers of a key that is invalidated faster than it loads may each wait for a
// load of their own process.
//
// A *store.Fault says that some of the keys may not have been invalidated; it
// is tried again in the background (see Set).
func (g *Guard[V]) Invalidate(ctx context.Context, keys ...string) error {
	if g.ctx.Err() != nil {
		return ErrClosed
	}
	return g.invalidate(ctx, keys...)
}

func (g *Guard[V]) invalidate(ctx context.Context, keys ...string) error {
	return g.write(ctx, keys, g.invalidateLater, func(ctx context.Context) []error {
		return g.store.Invalidate(ctx, g.keys(keys))
	})
}

// Expire makes keys stale: they are served for their grace while they are
// rebuilt, so that nobody waits. Keys without grace are removed. What is being
// loaded is not stored, as with Invalidate. Errors are those of Invalidate.
func (g *Guard[V]) Expire(ctx context.Context, keys ...string) error {
	if g.ctx.Err() != nil {
		return ErrClosed
	}
	return g.write(ctx, keys, g.expireLater, func(ctx context.Context) []error {
		return g.store.Expire(ctx, g.keys(keys))
	})
}

// write is the part that all writers share. The flights and the near cache of
// this process hear of the write before the store does, and after: what was
// read in between may still be the old value (S6). If the store could not be
// told, later takes care of the key.
func (g *Guard[V]) write(ctx context.Context, keys []string, later func(string), do func(context.Context) []error) error {
	if len(keys) == 0 {
		return nil
	}
	for _, key := range keys {
		if err := checkKey(key); err != nil {
			return err
		}
	}
	for _, key := range keys {
		g.overtaken(key, store.Invalidated)
	}
	errs := do(ctx)
	defer func() {
		for _, key := range keys {
			g.overtaken(key, store.Invalidated)
		}
	}()
	for i, err := range errs {
		if err == nil {
			continue
		}
		g.fault(keys[i], err)
		later(keys[i])
		// After later: a flight that does not see this mark began after the key
		// was pending, and knows it from there.
		if f := g.shards.of(keys[i]).flight(keys[i]); f != nil {
			f.unsure.Store(true)
		}
	}
	return errors.Join(errs...)
}

func (g *Guard[V]) invalidateLater(key string) { g.retryLater(key, false) }
func (g *Guard[V]) expireLater(key string)     { g.retryLater(key, true) }

func (g *Guard[V]) keys(ids []string) []store.Key {
	keys := make([]store.Key, len(ids))
	for i, id := range ids {
		keys[i] = g.key(id)
	}
	return keys
}

func one(err error) []error {
	if err == nil {
		return nil
	}
	return []error{err}
}
