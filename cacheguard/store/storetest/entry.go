package storetest

import (
	"bytes"
	"errors"
	"math"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

var entryChecks = []Check{
	{"entry/nothing there is none and no fault", nothingIsNone},
	{"entry/it is as of an instant of its load", readAtAnInstant},
	{"entry/what was filled is loaded", filledIsLoaded},
	{"entry/what was set is loaded", setIsLoaded},
	{"entry/any payload comes back as it was", payloadsComeBack},
	{"entry/the writer may change its payload after the call", payloadIsNotKept},
	{"entry/absent and pass are kept as such", kindsAreKept},
	{"entry/a later write replaces the one before", writesReplace},
	{"entry/life counts from the claim", lifeCountsFromClaim},
	{"entry/a late fill is stale when it arrives", lateFillIsStale},
	{"entry/a spent life is handed over", spentLifeIsHandedOver},
	{"entry/no life is handed over", noLifeIsHandedOver},
	{"entry/a hand-over ends", handOverEnds},
	{"entry/a spent pass is still a pass", spentPassIsAPass},
	{"entry/a hand-over gives way to a claim that saw it", handOverIsNoChangeOnceSeen},
	{"entry/it is fresh, then stale, then gone", freshStaleGone},
	{"entry/it always has an end", entryHasAnEnd},
	{"entry/a life beyond all time is a long life", hugeLife},
	{"entry/a set of no life invalidates", setOfNoLife},
	{"entry/invalidate takes each key", invalidateTakesEach},
	{"entry/expire makes stale and keeps bytes and token", expireKeeps},
	{"entry/expire begins the grace and lengthens nothing", expireBeginsGrace},
	{"entry/expire of a stale entry lengthens nothing", expireOfStale},
	{"entry/expire twice lengthens nothing", expireTwice},
	{"entry/expire deletes what has no grace", expireWithoutGrace},
	{"entry/expire deletes a hand-over and a pass", expireDeletes},
	{"entry/expire keeps an absent", expireKeepsAbsent},
	{"entry/foreign bytes are a miss and a fault", foreignIsAMiss},
	{"entry/foreign bytes do not stop a claim that saw them", foreignIsClaimed},
	{"entry/foreign bytes are overwritten by a fill", foreignIsFilled},
	{"entry/foreign bytes are overwritten by a set", foreignIsSet},
	{"entry/foreign bytes are deleted by invalidate and expire", foreignIsDeleted},
}

// An entry is as of one instant of the process that asked. Whoever keeps a copy
// counts from there: were it later than the question, a write of that time could
// be forgotten for that long.
func readAtAnInstant(t *trial) {
	there, none, bad := t.key("there"), t.key("none"), t.key("bad")
	t.set(there, "v")
	keys := []store.Key{there, none}
	if _, err := t.Plant(bad, Random); err == nil {
		keys = append(keys, bad)
	}
	for _, k := range keys {
		var e store.Entry
		t.wantAt(during(func() { e = t.load(k) }), e)
	}
	var entries []store.Entry
	loaded := during(func() {
		var errs []error
		if entries, errs = t.st.LoadMany(t.ctx, keys); errs != nil {
			t.Fatalf("LoadMany: %v", errs)
		}
	})
	t.wantAt(loaded, entries...)
}

// wantAt expects entries that were read at some time of a moment.
func (t *trial) wantAt(read moment, entries ...store.Entry) {
	t.Helper()
	for _, e := range entries {
		if e.At.Before(read.before) || e.At.After(read.after) {
			t.Errorf("%s was read at %v, want it from %v to %v", show(e), e.At, read.before, read.after)
		}
	}
}

func nothingIsNone(t *trial) {
	if e := t.load(t.key("k")); e.Kind != store.None || e.Token != 0 || e.Fault != nil || e.Payload != nil {
		t.Errorf("loaded %s, want nothing at all", show(e))
	}
}

func filledIsLoaded(t *trial) {
	k := t.key("k")
	var g store.Grant
	claimed := during(func() { g = t.grant(k, "A/1") })
	t.units(1)
	t.fill(g, t.lasting("v", 50*t.unit, 70*t.unit))
	t.units(1)
	var e store.Entry
	loaded := during(func() { e = t.holds(k, "v") })

	if e.HandOver || e.Fault != nil || e.Token != g.Token {
		t.Errorf("loaded %s, want a plain value of token %d", show(e), g.Token)
	}
	t.wantTimes(e, 50*t.unit, 70*t.unit, claimed, loaded)
}

// wantTimes expects the times of an entry of trial.lasting.
func (t *trial) wantTimes(e store.Entry, ttl, grace time.Duration, born, loaded moment) {
	t.Helper()
	t.since("the age", e.Age, born, loaded)
	t.leftOf("what is left of its fresh life", e.Fresh, ttl, born, loaded)
	t.leftOf("what is left of its life", e.Left, ttl+grace, born, loaded)
	if e.TTL != ttl || e.Cost != 3*time.Millisecond {
		t.Errorf("TTL %v and cost %v, want %v and 3ms", e.TTL, e.Cost, ttl)
	}
}

func setIsLoaded(t *trial) {
	k := t.key("k")
	born := during(func() {
		if err := t.st.Set(t.ctx, store.Write{Key: k, Content: t.lasting("v", 50*t.unit, 70*t.unit)}); err != nil {
			t.Fatalf("set: %v", err)
		}
	})
	t.units(1)
	var e store.Entry
	loaded := during(func() { e = t.holds(k, "v") })
	if e.HandOver || e.Fault != nil || e.Token == 0 {
		t.Errorf("loaded %s, want a plain value with a token", show(e))
	}
	t.wantTimes(e, 50*t.unit, 70*t.unit, born, loaded)
}

func payloadsComeBack(t *trial) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	payloads := map[string][]byte{
		"empty": {}, "NUL": {0}, "every byte": all, "line ends": []byte("\r\n\r\n"),
		"16 KiB": bytes.Repeat(all, 64), "1 MiB": bytes.Repeat(all, 4096), "1 MiB and one": append(bytes.Repeat(all, 4096), 7),
	}
	for name, payload := range payloads {
		c := t.value("")
		c.Payload = payload
		filled, set := t.key("filled "+name), t.key("set "+name)
		g := t.grant(filled, "A/1")
		t.fill(g, c)
		if err := t.st.Set(t.ctx, store.Write{Key: set, Content: c}); err != nil {
			t.Fatalf("set: %v", err)
		}
		for _, k := range []store.Key{filled, set} {
			if e := t.load(k); e.Kind != store.Value || !bytes.Equal(e.Payload, payload) {
				t.Errorf("%s: loaded %s of %d bytes, want the %d that were written", k.ID, show(e), len(e.Payload), len(payload))
			}
		}
		// What is large may take another way into the store, with the same end.
		if left, there := t.EntryLeft(filled); !there || left < 0 {
			t.Errorf("%s: the entry has %v left (there: %v), want an end", name, left, there)
		}
		t.fill(g, c)
		t.invalidate(filled)
		t.fenced(g, c)
		t.empty(filled)
	}
}

