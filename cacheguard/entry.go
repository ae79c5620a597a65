package cacheguard

import (
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// State says where an answer came from.
type State uint8

const (
	Fresh    State = iota + 1 // from the store, within its TTL
	Stale                     // from the store, within its grace; somebody rebuilds it
	Rebuilt                   // loaded by this process, just now
	Followed                  // loaded by another process, just now; this one waited for it
	Absent                    // the origin has no such thing; the error is ErrNotFound
)

// String returns the state's name in lower case.
func (s State) String() string {
	switch s {
	case Fresh:
		return "fresh"
	case Stale:
		return "stale"
	case Rebuilt:
		return "rebuilt"
	case Followed:
		return "followed"
	case Absent:
		return "absent"
	}
	return "none"
}

// Entry is an answer with its circumstances.
type Entry[V any] struct {
	Value V     // shared with other callers of this process: read only
	State State // zero if the error is neither nil nor ErrNotFound

	// Age, Left and Keep are as of when the store was asked, so that a late reply
	// makes them a little younger than they are. What Do and Ask.Accept are given
	// is as of now, and rather a little older.
	Age  time.Duration // since the question was sent to the origin
	Left time.Duration // how much longer it is fresh; zero: stale, or not stored
	TTL  time.Duration // the fresh life that it was stored with
	Keep time.Duration // how much longer the store keeps it, if that is where it is from

	// Token of the entry, or of the load that brought it. Zero if there is
	// none: loaded without a lease.
	Token store.Token

	// Coalesced: the answer was asked for by another caller of this process,
	// whom this one joined.
	Coalesced bool
}

// later is the entry as it is when so much time has passed.
func (e Entry[V]) later(passed time.Duration) Entry[V] {
	passed = max(passed, 0)
	e.Age += passed
	e.Left = max(e.Left-passed, 0)
	e.Keep = max(e.Keep-passed, 0)
	return e
}
