package storetest

import (
	"context"
	"errors"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

var leaseChecks = []Check{
	{"lease/an entry other than the one seen is a change", anotherEntryIsAChange},
	{"lease/an entry that is not there is not a change", noEntryIsNoChange},
	{"lease/a change is told before a running lease", changeBeforeHeld},
	{"lease/a running lease is told with its holder, token and time left", heldTellsAll},
	{"lease/a claim tells whether what was seen is still there", sameIsTold},
	{"lease/a running lease is told before a cooldown", heldBeforeCooling},
	{"lease/a grant brings what its claim asked for", grantIsWhole},
	{"lease/the same holder is granted anew and its lease starts anew", ownLeaseIsGrantedAnew},
	{"lease/the same holder is granted anew during a cooldown", ownLeaseIsGrantedInACooldown},
	{"lease/a lease that ran out is taken over", lapsedLeaseIsTakenOver},
	{"lease/a lease that was ended is not taken over", endedLeaseIsNoTakeover},
	{"lease/tokens grow over every verb and key loss", tokensGrow},
	{"lease/tokens keep up with the clock", tokensFollowTheClock},
	{"lease/each record has a birth mark of its own", birthsDiffer},
	{"lease/a lease whose end lies too far ahead has passed", clockStepEndsLease},
	{"lease/a cooldown whose end lies too far ahead has passed", clockStepEndsCooldown},
	{"lease/renew starts the lease anew", renewExtends},
	{"lease/renew revives a lapsed lease that nobody took", renewRevives},
	{"lease/renew tells each lease that is lost", renewTellsLost},
	{"lease/renew of nothing is nil", renewOfNothing},
	{"lease/release ends the lease at once", releaseEndsLease},
	{"lease/release leaves the lease of another alone", releaseIsOnlyForTheHolder},
	{"lease/release by holder alone ends a lease of unknown token", releaseByHolder},
	{"lease/release without its record does nothing", releaseWithoutRecord},
	{"lease/a failure of one process binds that process alone", oneFailureBindsOneProcess},
	{"lease/failures of two processes bind everybody", twoProcessesBindAll},
	{"lease/two failures of one process bind that process alone", twoFailuresOfOneProcess},
	{"lease/a failure is counted when its lease is gone", failureCountsWithoutLease},
	{"lease/a failure is counted once", failureCountsOnce},
	{"lease/a failure without cooldown binds nobody but is counted", failureWithoutCooldown},
	{"lease/a recovered process gets its turn within two cooldowns", recoveredProcessGetsItsTurn},
	{"lease/a fill clears failures and cooldown", fillClearsFailures},
	{"lease/nothing but a fill clears a cooldown", onlyFillClearsCooldown},
	{"lease/a cooldown ends", cooldownEnds},
	{"lease/the record outlives its cooldown", recordOutlivesCooldown},
	{"lease/the record outlives its lease", recordOutlivesLease},
	{"lease/no verb shortens the life of the record", recordLifeIsNotShortened},
	{"lease/the record ends", recordEnds},
	{"lease/only claim and begin create a record", onlyClaimAndBeginCreate},
	{"lease/a caller that has gone is told so and changes nothing", goneCallerChangesNothing},
}

func anotherEntryIsAChange(t *trial) {
	k := t.key("k")
	old := t.filled(k, "A/1", "v1")
	now := t.filled(k, "A/2", "v2")

	for _, seen := range []store.Token{0, old.Token, now.Token + 1} {
		c := t.ask(k, "B/1")
		c.Seen = seen
		t.want(c, store.Changed)
	}
	c := t.ask(k, "B/2")
	c.Seen = now.Token
	t.want(c, store.Granted)
}

func noEntryIsNoChange(t *trial) {
	k := t.key("k")
	seen := t.filled(k, "A/1", "v1").Token
	t.invalidate(k)
	c := t.ask(k, "B/1")
	c.Seen = seen
	t.release(t.granted(c), nil)

	lapsing := t.regrant(k, "B/2")
	t.fill(lapsing, t.lasting("v2", t.unit, t.unit))
	t.outlast()
	c = t.ask(k, "B/3")
	c.Seen = lapsing.Token
	t.want(c, store.Granted)
}

func changeBeforeHeld(t *trial) {
	k := t.key("k")
	t.filled(k, "A/1", "v1")
	t.regrant(k, "B/1") // runs
	t.want(waiting(t.ask(k, "C/1")), store.Changed)
}

func heldTellsAll(t *trial) {
	k := t.key("k")
	var g store.Grant
	given := during(func() { g = t.grant(k, "A/1") })
	t.units(1)

	for _, c := range []store.Claim{t.ask(k, "B/1"), waiting(t.ask(k, "B/1")), t.ask(k, "A/2")} {
		var v store.Verdict
		asked := during(func() { v = t.want(c, store.Held) })
		if v.Holder != "A/1" || v.Token != g.Token {
			t.Errorf("held by %q with token %d, want A/1 with %d", v.Holder, v.Token, g.Token)
		}
		t.leftOf("what is left of the lease", v.Left, t.long, given, asked)
	}
}

// A claim's answer is what tells those who came before it was sent that what they
// would have read is still there.
func sameIsTold(t *trial) {
	k := t.key("k")
	same := func(c store.Claim, outcome store.Outcome, want bool) store.Verdict {
		t.Helper()
		v := t.want(c, outcome)
		if v.Same != want {
			t.Errorf("claim by %s was answered %+v, want Same %v", c.Holder, v, want)
		}
		return v
	}
	first := same(t.ask(k, "A/1"), store.Granted, false).Grant
	same(t.ask(k, "B/1"), store.Held, false)

	t.fill(first, t.value("v1"))
	seen := func(holder store.Holder) store.Claim {
		c := t.ask(k, holder)
		c.Seen = first.Token
		return c
	}
	t.release(same(seen("A/2"), store.Granted, true).Grant, nil)
	t.expire(k)
	same(seen("A/3"), store.Granted, true)
	same(seen("B/3"), store.Held, true)
	t.invalidate(k)
	same(seen("A/4"), store.Granted, false)
	same(seen("B/4"), store.Held, false)
}

func heldBeforeCooling(t *trial) {
	k := t.key("k")
	t.failed(k, "A/1")
	t.grant(k, "B/1") // the second opinion
	t.want(t.ask(k, "A/2"), store.Held)
}

func grantIsWhole(t *trial) {
	k := t.key("k")
	g := t.grant(k, "host/7/1")
	if g.Key != k || g.Holder != "host/7/1" || g.Length != t.long {
		t.Errorf("the grant is %+v, want the key, holder and length of the claim", g)
	}
	if g.Token <= 0 || g.Token >= 1<<53 {
		t.Errorf("the token is %d, want one above zero and below 2^53", g.Token)
	}
	if g.Birth == "" {
		t.Errorf("the grant has no birth mark")
	}
	if g.Takeover || g.SecondOpinion {
		t.Errorf("the first grant is %+v, want no takeover and no second opinion", g)
	}
}

// A's claim loses its reply and is asked again later. If the lease still ended
// as first granted, A would believe in it longer than the store does.
func ownLeaseIsGrantedAnew(t *trial) {
	k := t.key("k")
	first := t.grant(k, "A/1")
	t.units(2)
	var second store.Grant
	given := during(func() { second = t.grant(k, "A/1") })

	if second.Token <= first.Token || second.Birth != first.Birth || second.Takeover {
		t.Errorf("granted anew: %+v after %+v, want a higher token, the same birth and no takeover", second, first)
	}
	var v store.Verdict
	asked := during(func() { v = t.want(t.ask(k, "B/1"), store.Held) })
	if v.Token != second.Token {
		t.Errorf("held with token %d, want that of the second grant, %d", v.Token, second.Token)
	}
	t.leftOf("what is left of the lease", v.Left, t.long, given, asked)
}

// B's claim loses its reply; meanwhile A and C fail, and their cooldown binds
// the fleet. A refusal would leave a lease that nobody knows of.
func ownLeaseIsGrantedInACooldown(t *trial) {
	k := t.key("k")
	a := t.lapse(k, "A/1")
	t.grant(k, "B/1")
	t.fail(a)
	t.fail(store.Grant{Key: k, Holder: "C/1"})

	if g := t.grant(k, "B/1"); g.SecondOpinion {
		t.Errorf("a lease granted anew calls itself a second opinion, but its process is bound")
	}
	t.release(store.Grant{Key: k, Holder: "B/1"}, nil)
	t.want(t.ask(k, "B/2"), store.Cooling)
}

func lapsedLeaseIsTakenOver(t *trial) {
	k := t.key("k")
	a := t.lapse(k, "A/1")
	b := t.grant(k, "B/1")
	if !b.Takeover || b.Token <= a.Token || b.Birth != a.Birth {
		t.Errorf("after %+v: %+v, want a takeover of the same record with a higher token", a, b)
	}
}

func endedLeaseIsNoTakeover(t *trial) {
	ends := map[string]func(g store.Grant){
		"release":           func(g store.Grant) { t.release(g, nil) },
		"release too late":  func(g store.Grant) { t.outlast(); t.release(g, nil) },
		"a failed load":     func(g store.Grant) { t.release(g, &store.Failure{Reason: "no"}) },
		"fill":              func(g store.Grant) { t.fill(g, t.value("v")) },
		"a fill too late":   func(g store.Grant) { t.outlast(); t.fill(g, t.value("v")) },
		"set":               func(g store.Grant) { t.set(g.Key, "v") },
		"invalidate":        func(g store.Grant) { t.invalidate(g.Key) },
		"expire":            func(g store.Grant) { t.expire(g.Key) },
		"a begun set":       func(g store.Grant) { _ = t.setBegun(g.Key, "v", t.begin(g.Key)) },
		"a begun set, late": func(g store.Grant) { _ = t.setBegun(g.Key, "v", store.Begun{Token: 1}) },
	}
	for name, end := range ends {
		k := t.key(name)
		end(t.granted(t.askShort(k, "A/1")))
		if g := t.regrant(k, "B/1"); g.Takeover {
			t.Errorf("a grant after %s calls itself a takeover", name)
		}
	}
}

func tokensGrow(t *trial) {
	k := t.key("k")
	ear := t.listen(t.st, k.Space)
	var last store.Token
	grown := func(after string, token store.Token) {
		t.Helper()
		if token <= last {
			t.Errorf("%s has token %d, not above %d before it", after, token, last)
		}
		last = token
	}
	claim := func() store.Token {
		t.Helper()
		g := t.regrant(k, "A/1")
		t.release(g, nil)
		return g.Token
	}
	told := func(kind store.EventKind) store.Token { t.Helper(); return ear.want(kind, k).Token }

	for range 3 {
		grown("a claim", claim())
		grown("a begin", t.begin(k).Token)
		t.set(k, "v")
		grown("a set", told(store.Written))
		if e := t.load(k); e.Token != last {
			t.Errorf("the set entry has token %d, its event %d", e.Token, last)
		}
		grown("a claim", claim())
		t.expire(k)
		grown("an expire", told(store.Expired))
		grown("a begin", t.begin(k).Token)
		t.LoseRecord(k)
		t.expire(k)
		grown("an expire without a record", told(store.Expired))
		t.set(k, "v")
		grown("a set without a record", told(store.Written))
		grown("a claim with nothing but an entry", claim())
		t.invalidate(k)
		grown("an invalidate", told(store.Invalidated))
		t.LoseRecord(k)
		grown("a claim with nothing", claim())
		t.LoseRecord(k)
		grown("a begin with nothing", t.begin(k).Token)
	}
}

// Two fresh keys have tokens that are as far apart as the claims were, in
// microseconds.
func tokensFollowTheClock(t *trial) {
	var a, b store.Grant
	first := during(func() { a = t.grant(t.key("a"), "A/1") })
	t.units(1)
	second := during(func() { b = t.grant(t.key("b"), "A/2") })
	t.since("the time between tokens", time.Duration(b.Token-a.Token)*time.Microsecond, first, second)
}

func birthsDiffer(t *trial) {
	k := t.key("k")
	seen := make(map[string]bool)
	for range 50 {
		g := t.grant(k, "A/1") // the very same claim
		if seen[g.Birth] {
			t.Fatalf("birth mark %q was given twice", g.Birth)
		}
		seen[g.Birth] = true
		t.LoseRecord(k)
		if b := t.begin(k); seen[b.Birth] {
			t.Fatalf("birth mark %q was given twice", b.Birth)
		} else {
			seen[b.Birth] = true
		}
		t.LoseRecord(k)
	}
}

// A holder crashes, and a server whose clock is behind takes over: its lease
// must not last so much longer.
func clockStepEndsLease(t *trial) {
	k := t.key("k")
	g := t.grant(k, "A/1")
	t.can("set its clock", t.StepClock(-2*t.long))
	b := t.grant(k, "B/1")
	if b.Token <= g.Token {
		t.Errorf("token %d after %d: tokens of a record grow whatever the clock does", b.Token, g.Token)
	}
	t.fill(b, t.value("v"))
	if e := t.holds(k, "v"); e.Age < 0 || e.Age > t.unit*10 {
		t.Errorf("an entry of now has the age %v", e.Age)
	}
	t.fenced(g, t.value("old"))
}

func clockStepEndsCooldown(t *trial) {
	k := t.key("k")
	t.failed(k, "A/1")
	t.failed(k, "B/1")
	t.want(t.ask(k, "A/2"), store.Cooling)
	t.can("set its clock", t.StepClock(-2*t.long))
	t.want(t.ask(k, "A/2"), store.Granted)
}

func renewExtends(t *trial) {
	k := t.key("k")
	g := t.granted(t.askShort(k, "A/1"))
	var err error
	renewed := during(func() { err = t.renew(g, t.long/2) })
	if err != nil {
		t.Fatalf("renew: %v", err)
	}
	var v store.Verdict
	asked := during(func() { v = t.want(t.ask(k, "B/1"), store.Held) })
	t.leftOf("what is left of the renewed lease", v.Left, t.long/2, renewed, asked)
	if v.Token != g.Token {
		t.Errorf("the renewed lease has token %d, want that of its grant, %d", v.Token, g.Token)
	}
	t.fill(g, t.value("v"))
}

func renewRevives(t *trial) {
	k := t.key("k")
	g := t.lapse(k, "A/1")
	if err := t.renew(g, t.long); err != nil {
		t.Fatalf("renew of a lapsed lease that nobody took: %v", err)
	}
	t.want(t.ask(k, "B/1"), store.Held)
}

func renewTellsLost(t *trial) {
	lost := map[string]func(g store.Grant) store.Grant{
		"a takeover":   func(g store.Grant) store.Grant { t.outlast(); t.grant(g.Key, "B/1"); return g },
		"release":      func(g store.Grant) store.Grant { t.release(g, nil); return g },
		"fill":         func(g store.Grant) store.Grant { t.fill(g, t.value("v")); return g },
		"set":          func(g store.Grant) store.Grant { t.set(g.Key, "v"); return g },
		"invalidate":   func(g store.Grant) store.Grant { t.invalidate(g.Key); return g },
		"expire":       func(g store.Grant) store.Grant { t.expire(g.Key); return g },
		"the loss":     func(g store.Grant) store.Grant { t.LoseRecord(g.Key); return g },
		"a new record": func(g store.Grant) store.Grant { t.LoseRecord(g.Key); t.grant(g.Key, g.Holder); return g },
		"other holder": func(g store.Grant) store.Grant { g.Holder = "A/2"; return g },
		"no holder":    func(g store.Grant) store.Grant { t.release(g, nil); g.Holder = ""; return g },
		"other birth":  func(g store.Grant) store.Grant { g.Birth += "x"; return g },
		"no birth":     func(g store.Grant) store.Grant { g.Birth = ""; return g },
	}
	kept := t.granted(t.askShort(t.key("kept"), "A/1"))
	var renewals []store.Renewal
	var names []string
	for name, lose := range lost {
		g := lose(t.granted(t.askShort(t.key(name), "A/1")))
		renewals = append(renewals, store.Renewal{Grant: g, Length: t.long})
		names = append(names, name)
	}
	renewals = append(renewals, store.Renewal{Grant: kept, Length: t.long})

	errs := t.st.Renew(t.ctx, renewals)
	if len(errs) != len(renewals) {
		t.Fatalf("%d renewals got %d results, want one for each if any failed", len(renewals), len(errs))
	}
	for i, name := range names {
		if !errors.Is(errs[i], store.ErrLost) {
			t.Errorf("renew after %s: %v, want ErrLost", name, errs[i])
		}
	}
	if err := errs[len(names)]; err != nil {
		t.Errorf("renew of a lease that is held, among lost ones: %v", err)
	}
	if v := t.want(t.ask(kept.Key, "B/1"), store.Held); v.Left < t.long/2 {
		t.Errorf("the lease among lost ones has %v left, want it renewed", v.Left)
	}
	t.recordGone(t.key("the loss"), "a refused renewal")
}

func renewOfNothing(t *trial) {
	if errs := t.st.Renew(t.ctx, nil); errs != nil {
		t.Errorf("renew of nothing: %v", errs)
	}
}

func releaseEndsLease(t *trial) {
	k := t.key("k")
	a := t.grant(k, "A/1")
	t.release(a, nil)
	t.release(a, nil) // its reply was lost
	if b := t.grant(k, "B/1"); b.Token <= a.Token {
		t.Errorf("token %d after %d", b.Token, a.Token)
	}
}

func releaseIsOnlyForTheHolder(t *trial) {
	k := t.key("k")
	a := t.lapse(k, "A/1")
	b := t.grant(k, "B/1")
	t.release(a, nil)
	t.fail(a)
	t.release(store.Grant{Key: k, Holder: "A/1"}, nil)
	t.release(store.Grant{Key: k}, nil)
	if v := t.want(t.ask(k, "C/1"), store.Held); v.Holder != "B/1" || v.Token != b.Token {
		t.Errorf("held by %q, want B/1", v.Holder)
	}
}

func releaseByHolder(t *trial) {
	k := t.key("k")
	t.grant(k, "A/1")
	t.fail(store.Grant{Key: k, Holder: "A/1"})
	t.want(t.ask(k, "A/2"), store.Cooling)
	t.want(t.ask(k, "B/1"), store.Granted)
}

func releaseWithoutRecord(t *trial) {
	k := t.key("k")
	t.fail(store.Grant{Key: k, Holder: "A/1"})
	t.recordGone(k, "a release without a record")

	old := t.grant(k, "A/1")
	t.LoseRecord(k)
	t.fail(old)
	t.recordGone(k, "a release whose record is lost")
	t.grant(k, "A/1") // the same holder, in another record
	t.fail(old)
	if v := t.want(t.ask(k, "B/1"), store.Held); v.Holder != "A/1" {
		t.Errorf("held by %q, want A/1: its lease is of another birth", v.Holder)
	}
	t.release(store.Grant{Key: k, Holder: "A/1"}, nil)
	t.want(t.ask(k, "A/2"), store.Granted)
}

func oneFailureBindsOneProcess(t *trial) {
	k := t.key("k")
	g := t.grant(k, "host/7/1")
	released := during(func() { t.release(g, &store.Failure{Reason: "pool \x00 \"broken\"\n", Cooldown: t.long}) })

	var v store.Verdict
	asked := during(func() { v = t.want(t.ask(k, "host/7/2"), store.Cooling) })
	if v.Holder != "host/7/1" || v.Reason != "pool \x00 \"broken\"\n" {
		t.Errorf("cooling after %q of %q, want the failure as it was told", v.Reason, v.Holder)
	}
	t.leftOf("what is left of the cooldown", v.Left, t.long, released, asked)

	for _, sending := range []string{"first", "second"} { // whose reply was lost
		if g := t.grant(k, "host/1"); !g.SecondOpinion || g.Takeover {
			t.Errorf("another process was granted %+v by its %s sending, want a second opinion", g, sending)
		}
	}
}

func twoProcessesBindAll(t *trial) {
	k := t.key("k")
	t.failed(k, "A/1")
	t.failed(k, "B/1")
	for _, h := range []store.Holder{"A/2", "B/2", "C/1"} {
		v := t.want(t.ask(k, h), store.Cooling)
		if v.Holder != "B/1" || v.Reason != "origin of B failed" {
			t.Errorf("cooling after %q of %q, want the last failure, of B/1", v.Reason, v.Holder)
		}
	}
}

func twoFailuresOfOneProcess(t *trial) {
	k := t.key("k")
	short := &store.Failure{Reason: "broken", Cooldown: t.unit}
	t.release(t.grant(k, "A/1"), short)
	t.outlast()
	t.failed(k, "A/2")
	t.want(t.ask(k, "A/3"), store.Cooling)
	if g := t.grant(k, "B/1"); !g.SecondOpinion {
		t.Errorf("granted %+v, want a second opinion", g)
	}
}

// The origin is slower than the lease and renewals fail: A fails after B took
// over, B after A did. Both failures must count, or the two never cool down.
func failureCountsWithoutLease(t *trial) {
	k := t.key("k")
	a := t.lapse(k, "A/1")
	b := t.granted(t.askShort(k, "B/1"))
	t.fail(a)
	t.outlast()
	t.fail(b)
	t.want(t.ask(k, "C/1"), store.Cooling)
}

// A release whose reply was lost is sent again. Counted twice, B's failure
// would look like two of one process, which bind nobody else.
func failureCountsOnce(t *trial) {
	k := t.key("k")
	a := t.failed(k, "A/1")
	b := t.regrant(k, "B/1")
	failed := during(func() { t.fail(b) })
	t.units(1)
	t.fail(b)
	t.fail(a)
	t.fail(store.Grant{Key: k, Holder: "B/1"})
	var v store.Verdict
	asked := during(func() { v = t.want(t.ask(k, "C/1"), store.Cooling) })
	if v.Holder != "B/1" {
		t.Errorf("cooling after a failure of %q, want B/1", v.Holder)
	}
	t.leftOf("what is left of the cooldown", v.Left, t.long, failed, asked)
}

func failureWithoutCooldown(t *trial) {
	k := t.key("k")
	t.release(t.grant(k, "A/1"), &store.Failure{Reason: "no"})
	g := t.grant(k, "A/2")
	if g.SecondOpinion {
		t.Errorf("granted %+v, but no cooldown is running", g)
	}
	t.release(g, nil)
	t.failed(k, "B/1")
	t.want(t.ask(k, "C/1"), store.Cooling)
}

// A and B both failed; B recovers, but A is first after each cooldown. A's
// second failure in a row binds A alone.
func recoveredProcessGetsItsTurn(t *trial) {
	k := t.key("k")
	brief := &store.Failure{Reason: "broken", Cooldown: t.unit}
	t.release(t.grant(k, "A/1"), brief)
	t.release(t.grant(k, "B/1"), brief)
	t.outlast()
	t.release(t.grant(k, "A/2"), brief)
	t.outlast()
	t.failed(k, "A/3")
	if g := t.grant(k, "B/2"); !g.SecondOpinion {
		t.Errorf("granted %+v, want a second opinion", g)
	}
}

func fillClearsFailures(t *trial) {
	k := t.key("k")
	t.failed(k, "A/1")
	t.filled(k, "B/1", "v")
	if g := t.regrant(k, "A/2"); g.SecondOpinion {
		t.Errorf("granted %+v after a fill, want no second opinion", g)
	} else {
		t.release(g, nil)
	}
	t.failed(k, "B/2") // the first failure after the fill
	t.want(t.seeing(t.ask(k, "A/3")), store.Granted)
}

func onlyFillClearsCooldown(t *trial) {
	verbs := map[string]func(k store.Key){
		"set":        func(k store.Key) { t.set(k, "v") },
		"invalidate": func(k store.Key) { t.invalidate(k) },
		"expire":     func(k store.Key) { t.set(k, "v"); t.expire(k) },
		"begin":      func(k store.Key) { t.begin(k) },
		"release":    func(k store.Key) { t.release(store.Grant{Key: k, Holder: "A/1"}, nil) },
	}
	for name, verb := range verbs {
		k := t.key(name)
		t.failed(k, "A/1")
		t.failed(k, "B/1")
		verb(k)
		if v := t.claim(t.seeing(t.ask(k, "C/1"))); v.Outcome != store.Cooling {
			t.Errorf("after %s a claim is answered %v, want cooling", name, v.Outcome)
		}
	}
}

func cooldownEnds(t *trial) {
	k := t.key("k")
	short := &store.Failure{Reason: "broken", Cooldown: t.short}
	t.release(t.grant(k, "A/1"), short)
	t.release(t.grant(k, "B/1"), short)
	t.outlast()
	for _, h := range []store.Holder{"A/2", "B/2", "C/1"} {
		g := t.grant(k, h)
		if g.SecondOpinion {
			t.Errorf("granted %+v after the cooldown, want no second opinion", g)
		}
		t.release(g, nil)
	}
}

func recordOutlivesCooldown(t *trial) {
	k := t.key("k")
	c := t.askShort(k, "A/1")
	c.Keep = t.short
	t.release(t.granted(c), &store.Failure{Reason: "no", Cooldown: 6 * t.unit})
	t.recordLeft(k, 6*t.unit+c.Keep-t.unit, "a failure with a long cooldown")
	t.units(4)
	t.want(t.ask(k, "A/2"), store.Cooling)
}

func recordOutlivesLease(t *trial) {
	k := t.key("k")
	c := t.ask(k, "A/1")
	t.granted(c)
	t.recordLeft(k, c.Length+c.Keep-5*t.unit, "a grant")

	k = t.key("renewed")
	c = t.askShort(k, "A/1")
	c.Keep = t.short
	g := t.granted(c)
	if err := t.renew(g, t.long); err != nil {
		t.Fatalf("renew: %v", err)
	}
	t.recordLeft(k, t.long+c.Keep-5*t.unit, "a renewal")
}

// Processes of an old and a new release have different limits on one key. What
// one was promised, the other must not cut short.
func recordLifeIsNotShortened(t *trial) {
	k := t.key("k")
	t.release(t.granted(t.askShort(k, "A/1")), nil) // with a long keep
	kept := func(after string) { t.Helper(); t.recordLeft(k, t.long-5*t.unit, after) }

	c := t.askShort(k, "B/1")
	c.Keep = t.short
	g := t.granted(c)
	kept("a claim with a short keep")
	if err := t.renew(g, t.unit); err != nil {
		t.Fatalf("renew: %v", err)
	}
	kept("a renewal")
	t.release(g, &store.Failure{Reason: "no", Cooldown: time.Millisecond})
	kept("a failure with a short cooldown")
	c.Holder = "C/1"
	t.fill(t.granted(c), t.lasting("v", t.unit, 0))
	kept("a fill of a short life")
	if _, err := t.st.Begin(t.ctx, k, t.short); err != nil {
		t.Fatalf("begin: %v", err)
	}
	kept("a begin with a short keep")

	// The long keep counts from the last use, not from the claim that brought
	// it: each verb comes so late that what is left of that would not do.
	verbs := map[string]func(){
		"set":        func() { t.set(k, "v") },
		"expire":     func() { t.expire(k) },
		"invalidate": func() { t.invalidate(k) },
		"begin": func() {
			if _, err := t.st.Begin(t.ctx, k, t.short); err != nil {
				t.Fatalf("begin: %v", err)
			}
		},
		"claim":   func() { c := t.seeing(c); c.Holder = "D/1"; g = t.granted(c) },
		"renew":   func() { _ = t.renew(g, t.unit) },
		"release": func() { t.release(g, nil) },
	}
	for _, name := range []string{"set", "expire", "invalidate", "begin", "claim", "renew", "release"} {
		t.units(10)
		verbs[name]()
		kept(name + ", long after")
	}
}

func recordEnds(t *trial) {
	k := t.key("k")
	c := t.askShort(k, "A/1")
	c.Keep = t.short
	g := t.granted(c)
	if left, there := t.RecordLeft(k); !there || left < 0 || left > c.Length+c.Keep+resolution {
		t.Errorf("the record has %v left (there: %v), want at most lease and keep", left, there)
	}
	t.outlast()
	t.outlast()
	t.recordGone(k, "lease and keep")
	t.fenced(g, t.value("v"))
	t.empty(k)
}

func onlyClaimAndBeginCreate(t *trial) {
	k := t.key("k")
	g := t.grant(k, "A/1")
	b := t.begin(k)
	t.LoseRecord(k)

	if err := t.renew(g, t.long); !errors.Is(err, store.ErrLost) {
		t.Errorf("renew without a record: %v, want ErrLost", err)
	}
	t.recordGone(k, "a renewal")
	t.fail(g)
	t.fail(store.Grant{Key: k, Holder: "A/1"})
	t.recordGone(k, "a release")
	t.fenced(g, t.value("v"))
	t.recordGone(k, "a fill")
	if err := t.setBegun(k, "v", b); !errors.Is(err, store.ErrFenced) {
		t.Errorf("begun set without its record: %v, want ErrFenced", err)
	}
	t.recordGone(k, "a begun set")
	t.set(k, "v")
	t.recordGone(k, "a set")
	t.expire(k)
	t.recordGone(k, "an expire")
	t.invalidate(k)
	t.recordGone(k, "an invalidate")
	t.load(k)
	t.recordGone(k, "a load")
	t.begin(k)
	if _, there := t.RecordLeft(k); !there {
		t.Errorf("begin created no record")
	}
}

func goneCallerChangesNothing(t *trial) {
	k := t.key("k")
	t.filled(k, "A/1", "v")
	g := t.regrant(k, "A/2")
	fresh := t.key("fresh")
	gone, cancel := context.WithCancel(t.ctx)
	cancel()

	first := func(errs []error) error {
		if len(errs) != 1 {
			t.Errorf("%d results for one thing", len(errs))
			return nil
		}
		return errs[0]
	}
	calls := map[string]func() error{
		"load":       func() error { _, err := t.st.Load(gone, k); return err },
		"claim":      func() error { _, err := t.st.Claim(gone, t.ask(fresh, "B/1")); return err },
		"renew":      func() error { return first(t.st.Renew(gone, []store.Renewal{{Grant: g, Length: t.short}})) },
		"release":    func() error { return t.st.Release(gone, g, nil) },
		"fill":       func() error { return t.st.Fill(gone, g, t.value("w")) },
		"begin":      func() error { _, err := t.st.Begin(gone, fresh, t.long); return err },
		"set":        func() error { return t.st.Set(gone, store.Write{Key: k, Content: t.value("w")}) },
		"invalidate": func() error { return first(t.st.Invalidate(gone, []store.Key{k})) },
		"expire":     func() error { return first(t.st.Expire(gone, []store.Key{k})) },
		"load many":  func() error { _, errs := t.st.LoadMany(gone, []store.Key{k}); return first(errs) },
		"claim many": func() error { _, errs := t.st.ClaimMany(gone, []store.Claim{t.ask(fresh, "B/1")}); return first(errs) },
		"fill many": func() error {
			return first(t.st.FillMany(gone, []store.Filling{{Grant: g, Content: t.value("w")}}))
		},
	}
	for name, call := range calls {
		err := call()
		var f *store.Fault
		if !errors.As(err, &f) || f.Class != store.ClassCanceled || !errors.Is(err, context.Canceled) {
			t.Errorf("%s for a caller that has gone: %v, want a fault of class canceled that is context.Canceled", name, err)
		}
	}
	if e := t.holds(k, "v"); e.Fresh <= 0 {
		t.Errorf("the entry is stale")
	}
	if v := t.want(t.seeing(t.ask(k, "B/1")), store.Held); v.Left < t.long/2 {
		t.Errorf("the lease has %v left, want it untouched", v.Left)
	}
	t.recordGone(fresh, "calls that were called off")
}
