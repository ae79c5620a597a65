package cacheguard_test

import (
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
)

// What comes along with the message of a fill is a look that need not be made,
// for those who were there before the claim that found the lease held.

// Callers of other keys come all the time.
func TestFollowersTakeWhatComesAlong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const others = 200
		o := &origin{takes: time.Second}
		mem := memstore.New(memstore.Options{})
		follower := newTap(mem)
		a, b := newGuard(t, mem, options{}), newGuard(t, follower, options{Near: cacheguard.Near{MaxEntries: 10, TTL: time.Minute}})
		follower.on(at("load", func() error { time.Sleep(time.Millisecond); return nil }), nil) // all five are there before the claim
		for i := range others {
			if err := a.Set(t.Context(), strconv.Itoa(i), "v"); err != nil {
				t.Fatal(err)
			}
		}
		first := ask(t.Context(), a, "k", o.load)
		synctest.Wait()
		var all []asking
		for range 5 {
			all = append(all, ask(t.Context(), b, "k", o.load))
		}
		time.Sleep(o.takes / 2)
		for i := range others {
			if _, err := b.Get(t.Context(), strconv.Itoa(i), o.load); err != nil {
				t.Fatal(err)
			}
		}
		first.got(t, "k@0")
		for _, w := range all {
			if r := w.got(t, "k@0"); r.State != cacheguard.Followed || r.Age != o.takes || r.Token == 0 || r.Left <= 0 {
				t.Errorf("%+v", r)
			}
		}
		if _, calls := follower.reset(); calls["load"] != 1+others || calls["claim"] != 1 {
			t.Errorf("the follower sent %v, want a read and a claim, and one for each of the %d others", calls, others)
		}
		get(t, b, o.load, "k@0")
		if n, calls := follower.reset(); n != 0 {
			t.Errorf("it is not in the near cache: %v", calls)
		}
		o.loaded(t, 1)
	})
}

// Between that claim and the message something may have been invalidated that
// these have seen return.
func TestWhoCameAfterTheClaimReadsWhatHasLanded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &origin{takes: 100 * time.Millisecond}
		mem := memstore.New(memstore.Options{})
		follower := newTap(mem)
		a, b := newGuard(t, mem, options{}), newGuard(t, follower, options{})
		first := ask(t.Context(), a, "k", o.load)
		synctest.Wait()
		early := ask(t.Context(), b, "k", o.load)
		time.Sleep(o.takes / 2)
		late := ask(t.Context(), b, "k", o.load)
		for _, w := range []asking{first, early, late} {
			w.got(t, "k@0")
		}
		if n, calls := follower.reset(); n != 3 || calls["load"] != 2 {
			t.Errorf("the follower sent %v, want a read more", calls)
		}
		o.loaded(t, 1)
	})
}

// A fills v0, and its message is on its way. The key is invalidated, v1 is
// committed, C claims and loads. B, who comes after all that, follows C when the
// message of A's fill arrives: it is not of the lease that B has found running,
// nor of a later one.
func TestTheMessageOfAnEarlierFillIsNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &origin{takes: 100 * time.Millisecond}
		mem := memstore.New(memstore.Options{})
		a, waits, c := newGuard(t, mem, options{}), newGuard(t, mem, options{}), newGuard(t, mem, options{})
		b := newGuard(t, &late{Store: mem, by: 50 * time.Millisecond}, options{})
		time.Sleep(time.Second) // all are up
		first := ask(t.Context(), a, "k", o.load)
		synctest.Wait()
		second := ask(t.Context(), waits, "k", o.load) // or nothing would be said
		first.got(t, "k@0")
		second.got(t, "k@0")
		o.write()
		invalidate(t, c)
		third := ask(t.Context(), c, "k", o.load)
		synctest.Wait()
		ask(t.Context(), b, "k", o.load).got(t, "k@1")
		third.got(t, "k@1")
	})
}

// writesUnheard writes to the origin and leaves the invalidation pending.
func writesUnheard(t *testing.T, o *origin, g *guard, away *tap) {
	t.Helper()
	away.on(at("invalidate", func() error { return lost("invalidate", store.ClassTimeout) }), nil)
	o.write()
	if err := g.Invalidate(t.Context(), "k"); err == nil {
		t.Fatal("the invalidation has reached the store")
	}
}

