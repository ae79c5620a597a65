package cacheguard_test

import (
	"context"
	"errors"
	"fmt"
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

type contextType = context.Context

// hang makes every call of a tap take the store's bound and then fail.
func hang(s *tap, bound time.Duration) {
	s.on(func(op, _ string) error {
		time.Sleep(bound)
		return lost(op, store.ClassTimeout)
	}, nil)
}

const storeBound = 100 * time.Millisecond

// P8: while the store hangs each call is answered, at first after one time-out
// and a load, then after a load alone; and when it is back, all is as before.
func TestReadsAreAnsweredWhileTheStoreHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &origin{takes: 10 * time.Millisecond}
		s := newTap(memstore.New(memstore.Options{}))
		var isOpen atomic.Bool
		g := newGuard(t, s, options{Hooks: cacheguard.Hooks{Breaker: func(open bool) { isOpen.Store(open) }}})
		hang(s, storeBound)
		for i := range 10 {
			begin := time.Now()
			mustGet(t, g, o, "k@0")
			took, want := time.Since(begin), o.takes
			if i < 3 {
				want += storeBound
			}
			// What a load without a lease waits for others is in the millisecond.
			if took < want || took > want+time.Millisecond {
				t.Errorf("call %d took %v, want %v and at most a millisecond", i, took, want)
			}
		}
		if !isOpen.Load() {
			t.Error("the breaker has not opened")
		}
		calls := s.count("load")
		time.Sleep(10 * time.Second)
		if n := s.count("load") - calls; n < 10 || n > 25 {
			t.Errorf("%d probes in 10 s of outage, want about two a second", n)
		}

		s.on(nil, nil)
		time.Sleep(time.Second)
		if isOpen.Load() {
			t.Error("the breaker is still open a second after the store came back")
		}
		mustGet(t, g, o, "k@0")
		before := o.loads.Load()
		mustGet(t, g, o, "k@0")
		if n := o.loads.Load() - before; n != 0 {
			t.Error("the value is not stored again")
		}
	})
}

// P8, to the figure: a store stops under 200 callers of warm keys in each of
// three processes, and comes back with what it had, or empty. The first calls
// take one time-out and a load, and 5 ms at most; once the breaker is open, a load
// and a millisecond; two seconds after its return each key is loaded once in the
// fleet if it is gone, and not at all if it is there.
func TestAnOutageAndItsEndToTheFigure(t *testing.T) {
	for name, empty := range map[string]bool{"with what it had": false, "empty": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const processes, callers, keys = 3, 200, 50
				o := &origin{takes: 20 * time.Millisecond}
				mem := memstore.New(memstore.Options{})
				var gs []*guard
				var taps []*tap
				var isOpen [processes]atomic.Bool
				for i := range processes {
					s := newTap(mem)
					gs = append(gs, newGuard(t, s, options{Hooks: cacheguard.Hooks{Breaker: func(open bool) { isOpen[i].Store(open) }}}))
					taps = append(taps, s)
				}
				// storm lets all callers ask at once, and returns how long the
				// slowest waited.
				storm := func() (slowest time.Duration) {
					var longest atomic.Int64
					var wg sync.WaitGroup
					for _, g := range gs {
						for i := range callers {
							wg.Go(func() {
								begin := time.Now()
								key := fmt.Sprint(i % keys)
								if v, err := g.Get(t.Context(), key, o.load); err != nil || v != key+"@0" {
									t.Errorf("Get = %q, %v", v, err)
								}
								took := int64(time.Since(begin))
								for m := longest.Load(); took > m && !longest.CompareAndSwap(m, took); m = longest.Load() {
								}
							})
						}
					}
					wg.Wait()
					return time.Duration(longest.Load())
				}
				storm() // warms up
				for _, s := range taps {
					hang(s, storeBound)
				}
				if took, want := storm(), storeBound+o.takes+5*time.Millisecond; took > want {
					t.Errorf("the first calls took up to %v, want at most %v", took, want)
				}
				for i := range isOpen {
					if !isOpen[i].Load() {
						t.Fatalf("the breaker of process %d is closed after %d calls that failed", i, callers)
					}
				}
				for range 10 {
					before := o.loads.Load()
					if took, want := storm(), o.takes+time.Millisecond; took > want {
						t.Errorf("with an open breaker calls took up to %v, want at most %v", took, want)
					}
					if n := o.loads.Load() - before; n != processes*keys {
						t.Errorf("%d loads of %d keys in %d processes, want one each", n, keys, processes)
					}
				}
				time.Sleep(20 * time.Second)
				want := int64(0)
				if empty {
					want = keys
					for i := range keys {
						mem.DropEntry(store.Key{Space: "cacheguard", ID: fmt.Sprint(i)})
						mem.DropRecord(store.Key{Space: "cacheguard", ID: fmt.Sprint(i)})
					}
				}
				for _, s := range taps {
					s.on(nil, nil)
				}
				time.Sleep(2 * time.Second)
				before := o.loads.Load()
				storm()
				if n := o.loads.Load() - before; n != want {
					t.Errorf("%d loads of %d keys two seconds after the store is back, want %d", n, keys, want)
				}
			})
		})
	}
}

