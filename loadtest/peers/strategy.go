package main

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// strategy is one way to keep callers from the origin: how people use one
// library today. To add one is to write a file that implements storage and to add
// a row to strategies.
type strategy struct {
	name   string
	how    string // it is set up, for the reader of the table
	module string // whose version the table states; "": none
	open   func(env) (storage, error)

	// hitsOnly: it keeps nothing in Redis, or differs from another strategy in
	// nothing but its hits.
	hitsOnly bool

	// memory: hits may come from the memory of the process.
	memory bool
}

// storage is a strategy at work in one process. Get and Delete are used
// concurrently.
type storage interface {
	// Get returns what is under key, from the cache or from the origin. The
	// bytes must not be changed.
	Get(ctx context.Context, key string) ([]byte, error)

	// Delete is what an application calls after it has written key in the
	// origin.
	Delete(ctx context.Context, key string) error

	Close() error
}

// loader asks the origin.
type loader func(ctx context.Context, key string) ([]byte, error)

// idle is a process that has nothing to do with any strategy, for what is
// measured of Redis alone.
var idle = strategy{name: "idle", open: func(env) (storage, error) { return nothing{}, nil }}

type nothing struct{}

func (nothing) Get(context.Context, string) ([]byte, error) {
	return nil, errors.New("nothing is stored")
}
func (nothing) Delete(context.Context, string) error { return nil }
func (nothing) Close() error                         { return nil }

// env is where a strategy works.
type env struct {
	redis    string        // host and port
	commands *atomic.Int64 // that were sent to Redis
	load     loader
}

// The same for all strategies that have such a setting.
const (
	life       = 10 * time.Minute      // of a value in Redis: none comes near its end, which some refresh before
	memoryLife = time.Second           // of a copy in a process: for so long others' deletes are not seen
	lockLife   = 3 * time.Second       // of a lock that nobody renews: ten times the longest load
	renewed    = time.Second           // of a lock that is renewed while its holder lives
	lockRetry  = 20 * time.Millisecond // between two tries to get a lock
	callLimit  = 100 * time.Millisecond
)

// strategies are all there are, in the order of the tables.
var strategies = []strategy{
	none, flightOnly, goRedisCache, sturdycRedis, goZero, redisLock, redSync, rocksCache, rueidisLock, placeholder, guarded,
	guardedNear, otterAlone,
}
