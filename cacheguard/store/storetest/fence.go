package storetest

import (
	"errors"
	"slices"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

var fenceChecks = []Check{
	{"fence/a fill after an invalidate is refused", fillAfterInvalidate},
	{"fence/a fill after an expire is refused", fillAfterExpire},
	{"fence/a fill after a set is refused", fillAfterSet},
	{"fence/a fill after a later grant's fill is refused", fillAfterLaterFill},
	{"fence/a late fill of a lapsed holder lands", lateFillLands},
	{"fence/a late fill leaves the next holder its lease", lateFillLeavesNextLease},
	{"fence/a holder that released may still fill", fillAfterRelease},
	{"fence/paused holders make progress", pausedHoldersMakeProgress},
	{"fence/a grant after the fence moved may fill", grantAfterFence},
	{"fence/a refused fill changes nothing", refusedFillChangesNothing},
	{"fence/the same fill again changes nothing", sameFillAgain},
	{"fence/the same fill again after an invalidate is refused", sameFillAfterInvalidate},
	{"fence/the same fill again does not bring a lapsed entry back", sameFillAfterLapse},
	{"fence/a fill after the loss of the record is refused", fillAfterLoss},
	{"fence/a fill under another record is refused", fillUnderAnotherRecord},
	{"fence/a fill under another record is refused though its token is higher", fillUnderAnotherRecordAfterClockStep},
	{"fence/a retried claim after a loss does not admit the older grant", retriedClaimAfterLoss},
	{"fence/a fill after the loss of everything is refused", fillAfterFlush},
	{"fence/the loss of the entry alone admits the holder", fillAfterEviction},
	{"fence/begin does nothing else", beginDoesNothingElse},
	{"fence/a begun set lands after an older fill", begunSetAfterOlderFill},
	{"fence/a begun set refuses the fill of a load that began after it", begunSetRefusesLoads},
	{"fence/a begun set that was overtaken invalidates", overtakenBegunSet},
	{"fence/a begun set without its record invalidates", begunSetWithoutRecord},
	{"fence/the later of two begun sets stands or nothing does", twoBegunSets},
	{"fence/a begun set of no life tells whether it was overtaken", begunSetOfNoLife},
	{"fence/writes end any lease", writesEndLeases},
}

func fillAfterInvalidate(t *trial) {
	k := t.key("k")
	g := t.grant(k, "A/1")
	t.invalidate(k)
	t.fenced(g, t.value("old"))
	t.empty(k)
}

func fillAfterExpire(t *trial) {
	k := t.key("k")
	t.filled(k, "A/1", "v")
	g := t.regrant(k, "A/2")
	t.expire(k)
	t.fenced(g, t.value("old"))
	t.holds(k, "v")

	k = t.key("nothing to expire")
	g = t.grant(k, "A/1")
	t.expire(k)
	t.fenced(g, t.value("old"))
	t.empty(k)
}

func fillAfterSet(t *trial) {
	k := t.key("k")
	g := t.grant(k, "A/1")
	t.set(k, "new")
	t.fenced(g, t.value("old"))
	t.holds(k, "new")
}

func fillAfterLaterFill(t *trial) {
	k := t.key("k")
	a := t.lapse(k, "A/1")
	b := t.grant(k, "B/1")
	t.fill(b, t.value("new"))
	t.fenced(a, t.value("old"))
	t.holds(k, "new")
}

func lateFillLands(t *trial) {
	k := t.key("k")
	g := t.lapse(k, "A/1")
	t.fill(g, t.value("v"))
	if e := t.holds(k, "v"); e.Token != g.Token {
		t.Errorf("loaded %s, want token %d", show(e), g.Token)
	}
}

func lateFillLeavesNextLease(t *trial) {
	k := t.key("k")
	a := t.lapse(k, "A/1")
	b := t.grant(k, "B/1")
	t.fill(a, t.value("v1"))
	e := t.holds(k, "v1")
	c := t.ask(k, "C/1")
	c.Seen = e.Token
	if v := t.want(c, store.Held); v.Holder != "B/1" {
		t.Errorf("held by %q, want B/1", v.Holder)
	}
	if err := t.renew(b, t.long); err != nil {
		t.Errorf("renew of the next holder: %v", err)
	}
	t.fill(b, t.value("v2"))
	t.holds(k, "v2")
}

func fillAfterRelease(t *trial) {
	k := t.key("k")
	g := t.grant(k, "A/1")
	t.release(g, nil)
	t.fill(g, t.value("v"))
	t.holds(k, "v")
}

// Each holder is paused past its lease and resumes after the next was granted.
// A fill judged by the lease would never land.
func pausedHoldersMakeProgress(t *trial) {
	k := t.key("k")
	paused := t.lapse(k, "A/1")
	for _, h := range []store.Holder{"B/1", "A/2", "B/2"} {
		next := t.granted(t.seeing(t.askShort(k, h)))
		t.fill(paused, t.value("of "+string(paused.Holder)))
		t.holds(k, "of "+string(paused.Holder))
		t.outlast()
		paused = next
	}
}

func grantAfterFence(t *trial) {
	fences := map[string]func(k store.Key){
		"invalidate": func(k store.Key) { t.invalidate(k) },
		"expire":     func(k store.Key) { t.expire(k) },
		"set":        func(k store.Key) { t.set(k, "w") },
		"fill":       func(k store.Key) { t.filled(k, "B/1", "w") },
	}
	for name, fence := range fences {
		k := t.key(name)
		t.filled(k, "A/1", "v")
		fence(k)
		t.fill(t.regrant(k, "A/2"), t.value("after "+name))
		t.holds(k, "after "+name)
	}
}

func refusedFillChangesNothing(t *trial) {
	k := t.key("k")
	old := t.lapse(k, "A/1")
	t.set(k, "new")
	before := t.load(k)
	t.failed(k, "B/1")
	t.regrant(k, "C/1") // runs

	t.fenced(old, t.lasting("a much longer old value", t.short, 0))
	after := t.load(k)
	if string(after.Payload) != "new" || after.Token != before.Token || after.TTL != before.TTL || after.Left < t.long {
		t.Errorf("%s became %s", show(before), show(after))
	}
	if v := t.want(t.seeing(t.ask(k, "D/1")), store.Held); v.Holder != "C/1" {
		t.Errorf("held by %q, want C/1", v.Holder)
	}
	t.release(store.Grant{Key: k, Holder: "C/1"}, nil)
	t.want(t.seeing(t.ask(k, "B/2")), store.Cooling)
}

// A fill whose reply was lost is sent again, after others have gone on.
func sameFillAgain(t *trial) {
	k := t.key("k")
	var g store.Grant
	claimed := during(func() { g = t.grant(k, "A/1") })
	c := t.lasting("v", 40*t.unit, 40*t.unit)
	t.fill(g, c)
	t.units(2)
	t.failed(k, "B/1")
	next := t.regrant(k, "C/1")

	again := t.value("v")
	again.TTL, again.Grace = t.long, t.long
	t.fill(g, again)
	var e store.Entry
	loaded := during(func() { e = t.holds(k, "v") })
	t.wantTimes(e, 40*t.unit, 40*t.unit, claimed, loaded)
	if v := t.want(t.seeing(t.ask(k, "D/1")), store.Held); v.Holder != "C/1" {
		t.Errorf("held by %q, want C/1", v.Holder)
	}
	t.release(next, nil)
	t.want(t.seeing(t.ask(k, "B/2")), store.Cooling)
}

func sameFillAfterInvalidate(t *trial) {
	k := t.key("k")
	g := t.filled(k, "A/1", "v")
	t.invalidate(k)
	t.fenced(g, t.value("v"))
	t.empty(k)
}

func sameFillAfterLapse(t *trial) {
	k := t.key("k")
	g := t.grant(k, "A/1")
	c := t.lasting("v", t.unit, t.unit)
	t.fill(g, c)
	t.outlast()
	t.fill(g, c)
	t.empty(k)
}

func fillAfterLoss(t *trial) {
	k := t.key("k")
	g := t.grant(k, "A/1")
	t.LoseRecord(k)
	t.fenced(g, t.value("v"))
	t.empty(k)
}

// A is granted and loads v0; v1 is committed and invalidated; the record is
// lost with its fence, and B's claim creates it anew.
func fillUnderAnotherRecord(t *trial) {
	k := t.key("k")
	a := t.grant(k, "A/1")
	t.invalidate(k)
	t.LoseRecord(k)
	b := t.grant(k, "B/1")
	t.fenced(a, t.value("v0"))
	t.empty(k)
	t.fill(b, t.value("v1"))
	t.fenced(a, t.value("v0"))
	t.holds(k, "v1")
}

// The same, and the server that takes over has a clock that is behind: A's
// token is above B's, and only the birth mark tells.
func fillUnderAnotherRecordAfterClockStep(t *trial) {
	k := t.key("k")
	a := t.grant(k, "A/1")
	t.invalidate(k)
	t.LoseAll()
	t.can("set its clock", t.StepClock(-t.long))
	b := t.grant(k, "B/1")
	t.fenced(a, t.value("v0"))
	t.empty(k)
	t.fill(b, t.value("v1"))
	t.holds(k, "v1")
}

// A's claim created the record, and its reply was lost; the record is lost; the
// very same claim, asked again, creates it anew. A grant of the first record
// must not pass for one of the second.
func retriedClaimAfterLoss(t *trial) {
	k := t.key("k")
	c := t.ask(k, "A/1")
	first := t.granted(c)
	t.invalidate(k)
	t.LoseRecord(k)
	second := t.granted(c)
	if second.Birth == first.Birth {
		t.Errorf("two records have the birth mark %q", first.Birth)
	}
	t.fenced(first, t.value("v0"))
	t.empty(k)
	if err := t.renew(first, t.long); !errors.Is(err, store.ErrLost) {
		t.Errorf("renew of a grant of the lost record: %v, want ErrLost", err)
	}
	t.fill(second, t.value("v1"))
	t.holds(k, "v1")
}

func fillAfterFlush(t *trial) {
	k := t.key("k")
	t.filled(k, "A/1", "v")
	g := t.regrant(k, "A/2")
	b := t.begin(k)
	t.LoseAll()
	t.empty(k)
	t.fenced(g, t.value("v"))
	if err := t.setBegun(k, "v", b); !errors.Is(err, store.ErrFenced) {
		t.Errorf("begun set after a flush: %v, want ErrFenced", err)
	}
	t.empty(k)
}

func fillAfterEviction(t *trial) {
	k := t.key("k")
	t.filled(k, "A/1", "v")
	g := t.regrant(k, "A/2")
	t.LoseEntry(k)
	t.empty(k)
	t.fill(g, t.value("w"))
	t.holds(k, "w")
}

func beginDoesNothingElse(t *trial) {
	k := t.key("k")
	t.filled(k, "A/1", "v1")
	before := t.load(k)
	g := t.regrant(k, "A/2")
	b := t.begin(k)
	if b.Token <= g.Token || b.Birth != g.Birth {
		t.Errorf("begun %+v after %+v, want a higher token of the same record", b, g)
	}
	if e := t.holds(k, "v1"); e.Token != before.Token || e.Fresh <= 0 {
		t.Errorf("begin changed the entry to %s", show(e))
	}
	if v := t.want(t.seeing(t.ask(k, "B/1")), store.Held); v.Holder != "A/2" {
		t.Errorf("held by %q, want A/2", v.Holder)
	}
	if err := t.renew(g, t.long); err != nil {
		t.Errorf("renew after a begin: %v", err)
	}
	t.fill(g, t.value("v2"))
	t.holds(k, "v2")
}

func begunSetAfterOlderFill(t *trial) {
	k := t.key("k")
	g := t.grant(k, "A/1")
	b := t.begin(k)
	t.fill(g, t.value("old"))
	if err := t.setBegun(k, "new", b); err != nil {
		t.Fatalf("begun set after the fill of an older grant: %v", err)
	}
	if e := t.holds(k, "new"); e.Token <= b.Token {
		t.Errorf("loaded %s, want a token above the begun %d", show(e), b.Token)
	}
}

func begunSetRefusesLoads(t *trial) {
	k := t.key("k")
	before := t.grant(k, "A/1")
	b := t.begin(k)
	t.release(before, nil)
	between := t.grant(k, "A/2")
	if err := t.setBegun(k, "new", b); err != nil {
		t.Fatalf("begun set: %v", err)
	}
	t.fenced(before, t.value("old"))
	t.fenced(between, t.value("old"))
	t.holds(k, "new")
}

// A commits v1 and is paused before its set. B commits v2 and tells the store;
// A's set of v1 runs. Nobody knows here which came last, so nothing is kept.
func overtakenBegunSet(t *trial) {
	overtake := map[string]func(k store.Key){
		"invalidate": func(k store.Key) { t.invalidate(k) },
		"expire":     func(k store.Key) { t.expire(k) },
		"set":        func(k store.Key) { t.set(k, "v2") },
		"fill":       func(k store.Key) { t.filled(k, "B/1", "v2") },
		"begun set":  func(k store.Key) { _ = t.setBegun(k, "v2", t.begin(k)) },
	}
	for name, by := range overtake {
		k := t.key(name)
		t.filled(k, "A/1", "v0")
		b := t.begin(k)
		by(k)
		running := t.regrant(k, "C/1")
		if err := t.setBegun(k, "v1", b); !errors.Is(err, store.ErrFenced) {
			t.Errorf("begun set overtaken by %s: %v, want ErrFenced", name, err)
		}
		t.empty(k)
		t.fenced(running, t.value("v0")) // it acts as an invalidate
		t.grant(k, "D/1")
	}
}

func begunSetWithoutRecord(t *trial) {
	for _, name := range []string{"lost", "created anew"} {
		k := t.key(name)
		b := t.begin(k)
		t.LoseRecord(k)
		t.set(k, "v0")
		if name == "created anew" {
			t.regrant(k, "A/1")
		}
		if err := t.setBegun(k, "v1", b); !errors.Is(err, store.ErrFenced) {
			t.Errorf("begun set, record %s: %v, want ErrFenced", name, err)
		}
		t.empty(k)
	}
}

func twoBegunSets(t *trial) {
	k := t.key("k")
	a, b := t.begin(k), t.begin(k)
	if err := t.setBegun(k, "of b", b); err != nil {
		t.Fatalf("the first of two begun sets: %v", err)
	}
	if err := t.setBegun(k, "of a", a); !errors.Is(err, store.ErrFenced) {
		t.Errorf("the second of two begun sets: %v, want ErrFenced", err)
	}
	t.empty(k)
}

func begunSetOfNoLife(t *trial) {
	k := t.key("k")
	t.filled(k, "A/1", "v")
	b := t.begin(k)
	w := store.Write{Key: k, Content: t.lasting("w", 0, 0), Begun: &b}
	if err := t.st.Set(t.ctx, w); err != nil {
		t.Errorf("begun set of no life: %v", err)
	}
	t.empty(k)
	if err := t.st.Set(t.ctx, w); !errors.Is(err, store.ErrFenced) {
		t.Errorf("begun set of no life, overtaken: %v, want ErrFenced", err)
	}
}

func writesEndLeases(t *trial) {
	writes := map[string]func(k store.Key){
		"invalidate":        func(k store.Key) { t.invalidate(k) },
		"expire":            func(k store.Key) { t.expire(k) },
		"set":               func(k store.Key) { t.set(k, "w") },
		"begun set":         func(k store.Key) { _ = t.setBegun(k, "w", t.begin(k)) },
		"refused begun set": func(k store.Key) { _ = t.setBegun(k, "w", store.Begun{Token: 1, Birth: "none"}) },
	}
	for name, write := range writes {
		k := t.key(name)
		held := t.grant(k, "A/1")
		write(k)
		if g := t.regrant(k, "B/1"); g.Token <= held.Token {
			t.Errorf("after %s token %d was granted after %d", name, g.Token, held.Token)
		}
	}
	k := t.key("of many")
	t.grant(k, "A/1")
	if errs := t.st.Invalidate(t.ctx, slices.Repeat([]store.Key{k}, 3)); errs != nil {
		t.Fatalf("invalidate: %v", errs)
	}
	t.grant(k, "B/1")
}
