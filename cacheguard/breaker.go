package cacheguard

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

const (
	// breakerTrips is how many calls in a row fail before the breaker opens.
	breakerTrips = 3

	// breakerProbes is how often an open breaker asks whether the store is back.
	breakerProbes = 500 * time.Millisecond
)

// errBreakerOpen is the cause of a fault that cost nothing: the store was not
// asked.
var errBreakerOpen = errors.New("the store has failed repeatedly and is not asked for a while")

// The breaker's view of the store, in the order of trust.
const (
	healthy    int32 = iota // nothing to count: calls do not touch the breaker
	suspicious              // the last call failed: every result is counted
	open                    // calls are refused; a task probes
)

// breaker is a store that is not asked while it fails, so that an outage costs
// a caller at most one time-out, and soon none. The library keeps the state;
// what is ours is that a healthy store costs one atomic load per call, and that
// no caller has to be the probe.
type breaker struct {
	store.Store
	state  atomic.Int32
	cb     *gobreaker.CircuitBreaker[struct{}]
	opened func()      // starts a task that calls probe until it returns true
	probed atomic.Bool // that task was started since the breaker was closed
	tells  *reporter
	turns  turns

	// news is a change that the hooks have not been told of: the library tells
	// it to us under its lock, where no hook may run.
	news atomic.Int32
}

// What news may hold.
const (
	none int32 = iota
	hasOpened
	hasClosed
)

func newBreaker(s store.Store, opened func(), tells *reporter) *breaker {
	b := &breaker{Store: s, opened: opened, tells: tells, turns: turnsOf(s)}
	b.cb = gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{
		Name:        "cacheguard store",
		MaxRequests: 1,
		Timeout:     breakerProbes / 2, // open to half-open; the task sets the pace
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= breakerTrips },
		OnStateChange: func(_ string, from, to gobreaker.State) {
			switch {
			case from == gobreaker.StateClosed:
				b.state.Store(open)
				b.news.Store(hasOpened)
			case to == gobreaker.StateClosed:
				b.state.Store(healthy)
				b.probed.Store(false)
				b.news.Store(hasClosed)
			}
		},
	})
	return b
}

// blames tells whether an error says that the store as a whole is ill. A full
// store, a replica and a bad entry answer quickly, and may still be read.
func blames(err error) bool {
	switch store.ClassOf(err) {
	case store.ClassTimeout, store.ClassConnection, store.ClassPool, store.ClassLoading, store.ClassCluster, store.ClassDenied:
		return true
	}
	return false
}

// refused is the fault of a call that is not made, or nil.
func (b *breaker) refused(op string) error {
	if b.state.Load() != open {
		return nil
	}
	return &store.Fault{Op: op, Class: store.ClassConnection, Err: errBreakerOpen}
}

// enter lets a call at the store when it has its turn, which is to be left, or
// returns the fault of a call that is not made.
func (b *breaker) enter(ctx context.Context, op string, e errand) error {
	if err := b.refused(op); err != nil {
		return err
	}
	if err := b.turns.take(ctx, op, e); err != nil {
		return err
	}
	if err := b.refused(op); err != nil { // those before it have found the store ill
		b.turns.leave(e)
		return err
	}
	return nil
}

// heard takes the result of a call that was sent at began.
func (b *breaker) heard(op string, keys int, began time.Time, err error) {
	b.tells.called(op, keys, began, err)
	b.judge(err)
}

// tell tells the hooks what has changed.
func (b *breaker) tell() {
	if news := b.news.Swap(none); news != none {
		b.tells.breaker.tell(&b.tells.panics, news == hasOpened)
	}
}

func (b *breaker) judge(err error) {
	if err != nil && store.ClassOf(err) == store.ClassCanceled {
		return // the caller left: that says nothing about the store
	}
	bad := err != nil && blames(err)
	if b.state.Load() == healthy && !bad {
		return
	}
	if b.count(bad) == gobreaker.StateClosed {
		b.state.CompareAndSwap(healthy, suspicious)
		if !bad {
			b.state.CompareAndSwap(suspicious, healthy)
		}
	}
}

// count tells the library, and returns the state after that.
func (b *breaker) count(bad bool) gobreaker.State {
	before := b.state.Load()
	if before == open {
		return gobreaker.StateOpen // a straggler from before: the probes decide
	}
	_, _ = b.cb.Execute(func() (struct{}, error) {
		if bad {
			return struct{}{}, errBreakerOpen
		}
		return struct{}{}, nil
	})
	after := b.cb.State()
	b.tell()
	// Of the calls that fail together, the first to be here starts the task.
	if after == gobreaker.StateOpen && b.state.Load() == open && !b.probed.Swap(true) {
		b.opened()
	}
	return after
}

