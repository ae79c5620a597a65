package storetest

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

var eventChecks = []Check{
	{"events/up comes first", upComesFirst},
	{"events/writes always wake", writesAlwaysWake},
	{"events/a fill wakes if somebody waits", fillWakesIfWaited},
	{"events/a release wakes if somebody waits", releaseWakesIfWaited},
	{"events/a claim that only asks does not make a fill wake", askingDoesNotWait},
	{"events/a new grant keeps the mark of being waited for", newGrantKeepsMark},
	{"events/a grant anew keeps the mark of being waited for", grantAnewKeepsMark},
	{"events/a late fill wakes those who wait for the next holder", lateFillWakes},
	{"events/the mark is used up", markIsUsedUp},
	{"events/the same fill again wakes nobody", sameFillWakesNobody},
	{"events/a refused fill wakes nobody", refusedFillWakesNobody},
	{"events/a fill whose record is gone wakes those who waited", fillWithoutRecordWakes},
	{"events/a release of no lease wakes nobody", releaseOfNoLease},
	{"events/a begun set that was overtaken is an invalidation", overtakenIsInvalidated},
	{"events/a set of no life is an invalidation", noLifeIsInvalidated},
	{"events/the effect can be seen", effectCanBeSeen},
	{"events/an entry that comes along is the one that landed", carriedIsWhatLanded},
	{"events/a hand-over or pass does not come along", carriesAnswersAlone},
	{"events/every listener of the space hears it and no other", listenersOfTheSpace},
	{"events/another process hears it", peersHear},
	{"events/who listens anew hears everything after up", listeningAnew},
	{"events/nothing comes after stop", nothingAfterStop},
	{"events/stop waits for the listener", stopWaits},
}

// ear is a listener that keeps what it heard.
type ear struct {
	t      *trial
	events chan store.Event
	full   atomic.Bool
	stop   func()

	// old are the keys that were in use when it began to listen. Of these it
	// may hear late what happened before.
	old []string
}

// listen returns once Up has come.
func (t *trial) listen(st store.Store, space string) *ear {
	t.Helper()
	e := &ear{t: t, events: make(chan store.Event, 1<<14), old: slices.Clone(t.ids)}
	e.stop = sync.OnceFunc(st.Listen(space, e.hear))
	t.Cleanup(e.stop)
	if first := e.next(); first != (store.Event{Kind: store.Up}) {
		t.Fatalf("the first event is %+v, want up", first)
	}
	return e
}

func (e *ear) hear(event store.Event) {
	select {
	case e.events <- event:
	default:
		e.full.Store(true)
	}
}

// next waits for the next event.
func (e *ear) next() store.Event {
	e.t.Helper()
	if e.full.Load() {
		e.t.Fatalf("more events than the listener can keep")
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case event := <-e.events:
		return event
	case <-timer.C:
		e.t.Fatalf("no event within %v", patience)
		return store.Event{}
	}
}

// about waits for the next event, but for late ones of keys other than id.
func (e *ear) about(id string) store.Event {
	e.t.Helper()
	for {
		event := e.next()
		if event.ID == id || !slices.Contains(e.old, event.ID) {
			return event
		}
	}
}

// want expects that the next event is of a kind and key.
func (e *ear) want(kind store.EventKind, key store.Key) store.Event {
	e.t.Helper()
	event := e.about(key.ID)
	if event.Kind != kind || event.ID != key.ID {
		e.t.Fatalf("heard %v of %q, want %v of %q", event.Kind, event.ID, kind, key.ID)
	}
	return event
}

// heard returns what kinds of events came for a key. It ends the key with a set
// and an invalidate: events of one key come in their order, so what was sent
// before has come when those two have.
func (e *ear) heard(key store.Key) []store.EventKind {
	e.t.Helper()
	e.t.set(key, "last")
	e.t.invalidate(key)
	var kinds []store.EventKind
	for {
		event := e.about(key.ID)
		if event.ID != key.ID {
			e.t.Fatalf("heard %+v, want events of %q alone", event, key.ID)
		}
		kinds = append(kinds, event.Kind)
		if n := len(kinds); n > 1 && kinds[n-2] == store.Written && kinds[n-1] == store.Invalidated {
			return kinds[:n-2]
		}
	}
}

