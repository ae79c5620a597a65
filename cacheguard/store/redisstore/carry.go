package redisstore

import (
	"encoding/binary"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// carryUpTo is the largest payload that may ride in the message which wakes
// those who wait for it. It goes to every process that listens; fill.lua says
// when that is worth it.
const carryUpTo = 1 << 10

// carries is 1 if content may ride in a message. In a cluster none does: a
// message there goes to every server.
func (s *Store) carries(c store.Content) int {
	if s.clock.slots != nil || c.Kind == store.Pass || len(c.Payload) > min(carryUpTo, s.opts.StageAbove) {
		return 0
	}
	return 1
}

// carried is the entry that a message has brought, judged like one that was
// read; nil if it is none of name, or the server's time is not known. Nothing
// of that is a fault: a message is a hint that may come from anybody.
func (s *Store) carried(name string, b []byte) *store.Entry {
	now := time.Now()
	clock := s.clock.of(name).Load()
	if clock == nil || now.Sub(clock.sent) > sampleUsable {
		return nil
	}
	e := decode(b, name, clock.at(now))
	if e.Fault != nil || e.HandOver || e.Kind == store.Pass {
		return nil
	}
	e.At = now
	return &e
}

// entrySize is how many of b's first bytes are an entry by its own account, 0 if
// they cannot be.
func entrySize(b string) int {
	if len(b) < bodyStart {
		return 0
	}
	head := []byte(b[:bodyStart])
	size := uint64(bodyStart) + uint64(binary.BigEndian.Uint16(head[atName:])) + uint64(binary.BigEndian.Uint32(head[atPayload:]))
	if size > uint64(len(b)) {
		return 0
	}
	return int(size)
}
