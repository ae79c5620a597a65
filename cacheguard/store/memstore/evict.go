package memstore

// What is counted for an item besides its own bytes: the structs, their share
// of the map, of the heap and of the allocator's rounding. The key is counted
// with each of the two items of a slot, so that either may stay alone.
const (
	entryOverhead  = 384
	recordOverhead = 480
)

// makeRoom evicts until the store is within its bound again. It is called
// without a shard's mutex, after a write. The writers that find the store full
// take turns, so that they do not evict twice for one excess; readers go on.
func (s *Store) makeRoom() {
	if s.used.Load() <= s.max {
		return
	}
	s.room.Lock()
	defer s.room.Unlock()
	for s.used.Load() > s.max {
		s.evictOne()
	}
}

// evictOne drops one item: one that has lapsed if there is any, else the least
// recently used of all shards. What is used between the look and the drop may
// be dropped for all that: an eviction needs no exact order.
func (s *Store) evictOne() {
	now := s.clock()
	var victim *shard
	var oldest int64
	for i := range s.shards {
		sh := &s.shards[i]
		lapsed, usedAt, ok := sh.peek(now)
		if lapsed {
			victim = sh
			break
		}
		if ok && (victim == nil || usedAt < oldest) {
			victim, oldest = sh, usedAt
		}
	}
	if victim != nil {
		victim.evict(now)
	}
}

// peek tells whether a shard holds something that has lapsed, and when its
// least recently used item was used; ok is false if it holds nothing.
func (sh *shard) peek(now int64) (lapsed bool, usedAt int64, ok bool) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if len(sh.ends) == 0 {
		return false, 0, false
	}
	return sh.ends[0].end <= now, sh.uses.last.usedAt, true
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
