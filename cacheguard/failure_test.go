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

// Loads that fail or panic (P6, P7).

func failing(context.Context, string) (string, error) { return "", errOrigin }

// counted counts the calls of a loader.
func counted(n *atomic.Int64, load cacheguard.Loader[string]) cacheguard.Loader[string] {
	return func(ctx context.Context, key string) (string, error) {
		n.Add(1)
		return load(ctx, key)
	}
}

func getFails(t *testing.T, g *guard, load cacheguard.Loader[string], want error) {
	t.Helper()
	if v, err := g.Get(t.Context(), "k", load); !errors.Is(err, want) {
		t.Errorf("Get = %q, %v; want %v", v, err, want)
	}
}

// S10: A is broken, fails in a millisecond and has most of the traffic; B is
// healthy and asks now and then.
func TestOneBrokenProcessDoesNotBindTheFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gs := fleet(t, 2, memstore.New(memstore.Options{}), options{})
		o := &origin{}
		for range 50 {
			if _, err := gs[0].Get(t.Context(), "k", failing); !errors.Is(err, errOrigin) && !errors.Is(err, cacheguard.ErrCooldown) {
				t.Errorf("the broken process got %v", err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		get(t, gs[1], o.load, "k@0")
		o.loaded(t, 1)
		get(t, gs[0], failing, "k@0") // the value is there for all
	})
}

// P6: two processes, then nobody, for each cooldown; those who wait get the
// failure at once instead of trying one after another.
func TestFailingOriginSeesTwoLoadsPerCooldown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gs := fleet(t, 8, memstore.New(memstore.Options{}), options{Cooldown: time.Second})
		var n atomic.Int64
		slow := counted(&n, func(ctx context.Context, key string) (string, error) {
			time.Sleep(100 * time.Millisecond)
			return failing(ctx, key)
		})
		begin := time.Now()
		var wg sync.WaitGroup
		for _, g := range gs {
			for range 20 {
				wg.Go(func() {
					_, err := g.Get(t.Context(), "k", slow)
					if !errors.Is(err, errOrigin) && !errors.Is(err, cacheguard.ErrCooldown) {
						t.Errorf("got %v", err)
					}
					var cooling *cacheguard.CooldownError
					if errors.As(err, &cooling) && (cooling.Left <= 0 || cooling.Left > time.Second || !strings.Contains(cooling.Reason, errOrigin.Error())) {
						t.Errorf("cooldown for %v because of %q", cooling.Left, cooling.Reason)
					}
				})
			}
		}
		wg.Wait()
		if took := time.Since(begin); took > 250*time.Millisecond {
			t.Errorf("the last of the followers waited %v, want two loads' time", took)
		}
		for time.Since(begin) < 10*time.Second {
			for _, g := range gs {
				_, _ = g.Get(t.Context(), "k", slow)
			}
			time.Sleep(10 * time.Millisecond)
		}
		if loads := n.Load(); loads < 10 || loads > 20 {
			t.Errorf("%d loads in 10 cooldowns, want one or two in each", loads)
		}
	})
}

// S11: the origin is slower than the lease, and renewals fail: A fails after B
// took over, B after A did. Both count.
func TestFailuresCountThoughTheirLeasesHaveLapsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(memstore.Options{})
		opts := options{Lease: lasting(100 * time.Millisecond), Cooldown: 10 * time.Second}
		slow := func(ctx context.Context, key string) (string, error) {
			time.Sleep(150 * time.Millisecond)
			return failing(ctx, key)
		}
		var all []asking
		for range 2 {
			tapped := newTap(mem)
			outOfReach(tapped, "renew")
			all = append(all, ask(t.Context(), newGuard(t, tapped, opts), "k", slow))
		}
		for _, a := range all {
			if r := <-a; !errors.Is(r.err, errOrigin) {
				t.Errorf("got %v", r.err)
			}
		}
		getFails(t, newGuard(t, mem, opts), (&origin{}).load, cacheguard.ErrCooldown)
	})
}

