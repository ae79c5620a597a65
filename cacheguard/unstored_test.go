package cacheguard_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
)

// refusing starts a fleet whose store grants leases and refuses all fills with a
// class of faults, until heal is called.
func refusing(t *testing.T, n int, class store.Class, opts options) (gs []*guard, heal func()) {
	t.Helper()
	mem := memstore.New(memstore.Options{})
	var taps []*tap
	for range n {
		s := newTap(mem)
		s.on(func(op, _ string) error {
			if op == "fill" {
				return lost(op, class)
			}
			return nil
		}, nil)
		gs, taps = append(gs, newGuard(t, s, opts)), append(taps, s)
	}
	return gs, func() {
		for _, s := range taps {
			s.on(nil, nil)
		}
	}
}

// perProcess counts loads, by process, and how many run at once.
type perProcess struct {
	*origin
	loads         atomic.Int64
	running, most atomic.Int64
}

func (p *perProcess) load(ctx context.Context, key string) (string, error) {
	p.loads.Add(1)
	n := p.running.Add(1)
	defer p.running.Add(-1)
	for m := p.most.Load(); n > m && !p.most.CompareAndSwap(m, n); m = p.most.Load() {
	}
	return p.origin.load(ctx, key)
}

// C068: the lease works and the fill is refused, whatever the reason. Nobody
// waits for one load after the other: two processes try, and the others load at
// once, each for itself.
func TestLoadsThatCannotBeStoredDoNotQueueUp(t *testing.T) {
	for _, class := range []store.Class{store.ClassFull, store.ClassDenied, store.ClassReadOnly, store.ClassData, store.ClassTimeout, store.ClassConnection, store.ClassOther} {
		t.Run(string(class), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const processes, callers = 20, 10
				o := &origin{takes: 100 * time.Millisecond}
				gs, _ := refusing(t, processes, class, options{})
				loaders := make([]*perProcess, processes)
				begin := time.Now()
				var wg sync.WaitGroup
				for i, g := range gs {
					loaders[i] = &perProcess{origin: o}
					for range callers {
						wg.Go(func() {
							if v, err := g.Get(t.Context(), "k", loaders[i].load); err != nil || v != "k@0" {
								t.Errorf("Get = %q, %v", v, err)
							}
						})
					}
				}
				wg.Wait()
				// The first, the second opinion, and all the others.
				if took, want := time.Since(begin), 3*o.takes+20*time.Millisecond; took > want {
					t.Errorf("the last caller waited %v, want at most three loads", took)
				}
				for i, p := range loaders {
					if p.loads.Load() > 2 || p.most.Load() > 1 {
						t.Errorf("process %d loaded %d times, %d at once", i, p.loads.Load(), p.most.Load())
					}
				}
			})
		})
	}
}

// C068: as long as nothing can be stored, each process asks the origin for
// itself, one load of a key at a time, and nobody gets an error; when it can be
// stored again, it is, by one load.
func TestWhatCanBeStoredAgainIsStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const processes = 5
		o := &origin{takes: 50 * time.Millisecond}
		gs, heal := refusing(t, processes, store.ClassFull, options{Cooldown: -1})
		loaders := make([]*perProcess, processes)
		var wg sync.WaitGroup
		for i, g := range gs {
			loaders[i] = &perProcess{origin: o}
			for range 3 {
				wg.Go(func() {
					for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
						begin := time.Now()
						if _, err := g.Get(t.Context(), "k", loaders[i].load); err != nil {
							t.Error(err)
						}
						if took := time.Since(begin); took > 4*o.takes {
							t.Errorf("a read took %v, for loads of %v", took, o.takes)
						}
					}
				})
			}
		}
		wg.Wait()
		for i, p := range loaders {
			if p.most.Load() > 1 {
				t.Errorf("process %d ran %d loads of one key at once", i, p.most.Load())
			}
		}
		heal()
		time.Sleep(2 * time.Second)
		before := o.loads.Load()
		for i, g := range gs {
			mustGet(t, g, o, "k@0")
			if e, err := g.GetEntry(t.Context(), "k", loaders[i].load); err != nil || e.State != cacheguard.Fresh {
				t.Errorf("process %d: %v, %v; want what is stored", i, e.State, err)
			}
		}
		if n := o.loads.Load() - before; n != 1 {
			t.Errorf("%d loads when it can be stored again, want 1", n)
		}
	})
}

// A GetMany of what cannot be stored is one load, too.
func TestManyThatCannotBeStoredAreOneLoadPerProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(memstore.Options{})
		gs := []*guard{newGuard(t, noFills{mem}, options{}), newGuard(t, noFills{mem}, options{}), newGuard(t, noFills{mem}, options{})}
		keys := keysOf("k", 500)
		for range 2 {
			for i, g := range gs {
				s := &shop{takes: 10 * time.Millisecond}
				got, err := g.GetMany(t.Context(), keys, s.load)
				if err != nil || len(got) != len(keys) {
					t.Fatalf("process %d: GetMany = %d values, %v", i, len(got), err)
				}
				if n := len(s.loads()); n != 1 {
					t.Errorf("process %d: %d loads, want 1", i, n)
				}
				synctest.Wait()
			}
		}
	})
}

type noFills struct{ *memstore.Store }

func (noFills) FillMany(_ context.Context, fills []store.Filling) []error {
	return allLost(lost("fill", store.ClassFull), len(fills))
}

func (noFills) Fill(context.Context, store.Grant, store.Content) error {
	return lost("fill", store.ClassFull)
}

// P6: an origin's error that reads like the guard's own word is an error like any
// other: the fleet cools down, and does not take it for a value that could not
// be stored.
func TestAnErrorOfTheOriginIsNotTakenForAFillThatWasRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gs := fleet(t, 4, memstore.New(memstore.Options{}), options{})
		var loads atomic.Int64
		var errs []error
		for _, g := range slices.Concat(gs, gs) {
			_, err := g.Get(t.Context(), "k", func(context.Context, string) (string, error) {
				loads.Add(1)
				return "", fmt.Errorf("not stored: full: %w", errOrigin)
			})
			errs = append(errs, err)
		}
		if n := loads.Load(); n != 2 {
			t.Errorf("%d loads of a failing origin, want 2", n)
		}
		if err := errs[len(errs)-1]; !errors.Is(err, cacheguard.ErrCooldown) {
			t.Errorf("the last caller got %v, want ErrCooldown", err)
		}
	})
}
