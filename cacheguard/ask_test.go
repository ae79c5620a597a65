package cacheguard_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
)

// Do, PassError and Refresh: what the documentation of each says.

type (
	entry = cacheguard.Entry[string]
	asked = cacheguard.Ask[string]
)

// always is an Accept that answers the same to everything.
func always(u cacheguard.Use) func(entry) cacheguard.Use {
	return func(entry) cacheguard.Use { return u }
}

// with is a Prepare that makes the loader.
func with(load cacheguard.Loader[string]) func() cacheguard.Reloader[string] {
	return func() cacheguard.Reloader[string] { return reloader(load) }
}

func do(t *testing.T, g *guard, ask asked, value string, state cacheguard.State, want error) {
	t.Helper()
	e, err := g.Do(t.Context(), "k", ask)
	if e.Value != value || e.State != state || !errors.Is(err, want) {
		t.Errorf("Do = %q (%v), %v; want %q (%v), %v", e.Value, e.State, err, value, state, want)
	}
}

func TestDoWithoutPrepareNeverLoads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tapped := newTap(memstore.New(memstore.Options{}))
		g := newGuard(t, tapped, options{NegativeTTL: time.Minute, Lifetime: cacheguard.Lifetime{TTL: time.Second, Grace: time.Minute}})
		do(t, g, asked{}, "", 0, cacheguard.ErrNotCached)
		get(t, g, (&origin{}).load, "k@0")
		do(t, g, asked{}, "k@0", cacheguard.Fresh, nil)
		// What was turned down is there to fall back on.
		do(t, g, asked{Accept: always(cacheguard.Reload)}, "k@0", cacheguard.Fresh, cacheguard.ErrNotCached)
		time.Sleep(2 * time.Second)
		do(t, g, asked{}, "k@0", cacheguard.Stale, nil)
		do(t, g, asked{Accept: always(cacheguard.TakeAndRefresh)}, "k@0", cacheguard.Stale, nil)
		synctest.Wait()
		if n := tapped.count("claim"); n != 1 {
			t.Errorf("%d claims, want that of the Get", n)
		}
		invalidate(t, g)
		getFails(t, g, func(context.Context, string) (string, error) { return "", cacheguard.ErrNotFound }, cacheguard.ErrNotFound)
		do(t, g, asked{}, "", cacheguard.Absent, cacheguard.ErrNotFound)
		outOfReach(tapped, "load")
		do(t, g, asked{}, "", 0, cacheguard.ErrNotCached)
	})
}

func TestAcceptNilTakesFreshAndRefreshesStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, memstore.New(memstore.Options{}), options{Lifetime: cacheguard.Lifetime{TTL: time.Second, Grace: time.Minute}})
		o := &origin{}
		ask := asked{Prepare: with(o.load)}
		do(t, g, ask, "k@0", cacheguard.Rebuilt, nil)
		o.write()
		do(t, g, ask, "k@0", cacheguard.Fresh, nil)
		time.Sleep(2 * time.Second)
		do(t, g, ask, "k@0", cacheguard.Stale, nil)
		synctest.Wait()
		do(t, g, ask, "k@1", cacheguard.Fresh, nil)
	})
}

func TestUses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, memstore.New(memstore.Options{}), options{Lifetime: cacheguard.Lifetime{TTL: time.Second, Grace: time.Minute}})
		o := &origin{}
		get(t, g, o.load, "k@0")
		o.write()
		time.Sleep(2 * time.Second)
		do(t, g, asked{Accept: always(cacheguard.Take), Prepare: with(o.load)}, "k@0", cacheguard.Stale, nil)
		synctest.Wait()
		do(t, g, asked{Accept: always(cacheguard.Take), Prepare: with(o.load)}, "k@0", cacheguard.Stale, nil) // nothing was refreshed
		do(t, g, asked{Accept: always(cacheguard.TakeAndRefresh), Prepare: with(o.load)}, "k@0", cacheguard.Stale, nil)
		synctest.Wait()
		do(t, g, asked{Accept: always(cacheguard.Take), Prepare: with(o.load)}, "k@1", cacheguard.Fresh, nil)
		o.write()
		do(t, g, asked{Accept: always(cacheguard.Reload), Prepare: with(o.load)}, "k@2", cacheguard.Rebuilt, nil)
	})
}

