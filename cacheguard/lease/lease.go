package lease

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/internal/tokenctx"
	"github.com/cacheguard-go/cacheguard/internal/watchdog"
)

// TokenFromContext returns the fencing token that ctx carries: of the lease in
// the contexts of a [Lease] and of [Locker.Do], of the load in a guard's
// loader. Whatever is written there should be written under this token.
func TokenFromContext(ctx context.Context) (store.Token, bool) { return tokenctx.FromContext(ctx) }

// Lease is a lease that is held and kept alive until it is released, orphaned
// or lost. All methods are safe for concurrent use.
type Lease struct {
	locker *Locker
	grant  store.Grant
	line   *line // where the name's callers wait; nil from TryAcquire

	ctx    context.Context
	cancel context.CancelCauseFunc
	held   *watchdog.Held

	once sync.Once // guards the end of the hold, and so:
	err  error     // what Release returns
}

// hold starts to keep a grant alive. sent is an instant before the claim was
// sent; base is what the lease's context is made from.
func (l *Locker) hold(base context.Context, g store.Grant, sent time.Time, ln *line) *Lease {
	ctx, cancel := context.WithCancelCause(tokenctx.WithToken(base, g.Token))
	h := &Lease{locker: l, grant: g, line: ln, ctx: ctx, cancel: cancel}
	l.track(h)
	h.held = l.dog.Hold(watchdog.Lease{
		Grant: g,
		Sent:  sent,
		Cap:   sent.Add(l.opts.HoldLimit),
		// Work that is told to stop needs time to do so, and two clocks that
		// measure the same time differ a little.
		Margin: g.Length / 10,
	}, func(r watchdog.Reason) {
		cancel(l.lost(r))
		if r != watchdog.Closed { // Close still has to release it
			l.forget(h)
		}
	})
	return h
}

// Token returns the lease's fencing token: higher than any that was given for
// this name before. A resource that keeps the highest token it has seen, and
// refuses lower ones, is safe from a holder that lost its lease without
// noticing.
func (h *Lease) Token() store.Token { return h.grant.Token }

// Context returns a context for the work that is done under the lease. It has
// the values of the context that the lease was acquired with, but not its end;
// it carries the token (see [TokenFromContext]).
//
// It is cancelled with a cause that is [store.ErrLost] before the lease can
// lapse: at nine tenths of a length in which no renewal got through, at
// HoldLimit, or when the store says that the lease is another's. Release and
// Orphan cancel it with [context.Canceled].
//
// That is as good as a clock can do. A process that is paused (a long
// collection, a stopped machine) is told only when it runs again: what must
// not be written late has to check the token.
func (h *Lease) Context() context.Context { return h.ctx }

// Release ends the lease, so that the next one may have it, and cancels its
// Context. It asks the store to end this holder's lease and no other, within a
// bound of its own: ctx gives its values only, so that a deferred Release works
// when ctx has ended.
//
// It returns nil if the lease was held until now; an error that is
// [store.ErrLost] if it had been lost before; the store's fault if the store
// could not be told: the lease then ends by itself within Length. Called again,
// it returns the same; after Orphan it does nothing and returns nil.
func (h *Lease) Release(ctx context.Context) error {
	h.once.Do(func() { h.err = h.release(ctx) })
	return h.err
}

func (h *Lease) release(ctx context.Context) error {
	kept := h.held.Drop()
	// What is done under the lease is told to stop before another can have it.
	h.cancel(context.Canceled)
	fault := h.locker.giveBack(ctx, h.grant)
	h.locker.forget(h)
	switch {
	case kept:
		return fault
	case errors.Is(context.Cause(h.ctx), store.ErrLost):
		return context.Cause(h.ctx)
	}
	return store.ErrLost
}

// Orphan stops keeping the lease alive without releasing it, and cancels its
// Context: nobody else gets the name until the lease runs out, within Length. It
// is for work that another process goes on with, and for a name that must not be
// taken again at once.
func (h *Lease) Orphan() {
	h.once.Do(func() {
		h.held.Drop()
		h.cancel(context.Canceled)
		h.locker.forget(h)
	})
}
