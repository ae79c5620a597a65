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
)

// LeaseName is the name of a key's record.
func LeaseName(key store.Key) string { return leaseName(entryName(key)) }

// Scripts are the sources that are sent, by verb.
var Scripts = map[string]string{
	"claim": claimScript.source, "renew": renewScript.source, "release": releaseScript.source, "fill": fillScript.source,
	"begin": beginScript.source, "set": setScript.source, "invalidate": invalidateScript.source, "expire": expireScript.source,
	"check": checkLua,
}

// ThereLua reads the token of what is under the first key of a script, as there.
func ThereLua() string { return luaSource("lua/part/there.lua") }

// EntryBytes is an entry as a script writes it, named name, of a time in
// microseconds.
func EntryBytes(name string, token store.Token, asked int64, c store.Content) []byte {
	b := make([]byte, 0, headSize+bodySize(name, c))
	b = appendHead(b, token, asked, c.TTL.Microseconds(), c.Grace.Microseconds())
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

// CarriedMessage is what fill.lua publishes of an id in the space "s" that was
// filled at testNow.
func CarriedMessage(id, payload string) string {
	c := store.Content{Kind: store.Value, Payload: []byte(payload), TTL: time.Minute}
	b := EntryBytes(entryName(store.Key{Space: "s", ID: id}), 77, testNow, c)
	return string(append(append([]byte{byte(carriedKind)}, appendMicros(nil, 77)...), b...)) + id
}

// Carried is what a listener of the space "s" is told by a message, by a sample
// of the server's clock that was sent at sent; nil: there is none.
func Carried(sent *time.Time, message string) *store.Entry {
	s := &Store{clock: newClock(false)}
	if sent != nil {
		s.clock.one.Store(&sample{server: testNow, sent: *sent})
	}
	e, entry, ok := parseEvent(message)
	if !ok || entry == "" {
		return nil
	}
	return s.carried(entryName(store.Key{Space: "s", ID: e.ID}), []byte(entry))
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
