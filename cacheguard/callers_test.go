package cacheguard_test

import (
	"context"
	"errors"
	"math/rand/v2"
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

// What one caller does, and what it gets (P1, P5, P9, P14), closing (P11), and
// what is handed over.

type ctxKey struct{}

// C011, P5: the caller who began the load leaves.
func TestCancelledCallerFailsAloneAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, memstore.New(memstore.Options{}), options{})
		o := &origin{takes: 200 * time.Millisecond}
		ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), ctxKey{}, "of the first"), 20*time.Millisecond)
		defer cancel()
		first := ask(ctx, g, "k", func(ctx context.Context, key string) (string, error) {
			if ctx.Value(ctxKey{}) != "of the first" {
				t.Error("the load has lost the values of the context that began it")
			}
			if d, ok := ctx.Deadline(); !ok || time.Until(d) != 30*time.Second {
				t.Errorf("the load's deadline is %v away (%t), want LoadLimit", time.Until(d), ok)
			}
			return o.load(ctx, key)
		})
		synctest.Wait()
		var all []asking
		for range 9 {
			all = append(all, ask(t.Context(), g, "k", o.load))
		}
		if r := <-first; r.err != context.DeadlineExceeded || r.took != 20*time.Millisecond {
			t.Errorf("the caller that left got %v after %v", r.err, r.took)
		}
		for _, a := range all {
			if r := a.got(t, "k@0"); r.took != o.takes {
				t.Errorf("took %v, want %v", r.took, o.takes)
			}
		}
		o.loaded(t, 1)
	})
}

// C069: three wait, one leaves, a fourth comes.
func TestLeavingDoesNotFreeTheKeyForASecondLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, memstore.New(memstore.Options{}), options{})
		o := &origin{takes: time.Second}
		ctx, leave := context.WithCancel(t.Context())
		leaving := ask(ctx, g, "k", o.load)
		synctest.Wait()
		rest := []asking{ask(t.Context(), g, "k", o.load), ask(t.Context(), g, "k", o.load)}
		synctest.Wait()
		leave()
		if r := <-leaving; r.err != context.Canceled {
			t.Errorf("got %v", r.err)
		}
		rest = append(rest, ask(t.Context(), g, "k", o.load))
		for _, a := range rest {
			a.got(t, "k@0")
		}
		o.loaded(t, 1)
	})
}

// Nobody waits any more: the load goes on for those who come.
func TestLoadGoesOnWhenAllHaveLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, memstore.New(memstore.Options{}), options{})
		o := &origin{takes: time.Second}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		<-ask(ctx, g, "k", o.load)
		time.Sleep(time.Second)
		get(t, g, o.load, "k@0")
		o.loaded(t, 1)
	})
}

// A caller who has left already asks nobody.
func TestCallerWhoHasLeftAsksNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tapped := newTap(memstore.New(memstore.Options{}))
		g := newGuard(t, tapped, options{})
		ctx, leave := context.WithCancel(t.Context())
		leave()
		if r := <-ask(ctx, g, "k", (&origin{}).load); r.err != context.Canceled {
			t.Errorf("got %v", r.err)
		}
		if n := tapped.count("load"); n != 0 {
			t.Errorf("%d reads of the store", n)
		}
	})
}

// C012: a stale hit starts a rebuild and its request ends.
func TestBackgroundRebuildOutlivesItsRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, memstore.New(memstore.Options{}), options{Lifetime: cacheguard.Lifetime{TTL: time.Second, Grace: time.Minute}})
		o := &origin{}
		get(t, g, o.load, "k@0")
		time.Sleep(2 * time.Second)
		o.write()
		o.takes = 200 * time.Millisecond
		ctx, end := context.WithCancel(t.Context())
		ask(ctx, g, "k", o.load).got(t, "k@0")
		end()
		time.Sleep(time.Second / 2)
		if r := ask(t.Context(), g, "k", o.load).got(t, "k@1"); r.State != cacheguard.Fresh {
			t.Errorf("the entry is %v", r.State)
		}
	})
}

