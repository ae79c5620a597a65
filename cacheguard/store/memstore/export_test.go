package memstore

import (
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// Used is the number of bytes that the store counts.
func (s *Store) Used() int64 { return s.used.Load() }

// StepClock sets the clock forward or back. No call may be under way.
func (s *Store) StepClock(d time.Duration) {
	clock := s.clock
	s.clock = func() int64 { return clock() + int64(d) }
}

// Plant puts an entry that cannot be read under a key.
func (s *Store) Plant(key store.Key, token store.Token, fault error, life time.Duration) {
	sh, now := s.lock(key)
	defer sh.mu.Unlock()
	e := newEntry(now, token, store.Content{TTL: life}, nil)
	e.fault = fault
	sh.write(key, now, e)
}

// NextToken takes a token.
func (s *Store) NextToken() store.Token { return s.nextToken(s.clock()) }

// DropSpace forgets everything of a space.
func (s *Store) DropSpace(space string) {
	for _, key := range s.keys() {
		if key.Space == space {
			s.DropEntry(key)
			s.DropRecord(key)
		}
	}
}

func (s *Store) keys() (keys []store.Key) {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		for key := range sh.slots {
			keys = append(keys, key)
		}
		sh.mu.Unlock()
	}
	return keys
}

// RecordLeft and EntryLeft tell how long a record and an entry are kept.
func (s *Store) RecordLeft(key store.Key) (time.Duration, bool) {
	sh, now := s.lock(key)
	defer sh.mu.Unlock()
	if r := sh.record(key, now); r != nil {
		return time.Duration(r.end - now), true
	}
	return 0, false
}

func (s *Store) EntryLeft(key store.Key) (time.Duration, bool) {
	sh, now := s.lock(key)
	defer sh.mu.Unlock()
	if e := sh.entry(key, now); e != nil {
		return time.Duration(e.end - now), true
	}
	return 0, false
}