// S12: a cooldown that is longer than LoadLimit outlives it.
func TestCooldownLongerThanLoadLimitLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gs := fleet(t, 3, memstore.New(memstore.Options{}), options{LoadLimit: time.Second, Cooldown: time.Minute})
		getFails(t, gs[0], failing, errOrigin)
		getFails(t, gs[1], failing, errOrigin)
		o := &origin{}
		time.Sleep(59 * time.Second)
		for _, g := range gs {
			getFails(t, g, o.load, cacheguard.ErrCooldown)
		}
		time.Sleep(2 * time.Second)
		get(t, gs[0], o.load, "k@0")
		o.loaded(t, 1)
	})
}

// S28: processes with other limits, as in a deploy. No failure of the one
// shortens the cooldown of the other.
func TestShorterCooldownDoesNotCutALongerOneShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(memstore.Options{})
		long := newGuard(t, mem, options{Cooldown: 20 * time.Second})
		short := newGuard(t, mem, options{Cooldown: time.Second, LoadLimit: time.Second})
		third := newGuard(t, mem, options{})
		getFails(t, long, failing, errOrigin)
		getFails(t, short, failing, errOrigin)
		o := &origin{}
		time.Sleep(19 * time.Second)
		getFails(t, third, o.load, cacheguard.ErrCooldown)
		time.Sleep(2 * time.Second)
		get(t, third, o.load, "k@0")
	})
}

// S37: A and B both failed; B recovers; A is first after each cooldown and
// fails.
func TestRecoveredProcessIsGrantedWithinTwoCooldowns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gs := fleet(t, 2, memstore.New(memstore.Options{}), options{Cooldown: time.Second})
		getFails(t, gs[0], failing, errOrigin)
		getFails(t, gs[1], failing, errOrigin)
		o := &origin{}
		for range 2 {
			time.Sleep(time.Second + time.Millisecond)
			getFails(t, gs[0], failing, errOrigin) // first, as always
			if v, err := gs[1].Get(t.Context(), "k", o.load); err == nil && v == "k@0" {
				return
			}
		}
		t.Error("the process that works was not granted within two cooldowns")
	})
}

// C048: the origin is down for half a minute while there is a stale value.
func TestFailuresNeitherDeleteNorShortenAStaleEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tapped := newTap(memstore.New(memstore.Options{}))
		gs := fleet(t, 2, tapped, options{Lifetime: cacheguard.Lifetime{TTL: time.Second, Grace: time.Minute}})
		o := &origin{}
		get(t, gs[0], o.load, "k@0")
		o.fails.Store(true)
		o.write()
		time.Sleep(time.Second)
		before := o.loads.Load()
		for range 3000 {
			for _, g := range gs {
				if e, err := g.GetEntry(t.Context(), "k", o.load); err != nil || e.Value != "k@0" || e.State != cacheguard.Stale {
					t.Fatalf("GetEntry = %+v, %v; want the stale value", e, err)
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
		if n := o.loads.Load() - before; n < 30 || n > 61 {
			t.Errorf("%d loads in 30 cooldowns, want one or two in each", n)
		}
		if n := tapped.count("claim"); n > 4*30 {
			t.Errorf("%d claims in 30 cooldowns of two processes", n)
		}
		o.fails.Store(false)
		for range 210 {
			time.Sleep(10 * time.Millisecond)
			_, _ = gs[0].Get(t.Context(), "k", o.load)
		}
		get(t, gs[0], o.load, "k@1")
	})
}

// C024: an outage of the origin is not an absence.
func TestFailureIsNotCachedAsAbsence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, memstore.New(memstore.Options{}), options{NegativeTTL: time.Hour})
		getFails(t, g, failing, errOrigin)
		time.Sleep(2 * time.Second)
		get(t, g, (&origin{}).load, "k@0")
	})
}

