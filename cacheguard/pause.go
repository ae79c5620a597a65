package cacheguard

import "time"

// maxPauses bounds the keys per shard that are remembered as paused. Beyond it
// the ones that are over are dropped, then arbitrary ones: forgetting a pause
// costs a claim, nothing else.
const maxPauses = 1024

// pause says that this process need not claim a key before a time: another
// holds its lease and nobody here waits for it, or a cooldown binds.
type pause struct {
	until time.Time
	err   error // what a caller without a stale value gets; nil: it may claim all the same
}

// rest leaves a key alone for d.
func (s *shard[V]) rest(key string, d time.Duration, err error) {
	if d <= 0 {
		return
	}
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.pauses[key]; !known && len(s.pauses) >= maxPauses {
		s.dropPauses(now)
	}
	s.pauses[key] = pause{until: now.Add(d), err: err}
}

// dropPauses makes room: the ones that are over go, and if that is not enough
// half of the rest, whichever the map yields first.
func (s *shard[V]) dropPauses(now time.Time) {
	for key, p := range s.pauses {
		if !p.until.After(now) {
			delete(s.pauses, key)
		}
	}
	for key := range s.pauses {
		if len(s.pauses) <= maxPauses/2 {
			return
		}
		delete(s.pauses, key)
	}
}

// resting returns the pause of a key that is not over yet.
func (s *shard[V]) resting(key string) (p pause, left time.Duration, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok = s.pauses[key]
	if !ok {
		return pause{}, 0, false
	}
	if left = time.Until(p.until); left <= 0 {
		delete(s.pauses, key)
		return pause{}, 0, false
	}
	return p, left, true
}

// resume ends the pause of a key: something happened to it.
func (s *shard[V]) resume(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pauses, key)
}
