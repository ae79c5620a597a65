package cacheguard_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
)

var nearSecond = cacheguard.Near{MaxEntries: 100, TTL: time.Second}

func TestNearCopyIsServedWithoutTheStoreForItsTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &origin{takes: time.Millisecond}
		s := newTap(memstore.New(memstore.Options{}))
		g := newGuard(t, s, options{Near: nearSecond})
		mustGet(t, g, o, "k@0")
		reads := s.count("load")
		for range 100 {
			mustGet(t, g, o, "k@0")
		}
		if n := s.count("load") - reads; n != 0 {
			t.Errorf("%d reads of the store for 100 near hits", n)
		}
		time.Sleep(time.Second)
		e, err := g.GetEntry(t.Context(), "k", o.load)
		if err != nil || s.count("load") == reads {
			t.Errorf("after its TTL a copy is still served: %+v, %v", e, err)
		}
		if e, _ := g.GetEntry(t.Context(), "k", o.load); e.Age < time.Second || e.Left > time.Minute-time.Second || e.State != cacheguard.Fresh {
			t.Errorf("a copy of an entry one second old says %+v", e)
		}
	})
}

func TestNearCopyNeverOutlivesItsFreshness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &origin{takes: time.Millisecond}
		g := newGuard(t, memstore.New(memstore.Options{}), options{
			Lifetime: cacheguard.Lifetime{TTL: time.Second, Grace: time.Minute},
			Near:     cacheguard.Near{MaxEntries: 10, TTL: time.Hour},
		})
		mustGet(t, g, o, "k@0")
		time.Sleep(time.Second)
		if e, _ := g.GetEntry(t.Context(), "k", o.load); e.State != cacheguard.Stale {
			t.Errorf("state %v after the entry's TTL, want stale", e.State)
		}
	})
}

// P2: own writes are seen at once, those of others as soon as the message is
// there.
func TestWritesRemoveNearCopiesInEveryProcess(t *testing.T) {
	writes := map[string]func(*guard) error{
		"Invalidate": func(g *guard) error { return g.Invalidate(t.Context(), "k") },
		"Set":        func(g *guard) error { return g.Set(t.Context(), "k", "k@1") },
		"Expire":     func(g *guard) error { return g.Expire(t.Context(), "k") },
	}
	for name, write := range writes {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := &origin{takes: time.Millisecond}
				gs := fleet(t, 3, memstore.New(memstore.Options{}), options{Near: nearSecond, Lifetime: cacheguard.Lifetime{TTL: time.Minute}})
				for _, g := range gs {
					mustGet(t, g, o, "k@0")
				}
				o.version.Store(1)
				if err := write(gs[0]); err != nil {
					t.Fatal(err)
				}
				for _, g := range gs {
					mustGet(t, g, o, "k@1")
				}
			})
		})
	}
}

// S6: what a read that was under way during the process's own invalidation
// brings is not copied, whichever of its halves the invalidation fell between.
func TestReadThatCrossesAnInvalidationIsNotCopied(t *testing.T) {
	for _, at := range []string{"sent", "answered"} {
		t.Run(at, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := &origin{takes: time.Millisecond}
				s := newTap(memstore.New(memstore.Options{}))
				g := newGuard(t, s, options{Near: nearSecond})
				other := newGuard(t, s.Store, options{})
				mustGet(t, other, o, "k@0")

				reached, resume := make(chan struct{}), make(chan struct{})
				var once sync.Once
				pause := func(op, _ string) error {
					if op == "load" {
						once.Do(func() { close(reached); <-resume })
					}
					return nil
				}
				if at == "sent" {
					s.on(nil, pause) // the reply of v0 is under way
				} else {
					// The invalidation has been announced to the process and not
					// yet reached the store when the read is sent.
					s.on(func(op, _ string) error {
						if op == "invalidate" {
							close(reached)
							<-resume
						}
						return nil
					}, nil)
				}
				invalidated := make(chan error)
				invalidate := func() {
					o.version.Store(1)
					invalidated <- g.Invalidate(t.Context(), "k")
				}
				read := make(chan struct{})
				get := func() {
					defer close(read)
					_, _ = g.Get(t.Context(), "k", o.load)
				}
				if at == "sent" {
					go get()
					<-reached
					go invalidate()
					if err := <-invalidated; err != nil {
						t.Fatal(err)
					}
					close(resume)
					<-read
				} else {
					go invalidate()
					<-reached
					go get()
					<-read
					close(resume)
					if err := <-invalidated; err != nil {
						t.Fatal(err)
					}
				}
				mustGet(t, g, o, "k@1")
			})
		})
	}
}