func payloadIsNotKept(t *trial) {
	k := t.key("k")
	c := t.value("before")
	t.fill(t.grant(k, "A/1"), c)
	copy(c.Payload, "after!")
	t.holds(k, "before")

	c = t.value("before")
	if err := t.st.Set(t.ctx, store.Write{Key: k, Content: c}); err != nil {
		t.Fatalf("set: %v", err)
	}
	copy(c.Payload, "after!")
	e := t.holds(k, "before")
	_ = append(e.Payload, "more"...)
	t.holds(k, "before")
}

func kindsAreKept(t *trial) {
	for _, kind := range []store.Kind{store.Absent, store.Pass} {
		c := store.Content{Kind: kind, TTL: t.long, HandOver: t.long}
		k := t.key("filled " + kind.String())
		g := t.grant(k, "A/1")
		t.fill(g, c)
		if e := t.load(k); e.Kind != kind || e.HandOver || e.Token != g.Token || len(e.Payload) > 0 || e.Fresh <= 0 {
			t.Errorf("loaded %s, want a fresh %v of token %d", show(e), kind, g.Token)
		}
		k = t.key("set " + kind.String())
		if err := t.st.Set(t.ctx, store.Write{Key: k, Content: c}); err != nil {
			t.Fatalf("set: %v", err)
		}
		if e := t.load(k); e.Kind != kind || e.HandOver || e.Token == 0 || len(e.Payload) > 0 || e.Fresh <= 0 {
			t.Errorf("loaded %s, want a fresh %v", show(e), kind)
		}
	}
}