// only expects that just these events came for a key.
func (e *ear) only(key store.Key, kinds ...store.EventKind) {
	e.t.Helper()
	if got := e.heard(key); !slices.Equal(got, kinds) {
		e.t.Errorf("heard %v, want %v", got, kinds)
	}
}

func upComesFirst(t *trial) {
	k := t.key("k")
	ear := t.listen(t.st, k.Space)
	t.set(k, "v") // happens after up: it must be heard
	ear.want(store.Written, k)
}

func writesAlwaysWake(t *trial) {
	ear := t.listen(t.st, t.Space())
	for _, name := range []string{"without a record", "with a record"} {
		k := t.key(name)
		if name == "with a record" {
			t.grant(k, "A/1")
		}
		var last store.Token
		for _, step := range []struct {
			kind store.EventKind
			do   func()
		}{
			{store.Invalidated, func() { t.invalidate(k) }},
			{store.Expired, func() { t.expire(k) }},
			{store.Written, func() { t.set(k, "v") }},
			{store.Expired, func() { t.expire(k) }},
			{store.Invalidated, func() { t.invalidate(k) }},
		} {
			step.do()
			event := ear.want(step.kind, k)
			if event.Token <= last {
				t.Errorf("%v has token %d after %d, want its new one", event.Kind, event.Token, last)
			}
			last = event.Token
		}
	}
}

func fillWakesIfWaited(t *trial) {
	ear := t.listen(t.st, t.Space())
	k := t.key("waited for")
	g := t.grant(k, "A/1")
	t.want(waiting(t.ask(k, "B/1")), store.Held)
	t.want(t.ask(k, "C/1"), store.Held) // who only asks takes no mark off
	t.fill(g, t.value("v"))
	if event := ear.want(store.Filled, k); event.Token != g.Token {
		t.Errorf("the event names token %d, want the fill's, %d", event.Token, g.Token)
	}

	k = t.key("not waited for")
	t.filled(k, "A/1", "v")
	ear.only(k)
}

func releaseWakesIfWaited(t *trial) {
	ear := t.listen(t.st, t.Space())
	for _, f := range []*store.Failure{nil, {Reason: "no", Cooldown: t.long}} {
		k := t.key("waited for")
		g := t.grant(k, "A/1")
		t.want(waiting(t.ask(k, "B/1")), store.Held)
		t.release(g, f)
		if event := ear.want(store.Released, k); event.Token != 0 {
			t.Errorf("a release has token %d, want none", event.Token)
		}
	}
	k := t.key("by holder")
	t.grant(k, "A/1")
	t.want(waiting(t.ask(k, "B/1")), store.Held)
	t.release(store.Grant{Key: k, Holder: "A/1"}, nil)
	ear.want(store.Released, k)

	k = t.key("not waited for")
	t.release(t.grant(k, "A/1"), nil)
	t.failed(k, "A/2")
	ear.only(k)
}

func askingDoesNotWait(t *trial) {
	ear := t.listen(t.st, t.Space())
	k := t.key("k")
	g := t.grant(k, "A/1")
	t.want(t.ask(k, "B/1"), store.Held)
	t.fill(g, t.value("v"))
	t.want(waiting(t.ask(k, "B/1")), store.Changed) // nothing to wait for
	g = t.granted(t.seeing(waiting(t.ask(k, "B/1"))))
	t.release(g, nil) // the holder's own wish does not count
	ear.only(k)
}