// S38: a process that was stopped between sending a read and getting its reply
// counts the copy's life from before.
func TestNearLifeCountsFromBeforeTheReadWasSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &origin{takes: time.Millisecond}
		s := newTap(memstore.New(memstore.Options{}))
		g := newGuard(t, s, options{Near: cacheguard.Near{MaxEntries: 10, TTL: 30 * time.Second}, Lifetime: cacheguard.Lifetime{TTL: time.Hour}})
		deaf := newTap(s.Store)
		other := newGuard(t, deaf, options{Lifetime: cacheguard.Lifetime{TTL: time.Hour}})
		mustGet(t, other, o, "k@0")
		s.on(nil, func(op, _ string) error {
			if op == "load" {
				time.Sleep(time.Minute)
			}
			return nil
		})
		mustGet(t, g, o, "k@0")
		s.on(nil, nil)
		reads := s.count("load")
		mustGet(t, g, o, "k@0")
		if s.count("load") == reads {
			t.Error("a copy whose read was sent a minute ago is served for another 30 s")
		}
	})
}

func TestLostSubscriptionForgetsNearCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &origin{takes: time.Millisecond}
		s := &listened{Store: memstore.New(memstore.Options{})}
		tap := newTap(s)
		g := newGuard(t, tap, options{Near: nearSecond})
		for _, kind := range []store.EventKind{store.Down, store.Up} {
			mustGet(t, g, o, "k@0")
			mustGet(t, g, o, "k@0")
			reads := tap.count("load")
			s.hear(store.Event{Kind: kind})
			mustGet(t, g, o, "k@0")
			if tap.count("load") == reads {
				t.Errorf("a near copy survived %v", kind)
			}
		}
	})
}

func TestNearCacheIsBounded(t *testing.T) {
	for name, near := range map[string]cacheguard.Near{
		"entries": {MaxEntries: 50, TTL: time.Minute},
		"bytes":   {MaxBytes: 50 << 10, TTL: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			s := newTap(memstore.New(memstore.Options{}))
			g, err := cacheguard.New(s, cacheguard.Options[[]byte]{Near: near, Codec: cacheguard.Bytes()})
			if err != nil {
				t.Fatal(err)
			}
			defer g.Close()
			get := func(i int) {
				_, err := g.Get(t.Context(), string(rune('a'+i)), func(_ contextType, _ string) ([]byte, error) { return make([]byte, 800), nil })
				if err != nil {
					t.Fatal(err)
				}
			}
			const keys = 2000
			for i := range keys {
				get(i)
			}
			reads := s.count("load")
			for i := range keys {
				get(i)
			}
			if kept := keys - (s.count("load") - reads); kept > 100 {
				t.Errorf("%d copies kept, the bound is about 50", kept)
			}
		})
	}
}