func writesReplace(t *trial) {
	k := t.key("k")
	t.filled(k, "A/1", "a long first value")
	t.set(k, "v2")
	t.holds(k, "v2")
	t.filled(k, "A/2", "v3")
	t.holds(k, "v3")
	g := t.regrant(k, "A/3")
	t.fill(g, store.Content{Kind: store.Absent, TTL: t.short, HandOver: t.unit})
	if e := t.load(k); e.Kind != store.Absent || len(e.Payload) > 0 || e.TTL != t.short || e.Left > t.short {
		t.Errorf("loaded %s, want a short absent that has nothing of the value before", show(e))
	}
}

// A value is never younger than its question: one that took long to load has
// only what is left of its life.
func lifeCountsFromClaim(t *trial) {
	k := t.key("k")
	var g store.Grant
	claimed := during(func() { g = t.grant(k, "A/1") })
	t.units(8)
	t.fill(g, t.lasting("v", 50*t.unit, 50*t.unit))
	var e store.Entry
	loaded := during(func() { e = t.holds(k, "v") })
	t.wantTimes(e, 50*t.unit, 50*t.unit, claimed, loaded)

	k = t.key("granted anew")
	t.grant(k, "A/1")
	t.units(4)
	claimed = during(func() { g = t.grant(k, "A/1") })
	t.fill(g, t.lasting("v", 50*t.unit, 50*t.unit))
	loaded = during(func() { e = t.holds(k, "v") })
	t.wantTimes(e, 50*t.unit, 50*t.unit, claimed, loaded)
}

func lateFillIsStale(t *trial) {
	k := t.key("k")
	g := t.grant(k, "A/1")
	t.outlast()
	t.fill(g, t.lasting("v", t.short, t.long))
	if e := t.holds(k, "v"); e.HandOver || e.Fresh > 0 || e.Left <= 0 || e.Left > t.long {
		t.Errorf("loaded %s, want a stale value that is no hand-over", show(e))
	}
}

func spentLifeIsHandedOver(t *trial) {
	for _, kind := range []store.Kind{store.Value, store.Absent} {
		k := t.key(kind.String())
		g := t.grant(k, "A/1")
		t.outlast()
		c := t.lasting("", t.unit, t.unit)
		c.Kind, c.HandOver = kind, 40*t.unit
		var e store.Entry
		filled := during(func() { t.fill(g, c) })
		loaded := during(func() { e = t.load(k) })
		if e.Kind != kind || !e.HandOver || e.Token != g.Token || e.Fresh > 0 {
			t.Errorf("loaded %s, want a %v handed over", show(e), kind)
		}
		t.leftOf("what is left of the hand-over", e.Left, c.HandOver, filled, loaded)
		if e.Age < 3*t.unit-resolution {
			t.Errorf("the age is %v, want it from the claim on", e.Age)
		}
	}
}

func noLifeIsHandedOver(t *trial) {
	k := t.key("k")
	g := t.grant(k, "A/1")
	t.fill(g, t.lasting("v", 0, 0))
	if e := t.holds(k, "v"); !e.HandOver || e.Fresh > 0 || e.Left <= 0 || e.Token != g.Token {
		t.Errorf("loaded %s, want a hand-over", show(e))
	}
	k = t.key("grace alone")
	t.fill(t.grant(k, "A/1"), t.lasting("v", 0, t.long))
	if e := t.holds(k, "v"); e.HandOver || e.Fresh > 0 {
		t.Errorf("loaded %s, want a stale value that is no hand-over", show(e))
	}
}

func handOverEnds(t *trial) {
	k := t.key("k")
	c := t.lasting("v", 0, 0)
	c.HandOver = t.short
	t.fill(t.grant(k, "A/1"), c)
	t.outlast()
	t.empty(k)
	t.grant(k, "B/1")
}