// Accept is asked about answers wherever they come from, and not about what the
// caller's own load brought.
func TestAcceptIsNotAskedAboutOnesOwnLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(memstore.Options{})
		gs := fleet(t, 2, mem, options{})
		o := &origin{takes: time.Second}
		var mu sync.Mutex
		saw := map[string][]cacheguard.State{}
		picky := func(name string) asked {
			return asked{Prepare: with(o.load), Accept: func(e entry) cacheguard.Use {
				mu.Lock()
				defer mu.Unlock()
				saw[name] = append(saw[name], e.State)
				return cacheguard.Take
			}}
		}
		var wg sync.WaitGroup
		for i, who := range []string{"leads", "joins", "follows"} {
			wg.Go(func() { do(t, gs[i/2], picky(who), "k@0", cacheguard.Rebuilt+cacheguard.State(i/2), nil) })
			synctest.Wait()
		}
		wg.Wait()
		do(t, gs[0], picky("reads"), "k@0", cacheguard.Fresh, nil)
		for who, want := range map[string]cacheguard.State{"joins": cacheguard.Rebuilt, "follows": cacheguard.Followed, "reads": cacheguard.Fresh} {
			if got := saw[who]; len(got) != 1 || got[0] != want {
				t.Errorf("who %s was asked about %v, want once about %v", who, got, want)
			}
		}
		if got := saw["leads"]; got != nil {
			t.Errorf("who leads was asked about its own load: %v", got)
		}
	})
}

// A caller who turns down what it joined goes on to load for itself; with an
// error it has the entry that it turned down last.
// slowReplies is a store whose replies to reads are a while on their way.
type slowReplies struct {
	store.Store
	takes time.Duration
	bring bool // its messages bring what was filled
}

func (s slowReplies) Listen(space string, fn func(store.Event)) (stop func()) {
	return s.Store.Listen(space, func(ev store.Event) {
		if !s.bring {
			ev.Entry = nil
		}
		fn(ev)
	})
}

func (s slowReplies) Load(ctx context.Context, key store.Key) (store.Entry, error) {
	e, err := s.Store.Load(ctx, key)
	time.Sleep(s.takes)
	return e, err
}

// Who judges an answer by its age may compare it with how long it has been there
// itself, and the reply may have been on its way for most of that.
func TestAcceptIsToldHowOldAnAnswerIsByNow(t *testing.T) {
	const late = 50 * time.Millisecond
	life := options{Lifetime: cacheguard.Lifetime{TTL: time.Minute}}
	for _, tt := range []struct {
		name        string
		wait, bring bool // for another process's load; the message of its end brings the value
	}{
		{"from the store", false, false}, {"in another process's message", true, true}, {"after another process's message", true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memstore.New(memstore.Options{})
				leads, asks := newGuard(t, s, life), newGuard(t, slowReplies{s, late, tt.bring}, life)
				var sent time.Time
				load := func(context.Context, string) (string, error) {
					sent = time.Now()
					time.Sleep(200 * time.Millisecond)
					return "v", nil
				}
				loading := make(chan error, 1)
				go func() {
					_, err := leads.Get(t.Context(), "k", load)
					loading <- err
				}()
				if !tt.wait {
					if err := <-loading; err != nil {
						t.Fatal(err)
					}
					time.Sleep(time.Millisecond)
				}
				judged := 0
				accept := func(e entry) cacheguard.Use {
					judged++
					if age := time.Since(sent); e.Age < age || e.Age > age+time.Millisecond || e.Left+e.Age != time.Minute || e.Keep > e.Left {
						t.Errorf("aged %v with %v left and %v kept, %v after it was asked for", e.Age, e.Left, e.Keep, age)
					}
					return cacheguard.Take
				}
				synctest.Wait()
				e, err := asks.Do(t.Context(), "k", asked{Accept: accept, Prepare: with(load)})
				if age := time.Since(sent); err != nil || judged != 1 || e.Age < age || e.Age > age+time.Millisecond {
					t.Errorf("judged %d times; got one aged %v, %v after it was asked for: %v", judged, e.Age, age, err)
				}
				if tt.wait {
					if err := <-loading; err != nil {
						t.Fatal(err)
					}
				}
			})
		})
	}
}

