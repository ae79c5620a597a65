package cacheguard_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
)

// The lease: who loads, what happens when its holder is paused, cut off or
// gone (P1, P4), and what following it costs.

// S7: A loads and is paused past its lease; B is granted; A resumes; B is paused
// past its lease; and so on. A load that is slower than every lease must still
// be stored.
func TestPausedHoldersDoNotStarveEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(memstore.Options{})
		const load, length = 5 * time.Second, time.Second
		var takeovers, landed atomic.Int64
		opts := options{Lease: lasting(length), Hooks: cacheguard.Hooks{
			Claim: func(i cacheguard.ClaimInfo) {
				if i.Takeover {
					takeovers.Add(1)
				}
			},
			Fill: func(i cacheguard.FillInfo) {
				if i.Err == nil {
					landed.Add(1)
				}
			},
		}}
		o := &origin{takes: load}
		var wg sync.WaitGroup
		begin := time.Now()
		for range 4 {
			tapped := newTap(mem)
			g := newGuard(t, tapped, opts)
			// A pause: each renewal takes longer than the lease.
			tapped.on(at("renew", func() error { time.Sleep(length * 3 / 2); return nil }), nil)
			wg.Go(func() { get(t, g, o.load, "k@0") })
		}
		wg.Wait()
		if takeovers.Load() < 3 {
			t.Fatalf("%d takeovers, want three: this is not the schedule", takeovers.Load())
		}
		if landed.Load() == 0 {
			t.Error("no fill landed")
		}
		// Each leads when the lease before has lapsed, and loads once.
		if took := time.Since(begin); took > 3*length+load+50*time.Millisecond {
			t.Errorf("took %v", took)
		}
		o.loaded(t, 4)
		before := o.loads.Load()
		get(t, newGuard(t, mem, opts), o.load, "k@0")
		o.loaded(t, before)
	})
}

// S8: one process; another invalidates faster than a load lasts.
func TestFrequentInvalidationsDoNotCancelLoads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gs := fleet(t, 2, memstore.New(memstore.Options{}), options{Lease: lasting(100 * time.Millisecond)})
		o := &origin{takes: time.Second}
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(20 * time.Millisecond):
					invalidate(t, gs[1])
				}
			}
		})
		for range 3 {
			if r := ask(t.Context(), gs[0], "k", o.load).got(t, "k@0"); r.took != o.takes {
				t.Errorf("took %v, want the load's %v", r.took, o.takes)
			}
		}
		close(stop)
		wg.Wait()
		o.loaded(t, 3)
	})
}

// S9: the record is evicted during every load.
func TestLossOfTheRecordCostsALoadAndNothingElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(memstore.Options{})
		g := newGuard(t, mem, options{Lease: lasting(100 * time.Millisecond)})
		o := &origin{takes: time.Second}
		evicting := func(ctx context.Context, key string) (string, error) {
			time.AfterFunc(o.takes/2, func() { mem.DropRecord(store.Key{Space: "cacheguard", ID: key}) })
			return o.load(ctx, key)
		}
		first := ask(t.Context(), g, "k", evicting)
		time.Sleep(o.takes * 3 / 4)
		second := ask(t.Context(), g, "k", evicting)
		if r := first.got(t, "k@0"); r.took != o.takes {
			t.Errorf("the first caller waited %v, want one load's %v", r.took, o.takes)
		}
		second.got(t, "k@0")
		o.loaded(t, 2)
		if e, err := mem.Load(t.Context(), key); err != nil || e.Kind != store.None {
			t.Errorf("the store holds %q, %v; want nothing of a refused fill", e.Payload, err)
		}
	})
}