// P8: in an outage a key is loaded by one flight per process at a time.
func TestOutageLoadsOneAtATimePerKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &origin{takes: 100 * time.Millisecond}
		s := newTap(memstore.New(memstore.Options{}))
		g := newGuard(t, s, options{})
		hang(s, storeBound)
		var running, most atomic.Int64
		load := func(ctx context.Context, key string) (string, error) {
			n := running.Add(1)
			defer running.Add(-1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			return o.load(ctx, key)
		}
		var wg sync.WaitGroup
		for i := range 200 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 5 * time.Millisecond)
				if v, err := g.Get(t.Context(), "k", load); err != nil || v != "k@0" {
					t.Errorf("Get = %q, %v", v, err)
				}
			})
		}
		wg.Wait()
		if most.Load() != 1 {
			t.Errorf("%d loads of one key at once", most.Load())
		}
		if n := o.loads.Load(); n > 15 {
			t.Errorf("%d loads for a second of callers; one at a time are about ten", n)
		}
	})
}

// P8, P9: a dead store is not a storm on the origin, however many keys are read.
func TestOutageLoadsAreBoundedOverAllKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTap(memstore.New(memstore.Options{}))
		g := newGuard(t, s, options{OutageLoads: 5, WaitLimit: time.Second})
		hang(s, storeBound)
		var running, most atomic.Int64
		load := func(ctx context.Context, key string) (string, error) {
			n := running.Add(1)
			defer running.Add(-1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			time.Sleep(300 * time.Millisecond)
			return key, nil
		}
		var served, refused atomic.Int64
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				switch _, err := g.Get(t.Context(), fmt.Sprint(i), load); {
				case err == nil:
					served.Add(1)
				case errors.Is(err, cacheguard.ErrWaitLimit):
					refused.Add(1)
				default:
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if most.Load() != 5 {
			t.Errorf("%d loads at once, want OutageLoads, 5", most.Load())
		}
		if served.Load() < 15 || served.Load()+refused.Load() != 50 {
			t.Errorf("%d served, %d told ErrWaitLimit", served.Load(), refused.Load())
		}
	})
}

// P8: what is known is used before the origin is asked.
func TestOutageServesNearCopiesAsStaleBeforeTheOriginIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &origin{takes: time.Millisecond}
		s := newTap(memstore.New(memstore.Options{}))
		g := newGuard(t, s, options{Near: nearSecond})
		mustGet(t, g, o, "k@0")
		hang(s, storeBound)
		loads := o.loads.Load()
		time.Sleep(30 * time.Second)
		for range 5 {
			e, err := g.GetEntry(t.Context(), "k", o.load)
			if err != nil || e.Value != "k@0" || e.State != cacheguard.Stale {
				t.Fatalf("GetEntry = %+v, %v", e, err)
			}
		}
		if o.loads.Load() != loads {
			t.Error("the origin was asked although a stale value is known")
		}
		time.Sleep(2 * time.Minute) // past TTL + grace: gone in the store, and here
		mustGet(t, g, o, "k@0")
		if o.loads.Load() == loads {
			t.Error("a copy is served past the life of its entry")
		}
	})
}

// P8: with a near cache the origin is asked once per process, key and near life
// while the store is away, whatever the number of callers. What this process
// writes itself is seen at once.
func TestOutageLoadsAreKeptByTheNearCacheForItsTTL(t *testing.T) {
	for name, absent := range map[string]bool{"value": false, "absent": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := &origin{takes: 10 * time.Millisecond}
				load := o.load
				if absent {
					load = func(ctx context.Context, key string) (string, error) {
						_, _ = o.load(ctx, key)
						return "", cacheguard.ErrNotFound
					}
				}
				s := newTap(memstore.New(memstore.Options{}))
				g := newGuard(t, s, options{Near: nearSecond, NegativeTTL: time.Minute})
				hang(s, storeBound)
				var wg sync.WaitGroup
				for i := range 200 {
					wg.Go(func() {
						time.Sleep(time.Duration(i) * time.Millisecond)
						for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
							if v, err := g.Get(t.Context(), "k", load); !absent && (err != nil || v != "k@0") || absent && !errors.Is(err, cacheguard.ErrNotFound) {
								t.Errorf("Get = %q, %v", v, err)
							}
						}
					})
				}
				wg.Wait()
				if n := o.loads.Load(); n < 10 || n > 12 {
					t.Errorf("%d loads in 10 s, want one for each second that a copy lives", n)
				}
				if absent {
					return
				}
				mustGet(t, g, o, "k@0")
				o.version.Store(1)
				_ = g.Invalidate(t.Context(), "k")
				mustGet(t, g, o, "k@1")
			})
		})
	}
}