// C084: with a stale value nobody waits, not even the one who rebuilds.
func TestNobodyWaitsForAStaleKeyThatAnotherRebuilds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gs := fleet(t, 2, memstore.New(memstore.Options{}), options{Lifetime: cacheguard.Lifetime{TTL: time.Second, Grace: time.Minute}})
		o := &origin{}
		get(t, gs[0], o.load, "k@0")
		time.Sleep(2 * time.Second)
		o.takes = 2 * time.Second
		for range 100 {
			for _, g := range gs {
				if r := ask(t.Context(), g, "k", o.load).got(t, "k@0"); r.took != 0 || r.State != cacheguard.Stale {
					t.Errorf("waited %v (%v)", r.took, r.State)
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
		o.loaded(t, 2)
	})
}

// C058, C083: a cold key costs one load in the fleet, and per process a bounded
// number of commands.
func TestColdKeyCostsFewCommands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(memstore.Options{})
		o := &origin{takes: 100 * time.Millisecond}
		var taps []*tap
		var gs []*guard
		for range 4 {
			tapped := newTap(mem)
			tapped.on(func(string, string) error { time.Sleep(time.Millisecond); return nil }, nil)
			taps = append(taps, tapped)
			gs = append(gs, newGuard(t, tapped, options{}))
		}
		for round := range 3 { // cold, and twice after everything was lost
			var all []asking
			for _, g := range gs {
				for range 100 {
					all = append(all, ask(t.Context(), g, "k", o.load))
				}
			}
			for _, a := range all {
				a.got(t, "k@0")
			}
			o.loaded(t, int64(round+1))
			mem.DropEntry(key)
			mem.DropRecord(key)
		}
		fills := 0
		for _, tapped := range taps {
			fills += tapped.count("fill")
			if n := tapped.count("load") + tapped.count("claim"); n > 3*4 {
				t.Errorf("%d loads and %d claims in three storms", tapped.count("load"), tapped.count("claim"))
			}
		}
		if fills != 3 {
			t.Errorf("%d fills for three storms", fills)
		}
	})
}

// C096, P1: one of the callers did the work, and the entry says which.
func TestCoalescedIsWhoDidNotDoTheWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, memstore.New(memstore.Options{}), options{})
		o := &origin{takes: time.Second}
		var all []asking
		for range 8 {
			all = append(all, ask(t.Context(), g, "k", o.load))
		}
		led := 0
		for _, a := range all {
			r := a.got(t, "k@0")
			if !r.Coalesced {
				led++
			}
			if r.State != cacheguard.Rebuilt || r.Age != o.takes || r.Left != 59*time.Second || r.TTL != time.Minute || r.Token == 0 {
				t.Errorf("got %+v", r.Entry)
			}
		}
		if led != 1 {
			t.Errorf("%d of 8 did the work", led)
		}
	})
}

// The states of an entry over its life.
func TestStatesOfAnEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gs := fleet(t, 2, memstore.New(memstore.Options{}), options{Lifetime: cacheguard.Lifetime{TTL: 10 * time.Second, Grace: 10 * time.Second}})
		o := &origin{takes: time.Second}
		first := ask(t.Context(), gs[0], "k", o.load)
		synctest.Wait()
		second := ask(t.Context(), gs[1], "k", o.load)
		want := func(a asking, state cacheguard.State, age, left time.Duration) {
			t.Helper()
			if r := a.got(t, "k@0"); r.State != state || r.Age != age || r.Left != left {
				t.Errorf("%v, %v old, fresh for %v; want %v, %v, %v", r.State, r.Age, r.Left, state, age, left)
			}
		}
		want(first, cacheguard.Rebuilt, time.Second, 9*time.Second)
		want(second, cacheguard.Followed, time.Second, 9*time.Second)
		time.Sleep(5 * time.Second)
		want(ask(t.Context(), gs[1], "k", o.load), cacheguard.Fresh, 6*time.Second, 4*time.Second)
		time.Sleep(9 * time.Second)
		o.fails.Store(true) // the rebuild that the next begins
		want(ask(t.Context(), gs[1], "k", o.load), cacheguard.Stale, 15*time.Second, 0)
		time.Sleep(6 * time.Second)
		getFails(t, gs[0], failing, errOrigin) // gone
	})
}

// S19: the load says absent, and absence is not cached.
func TestAbsenceIsHandedOverToThoseWhoWaited(t *testing.T) {
	handedOver(t, options{}, func(context.Context, string) (string, error) { return "", cacheguard.ErrNotFound }, cacheguard.ErrNotFound)
}