// Followers wait for A. A's lease runs out and C is granted: C's fill must wake
// them, and C cannot know of them.
func newGrantKeepsMark(t *trial) {
	ear := t.listen(t.st, t.Space())
	k := t.key("filled")
	t.granted(t.askShort(k, "A/1"))
	t.want(waiting(t.ask(k, "B/1")), store.Held)
	t.outlast()
	t.fill(t.grant(k, "C/1"), t.value("v"))
	ear.want(store.Filled, k)

	k = t.key("released")
	t.granted(t.askShort(k, "A/1"))
	t.want(waiting(t.ask(k, "B/1")), store.Held)
	t.outlast()
	t.release(t.grant(k, "C/1"), nil)
	ear.want(store.Released, k)
}

func grantAnewKeepsMark(t *trial) {
	ear := t.listen(t.st, t.Space())
	k := t.key("k")
	t.grant(k, "A/1")
	t.want(waiting(t.ask(k, "B/1")), store.Held)
	t.fill(t.grant(k, "A/1"), t.value("v"))
	ear.want(store.Filled, k)
}

func lateFillWakes(t *trial) {
	ear := t.listen(t.st, t.Space())
	k := t.key("k")
	a := t.lapse(k, "A/1")
	t.grant(k, "B/1")
	t.want(waiting(t.ask(k, "C/1")), store.Held)
	t.fill(a, t.value("v"))
	ear.want(store.Filled, k)
}

func markIsUsedUp(t *trial) {
	ends := map[store.EventKind]func(g store.Grant){
		store.Filled:      func(g store.Grant) { t.fill(g, t.value("v")) },
		store.Released:    func(g store.Grant) { t.release(g, nil) },
		store.Written:     func(g store.Grant) { t.set(g.Key, "v") },
		store.Invalidated: func(g store.Grant) { t.invalidate(g.Key) },
		store.Expired:     func(g store.Grant) { t.expire(g.Key) },
	}
	ear := t.listen(t.st, t.Space())
	for kind, end := range ends {
		k := t.key(kind.String())
		g := t.grant(k, "A/1")
		t.want(waiting(t.ask(k, "B/1")), store.Held)
		end(g)
		t.release(t.regrant(k, "A/2"), nil)
		t.filled(k, "A/3", "v")
		ear.only(k, kind)
	}
}

func sameFillWakesNobody(t *trial) {
	ear := t.listen(t.st, t.Space())
	k := t.key("k")
	g := t.filled(k, "A/1", "v")
	next := t.regrant(k, "B/1")
	t.want(t.seeing(waiting(t.ask(k, "C/1"))), store.Held)
	t.fill(g, t.value("v"))
	t.fill(next, t.value("w"))
	ear.only(k, store.Filled)
}

func refusedFillWakesNobody(t *trial) {
	ear := t.listen(t.st, t.Space())
	k := t.key("k")
	g := t.grant(k, "A/1")
	t.invalidate(k)
	next := t.grant(k, "B/1")
	t.want(waiting(t.ask(k, "C/1")), store.Held)
	t.fenced(g, t.value("old"))
	t.release(next, nil)
	ear.only(k, store.Invalidated, store.Released)
}

// The record is lost with the mark of being waited for. Who waits must hear that
// nothing comes, also if another has made the record anew.
func fillWithoutRecordWakes(t *trial) {
	ear := t.listen(t.st, t.Space())
	k := t.key("k")
	g := t.grant(k, "A/1")
	t.want(waiting(t.ask(k, "B/1")), store.Held)
	t.LoseRecord(k)
	t.fenced(g, t.value("old"))
	ear.want(store.Released, k)
	t.grant(k, "C/1")
	t.fenced(g, t.value("old"))
	ear.want(store.Released, k)
	ear.only(k)
}

func releaseOfNoLease(t *trial) {
	ear := t.listen(t.st, t.Space())
	k := t.key("k")
	a := t.lapse(k, "A/1")
	b := t.grant(k, "B/1")
	t.want(waiting(t.ask(k, "C/1")), store.Held)
	t.fail(a)
	t.fill(b, t.value("v"))
	t.release(b, nil)
	ear.only(k, store.Filled)
}