// S14: a claim's reply is lost and the claim is sent again. The local deadline
// counts from the first sending, so it is never later than the store's.
func TestLocalDeadlineCountsFromTheFirstSending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(memstore.Options{})
		tapped := newTap(mem)
		const length = 4 * time.Second
		a, b := newGuard(t, tapped, options{Lease: lasting(length)}), newGuard(t, mem, options{Lease: lasting(length)})
		o := &origin{takes: 10 * time.Second}
		begin := time.Now()
		var renewed atomic.Int64
		tapped.on(at("renew", func() error {
			renewed.CompareAndSwap(0, int64(time.Since(begin)))
			return nil
		}), at("claim", once(func() error {
			time.Sleep(3 * time.Second)
			return lost("claim", store.ClassConnection)
		})))
		first := ask(t.Context(), a, "k", o.load)
		time.Sleep(time.Second)
		second := ask(t.Context(), b, "k", o.load)
		first.got(t, "k@0")
		second.got(t, "k@0")
		o.loaded(t, 1)
		if at := time.Duration(renewed.Load()); at == 0 || at >= length {
			t.Errorf("first renewal at %v; want it before the %v at which the first claim's lease ends", at, length)
		}
	})
}

// S24: a renewal comes after the record is gone. It must not make a lease of
// nothing: another is granted at once.
func TestRenewalDoesNotBringBackALostLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(memstore.Options{})
		tapped := newTap(mem)
		const length = time.Second
		a, b := newGuard(t, tapped, options{Lease: lasting(length)}), newGuard(t, mem, options{Lease: lasting(length)})
		o, loading := &origin{}, newGate()
		first := ask(t.Context(), a, "k", o.gated(loading))
		loading.holds(t, 1)
		mem.DropRecord(key)
		time.Sleep(length)
		if tapped.count("renew") == 0 {
			t.Fatal("no renewal was sent: this is not the schedule")
		}
		if r := ask(t.Context(), b, "k", o.load).got(t, "k@0"); r.took != 0 || r.State != cacheguard.Rebuilt {
			t.Errorf("the other process waited %v for a lease that nobody has (%v)", r.took, r.State)
		}
		loading.open()
		first.got(t, "k@0")
	})
}

// S26: the holder crashes late in a long lease, and the next load is slow. With
// the default limits that is no reason to give up.
func TestFollowersOutlastALateCrashAndASlowLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(memstore.Options{})
		opts := options{Lease: cacheguard.LeaseTuning{Initial: 20 * time.Second}}
		crashing := newTap(mem)
		a := newGuard(t, crashing, opts)
		gs := fleet(t, 3, mem, opts)
		o := &origin{takes: 25 * time.Second}
		dead := newGate()
		crashed := ask(t.Context(), a, "k", o.gated(dead))
		dead.holds(t, 1)
		time.Sleep(time.Second)
		var all []asking
		for _, g := range gs {
			all = append(all, ask(t.Context(), g, "k", o.load))
		}
		time.Sleep(15 * time.Second) // it has renewed once, to 30 s
		crashing.on(down, nil)
		for _, f := range all {
			f.got(t, "k@0")
		}
		o.loaded(t, 2)
		dead.open()
		if r := <-crashed; !errors.Is(r.err, context.DeadlineExceeded) {
			t.Errorf("the crashed holder's own caller got %v; want that the load was cut", r.err)
		}
	})
}

// P4, C072: a holder that crashes delays the others by what is left of its
// lease; then exactly one takes over.
func TestCrashedHolderDelaysByWhatIsLeftOfItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(memstore.Options{})
		const length = 3 * time.Second
		var takeovers atomic.Int64
		opts := options{Lease: lasting(length), Hooks: cacheguard.Hooks{Claim: func(i cacheguard.ClaimInfo) {
			if i.Takeover {
				takeovers.Add(1)
			}
		}}}
		crashing := newTap(mem)
		a := newGuard(t, crashing, opts)
		o, dead := &origin{takes: 100 * time.Millisecond}, newGate()
		crashed := ask(t.Context(), a, "k", o.gated(dead))
		dead.holds(t, 1)
		crashing.on(down, nil)
		time.Sleep(time.Second)
		var all []asking
		for _, g := range fleet(t, 8, mem, opts) {
			for range 20 {
				all = append(all, ask(t.Context(), g, "k", o.load))
			}
		}
		for _, f := range all {
			if r := f.got(t, "k@0"); r.took < 2*time.Second || r.took > 2*time.Second+o.takes+10*time.Millisecond {
				t.Errorf("waited %v; want the 2s that were left of the lease, and a load", r.took)
			}
		}
		o.loaded(t, 2)
		if n := takeovers.Load(); n != 1 {
			t.Errorf("%d takeovers, want 1", n)
		}
		dead.open()
		<-crashed
	})
}

