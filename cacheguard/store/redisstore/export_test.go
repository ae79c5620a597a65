package redisstore

import (
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// The names and bytes in Redis, for tests that look behind the store or plant
// something under it.
var (
	EntryName   = entryName
	ChannelName = channelName
	EscapePart  = escape
	TokenOf     = tokenOf
	Prelude     = prelude
)

// LeaseName is the name of a key's record.
func LeaseName(key store.Key) string { return leaseName(entryName(key)) }

// EntryBytes is an entry as a script writes it, named name, of a time in
// microseconds.
func EntryBytes(name string, token store.Token, asked int64, c store.Content) []byte {
	b := make([]byte, 0, headSize+bodySize(name, c))
	b = append(b, magic0, magic1, version, 0)
	fresh := asked + c.TTL.Microseconds()
	for _, n := range []int64{int64(token), asked, fresh, fresh + c.Grace.Microseconds()} {
		b = appendMicros(b, n)
	}
	return appendBody(b, name, c)
}

// ShiftEntry moves the times of an entry by d microseconds.
func ShiftEntry(b []byte, d int64) {
	for _, at := range []int{atAsked, atFresh, atGone} {
		copy(b[at:], appendMicros(nil, micros(b[at:])+d))
	}
}

// AgeClock makes the sample of a single server's clock older by d.
func (s *Store) AgeClock(d time.Duration) {
	old := s.clock.one.Load()
	s.clock.one.Store(&sample{server: old.server - d.Microseconds(), sent: old.sent.Add(-d)})
}

// Waiting is how many commands are in the batch that is open.
func (s *Store) Waiting() int {
	s.pipeline.mu.Lock()
	defer s.pipeline.mu.Unlock()
	if s.pipeline.open == nil {
		return 0
	}
	return len(s.pipeline.open.commands)
}