func overtakenIsInvalidated(t *trial) {
	ear := t.listen(t.st, t.Space())
	k := t.key("k")
	b := t.begin(k)
	t.invalidate(k)
	_ = t.setBegun(k, "v", b)
	first, second := ear.want(store.Invalidated, k), ear.want(store.Invalidated, k)
	if second.Token <= first.Token {
		t.Errorf("token %d after %d", second.Token, first.Token)
	}
	if err := t.setBegun(k, "v", t.begin(k)); err != nil {
		t.Fatalf("begun set: %v", err)
	}
	if event := ear.want(store.Written, k); event.Token != t.load(k).Token {
		t.Errorf("the event names token %d, want the entry's, %d", event.Token, t.load(k).Token)
	}
}

func noLifeIsInvalidated(t *trial) {
	ear := t.listen(t.st, t.Space())
	k := t.key("k")
	if err := t.st.Set(t.ctx, store.Write{Key: k, Content: t.lasting("v", 0, 0)}); err != nil {
		t.Fatalf("set: %v", err)
	}
	if event := ear.want(store.Invalidated, k); event.Token == 0 {
		t.Errorf("the event has no token")
	}
}

func effectCanBeSeen(t *trial) {
	ear := t.listen(t.st, t.Space())
	k := t.key("k")
	for i := range 20 {
		g := t.regrant(k, "A/1")
		t.want(t.seeing(waiting(t.ask(k, "B/1"))), store.Held)
		var done sync.WaitGroup
		done.Go(func() { _ = t.st.Fill(t.ctx, g, t.value("v")) })
		ear.want(store.Filled, k)
		if e := t.load(k); e.Token != g.Token {
			t.Errorf("round %d: after the event of token %d the entry is %s", i, g.Token, show(e))
		}
		done.Wait()
		done.Go(func() { t.st.Invalidate(t.ctx, []store.Key{k}) })
		ear.want(store.Invalidated, k)
		if e := t.load(k); e.Kind != store.None {
			t.Errorf("round %d: after the event the invalidated entry is %s", i, show(e))
		}
		done.Wait()
	}
}

// A store need not send entries along: then there is nothing to compare.
func carriedIsWhatLanded(t *trial) {
	ear := t.listen(t.st, t.Space())
	for name, c := range map[string]store.Content{
		"value":  t.lasting("v", 10*t.long, t.long),
		"empty":  t.lasting("", 10*t.long, t.long),
		"absent": {Kind: store.Absent, TTL: 10 * t.long, HandOver: t.long},
		"large":  t.lasting(strings.Repeat("v", 100<<10), 10*t.long, t.long),
	} {
		k := t.key(name)
		c.Cost = 3 * time.Second
		g := t.grant(k, "A/1")
		t.want(waiting(t.ask(k, "B/1")), store.Held)
		t.units(3)
		t.fill(g, c)
		got := ear.want(store.Filled, k).Entry
		if got == nil {
			continue
		}
		want := t.load(k)
		if got.Kind != want.Kind || got.HandOver || got.Fault != nil || got.Token != want.Token || got.TTL != want.TTL ||
			got.Cost != want.Cost || !bytes.Equal(got.Payload, want.Payload) {
			t.Errorf("%s: %s came along, and %s is there", name, show(*got), show(want))
		}
		for _, d := range []time.Duration{got.Age - want.Age, got.Fresh - want.Fresh, got.Left - want.Left} {
			if d.Abs() > t.unit {
				t.Errorf("%s: what came along is %v old, fresh for %v and there for %v; the entry %v, %v, %v",
					name, got.Age, got.Fresh, got.Left, want.Age, want.Fresh, want.Left)
				break
			}
		}
	}
}