// S27: the lease that followers wait for lapses and is granted anew; the new
// holder's fill wakes them although they have not asked since.
func TestFillOfTheNextHolderWakesFollowers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(memstore.Options{})
		opts := options{Lease: lasting(3 * time.Second)}
		crashing, stopped := newTap(mem), newTap(mem)
		a, b, c := newGuard(t, crashing, opts), newGuard(t, mem, opts), newGuard(t, stopped, opts)
		o, dead := &origin{}, newGate()
		crashed := ask(t.Context(), a, "k", o.gated(dead))
		dead.holds(t, 1)
		crashing.on(down, nil)
		// Two follow; one of them is kept from claiming again.
		claims, firstClaim := newGate(), atomic.Bool{}
		stopped.on(at("claim", func() error {
			if firstClaim.Swap(true) {
				claims.stop()
			}
			return nil
		}), nil)
		waiting := ask(t.Context(), c, "k", o.load)
		synctest.Wait()
		stopped.on(nil, nil)
		next := ask(t.Context(), b, "k", o.load)
		nextGot := next.got(t, "k@0")
		got := waiting.got(t, "k@0")
		if got.took-nextGot.took > 10*time.Millisecond {
			t.Errorf("the follower was answered %v after the fill; want that the fill woke it", got.took-nextGot.took)
		}
		claims.open()
		dead.open()
		<-crashed
	})
}

// S32: A rebuilds a stale entry; Expire ends its lease; the renewal says that it
// is lost; the stale entry is there; and again, faster than a load.
func TestStaleEntryDoesNotCancelTheLoadThatReplacesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(memstore.Options{})
		var cancelled atomic.Int64
		gs := fleet(t, 2, mem, options{
			Lifetime: cacheguard.Lifetime{TTL: time.Second, Grace: time.Hour},
			Lease:    lasting(100 * time.Millisecond),
			Hooks: cacheguard.Hooks{Load: func(i cacheguard.LoadInfo) {
				if i.Err != nil {
					cancelled.Add(1)
				}
			}},
		})
		o := &origin{}
		get(t, gs[0], o.load, "k@0")
		o.takes = time.Second
		time.Sleep(2 * time.Second)
		o.write()
		for range 100 { // two seconds
			get(t, gs[0], o.load, "k@0")
			if err := gs[1].Expire(t.Context(), "k"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(20 * time.Millisecond)
		}
		if n := cancelled.Load(); n != 0 {
			t.Errorf("%d loads were cancelled, want none", n)
		}
		time.Sleep(o.takes) // what is running ends, and is refused
		get(t, gs[0], o.load, "k@0")
		time.Sleep(o.takes + time.Millisecond)
		get(t, gs[1], o.load, "k@1")
		if n := o.loads.Load(); n > 5 {
			t.Errorf("%d loads of a second each in four seconds", n)
		}
	})
}

// S32, with an entry that came during the load and was made stale at once.
func TestStaleEntryOfAnotherDoesNotCancelALoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gs := fleet(t, 2, memstore.New(memstore.Options{}), options{Lease: lasting(time.Second)})
		o := &origin{takes: 5 * time.Second}
		first := ask(t.Context(), gs[0], "k", o.load)
		synctest.Wait()
		if err := errors.Join(gs[1].Set(t.Context(), "k", "set"), gs[1].Expire(t.Context(), "k")); err != nil {
			t.Fatal(err)
		}
		if r := first.got(t, "k@0"); r.took != o.takes {
			t.Errorf("took %v, want the load's %v", r.took, o.takes)
		}
	})
}

