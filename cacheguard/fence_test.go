package cacheguard_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/lease"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
)

// Who may have an answer, and what may be stored (P2, P3).

// S1: A commits v1 and is paused before it can tell the store; B commits v2 and
// its Invalidate returns; A goes on.
func TestUpdateThatIsOvertakenIsNotStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(memstore.Options{})
		slow := newTap(mem)
		a, b := newGuard(t, slow, options{}), newGuard(t, mem, options{})
		o, paused := &origin{}, newGate()
		slow.on(stopAt("set", paused), nil)
		var wg sync.WaitGroup
		wg.Go(func() {
			v, err := a.Update(t.Context(), "k", func(context.Context) (string, error) {
				o.write()
				return "k@1", nil
			})
			if v != "k@1" || err != nil {
				t.Errorf("Update = %q, %v; want what was written", v, err)
			}
		})
		paused.holds(t, 1)
		o.write()
		invalidate(t, b)
		paused.open()
		wg.Wait()
		get(t, b, o.load, "k@2")
		get(t, a, o.load, "k@2")
	})
}

// S1, the other half: whoever is not overtaken writes through.
func TestUpdateThatIsAloneIsStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(memstore.Options{})
		gs := fleet(t, 2, mem, options{})
		o := &origin{}
		if _, err := gs[0].Update(t.Context(), "k", func(context.Context) (string, error) {
			o.write()
			return "k@1", nil
		}); err != nil {
			t.Fatal(err)
		}
		get(t, gs[1], o.load, "k@1")
		o.loaded(t, 0)
	})
}

// S29: A's Update times out while its Set waits in a stalled server; A commits
// v2 and invalidates over another connection; then the server runs the Set.
func TestUpdateThatLandsLateIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(memstore.Options{})
		tapped := newTap(mem)
		a := newGuard(t, tapped, options{})
		o, server := &origin{}, make(chan struct{})
		tapped.on(at("set", func() error { return &stalled{server} }), nil)
		_, err := a.Update(t.Context(), "k", func(context.Context) (string, error) {
			o.write()
			return "k@1", nil
		})
		if store.ClassOf(err) != store.ClassTimeout {
			t.Errorf("Update's error is %v; want that the store could not be told", err)
		}
		o.write()
		invalidate(t, a)
		close(server)
		synctest.Wait()
		get(t, a, o.load, "k@2")
	})
}

// S3: A's load has read v0; v1 is committed and B's Invalidate returns; a read
// begins in A and joins its flight.
func TestReadAfterInvalidateDoesNotGetAnOlderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gs := fleet(t, 2, memstore.New(memstore.Options{}), options{})
		o, loading := &origin{}, newGate()
		first := ask(t.Context(), gs[0], "k", o.gated(loading))
		loading.holds(t, 1)
		o.write()
		invalidate(t, gs[1])
		late := ask(t.Context(), gs[0], "k", o.gated(loading))
		loading.holds(t, 1) // it has joined: no second load beside the first
		loading.open()
		first.got(t, "k@0") // it was there before: its answer is the load's
		late.got(t, "k@1")
		get(t, gs[1], o.load, "k@1")
		o.loaded(t, 2)
	})
}

// S4: A's fill of v0 is accepted, its reply is under way; B's Invalidate
// returns; a read begins in A.
func TestFlightTakesNoCallersOnceItsFillIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(memstore.Options{})
		tapped := newTap(mem)
		a, b := newGuard(t, tapped, options{}), newGuard(t, mem, options{})
		o, reply := &origin{}, newGate()
		tapped.on(nil, stopAt("fill", reply))
		first := ask(t.Context(), a, "k", o.load)
		reply.holds(t, 1)
		o.write()
		invalidate(t, b)
		late := ask(t.Context(), a, "k", o.load)
		synctest.Wait() // it waits for the flight that has ended but for the reply
		reply.open()
		first.got(t, "k@0")
		late.got(t, "k@1")
	})
}