func spentPassIsAPass(t *trial) {
	k := t.key("k")
	g := t.grant(k, "A/1")
	t.outlast()
	t.fill(g, store.Content{Kind: store.Pass, TTL: t.unit, HandOver: t.long})
	if e := t.load(k); e.Kind != store.Pass || e.Token != g.Token || e.Left <= 0 || e.Left > t.long {
		t.Errorf("loaded %s, want a pass", show(e))
	}
}

// A flight that was not there before the hand-over treats it as a miss. Its
// claim must not be answered changed for ever.
func handOverIsNoChangeOnceSeen(t *trial) {
	k := t.key("k")
	t.fill(t.grant(k, "A/1"), t.lasting("v", 0, 0))
	t.want(t.ask(k, "B/1"), store.Changed)
	t.want(t.seeing(t.ask(k, "B/1")), store.Granted)
}

func freshStaleGone(t *trial) {
	k := t.key("k")
	c := t.lasting("v", 3*t.unit, 3*t.unit)
	t.fill(t.grant(k, "A/1"), c)
	if e := t.holds(k, "v"); e.Fresh <= 0 || e.Fresh > c.TTL {
		t.Errorf("loaded %s, want it fresh", show(e))
	}
	t.units(4)
	if e := t.holds(k, "v"); e.Fresh > 0 || e.Left <= 0 {
		t.Errorf("loaded %s, want it stale", show(e))
	}
	t.units(3)
	t.empty(k)
	if left, there := t.EntryLeft(k); there {
		t.Errorf("the store still keeps the entry, for %v", left)
	}
}

func entryHasAnEnd(t *trial) {
	writes := map[string]func(k store.Key){
		"fill":                  func(k store.Key) { t.filled(k, "A/1", "v") },
		"fill over another":     func(k store.Key) { t.filled(k, "A/1", "v"); t.filled(k, "A/2", "v") },
		"a hand-over":           func(k store.Key) { t.fill(t.grant(k, "A/1"), t.lasting("v", 0, 0)) },
		"set":                   func(k store.Key) { t.set(k, "v") },
		"set over another":      func(k store.Key) { t.set(k, "v"); t.set(k, "v") },
		"a begun set":           func(k store.Key) { _ = t.setBegun(k, "v", t.begin(k)) },
		"expire of a value":     func(k store.Key) { t.set(k, "v"); t.expire(k) },
		"a fill over a set one": func(k store.Key) { t.set(k, "v"); t.filled(k, "A/1", "v") },
	}
	for name, write := range writes {
		k := t.key(name)
		write(k)
		if left, there := t.EntryLeft(k); !there || left < 0 || left > 2*t.long+resolution {
			t.Errorf("after %s the entry has %v left (there: %v), want TTL and grace at most", name, left, there)
		}
	}
}

func hugeLife(t *trial) {
	k := t.key("k")
	c := t.lasting("v", math.MaxInt64, math.MaxInt64)
	c.HandOver = math.MaxInt64
	century := 100 * 365 * 24 * time.Hour
	t.fill(t.grant(k, "A/1"), c)
	if e := t.holds(k, "v"); e.HandOver || e.Fresh < century || e.Left < century {
		t.Errorf("filled for ever: %s, want it fresh for a century", show(e))
	}
	if err := t.st.Set(t.ctx, store.Write{Key: k, Content: c}); err != nil {
		t.Fatalf("set: %v", err)
	}
	if e := t.holds(k, "v"); e.Fresh < century || e.Left < century {
		t.Errorf("set for ever: %s, want it fresh for a century", show(e))
	}
	t.expire(k)
	if e := t.holds(k, "v"); e.Fresh > 0 || e.Left < century {
		t.Errorf("expired: %s, want it stale for a century", show(e))
	}
}

func setOfNoLife(t *trial) {
	k := t.key("k")
	g := t.filled(k, "A/1", "v")
	running := t.regrant(k, "A/2")
	if err := t.st.Set(t.ctx, store.Write{Key: k, Content: t.lasting("w", 0, 0)}); err != nil {
		t.Fatalf("set: %v", err)
	}
	t.empty(k)
	t.fenced(running, t.value("old"))
	t.fenced(g, t.value("old"))
	t.grant(k, "B/1")
}

