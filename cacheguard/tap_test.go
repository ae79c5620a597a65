package cacheguard_test

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// tap is a store between a guard and its real one, where a test can count,
// pause, fail, lose and delay the calls of one process.
//
// before runs before a call reaches the store; its error is returned instead,
// and nothing has happened. after runs when the store has answered; its error
// replaces the answer, and the effect stays: a lost reply. Blocking in either
// pauses the process there. A before that returns a *stalled lets the call
// reach the store after the caller has been told that it timed out.
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

// stalled says that a call sits in a server that does not answer: it runs once
// until is closed, when nobody waits for it any more.
type stalled struct{ until chan struct{} }

func (*stalled) Error() string { return "stalled" }

func (t *tap) around(op, id string, call func()) error {
	t.mu.Lock()
	t.calls[op]++
	before, after := t.before, t.after
	t.mu.Unlock()
	if before != nil {
		if err := before(op, id); err != nil {
			var s *stalled
			if errors.As(err, &s) {
				go func() { <-s.until; call() }()
				return lost(op, store.ClassTimeout)
			}
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

// one runs a call that has an answer. The answer's variables are the call's
// own: a stalled call may write them after the caller has gone.
func one[R any](t *tap, op, id string, call func() (R, error)) (R, error) {
	var r R
	var err error
	if lost := t.around(op, id, func() { r, err = call() }); lost != nil {
		var none R
		return none, lost
	}
	return r, err
}

func (t *tap) simple(op, id string, call func() error) error {
	_, err := one(t, op, id, func() (struct{}, error) { return struct{}{}, call() })
	return err
}

// many runs a call that has an error for each of n things.
func (t *tap) many(op, id string, n int, call func() []error) []error {
	var errs []error
	if lost := t.around(op, id, func() { errs = call() }); lost != nil {
		each := make([]error, n)
		for i := range each {
			each[i] = lost
		}
		return each
	}
	return errs
}

func (t *tap) Load(ctx context.Context, key store.Key) (store.Entry, error) {
	return one(t, "load", key.ID, func() (store.Entry, error) { return t.Store.Load(ctx, key) })
}

func (t *tap) Claim(ctx context.Context, c store.Claim) (store.Verdict, error) {
	return one(t, "claim", c.Key.ID, func() (store.Verdict, error) { return t.Store.Claim(ctx, c) })
}

func (t *tap) Begin(ctx context.Context, key store.Key, keep time.Duration) (store.Begun, error) {
	return one(t, "begin", key.ID, func() (store.Begun, error) { return t.Store.Begin(ctx, key, keep) })
}

func (t *tap) Renew(ctx context.Context, rs []store.Renewal) []error {
	return t.many("renew", rs[0].Grant.Key.ID, len(rs), func() []error { return t.Store.Renew(ctx, rs) })
}

func (t *tap) Release(ctx context.Context, g store.Grant, f *store.Failure) error {
	return t.simple("release", g.Key.ID, func() error { return t.Store.Release(ctx, g, f) })
}

func (t *tap) Fill(ctx context.Context, g store.Grant, c store.Content) error {
	return t.simple("fill", g.Key.ID, func() error { return t.Store.Fill(ctx, g, c) })
}

func (t *tap) Set(ctx context.Context, w store.Write) error {
	return t.simple("set", w.Key.ID, func() error { return t.Store.Set(ctx, w) })
}

func (t *tap) Invalidate(ctx context.Context, keys []store.Key) []error {
	return t.many("invalidate", keys[0].ID, len(keys), func() []error { return t.Store.Invalidate(ctx, keys) })
}

func (t *tap) Expire(ctx context.Context, keys []store.Key) []error {
	return t.many("expire", keys[0].ID, len(keys), func() []error { return t.Store.Expire(ctx, keys) })
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