// S5: B's store read of v0 is under way; A's Invalidate returns; a read begins
// in B.
func TestReadDoesNotShareAStoreReadSentBeforeItCame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(memstore.Options{})
		tapped := newTap(mem)
		a, b := newGuard(t, mem, options{}), newGuard(t, tapped, options{})
		o, reply := &origin{}, newGate()
		get(t, a, o.load, "k@0")
		tapped.on(nil, stopAt("load", reply))
		first := ask(t.Context(), b, "k", o.load)
		reply.holds(t, 1)
		o.write()
		invalidate(t, a)
		late := ask(t.Context(), b, "k", o.load)
		reply.holds(t, 1)
		reply.open()
		first.got(t, "k@0")
		late.got(t, "k@1")
	})
}

// The other half of S5: those who come while a read is under way share one.
func TestReadsThatComeDuringAReadShareTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tapped := newTap(memstore.New(memstore.Options{}))
		g := newGuard(t, tapped, options{})
		o, reply := &origin{}, newGate()
		get(t, g, o.load, "k@0")
		before := tapped.count("load")
		tapped.on(nil, func(op, _ string) error {
			reply.stop()
			time.Sleep(time.Millisecond) // a round trip: the rest have time to come
			return nil
		})
		all := []asking{ask(t.Context(), g, "k", o.load)}
		reply.holds(t, 1)
		for range 100 {
			all = append(all, ask(t.Context(), g, "k", o.load))
		}
		synctest.Wait()
		reply.open()
		for _, a := range all {
			a.got(t, "k@0")
		}
		if n := tapped.count("load") - before; n != 2 {
			t.Errorf("%d reads of the store for 101 callers, want 2", n)
		}
	})
}

// S15: A has loaded v0; v1 is committed and invalidated; the record is lost;
// B's claim creates it anew; A fills.
func TestFillFromBeforeTheRecordWasLostIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(memstore.Options{})
		gs := fleet(t, 2, mem, options{})
		o, loadA, loadB := &origin{}, newGate(), newGate()
		a := ask(t.Context(), gs[0], "k", o.gated(loadA))
		loadA.holds(t, 1)
		o.write()
		invalidate(t, gs[1])
		mem.DropRecord(key)
		b := ask(t.Context(), gs[1], "k", o.gated(loadB))
		loadB.holds(t, 1)
		loadA.open()
		a.got(t, "k@0")
		if e, err := mem.Load(t.Context(), key); err != nil || e.Kind != store.None {
			t.Errorf("the store holds %q, %v; want nothing", e.Payload, err)
		}
		loadB.open()
		b.got(t, "k@1")
		get(t, gs[0], o.load, "k@1")
	})
}

// S17: a claim, an invalidation, the loss of the record and a claim, all within
// one tick of the store's clock.
func TestTokensGrowWithinOneTick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(memstore.Options{})
		g := newGuard(t, mem, options{})
		var tokens []store.Token
		load := func(ctx context.Context, key string) (string, error) {
			token, ok := lease.TokenFromContext(ctx)
			if !ok {
				t.Error("a load under a lease cannot see its token")
			}
			tokens = append(tokens, token)
			return "v", nil
		}
		begin := time.Now()
		for range 3 {
			e := <-ask(t.Context(), g, "k", load)
			if e.Token != tokens[len(tokens)-1] {
				t.Errorf("the entry's token is %d, its load's was %d", e.Token, tokens[len(tokens)-1])
			}
			invalidate(t, g)
			mem.DropRecord(key)
		}
		if time.Since(begin) != 0 {
			t.Fatal("time has passed: this is not the schedule")
		}
		if !(0 < tokens[0] && tokens[0] < tokens[1] && tokens[1] < tokens[2]) {
			t.Errorf("tokens %v do not grow", tokens)
		}
	})
}

// S25: a fill lands and its reply is lost; an invalidation returns; the fill is
// sent again.
func TestFillSentAgainAfterAnInvalidationIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(memstore.Options{})
		tapped := newTap(mem)
		a, b := newGuard(t, tapped, options{}), newGuard(t, mem, options{})
		o := &origin{}
		tapped.on(nil, at("fill", once(func() error {
			o.write()
			invalidate(t, b)
			return lost("fill", store.ClassConnection)
		})))
		get(t, a, o.load, "k@0") // it was there before
		if n := tapped.count("fill"); n != 2 {
			t.Fatalf("%d fills were sent, want 2: this is not the schedule", n)
		}
		get(t, b, o.load, "k@1")
		get(t, a, o.load, "k@1")
	})
}

