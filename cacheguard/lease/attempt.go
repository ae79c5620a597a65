package lease

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// attempt is one try to get a lease: all its claims have one holder, so that
// the store knows one whose reply was lost.
type attempt struct {
	locker  *Locker
	claim   store.Claim
	sent    time.Time // just before the last claim was sent
	unclear bool      // a claim was sent whose outcome is not known
}

// ask claims, again while the reply is lost, a few times.
func (a *attempt) ask(ctx context.Context) (store.Verdict, error) {
	for n := 1; ; n++ {
		v, err := a.once(ctx)
		if err == nil || n == asks || !transient(err) {
			return v, err
		}
		if err := a.locker.sleep(ctx, pause(n)); err != nil {
			return store.Verdict{}, err
		}
	}
}

// once sends one claim and waits for the answer as long as the caller does. The
// call itself is not cut short: a claim whose caller is gone may well have been
// granted, and only its answer tells what there is to give back. (A proxy that
// holds replies for 100 ms and callers that wait for 50 would otherwise leave
// one lease behind for each of them.)
func (a *attempt) once(ctx context.Context) (store.Verdict, error) {
	if err := a.locker.over(ctx); err != nil {
		return store.Verdict{}, err
	}
	type answer struct {
		verdict store.Verdict
		err     error
	}
	answers := make(chan answer, 1)
	a.sent = time.Now()
	a.locker.tasks.Go(func() {
		v, err := a.locker.leases.Claim(context.WithoutCancel(ctx), a.claim)
		answers <- answer{v, err}
	})
	select {
	case got := <-answers:
		a.unclear = a.unclear || got.err != nil
		return got.verdict, got.err
	case <-ctx.Done():
	case <-a.locker.closing.Done():
	}
	a.locker.tasks.Go(func() {
		got := <-answers
		late := attempt{locker: a.locker, claim: a.claim, unclear: got.err != nil || got.verdict.Outcome == store.Granted}
		late.giveUp()
	})
	return store.Verdict{}, a.locker.over(ctx)
}

// giveUp makes sure that no lease of this attempt is left: one that was granted
// without our knowing is released by its holder's name.
func (a *attempt) giveUp() {
	if !a.unclear {
		return
	}
	a.locker.tasks.Go(func() {
		// If this cannot be told either, the lease runs out by itself.
		_ = a.locker.giveBack(context.Background(), store.Grant{Key: a.claim.Key, Holder: a.claim.Holder})
	})
}

// giveBack releases g, again while the reply is lost, on a context that has only
// the values of ctx: it is called when the caller's has ended.
func (l *Locker) giveBack(ctx context.Context, g store.Grant) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseLimit)
	defer cancel()
	for n := 1; ; n++ {
		err := l.leases.Release(ctx, g, nil)
		if err == nil || n == asks || !transient(err) {
			return err
		}
		select {
		case <-time.After(pause(n)):
		case <-ctx.Done():
			return err
		}
	}
}

// transient reports whether it makes sense to ask again after err.
func transient(err error) bool {
	var f *store.Fault
	return errors.As(err, &f) && f.Class != store.ClassDenied && f.Class != store.ClassData
}

// pause is the time before the question after the n-th: 10 to 20 ms, then twice
// that.
func pause(n int) time.Duration {
	base := 10 * time.Millisecond << (n - 1)
	return base + rand.N(base)
}

// over returns why nothing more may be waited for, or nil.
func (l *Locker) over(ctx context.Context) error {
	if l.closing.Err() != nil {
		return ErrClosed
	}
	return ctx.Err()
}

// sleep waits for d, or returns why it did not.
func (l *Locker) sleep(ctx context.Context, d time.Duration) error {
	if d == 0 {
		return l.over(ctx)
	}
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
	case <-l.closing.Done():
	}
	return l.over(ctx)
}
