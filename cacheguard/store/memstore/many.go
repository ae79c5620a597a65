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
	_, errs := many(fills, func(f store.Filling) (struct{}, error) {
		return struct{}{}, s.Fill(ctx, f.Grant, f.Content)
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