// S20: nothing is to be stored.
func TestValueWithoutALifeIsHandedOverToThoseWhoWaited(t *testing.T) {
	none := func(string, string) cacheguard.Lifetime { return cacheguard.Lifetime{TTL: -time.Second} }
	handedOver(t, options{LifetimeFunc: none}, func(context.Context, string) (string, error) { return "v", nil }, nil)
}

// S21: the life is spent before the load has ended.
func TestValueWhoseLifeIsSpentIsHandedOverToThoseWhoWaited(t *testing.T) {
	short := cacheguard.Lifetime{TTL: 100 * time.Millisecond, Grace: 100 * time.Millisecond}
	handedOver(t, options{Lifetime: short}, func(context.Context, string) (string, error) { return "v", nil }, nil)
}

// handedOver runs a storm on a key whose answer has no life: one load, and all
// who were there have it. Whoever comes later has not.
func handedOver(t *testing.T, opts options, answer cacheguard.Loader[string], want error) {
	synctest.Test(t, func(t *testing.T) {
		gs := fleet(t, 8, memstore.New(memstore.Options{}), opts)
		var n atomic.Int64
		slow := counted(&n, func(ctx context.Context, key string) (string, error) {
			time.Sleep(time.Second)
			return answer(ctx, key)
		})
		begin := time.Now()
		var wg sync.WaitGroup
		for _, g := range gs {
			for range 20 {
				wg.Go(func() {
					if v, err := g.Get(t.Context(), "k", slow); !errors.Is(err, want) || want == nil && v != "v" {
						t.Errorf("Get = %q, %v", v, err)
					}
				})
			}
		}
		wg.Wait()
		if n.Load() != 1 || time.Since(begin) != time.Second {
			t.Errorf("%d loads in %v, want one in 1s", n.Load(), time.Since(begin))
		}
		for _, g := range gs[:2] {
			before := n.Load()
			if _, err := g.Get(t.Context(), "k", slow); !errors.Is(err, want) {
				t.Error(err)
			}
			if n.Load() != before+1 {
				t.Errorf("a caller that came later was given what was handed over")
			}
		}
	})
}

// A hand-over is not for a caller who came after it was written, be it to a
// follower that has not found it yet.
func TestHandOverIsNotForThoseWhoCameAfterIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(memstore.Options{})
		opts := options{LifetimeFunc: func(string, string) cacheguard.Lifetime { return cacheguard.Lifetime{} }}
		holder, follower := newGuard(t, mem, opts), newGuard(t, &mute{mem}, opts)
		o := &origin{takes: time.Second}
		first := ask(t.Context(), holder, "k", o.load)
		synctest.Wait()
		second := ask(t.Context(), follower, "k", o.load)
		time.Sleep(time.Second / 2)
		joined := ask(t.Context(), follower, "k", o.load)
		time.Sleep(700 * time.Millisecond) // it has been written; the follower looks after 1.5s or later
		o.write()
		late := ask(t.Context(), follower, "k", o.load)
		first.got(t, "k@0")
		second.got(t, "k@0")
		joined.got(t, "k@0")
		late.got(t, "k@1")
		o.loaded(t, 2)
	})
}

