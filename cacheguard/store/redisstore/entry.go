package redisstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// An entry in Redis is one string. Of a set, the head is written by the server's
// script, which alone knows its time and token; of a fill, which has both from
// its claim, by the client, and by the script where less life is left than that
// says. The body is written by the client. All numbers are big endian, all times
// microseconds.
//
//	 0  magic, two bytes
//	 2  version
//	 3  flags
//	 4  token        the same place in every version: see tokenOf
//	12  asked        when the question was sent, by the server's clock
//	20  fresh until  Expire moves these two in place
//	28  gone at
//	36  kind         the body begins
//	37  zero
//	38  length of the name
//	40  length of the payload
//	44  TTL, in nanoseconds
//	52  cost
//	56  CRC-32C of the body without these four bytes
//	60  name of the entry: a reply that was meant for another key is not believed
//	    payload
const (
	magic0, magic1 = 0xC7, 'g'
	version        = 1
	flagHandOver   = 1

	atToken, atAsked, atFresh, atGone  = 4, 12, 20, 28
	headSize                           = 36
	atKind, atName, atPayload, atTTL   = 36, 38, 40, 44
	atCost, atSum, bodyStart, minToken = 52, 56, 60, 12

	// tokenLimit is above every token of a readable entry: 2^52, the year 2112
	// in microseconds. What names a token beyond it is no entry.
	tokenLimit = 1 << 52

	// timeLimit is above every time that a script of ours writes: now and two
	// lives of maxLife.
	timeLimit = 1 << 55
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// The faults of bytes that are there and are not an entry of the key.
var (
	errForeign  = errors.New("not an entry")
	errShort    = errors.New("entry is truncated or has bytes behind its end")
	errChecksum = errors.New("entry does not match its checksum")
	errName     = errors.New("entry names another key")
	errKind     = errors.New("entry of an unknown kind or with unknown flags")
	errTimes    = errors.New("entry with impossible times")
)

// appendHead appends what stands before the body of an entry that was asked for
// at asked and lives for ttl and grace from then on, in microseconds. head.lua
// does the same.
func appendHead(b []byte, token store.Token, asked, ttl, grace int64) []byte {
	b = append(b, magic0, magic1, version, 0)
	b = appendMicros(b, int64(token))
	b = appendMicros(b, asked)
	b = appendMicros(b, asked+ttl)
	return appendMicros(b, asked+ttl+grace)
}

// appendBody appends the part of an entry that is the client's alone.
func appendBody(b []byte, name string, c store.Content) []byte {
	start := len(b)
	payload := c.Payload
	if c.Kind != store.Value {
		payload = nil
	}
	b = append(b, byte(c.Kind), 0)
	b = binary.BigEndian.AppendUint16(b, uint16(len(name)))
	b = binary.BigEndian.AppendUint32(b, uint32(len(payload)))
	b = binary.BigEndian.AppendUint64(b, uint64(c.TTL))
	b = binary.BigEndian.AppendUint32(b, costMicros(c.Cost))
	at := len(b)
	b = append(b, 0, 0, 0, 0)
	b = append(b, name...)
	b = append(b, payload...)
	binary.BigEndian.PutUint32(b[at:], checksum(b[start:]))
	return b
}

// bodySize is how many bytes appendBody appends.
func bodySize(name string, c store.Content) int {
	return bodyStart - headSize + len(name) + len(c.Payload)
}

func costMicros(d time.Duration) uint32 {
	return uint32(min(max(d.Microseconds(), 0), math.MaxUint32))
}

// checksum is of a body without its checksum field.
func checksum(body []byte) uint32 {
	sum := crc32.Update(0, castagnoli, body[:atSum-headSize])
	return crc32.Update(sum, castagnoli, body[bodyStart-headSize:])
}

// tokenOf is the token that bytes name, readable or not; 0 when they are no
// entry. there.lua is the same rule.
func tokenOf(b []byte) store.Token {
	if len(b) < minToken || b[0] != magic0 || b[1] != magic1 {
		return 0
	}
	t := binary.BigEndian.Uint64(b[atToken:])
	if t >= tokenLimit {
		return 0
	}
	return store.Token(t)
}

// decode reads an entry that was found under name, as of when the server's clock
// stood at now. It never fails: bytes that are not this key's entry are a miss
// with a fault. The payload shares b.
func decode(b []byte, name string, now int64) store.Entry {
	if err := check(b, name); err != nil {
		return store.Entry{Token: tokenOf(b), Fault: &store.Fault{Op: "load", Class: store.ClassData, Err: err}}
	}
	asked, fresh, gone := micros(b[atAsked:]), micros(b[atFresh:]), micros(b[atGone:])
	ttl := time.Duration(binary.BigEndian.Uint64(b[atTTL:]))
	e := store.Entry{
		Kind:     store.Kind(b[atKind]),
		HandOver: b[3]&flagHandOver != 0,
		Token:    tokenOf(b),
		Age:      time.Duration(max(now-asked, 0)) * time.Microsecond,
		Fresh:    min(time.Duration(fresh-now)*time.Microsecond, ttl), // it may have been written after now
		Left:     time.Duration(max(gone-now, 1)) * time.Microsecond,
		TTL:      ttl,
		Cost:     time.Duration(binary.BigEndian.Uint32(b[atCost:])) * time.Microsecond,
	}
	if asked-now > clockTolerance.Microseconds() {
		// The server's clock stepped back after this was written: nobody
		// knows how old it is.
		e.Fresh = min(e.Fresh, 0)
	}
	if e.Kind == store.Value {
		e.Payload = b[bodyStart+len(name):]
	}
	return e
}

// check tells why b is not a whole entry of name, or nil.
func check(b []byte, name string) error {
	switch {
	case len(b) < minToken || b[0] != magic0 || b[1] != magic1:
		return errForeign
	case b[2] != version:
		return fmt.Errorf("entry of format %d, this is format %d", b[2], version)
	case len(b) < bodyStart:
		return errShort
	}
	nameLen := int(binary.BigEndian.Uint16(b[atName:]))
	payloadLen := uint64(binary.BigEndian.Uint32(b[atPayload:]))
	if uint64(len(b)) != uint64(bodyStart+nameLen)+payloadLen {
		return errShort
	}
	if checksum(b[headSize:]) != binary.BigEndian.Uint32(b[atSum:]) {
		return errChecksum
	}
	if string(b[bodyStart:bodyStart+nameLen]) != name {
		return errName
	}
	kind := store.Kind(b[atKind])
	if kind < store.Value || kind > store.Pass || b[3]&^flagHandOver != 0 || b[atKind+1] != 0 || tokenOf(b) == 0 {
		return errKind
	}
	if int64(binary.BigEndian.Uint64(b[atTTL:])) < 0 {
		return errTimes
	}
	return checkTimes(micros(b[atAsked:]), micros(b[atFresh:]), micros(b[atGone:]))
}

// checkTimes refuses times that no script of ours writes and no duration
// holds: they stand outside the checksum, since the server may write them.
func checkTimes(times ...int64) error {
	for _, t := range times {
		if t < 0 || t >= timeLimit {
			return errTimes
		}
	}
	return nil
}

func micros(b []byte) int64 { return int64(binary.BigEndian.Uint64(b)) }

func appendMicros(b []byte, n int64) []byte { return binary.BigEndian.AppendUint64(b, uint64(n)) }
