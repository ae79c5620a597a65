package cacheguard

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Ask is a question to [Guard.Do]: what is good enough, and how to load it.
type Ask[V any] struct {
	// Accept judges an answer for this caller, wherever it comes from: the
	// store, a flight that it joined, another process. It is not asked about
	// what the caller's own load brought. It runs on the caller's goroutine
	// and may run several times. nil: take what is fresh, take and refresh what
	// is stale.
	Accept func(Entry[V]) Use

	// Prepare makes the loader. It is called at most once, on the caller's
	// goroutine, before a flight is joined or begun, and so never for a plain
	// hit. The loader may run later than that, on another goroutine, after Do
	// has returned, or not at all. nil: never load; Do answers ErrNotCached if
	// there is nothing that Accept takes.
	Prepare func() Reloader[V]
}

// Reloader is a [Loader] that is told what it is to replace: the entry that was
// under the key when the lease was claimed, so that the origin can be asked
// whether that still holds. prev.State is zero if there was none. Its value is
// shared: read only.
type Reloader[V any] func(ctx context.Context, prev Entry[V]) (V, error)

// Use is what a caller does with an answer.
type Use uint8

const (
	Take           Use = iota + 1 // it is the answer
	TakeAndRefresh                // it is the answer, and it is time for a new one: one rebuild in the fleet, in the background
	Reload                        // it is not for this caller: load, and wait for that
)

// ErrNotCached says that nothing acceptable was stored, and that the caller did
// not want to load.
var ErrNotCached = errors.New("cacheguard: not cached")

// PassError is what a loader returns, with or without a value, to say that its
// result is for its own caller alone. It is not a failure. A short pass mark is
// left: those who waited, here and in the fleet, and those who come while it
// lasts, load for themselves at once, in parallel and without a lease. Get does
// that for them with their own loader; Do leaves it to its caller and returns
// the *PassError.
type PassError struct {
	For time.Duration // how long the mark lasts; above zero
}

func (e *PassError) Error() string {
	return fmt.Sprintf("cacheguard: not to be shared, for %v", e.For)
}

// Cooler is an error of a loader that knows its own cooldown. Zero: the failure
// is counted, and binds nobody.
type Cooler interface {
	error
	Cooldown() time.Duration
}

// question is a Get, a Refresh or a Do under way.
type question[V any] struct {
	load Loader[V] // of a Get or Refresh
	anew bool      // Refresh: only what was loaded since it came

	asks bool // Do
	ask  Ask[V]

	reload Reloader[V] // once prepared

	arrival    uint64   // its caller's number
	turnedDown Entry[V] // what Accept did not take: better than nothing

	how // for the report
}

// how a question came by its answer.
type how struct {
	via    Via
	waited time.Duration // for flights
	left   bool          // its context ended: the caller has left
}

// use judges an answer.
func (q *question[V]) use(e Entry[V]) Use {
	switch {
	case q.asks && q.ask.Accept != nil:
		return q.ask.Accept(e)
	case e.State == Stale:
		return TakeAndRefresh
	}
	return Take
}

func (q *question[V]) loads() bool { return !q.asks || q.ask.Prepare != nil }

// reloader makes the loader, once.
func (q *question[V]) reloader(key string) Reloader[V] {
	if q.reload == nil {
		q.reload = q.prepare(key)
	}
	return q.reload
}

func (q *question[V]) prepare(key string) Reloader[V] {
	if q.asks {
		return q.ask.Prepare()
	}
	return q.load.reloader(key)
}

// reloader is the loader of one who does not ask what it is to replace.
func (load Loader[V]) reloader(key string) Reloader[V] {
	return func(ctx context.Context, _ Entry[V]) (V, error) { return load(ctx, key) }
}
