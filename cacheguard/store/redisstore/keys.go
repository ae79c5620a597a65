package redisstore

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// Names in Redis. For a key with space S and id I, both escaped:
//
//	S:{I}                          the entry
//	S:{I}:lease                    the lease record
//	S:{I}:stage:<holder>:<token>   the bytes of a large value on their way
//	S:events                       the channel of a space
//
// An escaped part holds no brace, so the first { and the first } of a name are
// ours: all names of one key are in one cluster slot, and every name can be
// read back to exactly one key.
const (
	maxPart   = 200 // bytes of an escaped part; a longer one is shortened
	keptBytes = 64  // of a shortened part, before its digest

	emptyPart = "%"  // no escape is a lone %: stands for the empty string
	shortened = "%~" // no escape begins so: a SHA-256 in hex follows
)

const upperHex = "0123456789ABCDEF"

// entryName is the name of key's entry.
func entryName(key store.Key) string {
	return escape(key.Space) + ":{" + escape(key.ID) + "}"
}

// leaseName is the name of the record beside an entry.
func leaseName(entry string) string { return entry + ":lease" }

// stageName is where the bytes of one fill, or of one set (token 0, a random
// holder), wait for their script. Nobody else's bytes can have that name.
func stageName(entry string, holder string, token store.Token) string {
	return entry + ":stage:" + escape(holder) + ":" + strconv.FormatInt(int64(token), 10)
}

// channelName is the channel on which the events of a space are published.
func channelName(space string) string { return escape(space) + ":events" }

// escape makes a part of a name: readable, of bounded length, without braces,
// and different for different strings.
func escape(s string) string {
	if s == "" {
		return emptyPart
	}
	if len(s) <= maxPart && plain(s) {
		return s
	}
	var b strings.Builder
	kept := 0
	for i := 0; i < len(s) && b.Len() <= maxPart; {
		r, size := utf8.DecodeRuneInString(s[i:])
		if keepRune(r, size) {
			b.WriteString(s[i : i+size])
		} else {
			for _, c := range []byte(s[i : i+size]) {
				b.Write([]byte{'%', upperHex[c>>4], upperHex[c&15]})
			}
		}
		i += size
		if b.Len() <= keptBytes {
			kept = b.Len()
		}
	}
	if b.Len() <= maxPart {
		return b.String()
	}
	sum := sha256.Sum256([]byte(s))
	return b.String()[:kept] + shortened + hex.EncodeToString(sum[:])
}

// plain reports that s is all printable ASCII that needs no escape: the usual
// id, kept without a copy.
func plain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= 0x7f || c == '{' || c == '}' || c == '%' {
			return false
		}
	}
	return true
}

// keepRune reports whether a rune may stand in a name as it is.
func keepRune(r rune, size int) bool {
	if r == utf8.RuneError && size <= 1 {
		return false // not UTF-8
	}
	return r != '{' && r != '}' && r != '%' && unicode.IsPrint(r)
}

const slots = 16384

// slotOf is the cluster slot of an entry's name, by Redis' rule: CRC16
// (XMODEM) of what stands between the braces.
func slotOf(entry string) int {
	open := strings.IndexByte(entry, '{')
	tag := entry[open+1 : len(entry)-1]
	var crc uint16
	for i := range len(tag) {
		crc = crc<<8 ^ crcTable[byte(crc>>8)^tag[i]]
	}
	return int(crc) % slots
}

var crcTable = func() (table [256]uint16) {
	for i := range table {
		crc := uint16(i) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
		table[i] = crc
	}
	return table
}()