// S35: early refresh; the renewal says that the lease is lost, and the entry
// that is to be replaced is still fresh.
func TestFreshEntryDoesNotCancelItsOwnEarlyRefresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(memstore.Options{})
		var early, failed atomic.Int64
		g := newGuard(t, mem, options{
			Lease: lasting(100 * time.Millisecond),
			Hooks: cacheguard.Hooks{
				Load: func(i cacheguard.LoadInfo) {
					if i.Early {
						early.Add(1)
					}
					if i.Err != nil {
						failed.Add(1)
					}
				},
			},
		})
		o := &origin{}
		get(t, g, o.load, "k@0")
		o.write()
		o.takes = time.Second
		refreshing := cacheguard.Ask[string]{
			Accept:  func(cacheguard.Entry[string]) cacheguard.Use { return cacheguard.TakeAndRefresh },
			Prepare: func() cacheguard.Reloader[string] { return reloader(o.load) },
		}
		if e, err := g.Do(t.Context(), "k", refreshing); err != nil || e.State != cacheguard.Fresh {
			t.Fatalf("Do = %+v, %v", e, err)
		}
		synctest.Wait()
		mem.DropRecord(key)
		time.Sleep(2 * o.takes)
		if early.Load() != 1 || failed.Load() != 0 {
			t.Errorf("%d early refreshes ended, %d of them cancelled; want 1 and none", early.Load(), failed.Load())
		}
	})
}

// reloader is a loader that does not care what it replaces.
func reloader(load cacheguard.Loader[string]) cacheguard.Reloader[string] {
	return func(ctx context.Context, _ cacheguard.Entry[string]) (string, error) { return load(ctx, "k") }
}

// A holder that hears that its lease is lost, and finds that another has
// brought a value meanwhile, stops its load: the value answers its callers.
func TestLoadEndsWhenAnotherHasBroughtAValue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(memstore.Options{})
		gs := fleet(t, 2, mem, options{Lease: lasting(time.Second)})
		cut := make(chan error, 1)
		first := ask(t.Context(), gs[0], "k", func(ctx context.Context, _ string) (string, error) {
			<-ctx.Done()
			cut <- context.Cause(ctx)
			return "", ctx.Err()
		})
		synctest.Wait()
		mem.DropRecord(key)
		get(t, gs[1], (&origin{}).load, "k@0")
		if r := first.got(t, "k@0"); r.took >= time.Second || r.State != cacheguard.Followed {
			t.Errorf("answered after %v (%v), want it at the first renewal, as followed", r.took, r.State)
		}
		if err := <-cut; !errors.Is(err, store.ErrLost) {
			t.Errorf("the load was cut by %v, want %v", err, store.ErrLost)
		}
	})
}

// C027, C028, S34: a claim's reply is lost. Either the claimer has the lease
// after all, or nobody has.
func TestClaimWithALostReplyLeavesNoOrphan(t *testing.T) {
	for _, class := range []store.Class{store.ClassConnection, store.ClassTimeout} {
		t.Run(string(class), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem := memstore.New(memstore.Options{})
				tapped := newTap(mem)
				a, b := newGuard(t, tapped, options{}), newGuard(t, mem, options{})
				o := &origin{}
				tapped.on(nil, at("claim", once(func() error { return lost("claim", class) })))
				get(t, a, o.load, "k@0")
				invalidate(t, a)
				tapped.on(nil, at("claim", once(func() error { return lost("claim", class) })))
				get(t, a, o.load, "k@0")
				synctest.Wait()
				mem.DropEntry(key)
				if r := ask(t.Context(), b, "k", o.load).got(t, "k@0"); r.took != 0 {
					t.Errorf("the other process waited %v for a lease that nobody uses", r.took)
				}
			})
		})
	}
}

// The release of a claim that was given up comes late, when its flight holds a
// lease again. It must not end that one.
func TestLateGiveUpDoesNotEndTheLeaseOfTheNextClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(memstore.Options{})
		tapped := newTap(mem)
		a, b := newGuard(t, tapped, options{}), newGuard(t, mem, options{})
		o := &origin{takes: time.Second}
		releases := newGate()
		var claims atomic.Int64
		tapped.on(func(op, _ string) error {
			switch op {
			case "release":
				releases.stop()
			case "claim":
				if claims.Add(1) == 1 {
					_ = b.Set(t.Context(), "k", "gone soon")
					return lost(op, store.ClassConnection) // asked again, it will say "changed"
				}
			}
			return nil
		}, at("claim", func() error { mem.DropEntry(key); return nil }))
		first := ask(t.Context(), a, "k", o.load)
		releases.holds(t, 1)
		o.loaded(t, 1)
		releases.open()
		synctest.Wait()
		second := ask(t.Context(), b, "k", o.load)
		first.got(t, "k@0")
		second.got(t, "k@0")
		o.loaded(t, 1)
	})
}

