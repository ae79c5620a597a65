// Package lease gives one process of a fleet the right to do a named thing, for
// a time, with a fencing token as the proof of it: scheduled jobs, guarded
// writes, whatever must not be done twice at once.
//
//	locker := lease.New(store, lease.Options{})
//	err := locker.Do(ctx, "invoices/2026-11", func(ctx context.Context, token store.Token) error {
//		return invoices.Run(ctx, token)
//	})
//
// A lease is kept alive by renewals while its holder works, and its context
// ends before it can lapse. Still it is a lease and not a lock: a holder that is
// paused for longer than the lease, or a store that forgets, can make two
// holders at once. Where that would do harm, hand the token to what is written
// and let it refuse a lower one than it has seen:
//
//	UPDATE stock SET n = $3, last_token = $2 WHERE id = $1 AND last_token < $2
//
// Tokens of one name grow strictly, also across leases that lapsed. They go on
// growing after the store lost its data as long as its clock does not step back
// meanwhile; and after a failover as long as the new primary's clock is not
// behind by more than the outage took. docs/choosing.md says when a lease is
// the wrong tool.
package lease

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/internal/watchdog"
)

// Locker gives out leases by name. All methods are safe for concurrent use. One
// locker per process and namespace is the intended use: it shares one
// subscription, one goroutine for all renewals, and one place in the fleet's
// competition for a name among all its callers.
type Locker struct {
	leases   store.Leases
	opts     Options
	invalid  error  // of the options: every verb returns it
	process  string // id of this process for the store
	attempts atomic.Uint64
	dog      *watchdog.Watchdog
	fault    atomic.Pointer[error] // of the last renewal; nil: it was answered
	lines    lines

	listen     sync.Once
	stopListen func() // written under listen, read after tasks are over

	closing context.Context // ends when Close is called
	close   context.CancelFunc
	tasks   sync.WaitGroup // verbs and the claims that they left behind

	mu     sync.Mutex
	closed bool                // protected by mu
	held   map[*Lease]struct{} // protected by mu
}

// New returns a locker over s. It starts nothing until the first lease is asked
// for. If an option is out of range, every verb returns the error that says so.
func New(s store.Leases, opts Options) *Locker {
	opts, invalid := opts.resolve()
	closing, closeNow := context.WithCancel(context.Background())
	l := &Locker{
		leases:  s,
		opts:    opts,
		invalid: invalid,
		process: opts.process(),
		closing: closing,
		close:   closeNow,
		held:    make(map[*Lease]struct{}),
	}
	l.dog = watchdog.New(s, watchdog.Hooks{Renewed: l.renewed})
	l.lines.init()
	return l
}

// Acquire waits until the lease on name is this caller's, as long as ctx lasts.
// Who waits in one process is served in order of arrival; among processes there
// is no order, but one that has had a name several times lets the others go
// first.
//
// If ctx ends first, the error is the context's, and also a *[store.HeldError]
// that says who holds the lease and for how long, if that is known. If the store
// gives no answer for one Length, the error is its fault. Whatever the outcome,
// no lease is left behind.
//
// Leases are not re-entrant: to acquire a name that this process holds is to
// wait for oneself.
func (l *Locker) Acquire(ctx context.Context, name string) (*Lease, error) {
	return l.acquire(ctx, context.WithoutCancel(ctx), name)
}

// Do acquires the lease on name, runs fn and releases the lease. The context of
// fn ends with ctx and, as [Lease.Context], before the lease can lapse.
//
// It returns nil only if fn did and the lease was held until then: where it was
// lost meanwhile the error is also a [store.ErrLost]. A lease that could not be
// released runs out by itself and is no error. A panic or runtime.Goexit in fn
// releases the lease and takes its course.
func (l *Locker) Do(ctx context.Context, name string, fn func(ctx context.Context, token store.Token) error) (err error) {
	h, err := l.acquire(ctx, ctx, name)
	if err != nil {
		return err
	}
	defer func() {
		if lost := h.Release(ctx); errors.Is(lost, store.ErrLost) && !errors.Is(err, store.ErrLost) {
			err = errors.Join(err, lost)
		}
	}()
	return fn(h.Context(), h.Token())
}

// TryAcquire asks once, without waiting: if another holds the lease, the error
// is a *[store.HeldError], which is a [store.ErrHeld]. Who waits in Acquire has
// no precedence over it.
func (l *Locker) TryAcquire(ctx context.Context, name string) (*Lease, error) {
	if err := l.enter(); err != nil {
		return nil, err
	}
	defer l.tasks.Done()
	a := attempt{locker: l, claim: l.newClaim(name, false)}
	v, err := a.ask(ctx)
	if err == nil && v.Outcome == store.Granted {
		return l.hold(context.WithoutCancel(ctx), v.Grant, a.sent, nil), nil
	}
	a.giveUp()
	if err != nil {
		return nil, err
	}
	return nil, refusal(v)
}

// refusal is the error for a verdict that is no grant.
func refusal(v store.Verdict) error {
	if v.Outcome == store.Held {
		return &store.HeldError{Holder: v.Holder, Left: v.Left}
	}
	return errShared
}

func (l *Locker) newClaim(name string, wait bool) store.Claim {
	return store.Claim{
		Key:    store.Key{Space: l.opts.Namespace, ID: name},
		Holder: store.NewHolder(l.process, strconv.FormatUint(l.attempts.Add(1), 36)),
		Length: l.opts.Length,
		Keep:   l.opts.HoldLimit,
		Wait:   wait,
	}
}

// enter admits a verb; its caller must call tasks.Done.
func (l *Locker) enter() error {
	if l.invalid != nil {
		return l.invalid
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return ErrClosed
	}
	l.tasks.Add(1)
	return nil
}

// track remembers what Close has to end; forget, that it has ended.
func (l *Locker) track(h *Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held[h] = struct{}{}
}

func (l *Locker) forget(h *Lease) {
	l.mu.Lock()
	_, known := l.held[h]
	delete(l.held, h)
	l.mu.Unlock()
	if known && h.line != nil {
		l.lines.released(h.line)
	}
}

// Close ends the locker: who waits gets ErrClosed, the contexts of leases that
// are held end with a cause that is both store.ErrLost and ErrClosed, and the
// leases are released. It waits until nothing of the locker runs, within a few
// seconds even if the store does not answer. It may be called twice.
func (l *Locker) Close() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.close()
	l.tasks.Wait() // from here on no lease is added
	if l.stopListen != nil {
		l.stopListen()
	}
	l.dog.Close() // ends the contexts
	l.releaseAll()
	return nil
}

// releaseAll gives back what is held, a few at a time.
func (l *Locker) releaseAll() {
	ctx, cancel := context.WithTimeout(context.Background(), releaseLimit)
	defer cancel()
	slots := make(chan struct{}, 8)
	var releases sync.WaitGroup
	for h := range l.snapshot() {
		slots <- struct{}{}
		releases.Go(func() {
			defer func() { <-slots }()
			if ctx.Err() == nil { // else the rest run out by themselves
				h.Release(ctx)
			}
		})
	}
	releases.Wait()
}

func (l *Locker) snapshot() map[*Lease]struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	left := make(map[*Lease]struct{}, len(l.held))
	for h := range l.held {
		left[h] = struct{}{}
	}
	return left
}

const (
	// releaseLimit bounds one release with its repetitions, and what Close
	// starts of them.
	releaseLimit = 2 * time.Second

	// asks is how often one question is sent while its reply is lost.
	asks = 3
)