// C024: an absence is remembered for NegativeTTL, and not longer.
func TestAbsenceIsCachedForNegativeTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gs := fleet(t, 2, memstore.New(memstore.Options{}), options{NegativeTTL: 10 * time.Second})
		var n atomic.Int64
		absent := counted(&n, func(context.Context, string) (string, error) {
			return "ignored", errors.Join(errors.New("no rows"), cacheguard.ErrNotFound)
		})
		for range 1000 {
			for _, g := range gs {
				e, err := g.GetEntry(t.Context(), "k", absent)
				if !errors.Is(err, cacheguard.ErrNotFound) || e.State != cacheguard.Absent || e.Value != "" {
					t.Fatalf("GetEntry = %+v, %v", e, err)
				}
			}
			time.Sleep(9 * time.Millisecond)
		}
		if n.Load() != 1 {
			t.Errorf("%d loads within NegativeTTL, want 1", n.Load())
		}
		time.Sleep(2 * time.Second)
		get(t, gs[0], (&origin{}).load, "k@0")
	})
}

// C047, C092, C007: whatever a loader does instead of returning is an error to
// those who wait, also in the background; the key is free for other processes
// at once.
func TestLoaderThatDoesNotReturn(t *testing.T) {
	boom := errors.New("boom")
	for _, c := range []struct {
		name string
		load cacheguard.Loader[string]
		text string
		is   error
	}{
		{"panics", func(context.Context, string) (string, error) { panic("ouch") }, "ouch", nil},
		{"panics with an error", func(context.Context, string) (string, error) { panic(boom) }, "boom", boom},
		{"panics with nil", func(context.Context, string) (string, error) { panic(nil) }, "nil", nil}, //nolint:govet // what is tried here
		{"calls Goexit", func(context.Context, string) (string, error) { runtime.Goexit(); return "", nil }, "Goexit", nil},
		{"is nil when prepared", nil, "nil pointer", nil},
		{"returns an error that panics", func(context.Context, string) (string, error) {
			var e *poisonous
			return "", e
		}, "nil pointer", nil},
		{"returns an error whose cooldown panics", func(context.Context, string) (string, error) { return "", badCooler{} }, "no cooldown", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := memstore.New(memstore.Options{})
				var told atomic.Int64
				opts := options{Hooks: cacheguard.Hooks{Panic: func(i cacheguard.PanicInfo) {
					if i.Where != "loader" || len(i.Stack) == 0 {
						t.Errorf("told of a panic in %q with a stack of %d bytes", i.Where, len(i.Stack))
					}
					told.Add(1)
				}}}
				broken, healthy := newGuard(t, mem, opts), newGuard(t, mem, opts)
				ask := cacheguard.Ask[string]{Prepare: func() cacheguard.Reloader[string] {
					if c.load == nil {
						return nil
					}
					return func(ctx context.Context, _ cacheguard.Entry[string]) (string, error) {
						time.Sleep(time.Millisecond) // time to join
						return c.load(ctx, "k")
					}
				}}
				var wg sync.WaitGroup
				for range 20 {
					wg.Go(func() {
						_, err := broken.Do(t.Context(), "k", ask)
						var p *cacheguard.PanicError
						switch {
						case errors.Is(err, cacheguard.ErrCooldown) && c.load == nil:
							// no time to join: it came after the failure
						case !errors.As(err, &p) || !strings.Contains(err.Error(), c.text) || len(p.Stack) == 0:
							t.Errorf("Do's error is %v, want a *PanicError with %q and a stack", err, c.text)
						case c.is != nil && !errors.Is(err, c.is):
							t.Errorf("%v does not wrap the error that was the panic's value", err)
						}
					})
				}
				wg.Wait()
				if told.Load() != 1 {
					t.Errorf("told of %d panics, want 1", told.Load())
				}
				begin := time.Now()
				get(t, healthy, (&origin{}).load, "k@0")
				if took := time.Since(begin); took != 0 {
					t.Errorf("the key was in the way for %v", took)
				}
			})
		})
	}
}

// poisonous is an error type whose nil pointer must not be used: the classic
// typed nil.
type poisonous struct{ text string }

func (p *poisonous) Error() string { return p.text }

type badCooler struct{}

func (badCooler) Error() string           { return "bad" }
func (badCooler) Cooldown() time.Duration { panic("no cooldown") }