// A fill that fails leaves nothing to wait for: the followers go on at once.
func TestFailedFillEndsTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(memstore.Options{})
		tapped := newTap(mem)
		tapped.on(at("fill", func() error { return lost("fill", store.ClassFull) }), nil)
		a, b := newGuard(t, tapped, options{}), newGuard(t, mem, options{})
		o := &origin{takes: 100 * time.Millisecond}
		first := ask(t.Context(), a, "k", o.load)
		synctest.Wait()
		second := ask(t.Context(), b, "k", o.load)
		first.got(t, "k@0")
		if r := second.got(t, "k@0"); r.took != 2*o.takes {
			t.Errorf("the follower waited %v, want the holder's load and its own", r.took)
		}
	})
}

// S34: while a claim's reply is lost a cooldown comes; the claim is asked again.
func TestClaimAskedAgainUnderACooldownLeavesNoOrphan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(memstore.Options{})
		tapped := newTap(mem)
		a, b, c := newGuard(t, tapped, options{}), newGuard(t, mem, options{}), newGuard(t, mem, options{})
		o := &origin{}
		failing := func(context.Context, string) (string, error) { return "", errOrigin }
		tapped.on(at("claim", once(func() error {
			// Its first sending is answered, and its second arrives, after two
			// others have failed.
			if _, err := b.Get(t.Context(), "k", failing); !errors.Is(err, errOrigin) {
				t.Error(err)
			}
			if _, err := c.Get(t.Context(), "k", failing); !errors.Is(err, errOrigin) {
				t.Error(err)
			}
			return lost("claim", store.ClassConnection)
		})), nil)
		if r := <-ask(t.Context(), a, "k", o.load); !errors.Is(r.err, cacheguard.ErrCooldown) {
			t.Errorf("got %q, %v; want the cooldown", r.Value, r.err)
		}
		if n := tapped.count("claim"); n != 2 {
			t.Fatalf("%d claims were sent, want 2: this is not the schedule", n)
		}
		time.Sleep(2 * time.Second)
		if r := ask(t.Context(), b, "k", o.load).got(t, "k@0"); r.took != 0 {
			t.Errorf("waited %v for an orphan", r.took)
		}
	})
}

// C027: callers leave while their claims are under way; what is granted to
// nobody is not left behind.
func TestCancelledCallersLeaveNoLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(memstore.Options{})
		tapped := newTap(mem)
		delay := func(string, string) error { time.Sleep(50 * time.Millisecond); return nil }
		tapped.on(delay, delay)
		a, b := newGuard(t, tapped, options{}), newGuard(t, mem, options{})
		o := &origin{takes: 10 * time.Millisecond}
		var wg sync.WaitGroup
		keys := make([]string, 100)
		for i := range keys {
			keys[i] = string(rune('A' + i))
			for range 10 {
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*5*time.Millisecond+1)
					defer cancel()
					if _, err := a.Get(ctx, keys[i], o.load); err != nil && !errors.Is(err, context.DeadlineExceeded) {
						t.Error(err)
					}
				})
			}
		}
		wg.Wait()
		time.Sleep(time.Second)
		for _, k := range keys {
			mem.DropEntry(store.Key{Space: "cacheguard", ID: k})
			if r := <-ask(t.Context(), b, k, o.load); r.err != nil || r.took != o.takes {
				t.Errorf("key %q: %v after %v; want no lease in the way", k, r.err, r.took)
			}
		}
	})
}