func TestWhatWasTurnedDownComesWithTheError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(memstore.Options{})
		gs := fleet(t, 2, mem, options{Lifetime: cacheguard.Lifetime{TTL: time.Second, Grace: time.Minute}})
		get(t, gs[0], (&origin{}).load, "k@0")
		time.Sleep(2 * time.Second)
		picky := asked{Accept: always(cacheguard.Reload), Prepare: with(failing)}
		do(t, gs[0], picky, "k@0", cacheguard.Stale, errOrigin)
		do(t, gs[0], picky, "k@0", cacheguard.Stale, cacheguard.ErrCooldown)
		leaving, leave := context.WithCancelCause(t.Context())
		why := errors.New("had enough")
		slow := &origin{takes: time.Second}
		time.AfterFunc(time.Millisecond, func() { leave(why) })
		e, err := gs[1].Do(leaving, "k", asked{Accept: always(cacheguard.Reload), Prepare: with(slow.load)})
		if e.Value != "k@0" || err != why {
			t.Errorf("Do = %q, %v; want what was turned down and the context's cause", e.Value, err)
		}
		// One who turns down even what others have loaded loads for itself.
		time.Sleep(2 * time.Second)
		o := &origin{takes: time.Second}
		o.write()
		first := ask(t.Context(), gs[1], "other", o.load)
		synctest.Wait()
		e, err = gs[1].Do(t.Context(), "other", asked{Accept: always(cacheguard.Reload), Prepare: func() cacheguard.Reloader[string] {
			return func(context.Context, entry) (string, error) { return "own", nil }
		}})
		if e.Value != "own" || err != nil {
			t.Errorf("Do = %q, %v; want its own load", e.Value, err)
		}
		first.got(t, "other@1")
	})
}

// Prepare runs at most once, on the caller's goroutine, and never for a hit.
func TestPrepareRunsAtMostOnceAndNeverForAHit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, memstore.New(memstore.Options{}), options{Lifetime: cacheguard.Lifetime{TTL: time.Minute, Grace: time.Minute}})
		o, loading := &origin{}, newGate()
		var prepared atomic.Int64
		var caller sync.Mutex // held by the caller while it is in Do
		prepare := func() cacheguard.Reloader[string] {
			prepared.Add(1)
			if caller.TryLock() {
				t.Error("prepared by another goroutine than the caller's")
			}
			return reloader(o.load)
		}
		first := ask(t.Context(), g, "k", o.gated(loading))
		loading.holds(t, 1)
		o.write()
		invalidate(t, g)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			caller.Lock()
			defer caller.Unlock()
			// It joins, is not answered, and goes round: prepared for both.
			do(t, g, asked{Prepare: prepare}, "k@1", cacheguard.Rebuilt, nil)
			if n := prepared.Load(); n != 1 {
				t.Errorf("prepared %d times, want once", n)
			}
			for range 10 {
				do(t, g, asked{Prepare: prepare}, "k@1", cacheguard.Fresh, nil)
			}
			if n := prepared.Load(); n != 1 {
				t.Errorf("prepared %d times, want none for hits", n-1)
			}
			time.Sleep(61 * time.Second)
			do(t, g, asked{Prepare: prepare}, "k@1", cacheguard.Stale, nil)
			synctest.Wait()
			if n := prepared.Load(); n != 2 {
				t.Errorf("prepared %d times for a refresh, want once", n-1)
			}
		}()
		for range 100 {
			time.Sleep(0)
		}
		loading.open()
		first.got(t, "k@0")
		<-ended
	})
}

