package main

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// unruly is an origin that can be made slow, or to fail, while it serves.
type unruly struct {
	origin
	delay   atomic.Int64 // nanoseconds that each load takes longer
	failing atomic.Bool
}

var errToldToFail = errors.New("the origin was told to fail")

// misbehave takes the time, and fails, as it was told.
func (u *unruly) misbehave(ctx context.Context) error {
	if err := sleep(ctx, time.Duration(u.delay.Load())); err != nil {
		return err
	}
	if u.failing.Load() {
		return errToldToFail
	}
	return nil
}

// Load misbehaves after it has read: what it brings may be old by then.
func (u *unruly) Load(ctx context.Context, id string) (product, error) {
	p, err := u.origin.Load(ctx, id)
	if bad := u.misbehave(ctx); bad != nil {
		return product{}, bad
	}
	return p, err
}

func (u *unruly) List(ctx context.Context) ([]product, error) {
	list, err := u.origin.List(ctx)
	if bad := u.misbehave(ctx); bad != nil {
		return nil, bad
	}
	return list, err
}