// C029: renewals fail for a while and come back; a later load of the same key
// is renewed as well.
func TestRenewalsGoOnAfterAFailedOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(memstore.Options{})
		tapped := newTap(mem)
		opts := options{Lease: lasting(1500 * time.Millisecond)}
		a, b := newGuard(t, tapped, opts), newGuard(t, mem, opts)
		o := &origin{takes: 10 * time.Second}
		for round := range 2 {
			outOfReach(tapped, "renew")
			first := ask(t.Context(), a, "k", o.load)
			time.Sleep(time.Second) // the renewal at 750 ms has failed
			tapped.on(nil, nil)
			second := ask(t.Context(), b, "k", o.load)
			first.got(t, "k@0")
			second.got(t, "k@0")
			o.loaded(t, int64(round+1))
			invalidate(t, b)
		}
	})
}

// C009: a loader that never returns keeps its key for LoadLimit and no longer.
func TestHungHolderLosesItsKeyAtLoadLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := options{LoadLimit: 5 * time.Second, Lease: lasting(time.Second)}
		mem := memstore.New(memstore.Options{})
		tapped := newTap(mem)
		outOfReach(tapped, "release") // the lease ends by itself all the same
		holder, other := newGuard(t, tapped, opts), newGuard(t, mem, opts)
		hung, o := newGate(), &origin{}
		first := ask(t.Context(), holder, "k", o.gated(hung))
		hung.holds(t, 1)
		second := ask(t.Context(), other, "k", o.load)
		if r := second.got(t, "k@0"); r.took < 4*time.Second || r.took > 5*time.Second+10*time.Millisecond {
			t.Errorf("the other process led after %v, want the LoadLimit of 5s", r.took)
		}
		if r := <-first; !errors.Is(r.err, context.DeadlineExceeded) {
			t.Errorf("the hung holder's caller got %v", r.err)
		}
		hung.open()
	})
}

// C006: one call of the origin never returns. Those who waited with a deadline
// leave at it, the key is loaded again after LoadLimit, and nothing piles up.
func TestStalledLoadDoesNotPoisonItsKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, memstore.New(memstore.Options{}), options{LoadLimit: 5 * time.Second})
		o, hung := &origin{}, newGate()
		stall := o.gated(hung)
		var wg sync.WaitGroup
		for i := range 1000 {
			time.Sleep(4 * time.Millisecond)
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				defer cancel()
				begin := time.Now()
				if _, err := g.Get(ctx, "k", stall); !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != 50*time.Millisecond {
					t.Errorf("caller %d: %v after %v", i, err, time.Since(begin))
				}
			})
		}
		wg.Wait()
		hung.holds(t, 1)
		time.Sleep(3 * time.Second) // past LoadLimit and Cooldown
		get(t, g, o.load, "k@0")
		hung.open()
	})
}

// C061: a paused holder's release must not end the lease of the one after it.
func TestLateReleaseDoesNotEndAnothersLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(memstore.Options{})
		tapped := newTap(mem)
		outOfReach(tapped, "renew")
		opts := options{Lease: lasting(100 * time.Millisecond)}
		a, b, c := newGuard(t, tapped, opts), newGuard(t, mem, opts), newGuard(t, mem, opts)
		o, loading := &origin{}, newGate()
		first := ask(t.Context(), a, "k", func(context.Context, string) (string, error) {
			time.Sleep(300 * time.Millisecond)
			return "", errOrigin
		})
		time.Sleep(200 * time.Millisecond)
		second := ask(t.Context(), b, "k", o.gated(loading))
		loading.holds(t, 1)
		if r := <-first; !errors.Is(r.err, errOrigin) {
			t.Errorf("got %v", r.err)
		}
		third := ask(t.Context(), c, "k", o.load)
		synctest.Wait()
		o.loaded(t, 1)
		loading.open()
		second.got(t, "k@0")
		third.got(t, "k@0")
		o.loaded(t, 1)
	})
}

// C032, C030: the lease lapses under its holder. The caller gets the value that
// it waited for, and it is stored: nothing newer was there.
func TestValueOfALapsedLeaseIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(memstore.Options{})
		tapped := newTap(mem)
		outOfReach(tapped, "renew", "release")
		g := newGuard(t, tapped, options{Lease: lasting(100 * time.Millisecond)})
		o := &origin{takes: 300 * time.Millisecond}
		get(t, g, o.load, "k@0")
		get(t, newGuard(t, mem, options{}), o.load, "k@0")
		o.loaded(t, 1)
	})
}