// A fill whose reply was lost with the connection has landed: the same fill
// again is a success, and whoever joined in time is answered.
func TestFillWithALostReplyIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tapped := newTap(memstore.New(memstore.Options{}))
		g := newGuard(t, tapped, options{})
		o, loading := &origin{}, newGate()
		tapped.on(nil, at("fill", once(func() error { return lost("fill", store.ClassConnection) })))
		first := ask(t.Context(), g, "k", o.gated(loading))
		loading.holds(t, 1)
		second := ask(t.Context(), g, "k", o.load)
		synctest.Wait()
		loading.open()
		first.got(t, "k@0")
		second.got(t, "k@0")
		o.loaded(t, 1)
		if n := tapped.count("fill"); n != 2 {
			t.Errorf("%d fills were sent, want 2", n)
		}
	})
}

// A fill whose outcome is unknown proves nothing: the value goes to those who
// were there before the load began, the others go round.
func TestFillOfUnknownOutcomeIsForThoseWhoWereThereBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(memstore.Options{})
		tapped := newTap(mem)
		a, b := newGuard(t, tapped, options{}), newGuard(t, mem, options{})
		o, loading := &origin{}, newGate()
		tapped.on(at("fill", once(func() error { return lost("fill", store.ClassTimeout) })), nil)
		first := ask(t.Context(), a, "k", o.gated(loading))
		loading.holds(t, 1)
		o.write()
		invalidate(t, b)
		late := ask(t.Context(), a, "k", o.load)
		synctest.Wait()
		loading.open()
		first.got(t, "k@0")
		late.got(t, "k@1")
	})
}

// S30, without a store: a load in B that has no lease has read v0; A's
// Invalidate(v1) returns; a read begins in B.
func TestReadDoesNotShareALoadWithoutALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(memstore.Options{})
		tapped := newTap(mem)
		a, b := newGuard(t, mem, options{}), newGuard(t, tapped, options{})
		tapped.on(down, nil)
		o, loading := &origin{}, newGate()
		first := ask(t.Context(), b, "k", o.gated(loading))
		time.Sleep(time.Second) // a load without a lease waits a moment for others
		loading.holds(t, 1)
		o.write()
		invalidate(t, a)
		late := ask(t.Context(), b, "k", o.gated(loading))
		loading.holds(t, 1)
		loading.open()
		first.got(t, "k@0")
		late.got(t, "k@1")
		o.loaded(t, 2)
	})
}

// S30, with a pass mark: nobody shares a load, however many there are.
func TestReadDoesNotShareALoadOfAPassedKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gs := fleet(t, 2, memstore.New(memstore.Options{}), options{})
		o, loading := &origin{}, newGate()
		passing := func(ctx context.Context, key string) (string, error) {
			v, _ := o.gated(loading)(ctx, key)
			return v, &cacheguard.PassError{For: time.Minute}
		}
		loading.open()
		get(t, gs[1], passing, "k@0") // leaves the mark
		loading = newGate()
		first := ask(t.Context(), gs[1], "k", passing)
		loading.holds(t, 1)
		o.write()
		invalidate(t, gs[0])
		again := ask(t.Context(), gs[1], "k", passing)
		loading.holds(t, 2)
		loading.open()
		first.got(t, "k@0")
		again.got(t, "k@1")
	})
}

