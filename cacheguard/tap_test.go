package cacheguard_test

import (
	"context"
	"sync"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// tap is a store between a guard and its real one, where a test can count,
// pause, fail and lose the calls of one process.
//
// before runs before a call reaches the store; its error is returned instead,
// and nothing has happened. after runs when the store has answered; its error
// replaces the answer, and the effect stays: a lost reply. Blocking in either
// pauses the process there.
type tap struct {
	store.Store

	mu            sync.Mutex
	calls         map[string]int
	before, after func(op, id string) error
}

func newTap(s store.Store) *tap { return &tap{Store: s, calls: make(map[string]int)} }

// on sets what happens around calls from now on; nil for nothing.
func (t *tap) on(before, after func(op, id string) error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.before, t.after = before, after
}

func (t *tap) count(op string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.calls[op]
}

func (t *tap) around(op, id string, call func()) error {
	t.mu.Lock()
	t.calls[op]++
	before, after := t.before, t.after
	t.mu.Unlock()
	if before != nil {
		if err := before(op, id); err != nil {
			return err
		}
	}
	call()
	if after != nil {
		return after(op, id)
	}
	return nil
}

// lost is the fault of a call that did not get through.
func lost(op string, class store.Class) error {
	return &store.Fault{Op: op, Class: class, Err: context.DeadlineExceeded}
}

func (t *tap) Load(ctx context.Context, key store.Key) (e store.Entry, err error) {
	if lost := t.around("load", key.ID, func() { e, err = t.Store.Load(ctx, key) }); lost != nil {
		return store.Entry{}, lost
	}
	return e, err
}

func (t *tap) Claim(ctx context.Context, c store.Claim) (v store.Verdict, err error) {
	if lost := t.around("claim", c.Key.ID, func() { v, err = t.Store.Claim(ctx, c) }); lost != nil {
		return store.Verdict{}, lost
	}
	return v, err
}

func (t *tap) Renew(ctx context.Context, rs []store.Renewal) (errs []error) {
	if lost := t.around("renew", rs[0].Grant.Key.ID, func() { errs = t.Store.Renew(ctx, rs) }); lost != nil {
		errs = make([]error, len(rs))
		for i := range errs {
			errs[i] = lost
		}
	}
	return errs
}

func (t *tap) Release(ctx context.Context, g store.Grant, f *store.Failure) (err error) {
	if lost := t.around("release", g.Key.ID, func() { err = t.Store.Release(ctx, g, f) }); lost != nil {
		return lost
	}
	return err
}

func (t *tap) Fill(ctx context.Context, g store.Grant, c store.Content) (err error) {
	if lost := t.around("fill", g.Key.ID, func() { err = t.Store.Fill(ctx, g, c) }); lost != nil {
		return lost
	}
	return err
}

func (t *tap) Begin(ctx context.Context, key store.Key, keep time.Duration) (b store.Begun, err error) {
	if lost := t.around("begin", key.ID, func() { b, err = t.Store.Begin(ctx, key, keep) }); lost != nil {
		return store.Begun{}, lost
	}
	return b, err
}

func (t *tap) Set(ctx context.Context, w store.Write) (err error) {
	if lost := t.around("set", w.Key.ID, func() { err = t.Store.Set(ctx, w) }); lost != nil {
		return lost
	}
	return err
}

func (t *tap) Invalidate(ctx context.Context, keys []store.Key) (errs []error) {
	return t.many("invalidate", keys, func() []error { return t.Store.Invalidate(ctx, keys) })
}

func (t *tap) Expire(ctx context.Context, keys []store.Key) (errs []error) {
	return t.many("expire", keys, func() []error { return t.Store.Expire(ctx, keys) })
}

func (t *tap) many(op string, keys []store.Key, call func() []error) (errs []error) {
	if lost := t.around(op, keys[0].ID, func() { errs = call() }); lost != nil {
		errs = make([]error, len(keys))
		for i := range errs {
			errs[i] = lost
		}
	}
	return errs
}

// reset returns how many calls of single keys there were since the last reset,
// in all and by method.
func (t *tap) reset() (n int, calls map[string]int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	calls, t.calls = t.calls, make(map[string]int)
	for _, c := range calls {
		n += c
	}
	return n, calls
}
