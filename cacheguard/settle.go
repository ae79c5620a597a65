package cacheguard

import (
	"context"
	"errors"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// retryable tells whether a call may have broken with its connection, so that
// asking again at once, with the same holder or token, is worth it. A time-out
// is not: the server had its time.
func retryable(err error) bool { return store.ClassOf(err) == store.ClassConnection }

func asFault(err error) *store.Fault {
	var f *store.Fault
	if errors.As(err, &f) {
		return f
	}
	return nil
}

// release ends the lease of a grant, and counts a failure.
func (g *Guard[V]) release(key string, grant store.Grant, failure *store.Failure) {
	// Under a context of its own: a closed guard still gives back what it holds.
	// The store bounds the call.
	err := g.store.Release(context.Background(), grant, failure)
	if err != nil && retryable(err) {
		err = g.store.Release(context.Background(), grant, failure)
	}
	if err != nil {
		g.fault(key, err)
	}
}

// giveUp ends, in the background, a lease that may have been granted and that
// nobody will use: a claim or fill whose outcome is unknown.
func (g *Guard[V]) giveUp(grant store.Grant) {
	g.tasks.another()
	go func() {
		defer g.tasks.leave()
		g.release(grant.Key.ID, grant, nil)
	}()
}