// C034: following costs a handful of commands however long the load
// and however many the callers.
func TestFollowingCostsFewCommands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(memstore.Options{})
		o := &origin{takes: time.Second}
		holder := newGuard(t, mem, options{})
		first := ask(t.Context(), holder, "k", o.load)
		synctest.Wait()
		tapped := newTap(mem)
		tapped.on(func(string, string) error { time.Sleep(time.Millisecond); return nil }, nil)
		g := newGuard(t, tapped, options{})
		var all []asking
		for range 200 {
			all = append(all, ask(t.Context(), g, "k", o.load))
		}
		for _, f := range all {
			f.got(t, "k@0")
		}
		first.got(t, "k@0")
		if n := tapped.count("load") + tapped.count("claim"); n > 4 {
			t.Errorf("%d loads and %d claims for 200 followers", tapped.count("load"), tapped.count("claim"))
		}
	})
}

// deaf is a store whose messages never arrive.
type deaf struct{ store.Store }

func (deaf) Listen(string, func(store.Event)) func() { return func() {} }

// Messages are hints, polling is the guarantee; C034: at a bounded pace.
func TestFollowersPollWhenMessagesAreLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(memstore.Options{})
		tapped := newTap(deaf{mem})
		o := &origin{takes: 5 * time.Second}
		holder, follower := newGuard(t, mem, options{}), newGuard(t, tapped, options{})
		first := ask(t.Context(), holder, "k", o.load)
		synctest.Wait()
		second := ask(t.Context(), follower, "k", o.load)
		first.got(t, "k@0")
		if r := second.got(t, "k@0"); r.took-o.takes > 400*time.Millisecond {
			t.Errorf("answered %v after the fill", r.took-o.takes)
		}
		o.loaded(t, 1)
		if n := tapped.count("claim"); n < 10 || n > 40 {
			t.Errorf("%d claims in 5 s of polling", n)
		}
	})
}

// A hand-over outlives the longest time between two looks of a follower.
func TestHandOverReachesThoseWhoOnlyPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(memstore.Options{})
		// It believes that it hears, and does not: the longest poll interval.
		muted := &mute{Store: mem}
		o := &origin{takes: 5 * time.Second}
		nothing := func(string, string) cacheguard.Lifetime { return cacheguard.Lifetime{} }
		opts := options{LifetimeFunc: nothing, Lease: lasting(20 * time.Second)}
		holder, follower := newGuard(t, mem, opts), newGuard(t, muted, opts)
		first := ask(t.Context(), holder, "k", o.load)
		synctest.Wait()
		second := ask(t.Context(), follower, "k", o.load)
		first.got(t, "k@0")
		second.got(t, "k@0")
		o.loaded(t, 1)
	})
}

// mute is a store that says Up and then nothing.
type mute struct{ store.Store }

func (mute) Listen(_ string, fn func(store.Event)) func() {
	fn(store.Event{Kind: store.Up})
	return func() {}
}

// C060: guards of two namespaces share nothing.
func TestNamespacesAreApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(memstore.Options{})
		a, b := newGuard(t, mem, options{Namespace: "a"}), newGuard(t, mem, options{Namespace: "b"})
		oa, ob, loading := &origin{}, &origin{}, newGate()
		ob.write()
		first := ask(t.Context(), a, "k", oa.gated(loading))
		loading.holds(t, 1)
		if r := ask(t.Context(), b, "k", ob.load).got(t, "k@1"); r.took != 0 {
			t.Errorf("waited %v for the other namespace's lease", r.took)
		}
		invalidate(t, b) // does not fence a's load
		loading.open()
		first.got(t, "k@0")
		get(t, a, oa.load, "k@0")
		oa.loaded(t, 1)
	})
}

// C093: keys have leases of their own, also where they meet in a table of ours.
func TestKeysDoNotWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, memstore.New(memstore.Options{}), options{})
		o := &origin{takes: time.Second}
		var all []asking
		for i := range 500 {
			all = append(all, ask(t.Context(), g, string(rune(i+1000)), o.load))
		}
		for i, f := range all {
			if r := f.got(t, string(rune(i+1000))+"@0"); r.took != o.takes {
				t.Fatalf("took %v, want %v", r.took, o.takes)
			}
		}
	})
}