// A loader is told what it is to replace: what was there when the lease was
// claimed, if that was an entry for it.
func TestReloaderIsToldWhatItReplaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(memstore.Options{})
		tapped := newTap(mem)
		g, other := newGuard(t, tapped, options{Lifetime: cacheguard.Lifetime{TTL: time.Second, Grace: time.Minute}, NegativeTTL: time.Minute}), newGuard(t, mem, options{})
		var told entry
		reload := asked{Accept: always(cacheguard.Reload), Prepare: func() cacheguard.Reloader[string] {
			return func(_ context.Context, prev entry) (string, error) {
				told = prev
				return "new", nil
			}
		}}
		replaces := func(value string, state cacheguard.State) {
			t.Helper()
			do(t, g, reload, "new", cacheguard.Rebuilt, nil)
			if told.Value != value || told.State != state {
				t.Errorf("told of %q (%v), want %q (%v)", told.Value, told.State, value, state)
			}
		}
		replaces("", 0)
		replaces("new", cacheguard.Fresh)
		time.Sleep(2 * time.Second)
		replaces("new", cacheguard.Stale)
		invalidate(t, g)
		getFails(t, g, func(context.Context, string) (string, error) { return "", cacheguard.ErrNotFound }, cacheguard.ErrNotFound)
		replaces("", cacheguard.Absent)
		// Something else comes between the look and the claim.
		tapped.on(at("claim", once(func() error {
			if err := other.Set(t.Context(), "k", "between"); err != nil {
				return err
			}
			return other.Expire(t.Context(), "k")
		})), nil)
		e, err := g.Do(t.Context(), "k", asked{
			Accept: func(e entry) cacheguard.Use {
				if e.State == cacheguard.Stale {
					return cacheguard.Reload
				}
				return reload.Accept(e)
			},
			Prepare: reload.Prepare,
		})
		if err != nil || e.Value != "new" || told.Value != "between" {
			t.Errorf("Do = %q, %v, told of %q; want that it replaces what came between", e.Value, err, told.Value)
		}
		// A hand-over is for others: to this caller it is nothing.
		invalidate(t, g)
		handing := newGuard(t, mem, options{LifetimeFunc: func(string, string) cacheguard.Lifetime { return cacheguard.Lifetime{} }})
		get(t, handing, (&origin{}).load, "k@0")
		replaces("", 0)
	})
}

func TestPassIsLoadedInParallelByAllWhoWaitAndCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gs := fleet(t, 4, memstore.New(memstore.Options{}), options{})
		var n, together, most atomic.Int64
		passing := func(context.Context, string) (string, error) {
			n.Add(1)
			most.Store(max(most.Load(), together.Add(1)))
			defer together.Add(-1)
			time.Sleep(time.Second)
			return "mine", &cacheguard.PassError{For: 10 * time.Second}
		}
		begin := time.Now()
		var wg sync.WaitGroup
		for _, g := range gs {
			for range 25 {
				wg.Go(func() { get(t, g, passing, "mine") })
			}
		}
		wg.Wait()
		if took := time.Since(begin); took != 2*time.Second {
			t.Errorf("100 callers took %v, want the first load and then all others at once", took)
		}
		if n.Load() != 100 || most.Load() != 99 {
			t.Errorf("%d loads, at most %d together; want 100 and 99", n.Load(), most.Load())
		}
		// Those who come while the mark lasts wait for nobody.
		begin = time.Now()
		for _, g := range gs {
			wg.Go(func() { get(t, g, passing, "mine") })
		}
		wg.Wait()
		if took := time.Since(begin); took != time.Second {
			t.Errorf("took %v under the mark", took)
		}
		// The mark ends by itself.
		time.Sleep(10 * time.Second)
		o := &origin{takes: time.Second}
		for _, g := range gs {
			wg.Go(func() { get(t, g, o.load, "k@0") })
		}
		wg.Wait()
		o.loaded(t, 1)
	})
}