// S36: something is under the key that a flight cannot use. It goes on from
// there, it does not look and claim in turn for ever.
func TestWhatCannotBeUsedIsReplaced(t *testing.T) {
	t.Run("hand-over", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			mem := memstore.New(memstore.Options{})
			tapped := newTap(mem)
			a, b := newGuard(t, mem, options{}), newGuard(t, tapped, options{})
			getFails(t, a, func(context.Context, string) (string, error) { return "", cacheguard.ErrNotFound }, cacheguard.ErrNotFound)
			if e, _ := mem.Load(t.Context(), key); !e.HandOver {
				t.Fatalf("the store holds %+v: this is not the schedule", e)
			}
			get(t, b, (&origin{}).load, "k@0")
			if n := tapped.count("load") + tapped.count("claim"); n > 2 {
				t.Errorf("%d loads and %d claims", tapped.count("load"), tapped.count("claim"))
			}
		})
	})
	t.Run("hand-over that comes between", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			mem := memstore.New(memstore.Options{})
			tapped := newTap(mem)
			a, b := newGuard(t, mem, options{}), newGuard(t, tapped, options{})
			tapped.on(at("claim", once(func() error {
				getFails(t, a, func(context.Context, string) (string, error) { return "", cacheguard.ErrNotFound }, cacheguard.ErrNotFound)
				return nil
			})), nil)
			// It was there at a look that did not find it, so it may have it.
			getFails(t, b, (&origin{}).load, cacheguard.ErrNotFound)
			if n := tapped.count("load") + tapped.count("claim"); n > 4 {
				t.Errorf("%d loads and %d claims", tapped.count("load"), tapped.count("claim"))
			}
		})
	})
	for _, c := range []struct{ name, payload string }{{"another type", `"text"`}, {"no JSON", "\x00\xff"}, {"nothing", ""}} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := memstore.New(memstore.Options{})
				tapped := newTap(mem)
				var faults atomic.Int64
				g, err := cacheguard.New(tapped, cacheguard.Options[int]{Hooks: cacheguard.Hooks{Fault: func(i cacheguard.FaultInfo) {
					if i.Class != store.ClassData || i.Op != "decode" {
						t.Errorf("told of %q, %v", i.Op, i.Class)
					}
					faults.Add(1)
				}}})
				if err != nil {
					t.Fatal(err)
				}
				defer g.Close()
				foreign := store.Content{Kind: store.Value, Payload: []byte(c.payload), TTL: time.Hour}
				if err := mem.Set(t.Context(), store.Write{Key: key, Content: foreign}); err != nil {
					t.Fatal(err)
				}
				for range 2 {
					v, err := g.Get(t.Context(), "k", func(context.Context, string) (int, error) { return 42, nil })
					if v != 42 || err != nil {
						t.Errorf("Get = %d, %v", v, err)
					}
				}
				if n := tapped.count("claim"); n != 1 || faults.Load() != 1 {
					t.Errorf("%d claims, %d faults told; want one each", n, faults.Load())
				}
			})
		})
	}
}

// C078, P10: an entry that the store found to be another key's is a miss and a
// fault.
func TestEntryOfAnotherKeyIsAMissAndAFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		foreign := &store.Fault{Op: "load", Class: store.ClassData, Err: errors.New("entry of another key")}
		s := &faulty{Store: memstore.New(memstore.Options{}), fault: foreign}
		var told atomic.Int64
		g := newGuard(t, s, options{Hooks: cacheguard.Hooks{Fault: func(i cacheguard.FaultInfo) {
			if i.Err != foreign || i.Class != store.ClassData {
				t.Errorf("told of %v", i.Err)
			}
			told.Add(1)
		}}})
		get(t, g, (&origin{}).load, "k@0")
		if told.Load() != 1 {
			t.Errorf("told %d times", told.Load())
		}
	})
}

// faulty is a store whose entries cannot be read.
type faulty struct {
	store.Store
	fault error
}

func (f *faulty) Load(context.Context, store.Key) (store.Entry, error) {
	return store.Entry{Fault: f.fault}, nil
}

// C025, P14: a load that waits for itself, in every way that one process can.
func TestLoadThatWaitsForItselfFailsAtOnce(t *testing.T) {
	t.Run("directly", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newGuard(t, memstore.New(memstore.Options{}), options{})
			var load cacheguard.Loader[string]
			load = func(ctx context.Context, key string) (string, error) { return g.Get(ctx, key, load) }
			if r := <-ask(t.Context(), g, "k", load); !errors.Is(r.err, cacheguard.ErrCycle) || r.took != 0 {
				t.Errorf("got %v after %v", r.err, r.took)
			}
		})
	})
	t.Run("through another guard", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			mem := memstore.New(memstore.Options{})
			a, b := newGuard(t, mem, options{Namespace: "a"}), newGuard(t, mem, options{Namespace: "b"})
			var loadA, loadB cacheguard.Loader[string]
			loadA = func(ctx context.Context, key string) (string, error) { return b.Get(ctx, key, loadB) }
			loadB = func(ctx context.Context, key string) (string, error) { return a.Get(ctx, key, loadA) }
			if r := <-ask(t.Context(), a, "k", loadA); !errors.Is(r.err, cacheguard.ErrCycle) || r.took != 0 {
				t.Errorf("got %v after %v", r.err, r.took)
			}
		})
	})
	t.Run("by joining each other", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newGuard(t, memstore.New(memstore.Options{}), options{})
			both := newGate()
			other := map[string]string{"x": "y", "y": "x"}
			var load cacheguard.Loader[string]
			load = func(ctx context.Context, key string) (string, error) {
				both.stop()
				v, err := g.Get(ctx, other[key], load)
				if errors.Is(err, cacheguard.ErrCycle) {
					return "without " + other[key], nil
				}
				return "with " + v, err
			}
			x, y := ask(t.Context(), g, "x", load), ask(t.Context(), g, "y", load)
			both.holds(t, 2)
			both.open()
			rx, ry := <-x, <-y
			if rx.err != nil || ry.err != nil || rx.took != 0 || ry.took != 0 {
				t.Errorf("got %v and %v after %v", rx.err, ry.err, max(rx.took, ry.took))
			}
			if strings.HasPrefix(rx.Value, "without") == strings.HasPrefix(ry.Value, "without") {
				t.Errorf("got %q and %q; want that exactly one was refused", rx.Value, ry.Value)
			}
		})
	})
	t.Run("that has a pass", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newGuard(t, memstore.New(memstore.Options{}), options{})
			get(t, g, func(context.Context, string) (string, error) { return "v", &cacheguard.PassError{For: time.Minute} }, "v")
			var load cacheguard.Loader[string]
			load = func(ctx context.Context, key string) (string, error) { return g.Get(ctx, key, load) }
			if r := <-ask(t.Context(), g, "k", load); !errors.Is(r.err, cacheguard.ErrCycle) {
				t.Errorf("got %v", r.err)
			}
		})
	})
}