func TestNearAnswersFromTheNearCacheAlone(t *testing.T) {
	take := func(cacheguard.Entry[string]) bool { return true }
	synctest.Test(t, func(t *testing.T) {
		var answers notes[cacheguard.AnswerInfo]
		o := &origin{takes: time.Millisecond}
		s := newTap(memstore.New(memstore.Options{}))
		g := newGuard(t, s, options{
			Near:        nearSecond,
			NegativeTTL: time.Minute,
			Clone:       func(v string) string { return "a clone of " + v },
			Hooks:       cacheguard.Hooks{Answer: answers.add},
		})
		silent := func(when, key string, ctx contextType, accept func(cacheguard.Entry[string]) bool) {
			t.Helper()
			reads, told := s.count("load"), len(answers.list())
			if e, ok := g.Near(ctx, key, accept); ok || e != (cacheguard.Entry[string]{}) {
				t.Errorf("%s: %+v, %v; want nothing", when, e, ok)
			}
			if s.count("load") != reads || len(answers.list()) != told {
				t.Errorf("%s: the store was asked or a hook called", when)
			}
		}
		never := func(cacheguard.Entry[string]) bool {
			t.Error("asked about what there is not")
			return true
		}
		silent("before anything was loaded", "k", t.Context(), never)

		mustGet(t, g, o, "a clone of k@0")
		time.Sleep(time.Second / 2)
		reads, told := s.count("load"), len(answers.list())
		e, ok := g.Near(t.Context(), "k", take)
		if !ok || e.Value != "a clone of k@0" || e.State != cacheguard.Fresh || e.Age < time.Second/2 || e.Left <= 0 || e.Token == 0 {
			t.Errorf("Near = %+v, %v", e, ok)
		}
		list := answers.list()
		if s.count("load") != reads || len(list) != told+1 || list[told].Via != cacheguard.ViaNear || list[told].Key != "k" {
			t.Errorf("the store was asked %d times, the hook told %+v", s.count("load")-reads, list[told:])
		}

		silent("not taken", "k", t.Context(), func(cacheguard.Entry[string]) bool { return false })
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		silent("for a caller who has left", "k", ctx, never)
		if _, err := g.Get(t.Context(), "none", func(contextType, string) (string, error) { return "", cacheguard.ErrNotFound }); !errors.Is(err, cacheguard.ErrNotFound) {
			t.Fatal(err)
		}
		silent("of what the origin does not have", "none", t.Context(), never)
		time.Sleep(time.Second / 2)
		silent("after the copy's TTL", "k", t.Context(), never)

		mustGet(t, g, o, "a clone of k@0")
		if err := g.Invalidate(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		silent("after an invalidation", "k", t.Context(), never)
		mustGet(t, g, o, "a clone of k@0")
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
		silent("after Close", "k", t.Context(), never)
	})
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, memstore.New(memstore.Options{}), options{})
		mustGet(t, g, &origin{takes: time.Millisecond}, "k@0")
		if _, ok := g.Near(t.Context(), "k", take); ok {
			t.Error("a guard without a near cache answers from it")
		}
	})
}

func TestCloneGivesEachCallerAValueOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, err := cacheguard.New(memstore.New(memstore.Options{}), cacheguard.Options[[]int]{
			Near:  nearSecond,
			Clone: func(v []int) []int { return append([]int(nil), v...) },
		})
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		for range 3 {
			v, err := g.Get(t.Context(), "k", func(contextType, string) ([]int, error) { return []int{1}, nil })
			if err != nil || v[0] != 1 {
				t.Fatalf("Get = %v, %v: another caller's change shows", v, err)
			}
			v[0] = 2
		}
	})
}

// listened lets a test speak to the listeners of a store.
type listened struct {
	store.Store
	mu  sync.Mutex
	fns []func(store.Event)
}

func (l *listened) Listen(space string, fn func(store.Event)) func() {
	l.mu.Lock()
	l.fns = append(l.fns, fn)
	l.mu.Unlock()
	return l.Store.Listen(space, fn)
}

func (l *listened) hear(ev store.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, fn := range l.fns {
		fn(ev)
	}
}

// A store that does not say when it was asked breaks its contract. What it brings
// is served, and not kept.
func TestWhatWasReadAtNoTimeIsNotCopied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &origin{takes: time.Millisecond}
		s := newTap(memstore.New(memstore.Options{}))
		g := newGuard(t, timeless{s}, options{Near: nearSecond})
		time.Sleep(nearSecond.TTL) // before that it could be as new as the guard
		mustGet(t, g, o, "k@0")
		time.Sleep(nearSecond.TTL) // of what the load has left
		reads := s.count("load")
		for range 3 {
			mustGet(t, g, o, "k@0")
		}
		if n := s.count("load") - reads; n != 3 {
			t.Errorf("%d reads of the store for 3 hits, want each to ask", n)
		}
	})
}

// timeless is a store that does not say when it was asked.
type timeless struct{ *tap }

func (s timeless) Load(ctx context.Context, key store.Key) (store.Entry, error) {
	e, err := s.tap.Load(ctx, key)
	e.At = time.Time{}
	return e, err
}
