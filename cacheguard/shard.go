package cacheguard

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// shardCount spreads the keys so that no two hot ones are likely to share a
// mutex. A power of two.
const shardCount = 64

// shard holds what a guard keeps per key while something is under way for it.
// Nothing here outlives its work, except for pauses, which are bounded.
type shard[V any] struct {
	// arrived numbers the callers. See arrive.
	arrived atomic.Uint64

	rebuilds singleflight.Group // flights, by key

	// events counts what has happened to keys of this shard. It grows under
	// mu, before the near cache drops the key; see copyNear.
	events atomic.Uint64

	mu      sync.Mutex
	flights map[string]*flight[V]  // those that run, or are about to; guarded by mu
	reads   map[string]*reading[V] // reads of the store under way; guarded by mu
	joiners map[string]*joiners[V] // callers that wait for a flight, running or about to begin; guarded by mu
	pauses  map[string]pause       // keys that are left alone for a while; guarded by mu
	holds   holdOffs               // keys that were written a moment ago; guarded by mu

	_ [64]byte // keeps neighbours' counters off this cache line
}

// arrive gives a caller its number, before it asks for anything.
//
// Together with sofar it keeps an answer from those who came after its question
// was sent (P2): an invalidation may have returned in between. Whoever sends a
// question takes sofar first; a caller whose number is not above that was there
// before. Time would not do: two instants may be equal.
func (s *shard[V]) arrive() uint64 { return s.arrived.Add(1) }

// sofar is the number of the last caller that has come. To be taken before a
// question is sent.
func (s *shard[V]) sofar() uint64 { return s.arrived.Load() }

// starts makes f the flight of its key, which is then to be run. It reports false
// if there is one.
func (s *shard[V]) starts(f *flight[V]) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.start(f)
}

// start is starts with mu held. Events for the flight are kept from now on: it has
// not sent its claim, so no fill can fall between.
func (s *shard[V]) start(f *flight[V]) bool {
	if s.flights[f.key] != nil {
		return false
	}
	f.wake = make(chan store.Event, 1)
	s.flights[f.key] = f
	if j := s.joiners[f.key]; j != nil {
		j.begun = true
	}
	return true
}

// flight returns the flight of a key, or nil.
func (s *shard[V]) flight(key string) *flight[V] {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.flights[key]
}

// missing tells a caller whether a flight is bringing, or about to bring, a key
// that had nothing to serve, and nobody has written it since.
//
// mu is held.
func (s *shard[V]) missing(key string, arrival uint64) bool {
	f := s.flights[key]
	if f == nil {
		j := s.joiners[key]
		return j != nil && j.missing && !j.overtaken
	}
	f.newest = max(f.newest, arrival)
	return f.missing && !f.overtaken
}

// newest is the last caller that has met a flight.
func (s *shard[V]) newest(f *flight[V]) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return f.newest
}

// copyNear puts an answer in the near cache, unless something has happened since
// its question was sent, as unchanged tells. Under mu, so that an event comes
// either before, and is noticed, or after, and drops the copy again (S6).
func (s *shard[V]) copyNear(g *Guard[V], key string, unchanged func() bool, e Entry[V], sent, kept time.Duration, size int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if unchanged() && !g.pending.has(key) {
		g.near.put(key, e, sent, kept, size)
	}
}

// overtake notes that a key was written or invalidated: the near cache drops
// it, and its flight, which is returned, puts nothing there.
func (s *shard[V]) overtake(g *Guard[V], key string) *flight[V] {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events.Add(1)
	if g.near != nil {
		g.near.drop(key)
	}
	if d := g.opts.HoldOff; d > 0 {
		s.holds.begin(key, time.Now(), d)
	}
	delete(s.pauses, key)
	if j := s.joiners[key]; j != nil {
		j.overtaken = true
	}
	f := s.flights[key]
	if f != nil {
		f.overtaken = true
	}
	return f
}

// shards is a fixed table of them.
type shards[V any] struct {
	seed  maphash.Seed
	table [shardCount]shard[V]
}

func newShards[V any]() *shards[V] {
	s := &shards[V]{seed: maphash.MakeSeed()}
	for i := range s.table {
		s.table[i].flights = make(map[string]*flight[V])
		s.table[i].reads = make(map[string]*reading[V])
		s.table[i].joiners = make(map[string]*joiners[V])
		s.table[i].pauses = make(map[string]pause)
	}
	return s
}

// running counts the flights.
func (s *shards[V]) running() (n int) {
	for i := range s.table {
		sh := &s.table[i]
		sh.mu.Lock()
		n += len(sh.flights)
		sh.mu.Unlock()
	}
	return n
}

func (s *shards[V]) of(key string) *shard[V] {
	return &s.table[maphash.String(s.seed, key)%shardCount]
}
