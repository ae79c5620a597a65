package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/internal/watchdog"
)

// ErrClosed: the locker was closed.
var ErrClosed = errors.New("cacheguard: locker is closed")

// errShared: the store answered as it only does for the key of a guard.
var errShared = errors.New("cacheguard: this name is a guard's key: give the locker a namespace of its own")

// gaveUp is the error of an Acquire whose context ended. It is the context's
// error, its cause, and, if somebody is known to hold the lease, a
// *store.HeldError that says who and for how long.
func gaveUp(ctx context.Context, held *store.HeldError) error {
	err := ctx.Err()
	if cause := context.Cause(ctx); !errors.Is(cause, err) {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	if held != nil {
		err = fmt.Errorf("%w: %w", err, held)
	}
	return fmt.Errorf("cacheguard: gave up waiting for a lease: %w", err)
}

// lost is the cause that a lease's context ends with. Each is a store.ErrLost.
func (l *Locker) lost(r watchdog.Reason) error {
	switch r {
	case watchdog.Lapsed:
		err := fmt.Errorf("%w: no renewal got through within %v", store.ErrLost, l.opts.Length)
		if fault := l.fault.Load(); fault != nil {
			err = fmt.Errorf("%w: %w", err, *fault)
		}
		return err
	case watchdog.Capped:
		return fmt.Errorf("%w: it was held for HoldLimit, %v", store.ErrLost, l.opts.HoldLimit)
	case watchdog.Closed:
		return fmt.Errorf("%w: %w", store.ErrLost, ErrClosed)
	}
	return fmt.Errorf("%w: the store gave it to another, or lost its record", store.ErrLost)
}

// renewed keeps the fault of the last renewal, for the error of a lease that
// lapses of it.
func (l *Locker) renewed(_ store.Grant, _ time.Duration, err error) {
	if err == nil || errors.Is(err, store.ErrLost) {
		l.fault.Store(nil)
		return
	}
	l.fault.Store(&err)
}