// Do leaves loading under a mark to its caller, and gives it the value of its
// own load.
func TestDoIsToldOfAPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gs := fleet(t, 2, memstore.New(memstore.Options{}), options{Lifetime: cacheguard.Lifetime{TTL: time.Second, Grace: time.Minute}})
		get(t, gs[0], (&origin{}).load, "k@0")
		time.Sleep(2 * time.Second)
		loading := newGate()
		passing := asked{Accept: always(cacheguard.Reload), Prepare: func() cacheguard.Reloader[string] {
			return func(context.Context, entry) (string, error) {
				loading.stop()
				return "mine", &cacheguard.PassError{For: 10 * time.Second}
			}
		}}
		type result struct {
			entry
			err error
		}
		results := make([]chan result, 3)
		for i := range results {
			results[i] = make(chan result, 1)
			go func() {
				e, err := gs[i/2].Do(t.Context(), "k", passing)
				results[i] <- result{e, err}
			}()
			loading.holds(t, 1)
		}
		loading.open()
		for i, ch := range results {
			r := <-ch
			var p *cacheguard.PassError
			if !errors.As(r.err, &p) || p.For <= 0 || p.For > 10*time.Second {
				t.Errorf("caller %d: %v, want a *PassError", i, r.err)
			}
			switch {
			case i == 0 && (r.Value != "mine" || r.State != cacheguard.Rebuilt || r.Left != 0 || r.TTL != 0):
				t.Errorf("its own load's caller got %+v", r.entry)
			case i > 0 && (r.Value != "k@0" || r.State != cacheguard.Stale):
				t.Errorf("caller %d got %q (%v), want what it has turned down", i, r.Value, r.State)
			}
		}
		var p *cacheguard.PassError
		if e, err := gs[1].Do(t.Context(), "k", passing); !errors.As(err, &p) || e != (entry{}) {
			t.Errorf("Do under the mark = %+v, %v", e, err)
		}
		o := &origin{}
		get(t, gs[1], o.load, "k@0")
		get(t, gs[1], o.load, "k@0")
		o.loaded(t, 2) // nothing is stored under the mark
	})
}

func TestFailedUnsharedLoadCoolsItsProcessDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gs := fleet(t, 2, memstore.New(memstore.Options{}), options{Cooldown: time.Second})
		pass := func(context.Context, string) (string, error) { return "v", &cacheguard.PassError{For: time.Minute} }
		get(t, gs[0], pass, "v")
		getFails(t, gs[0], failing, errOrigin)
		getFails(t, gs[0], pass, cacheguard.ErrCooldown)
		get(t, gs[1], pass, "v")
		// A caller who leaves its own load says nothing about the origin.
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if r := <-ask(ctx, gs[1], "k", (&origin{takes: time.Hour}).load); r.err != context.DeadlineExceeded || r.took != time.Millisecond {
			t.Errorf("got %v after %v", r.err, r.took)
		}
		get(t, gs[1], pass, "v")
		time.Sleep(time.Second)
		get(t, gs[0], pass, "v")
		var panicked *cacheguard.PanicError
		if r := <-ask(t.Context(), gs[0], "k", func(context.Context, string) (string, error) { panic("ouch") }); !errors.As(r.err, &panicked) {
			t.Errorf("got %v, want a *PanicError", r.err)
		}
	})
}

// Refresh loads anew, for the fleet, and what it returns was loaded after it
// began.
func TestRefreshReturnsWhatWasLoadedSinceItBegan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gs := fleet(t, 2, memstore.New(memstore.Options{}), options{})
		o, loading := &origin{}, newGate()
		get(t, gs[0], o.load, "k@0")
		o.write()
		get(t, gs[0], o.load, "k@0")
		if v, err := gs[0].Refresh(t.Context(), "k", o.load); v != "k@1" || err != nil {
			t.Errorf("Refresh = %q, %v", v, err)
		}
		get(t, gs[1], o.load, "k@1")

		// Loads that began before, here and in another process, do not do.
		var wg sync.WaitGroup
		refresh := func(g *guard, load cacheguard.Loader[string], want string) {
			wg.Go(func() {
				if v, err := g.Refresh(t.Context(), "k", load); v != want || err != nil {
					t.Errorf("Refresh = %q, %v; want %q", v, err, want)
				}
			})
		}
		refresh(gs[0], o.gated(loading), "k@1")
		loading.holds(t, 1)
		o.write()
		before := o.loads.Load()
		o.takes = time.Second
		for range 10 {
			refresh(gs[0], o.load, "k@2")
			refresh(gs[1], o.load, "k@2")
		}
		synctest.Wait()
		loading.open()
		wg.Wait()
		if n := o.loads.Load() - before; n < 1 || n > 4 {
			t.Errorf("%d loads for 20 callers of two processes", n)
		}
		getsFresh := ask(t.Context(), gs[1], "k", failing)
		getsFresh.got(t, "k@2")
	})
}

