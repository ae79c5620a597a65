package storetest

import (
	"strings"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

var keyChecks = []Check{
	{"keys/any key holds its own entry", keysHoldTheirOwn},
	{"keys/any key has its own lease and fence", keysHaveTheirOwnLease},
	{"keys/events name any key as it is", eventsNameAnyKey},
	{"keys/spaces do not meet", spacesDoNotMeet},
}

// hostileIDs are IDs that a name made of them without care would break, or
// would make equal to that of another.
func hostileIDs() []string {
	ids := []string{
		"", " ", ".", "..", "/", ":", "::", "%", "%%", "%7B", "%7b", "\\", "\\x00", "\"", "'", "*", "?", "[a]", "\x00", "\x00\x00", "\n", "\r\n", "\t",
		"{", "}", "{}", "}{", "{}{}", "{{}}", "{a}", "a{b}c", "a{b", "a}b", "a}b{c", "{a}b", "{}a", "a{}", "{a", "a}",
		"a", "A", "a ", " a", "a\x00", "a\n", "a:", ":a", "a:lease", "{a}:lease", "a}:lease", "a:b", "a:b:c", "a%3Ab", "a:lease:lease", "lease", "a:fill", "a:staged",
		"ä", "a\u0308", "\u00e4", "\u200b", "日本語", "\xff", "\xff\xfe", "\xc3", "\xed\xa0\x80", "0", "00", "nil", "none",
	}
	long := strings.Repeat("k", 10<<10)
	return append(ids, long, long+"k", long[:len(long)-1]+"l", "l"+long[1:], long+":lease",
		strings.Repeat("{", 10<<10), strings.Repeat("}", 10<<10), strings.Repeat("\x00", 10<<10), strings.Repeat("\xff", 300), strings.Repeat("\xff", 301))
}

// hostileKeys are keys of the hostile IDs, and pairs whose space and ID give the
// same text when they are joined.
func (t *trial) hostileKeys() []store.Key {
	seen := make(map[store.Key]bool)
	var keys []store.Key
	add := func(k store.Key) {
		if !seen[k] {
			seen[k] = true
			keys = append(keys, k)
		}
	}
	for _, id := range hostileIDs() {
		add(t.key(id))
	}
	s := t.Space()
	for _, sep := range []string{":", "/", "{", "}", ":{", "}:", "\x00", "%", "lease", ":lease"} {
		add(store.Key{Space: s, ID: "a" + sep + "b"})
		add(store.Key{Space: s, ID: sep + "a" + sep + "b"})
		add(store.Key{Space: s + sep, ID: "a" + sep + "b"})
		add(store.Key{Space: s + sep + "a", ID: "b"})
		add(store.Key{Space: s + sep + "a" + sep, ID: "b"})
		add(store.Key{Space: s + sep + "a" + sep + "b", ID: ""})
	}
	return keys
}

func keysHoldTheirOwn(t *trial) {
	keys := t.hostileKeys()
	for i, k := range keys {
		if e := t.load(k); e.Kind != store.None || e.Fault != nil {
			t.Fatalf("before its first write %.60q holds %s: it meets another key", k, show(e))
		}
		if i%2 == 0 {
			t.set(k, mark(k))
		} else {
			t.fill(t.grant(k, "A/1"), t.value(mark(k)))
		}
	}
	for _, k := range keys {
		t.holds(k, mark(k))
	}
	for i, k := range keys {
		if i%3 == 0 {
			t.invalidate(k)
		}
	}
	for i, k := range keys {
		if i%3 == 0 {
			t.empty(k)
		} else if e := t.holds(k, mark(k)); e.Fresh <= 0 {
			t.Errorf("%.60q is stale, though another key was invalidated", k)
		}
	}
}

// mark is a value that no other key has.
func mark(k store.Key) string { return k.Space + "\x00 \x00" + k.ID }

func keysHaveTheirOwnLease(t *trial) {
	keys := t.hostileKeys()
	grants := make([]store.Grant, len(keys))
	for i, k := range keys {
		v := t.claim(t.ask(k, "A/1"))
		if v.Outcome != store.Granted {
			t.Fatalf("the first claim of %.60q is answered %v: it meets another key", k, v.Outcome)
		}
		grants[i] = v.Grant
	}
	for i, k := range keys {
		switch i % 4 {
		case 0:
			t.invalidate(k)
		case 1:
			t.release(grants[i], nil)
		case 2:
			t.LoseRecord(k)
		}
	}
	for i, g := range grants {
		err := t.st.Fill(t.ctx, g, t.value(mark(keys[i])))
		if refused := i%4 == 0 || i%4 == 2; refused != (err != nil) {
			t.Errorf("fill of %.60q: %v, want it refused: %v", keys[i], err, refused)
		}
	}
	var renewals []store.Renewal
	for _, k := range keys {
		renewals = append(renewals, store.Renewal{Grant: t.regrant(k, "B/1"), Length: t.long})
	}
	if errs := t.st.Renew(t.ctx, renewals); errs != nil {
		t.Errorf("renew of all keys: %v", errs)
	}
}

func eventsNameAnyKey(t *trial) {
	ear := t.listen(t.st, t.Space())
	for _, id := range hostileIDs() {
		k := t.key(id)
		t.set(k, "v")
		ear.want(store.Written, k)
		g := t.regrant(k, "A/1")
		t.want(t.seeing(waiting(t.ask(k, "B/1"))), store.Held)
		t.release(g, nil)
		ear.want(store.Released, k)
	}
}

func spacesDoNotMeet(t *trial) {
	s := t.Space()
	spaces := []string{s, s + ":", s + "*", s + "?", s + "[a]", s + "{", s + "{}", s + "}", s + "\x00", s + "\n", s + " ", s + "%", s + strings.Repeat("s", 1<<10)}
	ears := make([]*ear, len(spaces))
	for i, space := range spaces {
		ears[i] = t.listen(t.st, space)
	}
	for i, space := range spaces {
		k := store.Key{Space: space, ID: "k"}
		t.set(k, mark(k))
		t.holds(k, mark(k))
		event := ears[i].want(store.Written, k)
		if e := t.load(k); e.Token != event.Token {
			t.Errorf("space %q heard token %d of an entry of token %d", space, event.Token, e.Token)
		}
	}
	for i, space := range spaces {
		k := store.Key{Space: space, ID: "k"}
		t.holds(k, mark(k))
		ears[i].only(k)
	}
}