func carriesAnswersAlone(t *trial) {
	ear := t.listen(t.st, t.Space())
	handOver := t.lasting("v", 0, 0)
	handOver.HandOver = t.long
	for name, c := range map[string]store.Content{
		"hand-over": handOver,
		"pass":      {Kind: store.Pass, TTL: t.long, HandOver: t.long},
	} {
		k := t.key(name)
		g := t.grant(k, "A/1")
		t.want(waiting(t.ask(k, "B/1")), store.Held)
		t.fill(g, c)
		if e := ear.want(store.Filled, k).Entry; e != nil {
			t.Errorf("a %s came along: %s", name, show(*e))
		}
	}
}

func listenersOfTheSpace(t *trial) {
	k := t.key("k")
	one, two := t.listen(t.st, k.Space), t.listen(t.st, k.Space)
	other := t.listen(t.st, k.Space+"*")
	foreign := store.Key{Space: k.Space + "*", ID: k.ID}
	t.set(k, "v")
	one.want(store.Written, k)
	two.want(store.Written, k)
	t.expire(foreign)
	other.want(store.Expired, foreign)

	one.stop()
	t.invalidate(k)
	two.want(store.Invalidated, k)
	two.only(k)
	other.only(foreign)
}

func peersHear(t *trial) {
	k := t.key("k")
	here, there := t.listen(t.st, k.Space), t.listen(t.Peer(), k.Space)
	t.set(k, "v")
	here.want(store.Written, k)
	there.want(store.Written, k)
	if errs := t.Peer().Invalidate(t.ctx, []store.Key{k}); errs != nil {
		t.Fatalf("invalidate by a peer: %v", errs)
	}
	here.want(store.Invalidated, k)
	there.want(store.Invalidated, k)
	t.empty(k)
}

// The last listener of a space stops and another comes at once: what the first
// one ends must not be what the second one needs.
func listeningAnew(t *trial) {
	for round := range 30 {
		ear := t.listen(t.st, t.Space())
		k := t.key(strconv.Itoa(round))
		t.set(k, "v")
		ear.want(store.Written, k)
		t.invalidate(k)
		ear.want(store.Invalidated, k)
		ear.stop()
	}
}

func nothingAfterStop(t *trial) {
	k := t.key("k")
	var stopped, late atomic.Bool
	stop := t.st.Listen(k.Space, func(store.Event) {
		if stopped.Load() {
			late.Store(true)
		}
	})
	var writers sync.WaitGroup
	for range 4 {
		writers.Go(func() {
			for range 50 {
				t.st.Invalidate(t.ctx, []store.Key{k})
			}
		})
	}
	t.invalidate(k)
	stop()
	stopped.Store(true)
	stop() // twice is fine
	writers.Wait()
	ear := t.listen(t.st, k.Space)
	t.set(k, "v")
	for ear.next().Kind != store.Written { // events of before may be late
	}
	if late.Load() {
		t.Errorf("the listener was called after stop had returned")
	}
}

func stopWaits(t *trial) {
	k := t.key("k")
	up, entered, leave := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var once sync.Once
	var returned, stopped atomic.Bool
	stop := t.st.Listen(k.Space, func(e store.Event) {
		switch e.Kind {
		case store.Up:
			close(up)
		case store.Written:
			once.Do(func() { close(entered); <-leave; returned.Store(true) })
		}
	})
	t.comes("up", up)
	var calls sync.WaitGroup
	calls.Go(func() { _ = t.st.Set(t.ctx, store.Write{Key: k, Content: t.value("v")}) })
	t.comes("the event", entered)
	calls.Go(func() {
		stop()
		stopped.Store(true)
		if !returned.Load() {
			t.Errorf("stop returned while the listener was being called")
		}
	})
	t.units(1)
	if stopped.Load() {
		t.Errorf("stop did not wait for the listener")
	}
	close(leave)
	calls.Wait()
}

// comes waits for a channel to be closed.
func (t *trial) comes(what string, closed <-chan struct{}) {
	t.Helper()
	select {
	case <-closed:
	case <-time.After(patience):
		t.Fatalf("%s did not come within %v", what, patience)
	}
}