// C064, C097: following has a bound of its own with an error of its own, which
// is neither a second load nor the caller's context.
func TestFollowersGiveUpAtWaitLimitWithoutLoading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := options{WaitLimit: time.Second, Lease: lasting(5 * time.Second)}
		gs := fleet(t, 2, memstore.New(memstore.Options{}), opts)
		o := &origin{takes: 10 * time.Second}
		first := ask(t.Context(), gs[0], "k", o.load)
		synctest.Wait()
		var all []asking
		for range 100 {
			all = append(all, ask(t.Context(), gs[1], "k", o.load))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		impatient := ask(ctx, gs[1], "k", o.load)
		time.Sleep(time.Second / 2)
		late := ask(t.Context(), gs[1], "k", o.load) // has its own second to wait
		for _, f := range all {
			if r := <-f; !errors.Is(r.err, cacheguard.ErrWaitLimit) || errors.Is(r.err, context.DeadlineExceeded) || r.took < time.Second || r.took > 2*time.Second {
				t.Errorf("got %v after %v, want ErrWaitLimit after 1s, or 2s for who came after the first claim was sent", r.err, r.took)
			}
		}
		if r := <-impatient; !errors.Is(r.err, context.DeadlineExceeded) || errors.Is(r.err, cacheguard.ErrWaitLimit) {
			t.Errorf("got %v, want the context's error", r.err)
		}
		if r := <-late; !errors.Is(r.err, cacheguard.ErrWaitLimit) || r.took < time.Second {
			t.Errorf("the late caller got %v after %v, want ErrWaitLimit after no less than 1s", r.err, r.took)
		}
		o.loaded(t, 1)
		first.got(t, "k@0")
	})
}

// C100: all leases vanish in the middle of the loads.
func TestLossOfAllLeasesCostsOneMoreLoadEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(memstore.Options{})
		gs := fleet(t, 2, mem, options{Lease: lasting(time.Second)})
		o := &origin{takes: 3 * time.Second}
		var all []asking
		for _, g := range gs {
			for i := range 20 {
				all = append(all, ask(t.Context(), g, string(rune('a'+i)), o.load))
			}
		}
		time.Sleep(time.Second / 4)
		for i := range 20 {
			mem.DropRecord(store.Key{Space: "cacheguard", ID: string(rune('a' + i))})
		}
		for i, f := range all {
			f.got(t, string(rune('a'+i%20))+"@0")
		}
		if n := o.loads.Load(); n > 40 {
			t.Errorf("%d loads of 20 keys, want at most two each", n)
		}
	})
}

// A load in which its process was stopped past its lease takes as long as the
// stop. Lengths that followed it would make the next stop delay the others more.
// A load that outlived its lease because the store could not be told is another
// matter: it took as long as that.
func TestAProcessThatWasStoppedDoesNotLearnFromIt(t *testing.T) {
	const load = 10 * time.Second
	for name, c := range map[string]struct {
		before, after func(op, id string) error
		want          time.Duration
	}{
		// The grant comes when its lease is over: nobody came to renew it.
		"stopped": {after: at("claim", func() error { time.Sleep(4 * time.Second); return nil }), want: 3 * time.Second},
		"cut off": {before: at("renew", func() error { return lost("renew", store.ClassConnection) }), want: 2 * load},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var lengths []time.Duration
				tapped := newTap(memstore.New(memstore.Options{}))
				g := newGuard(t, tapped, options{
					Hooks: cacheguard.Hooks{Load: func(i cacheguard.LoadInfo) { lengths = append(lengths, i.Length) }},
				})
				o := &origin{takes: load}
				tapped.on(c.before, c.after)
				get(t, g, o.load, "k@0")
				tapped.on(nil, nil)
				invalidate(t, g)
				get(t, g, o.load, "k@0")
				if len(lengths) != 2 || lengths[1].Round(time.Second) != c.want {
					t.Errorf("lengths %v, want %v for the second", lengths, c.want)
				}
			})
		})
	}
}
