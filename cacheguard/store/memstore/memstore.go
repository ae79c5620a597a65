// Package memstore keeps entries and leases in the memory of one process.
//
// It has the full semantics of [store.Store]: tokens, fences, birth marks,
// cooldowns, hand-overs. Guards that share one Store in a process coordinate as
// a fleet does over a shared server, which makes it fit for a service of one
// process, for a demo, and for tests. Nothing is shared between processes and
// nothing survives the process.
//
// The store is bounded in bytes and starts no goroutine: what has lapsed is
// noticed when it is looked at and when something is written. It therefore
// needs no Close, and in a testing/synctest bubble it lives by the bubble's
// clock if it was created there.
package memstore

import (
	"context"
	"errors"
	"hash/maphash"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// DefaultMaxBytes bounds a store whose Options do not say otherwise.
const DefaultMaxBytes = 64 << 20

// Options of a Store. The zero value works.
type Options struct {
	// MaxBytes bounds what the store keeps, in bytes: payloads, keys, lease
	// records and an estimate of the bookkeeping for them. Zero or less means
	// DefaultMaxBytes. When it is exceeded, what has lapsed goes first, then
	// what was least recently used. One write may exceed it until it returns.
	// A single entry above it is refused with a fault of [store.ClassFull].
	MaxBytes int64
}

// Store keeps entries and leases in memory. It is safe for concurrent use and
// must be made by [New].
type Store struct {
	max   int64
	clock *clock
	seed  maphash.Seed // spreads keys over shards

	shards [shardCount]shard // each protects itself by its mutex
	used   atomic.Int64      // bytes kept in all shards
	token  atomic.Int64      // the last one taken
	room   sync.Mutex        // held by the one writer that evicts; taken before any shard's
	hub    hub
}

var _ store.Store = (*Store)(nil)

// New returns an empty store.
func New(opts Options) *Store {
	s := &Store{max: opts.MaxBytes, clock: newClock(), seed: maphash.MakeSeed()}
	if s.max <= 0 {
		s.max = DefaultMaxBytes
	}
	for i := range s.shards {
		s.shards[i].slots = make(map[store.Key]*slot)
		s.shards[i].used = &s.used
		s.shards[i].clock = s.clock
	}
	return s
}

// clock counts nanoseconds since 1970. It was set once, by the wall clock, and
// advances by the monotonic one: a step of the wall clock lengthens no lease, and
// tokens still grow over a restart of the process.
type clock struct {
	start time.Time
	shown int64 // at start; only tests step it
}

func newClock() *clock {
	start := time.Now()
	return &clock{start: start, shown: start.UnixNano()}
}

func (c *clock) now() int64 { return c.shown + int64(time.Since(c.start)) }

// instant is when the clock showed now.
func (c *clock) instant(now int64) time.Time { return c.start.Add(time.Duration(now - c.shown)) }

// nextToken takes a token: one counter for all keys, so that tokens grow even
// if a key's record and entry are lost, and never below the clock. (Schedule:
// claim, invalidate, loss of the record and claim within one tick.)
func (s *Store) nextToken(now int64) store.Token {
	for {
		last := s.token.Load()
		next := max(last+1, now/int64(time.Microsecond))
		if s.token.CompareAndSwap(last, next) {
			return store.Token(next)
		}
	}
}

// lock returns the locked shard of a key, and the time. The time is read under
// the lock: for one key, what happens later never has an earlier time.
func (s *Store) lock(key store.Key) (*shard, int64) {
	sh := &s.shards[maphash.Comparable(s.seed, key)%shardCount]
	sh.mu.Lock()
	return sh, s.clock.now()
}

// DropEntry forgets the entry of a key, as the store itself does when it needs
// room: no token is taken and no event is sent. It is there to try out what
// happens then; to remove a value, use Invalidate.
func (s *Store) DropEntry(key store.Key) {
	sh, now := s.lock(key)
	defer sh.mu.Unlock()
	if e := sh.entry(key, now); e != nil {
		sh.drop(&e.item)
	}
}

// DropRecord forgets the lease record of a key, as the store itself does when
// it needs room: fills and renewals of earlier grants are refused from then on.
// It is there to try out what happens then.
func (s *Store) DropRecord(key store.Key) {
	sh, now := s.lock(key)
	defer sh.mu.Unlock()
	if r := sh.record(key, now); r != nil {
		sh.drop(&r.item)
	}
}

// ended returns a fault if ctx has ended: nothing is begun for a caller who has
// gone.
func ended(ctx context.Context, op string) error {
	if err := ctx.Err(); err != nil {
		return &store.Fault{Op: op, Class: store.ClassCanceled, Err: err}
	}
	return nil
}

// misuse is the fault of an argument that the contract rules out.
func misuse(op, what string) error {
	return &store.Fault{Op: op, Class: store.ClassOther, Err: errors.New(what)}
}

// later adds a duration to a time without overflow: what would end after the
// end of time ends then.
func later(t int64, d time.Duration) int64 {
	if d > 0 && t > math.MaxInt64-int64(d) {
		return math.MaxInt64
	}
	return t + int64(d)
}
