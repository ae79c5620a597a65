// Package storetest checks a backend against the contract of [store.Store].
//
// One suite serves every backend. A backend brings a [Harness], which opens a
// fresh store and does to it what its server may do at any time: lose a record,
// evict an entry, hold bytes that nobody of ours wrote.
//
//	func TestContract(t *testing.T) {
//		storetest.Run(t, func(t *testing.T) storetest.Harness { return open(t) })
//	}
//
// That the suite fails for stores that are wrong is shown by memstore's tests.
//
// The suite needs nothing but the standard library, so that a backend outside
// this module can use it at no price.
package storetest

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// Harness is one fresh store, and the powers over it that the checks need. Its
// methods fail the test that it was opened for if they cannot do their work.
type Harness interface {
	// Store is the store under test.
	Store() store.Store

	// Peer is the store as another process sees it: another client of the same
	// server. A store of one process returns Store again.
	Peer() store.Store

	// Space is a space that is empty. The checks use it and spaces whose names
	// begin with it.
	Space() string

	// Unit is the time by which the checks count: what they wait for is one or
	// some units. 20 ms or more where time is real.
	Unit() time.Duration

	// Wait returns when the store's clock has advanced by d.
	Wait(d time.Duration)

	// LoseRecord and LoseEntry take away what is kept of a key, as an eviction
	// would; LoseAll empties the space, as a flush would.
	LoseRecord(key store.Key)
	LoseEntry(key store.Key)
	LoseAll()

	// Plant puts bytes that cannot be read where the entry of a key is. It
	// returns the token that the bytes name: zero if none can be told. The
	// error is [errors.ErrUnsupported] if the backend can hold nothing of that
	// kind.
	Plant(key store.Key, what Foreign) (store.Token, error)

	// RecordLeft and EntryLeft tell how much longer the record and the entry of
	// a key are kept, and whether there are any. What is kept for ever has a
	// negative life left.
	RecordLeft(key store.Key) (left time.Duration, there bool)
	EntryLeft(key store.Key) (left time.Duration, there bool)

	// Endless names everything of the space and of spaces below it that would be
	// kept for ever; there must be none. Planted bytes are not counted.
	Endless() []string

	// StepClock sets the store's clock forward, or back if d is negative. A
	// backend whose clock cannot be set may move the times in its records the
	// other way: to the store that is the same. The error is
	// [errors.ErrUnsupported] if it can do neither.
	StepClock(d time.Duration) error
}

// Foreign is a kind of bytes that are no entry of the key they are under.
type Foreign string

// The kinds of bytes that are tried.
const (
	WrongType Foreign = "wrong type"      // not even of the server's type for an entry
	Truncated Foreign = "truncated"       // an entry of the key, cut short
	Newer     Foreign = "newer format"    // what a later version might write
	OtherKey  Foreign = "another key's"   // a whole entry that names another key
	Random    Foreign = "random bytes"    // of no meaning
	Nothing   Foreign = "no bytes at all" // an empty string
)

// Foreigns is every kind of foreign bytes.
var Foreigns = []Foreign{WrongType, Truncated, Newer, OtherKey, Random, Nothing}

// T is the part of [testing.T] that checks use. It lets a test of the suite
// itself see a check fail.
type T interface {
	Helper()
	Context() context.Context
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any) // must not return
	Skipf(format string, args ...any)  // must not return
	Cleanup(func())
}

// Check is one behaviour that the contract asks for.
type Check struct {
	Name string // chapter/behaviour
	run  func(*trial)
}

// Checks returns the whole suite.
func Checks() []Check {
	return slices.Concat(leaseChecks, entryChecks, fenceChecks, eventChecks, keyChecks, manyChecks, concurrencyChecks, randomChecks)
}

// Run checks a backend in real time. A backend whose harnesses do not disturb
// each other may call t.Parallel in open.
func Run(t *testing.T, open func(t *testing.T) Harness) {
	for _, c := range Checks() {
		t.Run(c.Name, func(t *testing.T) { c.Run(t, open(t)) })
	}
}

// RunInBubble is like Run for a store that lives in one process: each check
// runs in a testing/synctest bubble of its own, in which no time is spent.
func RunInBubble(t *testing.T, open func(t *testing.T) Harness) {
	for _, c := range Checks() {
		t.Run(c.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { c.Run(t, open(t)) })
		})
	}
}

// Run runs one check on a fresh harness.
func (c Check) Run(t T, h Harness) {
	t.Helper()
	c.run(newTrial(t, h))
	if endless := h.Endless(); len(endless) > 0 {
		t.Errorf("kept for ever: %q", endless)
	}
}

// can skips a check whose means a backend cannot have.
func (t *trial) can(what string, err error) {
	t.Helper()
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		t.Skipf("NOT CHECKED: this backend cannot %s", what)
	case err != nil:
		t.Fatalf("%s: %v", what, err)
	}
}