// A Refresh that fails returns no old value, and leaves it where it is.
func TestFailedRefreshKeepsWhatIsStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, memstore.New(memstore.Options{}), options{})
		get(t, g, (&origin{}).load, "k@0")
		if v, err := g.Refresh(t.Context(), "k", failing); v != "" || !errors.Is(err, errOrigin) {
			t.Errorf("Refresh = %q, %v", v, err)
		}
		get(t, g, failing, "k@0")
	})
}

// Without a store a Refresh loads; a copy from before is not an answer to it.
func TestRefreshLoadsWithoutTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tapped := newTap(memstore.New(memstore.Options{}))
		g := newGuard(t, tapped, options{Near: cacheguard.Near{MaxEntries: 10}})
		o := &origin{}
		get(t, g, o.load, "k@0")
		o.write()
		tapped.on(down, nil)
		if v, err := g.Refresh(t.Context(), "k", o.load); v != "k@1" || err != nil {
			t.Errorf("Refresh = %q, %v; want what it loaded", v, err)
		}
	})
}

// FailFast holds as well where the store can be read but not claimed.
func TestFailFastDoesNotLoadWithoutALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tapped := newTap(memstore.New(memstore.Options{}))
		g := newGuard(t, tapped, options{Outage: cacheguard.FailFast})
		o := &origin{}
		tapped.on(at("claim", func() error { return lost("claim", store.ClassReadOnly) }), nil)
		var fault *store.Fault
		if r := <-ask(t.Context(), g, "k", o.load); !errors.As(r.err, &fault) || fault.Class != store.ClassReadOnly {
			t.Errorf("got %q, %v; want the fault", r.Value, r.err)
		}
		o.loaded(t, 0)
	})
}

// A store that hangs for many keys at once is asked by one task whether it is
// back, not by one for each call that failed.
func TestOutageIsProbedByOneTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tapped := newTap(memstore.New(memstore.Options{}))
		g := newGuard(t, tapped, options{})
		tapped.on(func(op, _ string) error {
			time.Sleep(100 * time.Millisecond)
			return lost(op, store.ClassTimeout)
		}, nil)
		var all []asking
		for i := range 200 {
			all = append(all, ask(t.Context(), g, string(rune(i+1000)), (&origin{}).load))
		}
		for _, a := range all {
			if r := <-a; r.err != nil {
				t.Error(r.err)
			}
		}
		synctest.Wait()
		if n := running("probeStore"); n != 1 {
			t.Errorf("%d tasks probe the store, want 1", n)
		}
		tapped.on(nil, nil)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if n := running("probeStore"); n != 0 {
			t.Errorf("%d tasks probe a store that is back", n)
		}
	})
}

// Callers who leave a store that hangs do not vouch for it.
func TestCallersWhoLeaveDoNotKeepTheBreakerClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tapped := newTap(memstore.New(memstore.Options{}))
		var opened atomic.Bool
		g := newGuard(t, tapped, options{Hooks: cacheguard.Hooks{Breaker: func(open bool) { opened.Store(open) }}})
		tapped.on(func(op, _ string) error {
			if op == "invalidate" {
				return lost(op, store.ClassCanceled)
			}
			return lost(op, store.ClassTimeout)
		}, nil)
		for i := range 3 {
			_, _ = g.Do(t.Context(), string(rune('a'+i)), asked{})
			_ = g.Invalidate(t.Context(), "other")
		}
		if !opened.Load() {
			t.Error("the breaker is closed after three time-outs in a row")
		}
	})
}

// running counts the goroutines that were started by a function of the guard.
func running(by string) int {
	buf := make([]byte, 16<<20)
	return strings.Count(string(buf[:runtime.Stack(buf, true)]), "created by github.com/cacheguard-go/cacheguard/cacheguard.(*Guard[...])."+by)
}

