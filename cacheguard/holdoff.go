package cacheguard

import "time"

// maxHoldOffs bounds the keys per shard that are remembered as held off.
const maxHoldOffs = 1024

// holdOffs remembers which keys of a shard were written a moment ago, so that
// what is loaded of them may come from a copy of the origin that does not have
// the write yet. To forget one too early would store an old value; so when there
// are too many, all keys of the shard are held off instead.
type holdOffs struct {
	until map[string]time.Time
	all   time.Time
}

func (h *holdOffs) begin(key string, now time.Time, d time.Duration) {
	until := now.Add(d)
	if _, known := h.until[key]; !known && len(h.until) >= maxHoldOffs {
		h.makeRoom(now)
	}
	if len(h.until) >= maxHoldOffs {
		h.all = until
		return
	}
	if h.until == nil {
		h.until = make(map[string]time.Time)
	}
	h.until[key] = until
}

// makeRoom drops those that are over.
func (h *holdOffs) makeRoom(now time.Time) {
	for key, until := range h.until {
		if !until.After(now) {
			delete(h.until, key)
		}
	}
}

func (h *holdOffs) has(key string, now time.Time) bool {
	if h.all.After(now) {
		return true
	}
	until, known := h.until[key]
	if known && !until.After(now) {
		delete(h.until, key)
		return false
	}
	return known
}

// heldOff tells whether a key was written less than Options.HoldOff ago, as far
// as this process has heard.
func (g *Guard[V]) heldOff(s *shard[V], key string) bool {
	if g.opts.HoldOff == 0 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.holds.has(key, time.Now())
}

// heldOff tells whether what the flight has loaded may be older than a write:
// the key was held off when the load began, or was written since this flight
// did. That the hold-off has ended meanwhile makes the value no younger.
func (f *flight[V]) heldOff() bool {
	if f.g.opts.HoldOff == 0 {
		return false
	}
	f.sh.mu.Lock()
	defer f.sh.mu.Unlock()
	return f.held || f.overtaken
}

// keepsWhatIsThere tells whether a load in a hold-off leaves the store as it is,
// instead of a hand-over: nobody waits for a background rebuild, and a fresh
// entry is what the writer has set.
func (f *flight[V]) keepsWhatIsThere() bool {
	return f.background || f.prev.State == Fresh
}