func invalidateTakesEach(t *trial) {
	var keys []store.Key
	for _, id := range []string{"a", "b", "never there", "c"} {
		k := t.key(id)
		keys = append(keys, k)
		if id != "never there" {
			t.filled(k, "A/1", "v")
		}
	}
	keys = append(keys, keys[0]) // twice the same
	kept := t.key("kept")
	t.filled(kept, "A/1", "v")

	if errs := t.st.Expire(t.ctx, keys); errs != nil {
		t.Fatalf("expire: %v", errs)
	}
	for _, k := range keys {
		if e := t.load(k); e.Fresh > 0 {
			t.Errorf("after expire %q is %s", k.ID, show(e))
		}
	}
	if errs := t.st.Invalidate(t.ctx, keys); errs != nil {
		t.Fatalf("invalidate: %v", errs)
	}
	for _, k := range keys {
		t.empty(k)
	}
	if e := t.holds(kept, "v"); e.Fresh <= 0 {
		t.Errorf("a key that was not named is %s", show(e))
	}
	if errs := t.st.Invalidate(t.ctx, nil); errs != nil {
		t.Errorf("invalidate of nothing: %v", errs)
	}
	if errs := t.st.Expire(t.ctx, nil); errs != nil {
		t.Errorf("expire of nothing: %v", errs)
	}
}

func expireKeeps(t *trial) {
	k := t.key("k")
	g := t.filled(k, "A/1", "v")
	before := t.load(k)
	t.units(1)
	t.expire(k)
	e := t.holds(k, "v")
	if e.Fresh > 0 || e.Token != g.Token || e.HandOver || e.TTL != before.TTL || e.Cost != before.Cost || e.Age < t.unit-resolution {
		t.Errorf("expired %s of %s, want it stale and otherwise the same", show(e), show(before))
	}
	c := t.ask(k, "B/1")
	c.Seen = g.Token
	if g := t.granted(c); g.Takeover {
		t.Errorf("granted %+v", g)
	}
}

func expireBeginsGrace(t *trial) {
	k := t.key("k")
	t.fill(t.grant(k, "A/1"), t.lasting("v", t.long, 40*t.unit))
	t.units(1)
	expired := during(func() { t.expire(k) })
	var e store.Entry
	loaded := during(func() { e = t.holds(k, "v") })
	t.leftOf("what is left of the grace", e.Left, 40*t.unit, expired, loaded)

	k = t.key("ends")
	t.fill(t.grant(k, "A/1"), t.lasting("v", t.long, t.short))
	t.expire(k)
	t.outlast()
	t.empty(k)
}

func expireOfStale(t *trial) {
	k := t.key("k")
	var g store.Grant
	claimed := during(func() { g = t.grant(k, "A/1") })
	t.fill(g, t.lasting("v", t.unit, 40*t.unit))
	t.units(4)
	t.expire(k)
	var e store.Entry
	loaded := during(func() { e = t.holds(k, "v") })
	t.leftOf("what is left of its life", e.Left, 41*t.unit, claimed, loaded)
	if e.Fresh > 0 {
		t.Errorf("loaded %s, want it stale", show(e))
	}
}

func expireTwice(t *trial) {
	k := t.key("k")
	t.fill(t.grant(k, "A/1"), t.lasting("v", t.long, 40*t.unit))
	expired := during(func() { t.expire(k) })
	t.units(3)
	t.expire(k)
	var e store.Entry
	loaded := during(func() { e = t.holds(k, "v") })
	t.leftOf("what is left of the grace", e.Left, 40*t.unit, expired, loaded)
	if e.Fresh > 0 {
		t.Errorf("loaded %s, want it stale", show(e))
	}
}

func expireWithoutGrace(t *trial) {
	k := t.key("k")
	t.fill(t.grant(k, "A/1"), t.lasting("v", t.long, 0))
	t.expire(k)
	t.empty(k)
}