// S31: A's load has read v0; A's own Invalidate(v1) cannot reach the store; a
// read joins; the fill is accepted.
func TestFailedInvalidateMakesAnAcceptedFillProveNothing(t *testing.T) {
	for _, c := range []struct {
		op    string
		write func(context.Context, *guard) error
	}{
		{"invalidate", func(ctx context.Context, g *guard) error { return g.Invalidate(ctx, "k") }},
		{"expire", func(ctx context.Context, g *guard) error { return g.Expire(ctx, "k") }},
		{"set", func(ctx context.Context, g *guard) error { return g.Set(ctx, "k", "k@1") }},
	} {
		t.Run(c.op, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tapped := newTap(memstore.New(memstore.Options{}))
				g := newGuard(t, tapped, options{})
				o, loading := &origin{}, newGate()
				first := ask(t.Context(), g, "k", o.gated(loading))
				loading.holds(t, 1)
				o.write()
				outOfReach(tapped, c.op)
				if err := c.write(t.Context(), g); store.ClassOf(err) != store.ClassTimeout {
					t.Fatalf("%s = %v, want a fault", c.op, err)
				}
				late := ask(t.Context(), g, "k", o.load)
				synctest.Wait()
				tapped.on(nil, nil)
				loading.open()
				first.got(t, "k@0")
				if r := <-late; r.err != nil || r.Value != "k@1" && !r.fromStore() {
					t.Errorf("the read that came after the failed write shares the load: %q (%v), %v", r.Value, r.State, r.err)
				}
			})
		})
	}
}

// fromStore tells whether an answer is what the store held.
func (a *answer) fromStore() bool { return a.State == cacheguard.Fresh || a.State == cacheguard.Stale }

// S33: reads and invalidations every 10 ms against a load of 10 s.
func TestInvalidationsFasterThanALoadDoNotMultiplyLoads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gs := fleet(t, 2, memstore.New(memstore.Options{}), options{})
		var version atomic.Int64
		var running, most [2]atomic.Int64
		loader := func(process int) cacheguard.Loader[string] {
			return func(ctx context.Context, key string) (string, error) {
				if n := running[process].Add(1); n > most[process].Load() {
					most[process].Store(n)
				}
				defer running[process].Add(-1)
				v := version.Load()
				time.Sleep(10 * time.Second)
				return fmt.Sprint(v), nil
			}
		}
		var wg sync.WaitGroup
		var slowest atomic.Int64
		for i := range 3000 {
			version.Add(1)
			invalidate(t, gs[i%2])
			floor := version.Load()
			for process, g := range gs {
				wg.Go(func() {
					begin := time.Now()
					v, err := g.Get(t.Context(), "k", loader(process))
					var got int64
					if _, scan := fmt.Sscan(v, &got); err != nil || scan != nil || got < floor {
						t.Errorf("Get = %q, %v; want at least %d", v, err, floor)
					}
					slowest.Store(max(slowest.Load(), int64(time.Since(begin))))
				})
			}
			time.Sleep(10 * time.Millisecond)
		}
		wg.Wait()
		for process := range most {
			if n := most[process].Load(); n != 1 {
				t.Errorf("process %d ran %d loads of one key at a time", process, n)
			}
		}
		// What is left of the load that runs, and a load of one's own.
		if d := time.Duration(slowest.Load()); d > 21*time.Second {
			t.Errorf("a caller waited %v", d)
		}
	})
}

// C026: the loader has read v1 and is paused; v2 is committed and invalidated;
// the loader goes on.
func TestInvalidateDuringALoadIsNotUndoneByItsFill(t *testing.T) {
	for _, c := range []struct {
		name  string
		write func(context.Context, *guard) error
		want  string
	}{
		{"invalidate", func(ctx context.Context, g *guard) error { return g.Invalidate(ctx, "k") }, "k@1"},
		{"expire", func(ctx context.Context, g *guard) error { return g.Expire(ctx, "k") }, "k@1"},
		{"set", func(ctx context.Context, g *guard) error { return g.Set(ctx, "k", "set") }, "set"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				gs := fleet(t, 3, memstore.New(memstore.Options{}), options{})
				o, loading := &origin{}, newGate()
				first := ask(t.Context(), gs[0], "k", o.gated(loading))
				loading.holds(t, 1)
				o.write()
				if err := c.write(t.Context(), gs[1]); err != nil {
					t.Fatal(err)
				}
				loading.open()
				first.got(t, "k@0")
				for _, g := range gs {
					get(t, g, o.load, c.want)
				}
			})
		})
	}
}

