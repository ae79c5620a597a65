package memstore

import (
	"context"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// LoadMany implements [store.Store].
func (s *Store) LoadMany(ctx context.Context, keys []store.Key) ([]store.Entry, []error) {
	return many(keys, func(key store.Key) (store.Entry, error) { return s.Load(ctx, key) })
}

// ClaimMany implements [store.Store].
func (s *Store) ClaimMany(ctx context.Context, claims []store.Claim) ([]store.Verdict, []error) {
	return many(claims, func(c store.Claim) (store.Verdict, error) { return s.Claim(ctx, c) })
}

// FillMany implements [store.Store].
func (s *Store) FillMany(ctx context.Context, fills []store.Filling) []error {
	return each(ctx, "fill", fills, func(f store.Filling) error { return s.Fill(ctx, f.Grant, f.Content) })
}

// each is many for what has no result but an error. Nothing is begun once ctx
// has ended.
func each[In any](ctx context.Context, op string, in []In, one func(In) error) []error {
	_, errs := many(in, func(thing In) (struct{}, error) {
		if err := ended(ctx, op); err != nil {
			return struct{}{}, err
		}
		return struct{}{}, one(thing)
	})
	return errs
}

// many calls one for each of in. The errors are nil if there is none.
func many[In, Out any](in []In, one func(In) (Out, error)) ([]Out, []error) {
	out := make([]Out, len(in))
	var errs []error
	for i := range in {
		var err error
		if out[i], err = one(in[i]); err != nil {
			if errs == nil {
				errs = make([]error, len(in))
			}
			errs[i] = err
		}
	}
	return out, errs
}