// The other side of P14: loads may ask for other keys, many at once, and for
// the same ones.
func TestLoadsMayAskForOtherKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, memstore.New(memstore.Options{}), options{})
		var load cacheguard.Loader[string]
		load = func(ctx context.Context, key string) (string, error) {
			time.Sleep(time.Millisecond)
			if len(key) == 5 {
				return key, nil
			}
			var wg sync.WaitGroup
			for _, more := range []string{"a", "b"} {
				wg.Go(func() {
					if v, err := g.Get(ctx, key+more, load); err != nil || v != key+more {
						t.Errorf("Get = %q, %v", v, err)
					}
					if _, err := g.Get(ctx, "12345", load); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			return key, nil
		}
		for range 3 {
			if v, err := g.Get(t.Context(), "", load); err != nil || v != "" {
				t.Errorf("Get = %q, %v", v, err)
			}
		}
	})
}

// A stale hit inside a load does not tie the rebuild that it starts to that load.
func TestRebuildBegunInsideALoadMayAskForThatLoadsKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, memstore.New(memstore.Options{}), options{Lifetime: cacheguard.Lifetime{TTL: time.Second, Grace: time.Minute}})
		leaf := func(_ context.Context, key string) (string, error) { return key, nil }
		if _, err := g.Get(t.Context(), "b", leaf); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		errs := make(chan error, 1)
		loadB := func(ctx context.Context, key string) (string, error) {
			_, err := g.Get(ctx, "a", leaf)
			errs <- err
			return key, err
		}
		if _, err := g.Get(t.Context(), "a", func(ctx context.Context, key string) (string, error) {
			_, err := g.Get(ctx, "b", loadB) // stale: rebuilt behind its back
			time.Sleep(time.Millisecond)     // while this one goes on
			return key, err
		}); err != nil {
			t.Error(err)
		}
		if err := <-errs; err != nil {
			t.Errorf("the rebuild got %v", err)
		}
	})
}

// What a loader has left running when it returned is not part of its load: whoever
// asks for the same key there waits for nobody who waits for it.
func TestWhatALoaderHasLeftRunningIsNoCycle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, memstore.New(memstore.Options{}), options{})
		var left, within context.Context
		outer := func(ctx context.Context, _ string) (string, error) {
			left = context.WithoutCancel(ctx)
			return g.Get(ctx, "inner", func(ctx context.Context, _ string) (string, error) {
				within = context.WithoutCancel(ctx)
				return "v", nil
			})
		}
		if _, err := g.Get(t.Context(), "outer", outer); err != nil {
			t.Fatal(err)
		}
		held, o := newGate(), &origin{}
		other := ask(t.Context(), g, "other", o.gated(held)) // contexts are searched while a loader runs
		held.holds(t, 1)
		for name, ctx := range map[string]context.Context{"its own": left, "that of one inside it": within} {
			for _, key := range []string{"outer", "inner"} {
				if _, err := g.Refresh(ctx, key, o.load); err != nil {
					t.Errorf("with the context of a loader that has returned (%s), %s: %v", name, key, err)
				}
			}
		}
		held.open()
		<-other
	})
}