// A loads v0. B follows. B commits v1 and cannot tell the store; its caller C
// comes, and B claims once more. A fills v0. Then B's write reaches the store,
// and after it the message of A's fill reaches B. It is of the lease that B's
// claim found running, and that was sent after C had come; but it tells of a time
// before B's write (P15).
func TestWhatComesAlongIsOlderThanAWriteThatWasPendingAtTheClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		loading, o := newGate(), &origin{}
		mem := memstore.New(memstore.Options{})
		away := newTap(&late{Store: mem, by: 1300 * time.Millisecond}) // a retry takes less, a poll more
		a, b := newGuard(t, mem, options{}), newGuard(t, away, options{Near: cacheguard.Near{MaxEntries: 10, TTL: time.Minute}})
		time.Sleep(3 * time.Second) // all are up
		first := ask(t.Context(), a, "k", o.gated(loading))
		loading.holds(t, 1)
		follows := ask(t.Context(), b, "k", o.load)
		synctest.Wait()
		writesUnheard(t, o, b, away)
		after := ask(t.Context(), b, "k", o.load)
		synctest.Wait()
		for away.reset(); away.count("claim") == 0; {
			time.Sleep(10 * time.Millisecond)
		}
		loading.open()
		first.got(t, "k@0")
		away.on(nil, nil)
		after.got(t, "k@1")
		<-follows
		get(t, b, o.load, "k@1")
	})
}

// This process has a write that the store was not told of: what the store says
// of the key is not to be believed, however it comes (P15).
func TestWhatComesAlongIsNotBelievedWhileAWriteIsPending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &origin{takes: 100 * time.Millisecond}
		mem := memstore.New(memstore.Options{})
		away := newTap(mem)
		a, b := newGuard(t, mem, options{}), newGuard(t, away, options{})
		first := ask(t.Context(), a, "k", o.load)
		synctest.Wait()
		follows := ask(t.Context(), b, "k", o.load)
		synctest.Wait()
		writesUnheard(t, o, b, away)
		after := ask(t.Context(), b, "k", o.load)
		first.got(t, "k@0")
		after.got(t, "k@1")
		<-follows
		away.on(nil, nil)
	})
}

// What cannot be decoded is not an answer, however it comes.
func TestWhatComesAlongAndCannotBeReadIsLoaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &origin{takes: 100 * time.Millisecond}
		mem := memstore.New(memstore.Options{})
		a := newGuard(t, mem, options{})
		b := newGuard(t, &rewriting{Store: mem, payload: []byte("not JSON")}, options{})
		first := ask(t.Context(), a, "k", o.load)
		synctest.Wait()
		follows := ask(t.Context(), b, "k", o.load)
		first.got(t, "k@0")
		follows.got(t, "k@0")
		o.loaded(t, 1) // it has read what is there
	})
}

// rewriting is a store whose messages bring another payload.
type rewriting struct {
	store.Store
	payload []byte
}

func (s *rewriting) Listen(space string, fn func(store.Event)) (stop func()) {
	return s.Store.Listen(space, func(ev store.Event) {
		if ev.Entry != nil {
			e := *ev.Entry
			e.Payload = s.payload
			ev.Entry = &e
		}
		fn(ev)
	})
}

// badMail is a store whose messages are late, doubled, or lost, by chance, and
// so not in their order.
type badMail struct {
	store.Store
	rnd  *dice
	calm func() bool
}

func (s *badMail) Listen(space string, fn func(store.Event)) (stop func()) {
	var mu sync.Mutex
	stopped := false
	tell := func(ev store.Event) {
		mu.Lock()
		defer mu.Unlock()
		if !stopped {
			fn(ev)
		}
	}
	end := s.Store.Listen(space, func(ev store.Event) {
		if ev.Kind == store.Up || s.calm() {
			go tell(ev)
			return
		}
		for range 1 + s.rnd.n(8)/7 { // one in eight is doubled
			if s.rnd.oneIn(10) {
				continue // lost
			}
			late := time.Duration(0)
			if s.rnd.oneIn(4) {
				late = s.rnd.upTo(300 * time.Millisecond)
			}
			time.AfterFunc(late, func() { tell(later(ev, late)) })
		}
	})
	return func() {
		end()
		mu.Lock()
		defer mu.Unlock()
		stopped = true
	}
}

// later is an event that comes so much later: what it brings is that much older.
func later(ev store.Event, by time.Duration) store.Event {
	if ev.Entry == nil {
		return ev
	}
	e := *ev.Entry
	e.Age, e.Fresh, e.Left = e.Age+by, e.Fresh-by, e.Left-by
	if ev.Entry = &e; e.Left <= 0 {
		ev.Entry = nil
	}
	return ev
}