// S6: what a load without a lease brings is not kept if the key was written
// meanwhile, as far as this process has heard.
func TestOutageLoadThatCrossesAWriteIsNotKept(t *testing.T) {
	for name, written := range map[string]bool{"written": true, "not written": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := &origin{takes: time.Second}
				mem := memstore.New(memstore.Options{})
				s := newTap(mem)
				opts := options{Near: cacheguard.Near{MaxEntries: 10, TTL: time.Hour}, Lifetime: cacheguard.Lifetime{TTL: time.Hour}}
				g, other := newGuard(t, s, opts), newGuard(t, mem, options{})
				s.on(func(op, _ string) error {
					if op == "claim" {
						return lost(op, store.ClassFull)
					}
					return nil
				}, nil)
				loaded := make(chan struct{})
				go func() {
					defer close(loaded)
					mustGet(t, g, o, "k@0")
				}()
				time.Sleep(500 * time.Millisecond)
				if written {
					o.version.Store(1)
					if err := other.Invalidate(t.Context(), "k"); err != nil {
						t.Fatal(err)
					}
				}
				<-loaded
				mustGet(t, g, o, fmt.Sprint("k@", o.version.Load()))
				if n, want := o.loads.Load(), 1+o.version.Load(); n != want {
					t.Errorf("%d loads, want %d", n, want)
				}
			})
		})
	}
}

func TestFailFastAnswersWithTheFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &origin{takes: time.Millisecond}
		s := newTap(memstore.New(memstore.Options{}))
		g := newGuard(t, s, options{Outage: cacheguard.FailFast})
		hang(s, storeBound)
		for i := range 5 {
			begin := time.Now()
			_, err := g.Get(t.Context(), "k", o.load)
			var f *store.Fault
			if !errors.As(err, &f) {
				t.Fatalf("Get = %v, want a *store.Fault", err)
			}
			if took := time.Since(begin); i >= 3 && took != 0 {
				t.Errorf("with an open breaker the fault took %v", took)
			}
		}
		if o.loads.Load() != 0 {
			t.Error("the origin was asked")
		}
	})
}

// A store that is full, or a replica, answers at once and can be read: the
// breaker stays closed.
func TestBreakerStaysClosedForFaultsOfWritesAlone(t *testing.T) {
	for _, class := range []store.Class{store.ClassFull, store.ClassReadOnly, store.ClassData} {
		t.Run(string(class), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := &origin{takes: time.Millisecond}
				s := newTap(memstore.New(memstore.Options{}))
				g := newGuard(t, s, options{Hooks: cacheguard.Hooks{Breaker: func(bool) { t.Error("the breaker changed") }}})
				s.on(func(op, _ string) error {
					if op == "claim" || op == "fill" {
						return lost(op, class)
					}
					return nil
				}, nil)
				for range 10 {
					mustGet(t, g, o, "k@0")
				}
			})
		})
	}
}

// C068: a value that the store will not take is still given to those who wait.
func TestFillThatTheStoreRefusesStillAnswersItsCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &origin{takes: 100 * time.Millisecond}
		s := newTap(memstore.New(memstore.Options{}))
		g := newGuard(t, s, options{})
		s.on(func(op, _ string) error {
			if op == "fill" {
				return lost(op, store.ClassFull)
			}
			return nil
		}, nil)
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() { mustGet(t, g, o, "k@0") })
		}
		wg.Wait()
		if n := o.loads.Load(); n > 2 {
			t.Errorf("%d loads for 20 callers of one instant", n)
		}
	})
}

// A load that another load asks for does not need a place of its own: loads that
// hold all of them could wait for one more.
func TestNestedOutageLoadsDoNotWaitForTheirOwnPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTap(memstore.New(memstore.Options{}))
		g := newGuard(t, s, options{OutageLoads: 2})
		hang(s, 0)
		var wg sync.WaitGroup
		begin := time.Now()
		for i := range 2 {
			wg.Go(func() {
				v, err := g.Get(t.Context(), fmt.Sprint("outer", i), func(ctx context.Context, key string) (string, error) {
					time.Sleep(10 * time.Millisecond) // both hold a place
					return g.Get(ctx, "inner of "+key, func(context.Context, string) (string, error) { return "v", nil })
				})
				if err != nil || v != "v" {
					t.Errorf("Get = %q, %v", v, err)
				}
			})
		}
		wg.Wait()
		if took := time.Since(begin); took > time.Second {
			t.Errorf("took %v: the loads waited for each other's places", took)
		}
	})
}

func TestKeysThatAreTooLongAreRefusedBeforeAnythingIsWritten(t *testing.T) {
	g := newGuard(t, memstore.New(memstore.Options{}), options{})
	long := strings.Repeat("k", 64<<10+1)
	_, update := g.Update(t.Context(), long, func(context.Context) (string, error) {
		t.Error("the origin was written")
		return "", nil
	})
	_, many := g.GetMany(t.Context(), []string{"k", long}, (&shop{}).load)
	_, get := g.Get(t.Context(), long, (&origin{}).load)
	for name, err := range map[string]error{
		"Get": get, "GetMany": many, "Update": update,
		"Set": g.Set(t.Context(), long, "v"), "Invalidate": g.Invalidate(t.Context(), "k", long), "Expire": g.Expire(t.Context(), long),
	} {
		if err == nil || !strings.Contains(err.Error(), "use at most 65536") {
			t.Errorf("%s of a key that is too long = %v", name, err)
		}
	}
}