func expireDeletes(t *trial) {
	k := t.key("hand-over")
	t.fill(t.grant(k, "A/1"), t.lasting("v", 0, 0))
	t.expire(k)
	t.empty(k)

	k = t.key("spent")
	g := t.grant(k, "A/1")
	t.outlast()
	t.fill(g, t.lasting("v", t.unit, t.unit))
	t.expire(k)
	t.empty(k)

	k = t.key("pass")
	t.fill(t.grant(k, "A/1"), store.Content{Kind: store.Pass, TTL: t.long, Grace: t.long, HandOver: t.long})
	t.expire(k)
	t.empty(k)
}

func expireKeepsAbsent(t *trial) {
	k := t.key("k")
	g := t.grant(k, "A/1")
	t.fill(g, store.Content{Kind: store.Absent, TTL: t.long, Grace: t.long, HandOver: t.long})
	t.expire(k)
	if e := t.load(k); e.Kind != store.Absent || e.Fresh > 0 || e.Token != g.Token {
		t.Errorf("loaded %s, want a stale absent of token %d", show(e), g.Token)
	}
}

// planted runs a check once for each kind of bytes that the backend can hold.
func (t *trial) planted(check func(k store.Key, what Foreign, named store.Token)) {
	t.Helper()
	tried := 0
	for _, what := range Foreigns {
		k := t.key(string(what))
		named, err := t.Plant(k, what)
		if errors.Is(err, errors.ErrUnsupported) {
			t.Logf("NOT CHECKED: this backend cannot hold %s", what)
			continue
		}
		if err != nil {
			t.Fatalf("plant %s: %v", what, err)
		}
		tried++
		check(k, what, named)
	}
	if tried == 0 {
		t.Skipf("NOT CHECKED: this backend cannot hold foreign bytes")
	}
}

func foreignIsAMiss(t *trial) {
	t.planted(func(k store.Key, what Foreign, named store.Token) {
		e := t.load(k)
		if e.Kind != store.None || len(e.Payload) > 0 || e.HandOver {
			t.Errorf("%s: loaded %s, want none", what, show(e))
		}
		if store.ClassOf(e.Fault) != store.ClassData {
			t.Errorf("%s: the fault is %v, want one of class data", what, e.Fault)
		}
		if e.Token != named {
			t.Errorf("%s: token %d, want %d, which the bytes name", what, e.Token, named)
		}
	})
}

// A flight that cannot read what is there must not be told for ever that it has
// changed.
func foreignIsClaimed(t *trial) {
	t.planted(func(k store.Key, what Foreign, named store.Token) {
		other := t.ask(k, "A/1")
		other.Seen = named + 1
		want := store.Granted
		if named != 0 {
			want = store.Changed
		}
		if v := t.claim(other); v.Outcome != want {
			t.Errorf("%s: a claim that saw another entry is answered %v, want %v", what, v.Outcome, want)
		}
		t.release(store.Grant{Key: k, Holder: "A/1"}, nil)
		v := t.claim(t.seeing(t.ask(k, "B/1")))
		if v.Outcome != store.Granted || v.Grant.Token <= named {
			t.Errorf("%s: a claim that saw it is answered %v with token %d, want granted with one above %d", what, v.Outcome, v.Grant.Token, named)
		}
	})
}

func foreignIsFilled(t *trial) {
	t.planted(func(k store.Key, what Foreign, _ store.Token) {
		g := t.regrant(k, "A/1")
		t.fill(g, t.value("v"))
		if e := t.holds(k, "v"); e.Token != g.Token || e.Fault != nil {
			t.Errorf("%s: loaded %s after a fill", what, show(e))
		}
	})
}

func foreignIsSet(t *trial) {
	t.planted(func(k store.Key, what Foreign, named store.Token) {
		t.set(k, "v")
		if e := t.holds(k, "v"); e.Token <= named || e.Fault != nil {
			t.Errorf("%s: loaded %s after a set, want a token above %d", what, show(e), named)
		}
	})
}

func foreignIsDeleted(t *trial) {
	t.planted(func(k store.Key, what Foreign, _ store.Token) {
		t.invalidate(k)
		t.empty(k)
		if _, there := t.EntryLeft(k); there {
			t.Errorf("%s: still there after an invalidate", what)
		}
		if _, err := t.Plant(k, what); err != nil {
			t.Fatalf("plant %s: %v", what, err)
		}
		t.expire(k)
		t.empty(k)
	})
}
