// Package tokenctx carries the fencing token of a load or of a held lease in a
// context. The guard and the locker put it there; package lease hands it to
// the user (lease.TokenFromContext).
package tokenctx

import (
	"context"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

type key struct{}

// WithToken returns a context that carries t. A token further in hides one
// further out: what is written belongs to the innermost load or lease. Zero
// hides it, too: that load has none.
func WithToken(ctx context.Context, t store.Token) context.Context {
	return context.WithValue(ctx, key{}, t)
}

// FromContext returns the token that ctx carries, and whether there is one.
func FromContext(ctx context.Context) (store.Token, bool) {
	t, _ := ctx.Value(key{}).(store.Token)
	return t, t != 0
}