// GetMany loads what is passed for its own caller, also where it has followed
// the load that left the mark.
func TestGetManyLoadsForItselfWhatIsPassed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gs := fleet(t, 2, memstore.New(memstore.Options{}), options{})
		first := ask(t.Context(), gs[0], "k", func(context.Context, string) (string, error) {
			time.Sleep(time.Second)
			return "mine", &cacheguard.PassError{For: time.Minute}
		})
		synctest.Wait()
		for range 2 { // following, and under the mark
			got, err := gs[1].GetMany(t.Context(), []string{"k", "other"}, func(_ context.Context, keys []string) (map[string]string, error) {
				all := make(map[string]string)
				for _, key := range keys {
					all[key] = "many " + key
				}
				return all, nil
			})
			if err != nil || got["k"] != "many k" || got["other"] != "many other" {
				t.Errorf("GetMany = %v, %v", got, err)
			}
		}
		first.got(t, "mine")
	})
}

// passed leaves a pass mark under keys.
func passed(t *testing.T, g *guard, keys ...string) {
	t.Helper()
	for _, key := range keys {
		if _, err := g.Get(t.Context(), key, func(context.Context, string) (string, error) {
			return "mine", &cacheguard.PassError{For: time.Minute}
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// A GetMany of what is passed leaves an origin alone that has just failed, as a
// Get does: no lease record tells it to.
func TestGetManyOfWhatIsPassedHeedsTheCooldown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, memstore.New(memstore.Options{}), options{Cooldown: time.Second})
		passed(t, g, "k")
		loads := 0
		many := func(want error) {
			t.Helper()
			_, err := g.GetMany(t.Context(), []string{"k"}, func(context.Context, []string) (map[string]string, error) {
				loads++
				return nil, errOrigin
			})
			if !errors.Is(err, want) {
				t.Errorf("GetMany = %v, want %v", err, want)
			}
		}
		many(errOrigin)
		many(cacheguard.ErrCooldown)
		getFails(t, g, failing, cacheguard.ErrCooldown)
		if loads != 1 {
			t.Errorf("%d loads in one cooldown, want 1", loads)
		}
		time.Sleep(time.Second)
		many(errOrigin)
	})
}

// P14: also where nobody waits for a flight, a load that asks for its own key is
// told so at once, instead of loading within itself until LoadLimit.
func TestGetManyOfWhatIsPassedFindsItsCycle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, memstore.New(memstore.Options{}), options{Cooldown: -1})
		passed(t, g, "k", "other")
		depth := 0
		var load cacheguard.ManyLoader[string]
		load = func(ctx context.Context, keys []string) (map[string]string, error) {
			if depth++; depth > 10 {
				return nil, errors.New("it loads within itself")
			}
			return g.GetMany(ctx, []string{"k"}, load)
		}
		if _, err := g.GetMany(t.Context(), []string{"k"}, load); !errors.Is(err, cacheguard.ErrCycle) || depth != 1 {
			t.Errorf("GetMany = %v after %d loads, want ErrCycle after 1", err, depth)
		}
		depth = 0
		_, err := g.Get(t.Context(), "other", func(ctx context.Context, _ string) (string, error) {
			_, err := g.GetMany(ctx, []string{"k", "other"}, func(context.Context, []string) (map[string]string, error) {
				depth++
				return map[string]string{"k": "v"}, nil
			})
			return "", err
		})
		if !errors.Is(err, cacheguard.ErrCycle) || depth != 1 {
			t.Errorf("Get = %v after %d loads, want ErrCycle after one of the other key", err, depth)
		}
	})
}

// A ManyLoader may do with its keys as it likes, also where nobody shares them,
// and also when it is not waited for any more.
func TestGetManyOfWhatIsPassedGivesItsLoaderKeysOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, memstore.New(memstore.Options{}), options{})
		passed(t, g, "a", "b")
		loads := 0
		got, err := g.GetMany(t.Context(), []string{"a", "b"}, func(_ context.Context, keys []string) (map[string]string, error) {
			loads++
			found := make(map[string]string)
			for i, key := range keys {
				found[key] = "v" + key
				keys[i] = "row of " + key
			}
			return found, nil
		})
		if err != nil || got["a"] != "va" || got["b"] != "vb" || loads != 1 {
			t.Errorf("GetMany = %v, %v after %d loads, want both values after 1", got, err, loads)
		}
	})
}