// C007: a refresh in the background panics. The stale value stays.
func TestPanicInTheBackgroundKeepsTheStaleValue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, memstore.New(memstore.Options{}), options{Lifetime: cacheguard.Lifetime{TTL: time.Second, Grace: time.Minute}})
		get(t, g, (&origin{}).load, "k@0")
		time.Sleep(2 * time.Second)
		for range 3 {
			get(t, g, func(context.Context, string) (string, error) { panic("ouch") }, "k@0")
			time.Sleep(2 * time.Second)
		}
	})
}

// C057: whoever waits while the load fails, or the key is invalidated, gets a
// value or an error.
func TestThoseWhoWaitGetAValueOrAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gs := fleet(t, 3, memstore.New(memstore.Options{}), options{Cooldown: -1})
		var fail atomic.Bool
		load := func(context.Context, string) (string, error) {
			time.Sleep(20 * time.Millisecond)
			if fail.Load() {
				return "", errOrigin
			}
			return "v", nil
		}
		for round := range 20 {
			fail.Store(round%2 == 0)
			var wg sync.WaitGroup
			for _, g := range gs {
				for range 10 {
					wg.Go(func() {
						if v, err := g.Get(t.Context(), "k", load); (v == "") == (err == nil) {
							t.Errorf("Get = %q, %v", v, err)
						}
					})
				}
			}
			time.Sleep(10 * time.Millisecond)
			invalidate(t, gs[round%3])
			wg.Wait()
			invalidate(t, gs[0])
		}
	})
}

// A failure that knows its own cooldown.
type cooler struct{ d time.Duration }

func (c cooler) Error() string           { return "later" }
func (c cooler) Cooldown() time.Duration { return c.d }

func TestErrorChoosesItsCooldown(t *testing.T) {
	for _, c := range []struct {
		cooldown, bound time.Duration
	}{
		{5 * time.Second, 5 * time.Second},
		{0, 0},
		{-time.Second, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			gs := fleet(t, 2, memstore.New(memstore.Options{}), options{Cooldown: time.Second})
			fails := func(context.Context, string) (string, error) { return "", cooler{c.cooldown} }
			getFails(t, gs[0], fails, cooler{c.cooldown})
			getFails(t, gs[1], fails, cooler{c.cooldown})
			if c.bound > 0 {
				time.Sleep(c.bound - time.Millisecond)
				getFails(t, gs[0], (&origin{}).load, cacheguard.ErrCooldown)
				time.Sleep(2 * time.Millisecond)
			}
			get(t, gs[0], (&origin{}).load, "k@0")
		})
	}
}

// A cooldown that is known in a process costs no command, and ends with a value.
func TestKnownCooldownIsNotAskedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(memstore.Options{})
		tapped := newTap(mem)
		a, b := newGuard(t, tapped, options{Cooldown: 10 * time.Second}), newGuard(t, mem, options{})
		getFails(t, a, failing, errOrigin)
		for range 100 {
			getFails(t, a, failing, cacheguard.ErrCooldown)
		}
		if n := tapped.count("claim"); n > 2 {
			t.Errorf("%d claims, want the one that loaded and one that was told", n)
		}
		get(t, b, (&origin{}).load, "k@0")
		get(t, a, failing, "k@0")
	})
}

// A loader whose context has ended says nothing about the origin: that it found
// nothing then is not remembered.
func TestAbsenceFromALoadThatWasCutIsNotBelieved(t *testing.T) {
	sloppy := func(ctx context.Context, _ string) (string, error) {
		<-ctx.Done()
		return "", cacheguard.ErrNotFound
	}
	t.Run("closed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			mem := memstore.New(memstore.Options{})
			opts := options{NegativeTTL: time.Hour}
			closing, other := newGuard(t, mem, opts), newGuard(t, mem, opts)
			first := ask(t.Context(), closing, "k", sloppy)
			synctest.Wait()
			if err := closing.Close(); err != nil {
				t.Error(err)
			}
			if r := <-first; !errors.Is(r.err, cacheguard.ErrClosed) {
				t.Errorf("got %v, want ErrClosed", r.err)
			}
			get(t, other, (&origin{}).load, "k@0")
		})
	})
	t.Run("cut at LoadLimit", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := newGuard(t, memstore.New(memstore.Options{}), options{NegativeTTL: time.Hour, LoadLimit: time.Second})
			getFails(t, g, sloppy, context.DeadlineExceeded)
			time.Sleep(2 * time.Second)
			get(t, g, (&origin{}).load, "k@0")
		})
	})
}