// C025 over two processes, which nobody can see: bounded.
func TestCycleOverTwoProcessesEndsAtLoadLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gs := fleet(t, 2, memstore.New(memstore.Options{}), options{LoadLimit: 5 * time.Second})
		loads := func(g *guard, other string) cacheguard.Loader[string] {
			return func(ctx context.Context, _ string) (string, error) {
				return g.Get(ctx, other, func(context.Context, string) (string, error) { return "v", nil })
			}
		}
		both := []asking{ask(t.Context(), gs[0], "a", loads(gs[0], "b")), ask(t.Context(), gs[1], "b", loads(gs[1], "a"))}
		for _, a := range both {
			if r := <-a; r.took > 5*time.Second+10*time.Millisecond {
				t.Errorf("got %v after %v", r.err, r.took)
			}
		}
	})
}

// C075, P11: closing in the middle of everything.
func TestCloseEndsEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(memstore.Options{})
		closing, err := cacheguard.New(mem, steady(options{Lifetime: cacheguard.Lifetime{TTL: time.Second, Grace: time.Minute}}))
		if err != nil {
			t.Fatal(err)
		}
		other := newGuard(t, mem, options{})
		held, o := newGate(), &origin{takes: 10 * time.Second}
		followed := ask(t.Context(), other, "followed", o.gated(held))
		held.holds(t, 1)
		if _, err := closing.Get(t.Context(), "stale", (&origin{}).load); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		if _, err := closing.Get(t.Context(), "stale", o.load); err != nil { // rebuilds in the background
			t.Fatal(err)
		}
		var all []asking
		for range 50 {
			all = append(all, ask(t.Context(), closing, "loading", o.load), ask(t.Context(), closing, "followed", o.load))
		}
		synctest.Wait()
		begin := time.Now()
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if err := closing.Close(); err != nil {
					t.Errorf("Close = %v", err)
				}
			})
		}
		wg.Wait()
		if took := time.Since(begin); took != 0 {
			t.Errorf("Close took %v although all loaders heed their context", took)
		}
		for _, a := range all {
			if r := <-a; !errors.Is(r.err, cacheguard.ErrClosed) {
				t.Errorf("got %q, %v; want ErrClosed", r.Value, r.err)
			}
		}
		// No lease is left, and no cooldown: closing is not the origin's fault.
		o.takes = 0
		for _, k := range []string{"loading", "stale"} {
			mem.DropEntry(store.Key{Space: "cacheguard", ID: k})
			if r := ask(t.Context(), other, k, o.load).got(t, k+"@0"); r.took != 0 {
				t.Errorf("waited %v for a lease of a closed guard", r.took)
			}
		}
		held.open()
		followed.got(t, "followed@0")
		// Nothing works, and nothing hangs.
		for name, use := range map[string]func() error{
			"Get":        func() error { _, err := closing.Get(t.Context(), "k", o.load); return err },
			"Refresh":    func() error { _, err := closing.Refresh(t.Context(), "k", o.load); return err },
			"Do":         func() error { _, err := closing.Do(t.Context(), "k", cacheguard.Ask[string]{}); return err },
			"Set":        func() error { return closing.Set(t.Context(), "k", "v") },
			"Invalidate": func() error { return closing.Invalidate(t.Context(), "k") },
			"Expire":     func() error { return closing.Expire(t.Context(), "k") },
			"Update": func() error {
				_, err := closing.Update(t.Context(), "k", func(context.Context) (string, error) { t.Error("written"); return "", nil })
				return err
			},
			"Close": func() error { return errors.Join(closing.Close(), cacheguard.ErrClosed) },
		} {
			if err := use(); !errors.Is(err, cacheguard.ErrClosed) {
				t.Errorf("%s after Close = %v, want ErrClosed", name, err)
			}
		}
		if err := other.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Close waits for a loader that does not heed its context, LoadLimit at most,
