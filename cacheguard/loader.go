package cacheguard

import "context"

// Loader asks the origin for the value of a key. It returns ErrNotFound (or an
// error that wraps it) if the origin has no such thing.
//
// Its context has the values of the context of the caller that started it, but
// not that caller's deadline or cancellation: the load is everybody's. It ends
// with Options.LoadLimit, with Close, and when a newer value from another
// process makes the load needless (cause store.ErrLost). lease.TokenFromContext
// gives the load's fencing token, to fence what the loader writes elsewhere.
//
// A loader that panics or calls runtime.Goexit fails with a *PanicError.
type Loader[V any] func(ctx context.Context, key string) (V, error)
