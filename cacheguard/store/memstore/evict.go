package memstore

import "math"

// What is counted for an item besides its own bytes: the structs, their share
// of the map, of the heap and of the allocator's rounding. The key is counted
// with each of the two items of a slot, so that either may stay alone.
const (
	entryOverhead  = 384
	recordOverhead = 480
)

// makeRoom evicts until the store is within its bound again. It is called after
// a write to a shard, without any shard's mutex. The writers that find the store
// full take turns, so that they do not evict twice for one excess; readers go on.
func (s *Store) makeRoom(written *shard) {
	if s.used.Load() <= s.max {
		return
	}
	s.room.Lock()
	defer s.room.Unlock()
	for s.used.Load() > s.max {
		s.evictOne(written)
	}
}

// evictOne drops one item: one that has lapsed if there is any, else the least
// recently used of all shards. What is used between the look and the drop may
// be dropped for all that: an eviction needs no exact order. Of shards with
// equal times the one just written is the last choice, or a write could drop
// what it wrote where the clock is coarse.
func (s *Store) evictOne(written *shard) {
	now := s.clock.now()
	victim, oldest := written, written.oldest(now)
	for i := range s.shards {
		sh := &s.shards[i]
		if used := sh.oldest(now); used < oldest || used == oldest && victim == written {
			victim, oldest = sh, used
		}
	}
	victim.evict(now)
}

// oldest tells when the item was used that the shard would drop first: at the
// beginning of time if it has lapsed, at its end if there is none.
func (sh *shard) oldest(now int64) int64 {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	switch {
	case len(sh.ends) == 0:
		return math.MaxInt64
	case sh.ends[0].end <= now:
		return math.MinInt64
	}
	return sh.uses.last.usedAt
}

// evict drops the item of a shard that is missed least.
func (sh *shard) evict(now int64) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	switch {
	case len(sh.ends) == 0:
	case sh.ends[0].end <= now:
		sh.drop(sh.ends[0])
	default:
		sh.drop(sh.uses.last)
	}
}