// probe asks the store, if it is time to, and tells whether the breaker has
// closed.
func (b *breaker) probe(ctx context.Context, key store.Key) bool {
	_, _ = b.cb.Execute(func() (struct{}, error) {
		began := b.tells.sent()
		_, err := b.Store.Load(ctx, key)
		b.tells.called("load", 1, began, err)
		if err != nil && blames(err) {
			return struct{}{}, err
		}
		return struct{}{}, nil
	})
	closed := b.cb.State() == gobreaker.StateClosed
	b.tell()
	return closed
}

func (b *breaker) Load(ctx context.Context, key store.Key) (store.Entry, error) {
	if err := b.enter(ctx, "load", readsOne); err != nil {
		return store.Entry{}, err
	}
	defer b.turns.leave(readsOne)
	began := b.tells.sent()
	e, err := b.Store.Load(ctx, key)
	b.heard("load", 1, began, err)
	return e, err
}

func (b *breaker) Claim(ctx context.Context, c store.Claim) (store.Verdict, error) {
	if err := b.enter(ctx, "claim", begins); err != nil {
		return store.Verdict{}, err
	}
	defer b.turns.leave(begins)
	began := b.tells.sent()
	v, err := b.Store.Claim(ctx, c)
	b.heard("claim", 1, began, err)
	return v, err
}

func (b *breaker) LoadMany(ctx context.Context, keys []store.Key) ([]store.Entry, []error) {
	entries := make([]store.Entry, len(keys)) // also if the call is refused
	errs := b.inPieces(ctx, "load", len(keys), nil, func(from, to int) []error {
		some, errs := b.Store.LoadMany(ctx, keys[from:to])
		copy(entries[from:to], some)
		return errs
	})
	return entries, errs
}

func (b *breaker) ClaimMany(ctx context.Context, claims []store.Claim) ([]store.Verdict, []error) {
	verdicts := make([]store.Verdict, len(claims))
	errs := b.inPieces(ctx, "claim", len(claims), nil, func(from, to int) []error {
		some, errs := b.Store.ClaimMany(ctx, claims[from:to])
		copy(verdicts[from:to], some)
		return errs
	})
	return verdicts, errs
}

func (b *breaker) FillMany(ctx context.Context, fills []store.Filling) []error {
	size := func(i int) int { return len(fills[i].Content.Payload) }
	return b.inPieces(ctx, "fill", len(fills), size, func(from, to int) []error { return b.Store.FillMany(ctx, fills[from:to]) })
}

func (b *breaker) Release(ctx context.Context, g store.Grant, f *store.Failure) error {
	return b.call(ctx, "release", func() error { return b.Store.Release(ctx, g, f) })
}

func (b *breaker) Fill(ctx context.Context, g store.Grant, c store.Content) error {
	return b.call(ctx, "fill", func() error { return b.Store.Fill(ctx, g, c) })
}

func (b *breaker) Begin(ctx context.Context, key store.Key, keep time.Duration) (begun store.Begun, err error) {
	err = b.call(ctx, "begin", func() error {
		begun, err = b.Store.Begin(ctx, key, keep)
		return err
	})
	return begun, err
}

func (b *breaker) Set(ctx context.Context, w store.Write) error {
	return b.call(ctx, "set", func() error { return b.Store.Set(ctx, w) })
}

func (b *breaker) Invalidate(ctx context.Context, keys []store.Key) []error {
	return b.inPieces(ctx, "invalidate", len(keys), nil, func(from, to int) []error { return b.Store.Invalidate(ctx, keys[from:to]) })
}

func (b *breaker) Expire(ctx context.Context, keys []store.Key) []error {
	return b.inPieces(ctx, "expire", len(keys), nil, func(from, to int) []error { return b.Store.Expire(ctx, keys[from:to]) })
}

func (b *breaker) Renew(ctx context.Context, renewals []store.Renewal) []error {
	return b.callMany(ctx, "renew", len(renewals), func() []error { return b.Store.Renew(ctx, renewals) })
}

func (b *breaker) call(ctx context.Context, op string, do func() error) error {
	e := errandOf(op)
	if err := b.enter(ctx, op, e); err != nil {
		return err
	}
	defer b.turns.leave(e)
	began := b.tells.sent()
	err := do()
	b.heard(op, 1, began, err)
	return err
}

func (b *breaker) callMany(ctx context.Context, op string, n int, do func() []error) []error {
	e := errandOf(op)
	if err := b.enter(ctx, op, e); err != nil {
		errs := make([]error, n)
		for i := range errs {
			errs[i] = err
		}
		return errs
	}
	defer b.turns.leave(e)
	began := b.tells.sent()
	errs := do()
	b.heard(op, n, began, errors.Join(errs...))
	return errs
}