// and says so.
func TestCloseWaitsForDeafLoadersAtMostLoadLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, err := cacheguard.New(memstore.New(memstore.Options{}), options{LoadLimit: 5 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		deaf := newGate()
		first := ask(t.Context(), g, "k", (&origin{}).gated(deaf))
		deaf.holds(t, 1)
		begin := time.Now()
		if err := g.Close(); err == nil || !strings.Contains(err.Error(), "1 load") {
			t.Errorf("Close = %v, want that a load is still running", err)
		}
		if took := time.Since(begin); took != 5*time.Second {
			t.Errorf("Close waited %v, want LoadLimit", took)
		}
		if r := <-first; !errors.Is(r.err, cacheguard.ErrClosed) || r.took != 0 {
			t.Errorf("the caller got %v after %v, want ErrClosed at once", r.err, r.took)
		}
		deaf.open()
		synctest.Wait()
		if err := g.Close(); err != nil {
			t.Errorf("Close = %v once the loader has ended", err)
		}
	})
}

// Closing while a claim is under way asks the origin for nothing.
func TestCloseDuringAClaimDoesNotLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tapped := newTap(memstore.New(memstore.Options{}))
		g := newGuard(t, tapped, options{})
		claiming, o := newGate(), &origin{}
		tapped.on(stopAt("claim", claiming), nil)
		first := ask(t.Context(), g, "k", o.load)
		claiming.holds(t, 1)
		closed := make(chan error, 1)
		go func() { closed <- g.Close() }()
		synctest.Wait()
		claiming.open()
		if err := <-closed; err != nil {
			t.Error(err)
		}
		if r := <-first; !errors.Is(r.err, cacheguard.ErrClosed) {
			t.Errorf("got %v", r.err)
		}
		o.loaded(t, 0)
	})
}

// C076: callers leave at random points. (A bubble fails if a goroutine is left.)
func TestCallersWhoLeaveAtRandomPointsLeaveNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gs := fleet(t, 2, memstore.New(memstore.Options{}), options{Lifetime: cacheguard.Lifetime{TTL: 10 * time.Millisecond, Grace: 10 * time.Millisecond}})
		o := &origin{takes: 5 * time.Millisecond}
		var wg sync.WaitGroup
		for i := range 10_000 {
			wg.Go(func() {
				time.Sleep(rand.N(200 * time.Millisecond))
				ctx, cancel := context.WithTimeout(t.Context(), rand.N(10*time.Millisecond)+1)
				defer cancel()
				if _, err := gs[i%2].Get(ctx, string(rune('a'+i%7)), o.load); err != nil && err != context.DeadlineExceeded {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for _, g := range gs {
			if err := g.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// Jitter takes something off the TTL and adds nothing, for Set and for loads
// (C041).
func TestJitterSpreadsExpiryAndNeverLengthensALife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, err := cacheguard.New(memstore.New(memstore.Options{}), options{Jitter: 0.5, Lifetime: cacheguard.Lifetime{TTL: time.Minute}})
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		var tenths [10]int
		for i := range 1000 {
			k := string(rune(i + 1000))
			if i%2 == 0 {
				if err := g.Set(t.Context(), k, "v"); err != nil {
					t.Fatal(err)
				}
			}
			e, err := g.GetEntry(t.Context(), k, (&origin{}).load)
			if err != nil || e.TTL > time.Minute || e.TTL < 30*time.Second || e.Left != e.TTL {
				t.Fatalf("GetEntry = %+v, %v", e, err)
			}
			tenths[min(int((time.Minute-e.TTL)/(3*time.Second)), 9)]++
		}
		for i, n := range tenths {
			if n < 50 || n > 200 {
				t.Errorf("%d of 1000 in the %d. tenth", n, i)
			}
		}
	})
}

// An origin's whole document is not a key.
func TestKeyHasABound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, memstore.New(memstore.Options{}), options{})
		for _, k := range []string{"", strings.Repeat("k", 64<<10), "a{b}c", "\x00:\n"} {
			if v, err := g.Get(t.Context(), k, (&origin{}).load); err != nil || v != k+"@0" {
				t.Errorf("key of %d bytes: %v", len(k), err)
			}
		}
		if _, err := g.Get(t.Context(), strings.Repeat("k", 64<<10+1), (&origin{}).load); err == nil || !strings.Contains(err.Error(), "at most 65536") {
			t.Errorf("got %v, want the bound", err)
		}
		if _, err := g.Get(t.Context(), "k", nil); err == nil || !strings.Contains(err.Error(), "loader is nil") {
			t.Errorf("got %v, want that the loader is nil", err)
		}
	})
}
