package redisstore

import (
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// unescape reads an escaped part back; ok is false for a shortened one.
func unescape(part string) (s string, ok bool) {
	if part == emptyPart {
		return "", true
	}
	var b strings.Builder
	for i := 0; i < len(part); i++ {
		if part[i] != '%' {
			b.WriteByte(part[i])
			continue
		}
		if i+3 > len(part) {
			return "", false
		}
		c, err := hex.DecodeString(part[i+1 : i+3])
		if err != nil {
			return "", false
		}
		b.Write(c)
		i += 2
	}
	return b.String(), true
}

// A name that reads back to its key, whatever the key holds, is the name of no
// other. A shortened one holds what no escape makes, and a digest.
func FuzzNamesReadBackToTheirKeys(f *testing.F) {
	for _, s := range []string{"", "42", "a{b}c", "{}", "}{", "%", "%7B", "%~", "%~0", ":lease", "\x00\n\x7f", "\xff\xfe", "é\u202e\u200b", strings.Repeat("x", 200),
		strings.Repeat("x", 201), strings.Repeat("{", 70), strings.Repeat("é", 150), strings.Repeat("x", 63) + "{" + strings.Repeat("y", 200)} {
		f.Add(s, s)
		f.Add("space", s)
	}
	f.Fuzz(func(t *testing.T, space, id string) {
		name := entryName(store.Key{Space: space, ID: id})
		s, i, ok := strings.Cut(name, ":{")
		if !ok || !strings.HasSuffix(i, "}") {
			t.Fatalf("name %q", name)
		}
		i = strings.TrimSuffix(i, "}")
		for part, of := range map[string]string{s: space, i: id} {
			checkPart(t, part, of)
		}
		if strings.Count(name, "{") != 1 || strings.Count(name, "}") != 1 {
			t.Errorf("braces in %q", name)
		}
		if got := strings.TrimSuffix(channelName(space), ":events"); got != s {
			t.Errorf("channel of %q, names of %q", got, s)
		}
	})
}

func checkPart(t *testing.T, part, of string) {
	t.Helper()
	if part == "" || len(part) > maxPart || !utf8.ValidString(part) {
		t.Errorf("part %q of %d bytes", part, len(part))
	}
	for _, r := range part {
		if !unicode.IsPrint(r) {
			t.Errorf("unreadable %q in %q", r, part)
		}
	}
	if back, ok := unescape(part); ok {
		if back != of {
			t.Errorf("%q reads back as %q, want %q", part, back, of)
		}
		return
	}
	prefix, digest, ok := strings.Cut(part, shortened)
	if kept, readable := unescape(prefix); !ok || !readable || len(digest) != 64 || !strings.HasPrefix(of, kept) || len(of) <= maxPart/3 {
		t.Errorf("%q of %q reads back as nothing", part, of)
	}
}

func TestLongIDsThatDifferAnywhereHaveDifferentNames(t *testing.T) {
	long := strings.Repeat("k", 10<<10)
	seen := map[string]string{}
	for _, id := range []string{long, long + "k", long[1:], "l" + long[1:], long[:5000] + "l" + long[5001:], strings.Repeat("{", 10<<10)} {
		name := entryName(store.Key{Space: "s", ID: id})
		if len(name) > 2*maxPart || seen[name] != "" {
			t.Errorf("name %q of %d bytes", name, len(name))
		}
		seen[name] = id
	}
}

func TestNamesOfHoldersDoNotMeet(t *testing.T) {
	seen := map[string]string{}
	for _, holder := range []string{"", "a", "a:1", "a:", ":", "a{b", "a/1", strings.Repeat("h", 500)} {
		for _, token := range []store.Token{0, 1, 11} {
			name := stageName("s:{x}", holder, token)
			if key := fmt.Sprint(holder, token); seen[name] != "" {
				t.Errorf("%q is of %s and of %s", name, key, seen[name])
			} else {
				seen[name] = key
			}
		}
	}
}

func TestSlotsAreThoseOfRedis(t *testing.T) {
	// From the Redis Cluster specification, and CLUSTER KEYSLOT.
	for tag, want := range map[string]int{"123456789": 0x31C3, "foo": 12182, "user1000": 3443} {
		if got := slotOf("s:{" + tag + "}"); got != want%slots {
			t.Errorf("slot of %s is %d, want %d", tag, got, want%slots)
		}
	}
}