// A write that failed, or panicked, may have been committed all the same.
func TestUpdateWhoseWriteFailsInvalidates(t *testing.T) {
	boom := errors.New("constraint violated")
	for _, c := range []struct {
		name  string
		write func(context.Context) (string, error)
		want  error
	}{
		{"error", func(context.Context) (string, error) { return "", boom }, boom},
		{"panic", func(context.Context) (string, error) { panic(boom) }, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGuard(t, memstore.New(memstore.Options{}), options{})
				o := &origin{}
				get(t, g, o.load, "k@0")
				func() {
					defer func() {
						if r := recover(); (r != nil) != (c.want == nil) {
							t.Errorf("recovered %v", r)
						}
					}()
					_, err := g.Update(t.Context(), "k", func(ctx context.Context) (string, error) {
						o.write()
						return c.write(ctx)
					})
					if !errors.Is(err, c.want) {
						t.Errorf("Update's error is %v, want %v", err, c.want)
					}
				}()
				get(t, g, o.load, "k@1")
			})
		})
	}
}

// If the token could not be had, the origin is written all the same and the key
// invalidated.
func TestUpdateWithoutATokenInvalidates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tapped := newTap(memstore.New(memstore.Options{}))
		g := newGuard(t, tapped, options{})
		o := &origin{}
		get(t, g, o.load, "k@0")
		outOfReach(tapped, "begin")
		v, err := g.Update(t.Context(), "k", func(context.Context) (string, error) {
			o.write()
			return "k@1", nil
		})
		if v != "k@1" || err != nil {
			t.Errorf("Update = %q, %v; want the value: the key was invalidated", v, err)
		}
		if tapped.count("set") != 0 || tapped.count("invalidate") != 1 {
			t.Errorf("%d sets and %d invalidations, want none and one", tapped.count("set"), tapped.count("invalidate"))
		}
		get(t, g, o.load, "k@1")
	})
}

// A caller who leaves while the origin is written has written it: the store is
// told.
func TestUpdateTellsTheStoreThoughItsCallerHasLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, memstore.New(memstore.Options{}), options{})
		o := &origin{}
		get(t, g, o.load, "k@0")
		ctx, leave := context.WithCancel(t.Context())
		if _, err := g.Update(ctx, "k", func(context.Context) (string, error) {
			o.write()
			leave()
			return "k@1", nil
		}); err != nil {
			t.Error(err)
		}
		get(t, g, o.load, "k@1")
		o.loaded(t, 1)

		// One who has left before has written nothing.
		wrote := false
		if _, err := g.Update(ctx, "k", func(context.Context) (string, error) { wrote = true; return "", nil }); !errors.Is(err, context.Canceled) || wrote {
			t.Errorf("Update = %v (wrote: %t), want %v", err, wrote, context.Canceled)
		}
	})
}

// A value that was set while a load of the key is under way is read from the
// store by those who come; they do not wait for the load.
func TestSetDuringALoadIsReadAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gs := fleet(t, 2, memstore.New(memstore.Options{}), options{})
		o, loading := &origin{}, newGate()
		first := ask(t.Context(), gs[0], "k", o.gated(loading))
		loading.holds(t, 1)
		for i, g := range gs {
			if err := g.Set(t.Context(), "k", "set"); err != nil {
				t.Fatal(err)
			}
			if r := ask(t.Context(), gs[1-i], "k", failing).got(t, "set"); r.took != 0 {
				t.Errorf("waited %v", r.took)
			}
		}
		loading.open()
		first.got(t, "k@0")
	})
}

// An Update that has written the origin tells the store, though the guard was
// closed meanwhile.
func TestUpdateTellsTheStoreThoughTheGuardIsClosed(t *testing.T) {
	for _, fails := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			gs := fleet(t, 2, memstore.New(memstore.Options{}), options{})
			o, writing := &origin{}, newGate()
			get(t, gs[1], o.load, "k@0")
			updated := make(chan error, 1)
			go func() {
				_, err := gs[0].Update(t.Context(), "k", func(context.Context) (string, error) {
					o.write()
					writing.stop()
					if fails {
						return "", errOrigin
					}
					return "k@1", nil
				})
				updated <- err
			}()
			writing.holds(t, 1)
			if err := gs[0].Close(); err != nil {
				t.Error(err)
			}
			writing.open()
			if err := <-updated; errors.Is(err, cacheguard.ErrClosed) || errors.Is(err, errOrigin) != fails {
				t.Errorf("Update = %v", err)
			}
			get(t, gs[1], o.load, "k@1")
		})
	}
}