// The outcome of a failed load is told to the store without the loader's
// secrets growing without bound.
func TestReasonOfAFailureIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gs := fleet(t, 2, memstore.New(memstore.Options{}), options{})
		long := func(context.Context, string) (string, error) {
			return "", errors.New(strings.Repeat("\xff長", 10_000))
		}
		_, _ = gs[0].Get(t.Context(), "k", long)
		_, _ = gs[1].Get(t.Context(), "k", long)
		_, err := gs[0].Get(t.Context(), "k", long)
		var cooling *cacheguard.CooldownError
		if !errors.As(err, &cooling) || len(cooling.Reason) == 0 || len(cooling.Reason) > 256 || strings.ToValidUTF8(cooling.Reason, "") != cooling.Reason {
			t.Errorf("got %v", err)
		}
	})
}

// A value that cannot be encoded is a failed load, not a crash.
func TestCodecThatFailsOrPanics(t *testing.T) {
	for _, panics := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			mem := memstore.New(memstore.Options{})
			good := newGuard(t, mem, options{})
			bad := newGuard(t, mem, options{Codec: badCodec{panics}})
			if _, err := bad.Get(t.Context(), "k", (&origin{}).load); err == nil {
				t.Error("a value that could not be encoded was taken for stored")
			}
			if err := bad.Set(t.Context(), "k", "v"); err == nil {
				t.Error("Set of a value that could not be encoded returned nil")
			}
			get(t, good, (&origin{}).load, "k@0")
			// What cannot be decoded is a miss.
			if v, err := bad.Get(t.Context(), "k", failing); !errors.Is(err, errOrigin) && !errors.Is(err, cacheguard.ErrCooldown) {
				t.Errorf("Get = %q, %v; want that the loader was asked", v, err)
			}
		})
	}
}

type badCodec struct{ panics bool }

func (c badCodec) Encode(string) ([]byte, error)   { return nil, c.fail() }
func (c badCodec) Decode(b []byte) (string, error) { return "wrong", c.fail() }

func (c badCodec) fail() error {
	if c.panics {
		panic("codec")
	}
	return errors.New("codec")
}

// Faults of the store are told with their operation and class, and nothing that
// the fence refuses is one.
func TestFaultsAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tapped := newTap(memstore.New(memstore.Options{}))
		var mu sync.Mutex
		told := map[string]store.Class{}
		g := newGuard(t, tapped, options{Hooks: cacheguard.Hooks{Fault: func(i cacheguard.FaultInfo) {
			mu.Lock()
			defer mu.Unlock()
			told[i.Op] = i.Class
			if i.Key != "k" {
				t.Errorf("told of key %q", i.Key)
			}
		}}})
		outOfReach(tapped, "load")
		get(t, g, (&origin{}).load, "k@0")
		tapped.on(at("fill", func() error { return lost("fill", store.ClassFull) }), nil)
		get(t, g, (&origin{}).load, "k@0")
		mu.Lock()
		defer mu.Unlock()
		if told["load"] != store.ClassTimeout || told["fill"] != store.ClassFull || len(told) != 2 {
			t.Errorf("told %v", told)
		}
	})
}

// A proxy sends reads to a replica that does not follow: claims meet an entry
// that reads never see. The flight does not look and claim for ever.
func TestAnEntryThatOnlyClaimsSeeIsLoadedWithoutALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &origin{takes: time.Millisecond}
		mem := memstore.New(memstore.Options{})
		mustGet(t, newGuard(t, mem, options{}), o, "k@0")
		blind := newTap(unread{mem})
		g := newGuard(t, blind, options{})
		for range 3 {
			mustGet(t, g, o, "k@0")
		}
		if n, calls := blind.reset(); n > 3*20 {
			t.Errorf("three reads were %d calls: %v", n, calls)
		}
	})
}

// unread is a store in which reads find nothing.
type unread struct{ store.Store }

func (unread) Load(context.Context, store.Key) (store.Entry, error) { return store.Entry{}, nil }
