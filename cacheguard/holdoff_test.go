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
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
)

// replica is an origin that is read from a copy, which has each commit lag
// later.
type replica struct {
	takes, lag time.Duration
	seen       atomic.Int64 // by its readers
	loads      atomic.Int64
	running    atomic.Int64
	most       atomic.Int64
	empty      atomic.Bool // it has no such row yet
}

func (r *replica) commit(v int64) {
	time.AfterFunc(r.lag, func() { r.seen.Store(v); r.empty.Store(false) })
}

func (r *replica) load(context.Context, string) (string, error) {
	r.loads.Add(1)
	n := r.running.Add(1)
	defer r.running.Add(-1)
	for m := r.most.Load(); n > m && !r.most.CompareAndSwap(m, n); m = r.most.Load() {
	}
	v, empty := r.seen.Load(), r.empty.Load()
	time.Sleep(r.takes)
	if empty {
		return "", cacheguard.ErrNotFound
	}
	return fmt.Sprint(v), nil
}

const (
	lag     = 300 * time.Millisecond
	holdOff = 500 * time.Millisecond
)

// What a lagging replica answers is served, one load at a time in the fleet,
// and gone when the hold-off ends. Without a hold-off it stays.
func TestWhatALaggingReplicaAnswersIsNotStored(t *testing.T) {
	for hold, want := range map[time.Duration]string{holdOff: "1", 0: "0"} {
		t.Run(hold.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &replica{takes: 20 * time.Millisecond, lag: lag}
				gs := fleet(t, 4, memstore.New(memstore.Options{}), options{HoldOff: hold, Near: nearSecond})
				get := func(g *guard) string {
					v, err := g.Get(t.Context(), "k", r.load)
					if err != nil {
						t.Error(err)
					}
					return v
				}
				get(gs[0])
				r.commit(1)
				if err := gs[0].Invalidate(t.Context(), "k"); err != nil {
					t.Fatal(err)
				}
				loads, end := r.loads.Load(), time.Now().Add(2*holdOff)
				var wg sync.WaitGroup
				for _, g := range gs {
					for i := range 10 {
						wg.Go(func() {
							time.Sleep(time.Duration(i) * time.Millisecond)
							for time.Now().Before(end) {
								get(g)
								time.Sleep(7 * time.Millisecond)
							}
						})
					}
				}
				wg.Wait()
				for i, g := range gs {
					if v := get(g); v != want {
						t.Errorf("process %d: %s is stored, want %s", i, v, want)
					}
				}
				if most := r.most.Load(); most != 1 {
					t.Errorf("%d loads at once, want 1", most)
				}
				if n := r.loads.Load() - loads; n > int64(hold/r.takes)+1 {
					t.Errorf("%d loads in a hold-off of %v, each of %v", n, hold, r.takes)
				}
			})
		})
	}
}

// A load that begins in the hold-off and ends after it is as old as its
// beginning.
func TestALoadThatOutlastsTheHoldOffIsNotStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &replica{takes: holdOff, lag: lag}
		gs := fleet(t, 2, memstore.New(memstore.Options{}), options{HoldOff: holdOff})
		r.commit(1)
		if err := gs[0].Invalidate(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(lag / 2)
		if v, err := gs[1].Get(t.Context(), "k", r.load); v != "0" || err != nil {
			t.Fatalf("Get = %q, %v", v, err)
		}
		time.Sleep(10 * time.Second) // a hand-over has gone
		for _, g := range gs {
			if v, err := g.Get(t.Context(), "k", r.load); v != "1" || err != nil {
				t.Errorf("Get = %q, %v; want the version that the replica has now", v, err)
			}
		}
		if n := r.loads.Load(); n != 2 {
			t.Errorf("%d loads, want 2", n)
		}
	})
}

// The herd that an invalidation makes is handed the value of one load.
func TestAHerdInTheHoldOffIsOneLoadInTheFleet(t *testing.T) {
	for _, many := range []bool{false, true} {
		t.Run(fmt.Sprint("GetMany ", many), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &replica{takes: 20 * time.Millisecond, lag: lag}
				gs := fleet(t, 8, memstore.New(memstore.Options{}), options{HoldOff: holdOff})
				if err := gs[0].Invalidate(t.Context(), "k"); err != nil {
					t.Fatal(err)
				}
				var wg sync.WaitGroup
				for _, g := range gs {
					for range 20 {
						wg.Go(func() {
							if !many {
								if _, err := g.Get(t.Context(), "k", r.load); err != nil {
									t.Error(err)
								}
								return
							}
							found, err := g.GetMany(t.Context(), []string{"k"}, func(ctx context.Context, keys []string) (map[string]string, error) {
								v, err := r.load(ctx, keys[0])
								return map[string]string{keys[0]: v}, err
							})
							if err != nil || found["k"] != "0" {
								t.Errorf("GetMany = %v, %v", found, err)
							}
						})
					}
				}
				wg.Wait()
				if n := r.loads.Load(); n != 1 {
					t.Errorf("%d loads, want 1", n)
				}
			})
		})
	}
}

// An absence that the replica reports since it does not have the new row yet is
// not remembered.
func TestAnAbsenceInTheHoldOffIsNotStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &replica{takes: time.Millisecond, lag: lag}
		r.empty.Store(true)
		g := newGuard(t, memstore.New(memstore.Options{}), options{HoldOff: holdOff, NegativeTTL: time.Minute})
		r.commit(1)
		if err := g.Invalidate(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		if _, err := g.Get(t.Context(), "k", r.load); !errors.Is(err, cacheguard.ErrNotFound) {
			t.Fatalf("Get = %v", err)
		}
		time.Sleep(holdOff)
		if v, err := g.Get(t.Context(), "k", r.load); v != "1" || err != nil {
			t.Errorf("Get = %q, %v", v, err)
		}
	})
}

// What was expired is served stale for the hold-off, by all processes, and
// rebuilt once after it.
func TestAnExpiredKeyIsRebuiltWhenTheHoldOffEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &replica{takes: time.Millisecond, lag: lag}
		gs := fleet(t, 3, memstore.New(memstore.Options{}), options{HoldOff: holdOff})
		if _, err := gs[0].Get(t.Context(), "k", r.load); err != nil {
			t.Fatal(err)
		}
		r.commit(1)
		if err := gs[0].Expire(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		all := func(want string, state cacheguard.State) {
			t.Helper()
			for i, g := range gs {
				e, err := g.GetEntry(t.Context(), "k", r.load)
				if err != nil || e.Value != want || e.State != state {
					t.Errorf("process %d after %v: %q, %v, %v; want %q, %v", i, holdOff, e.Value, e.State, err, want, state)
				}
			}
		}
		all("0", cacheguard.Stale)
		time.Sleep(holdOff - time.Millisecond)
		all("0", cacheguard.Stale)
		synctest.Wait()
		if n := r.loads.Load(); n != 1 {
			t.Errorf("%d loads in the hold-off, want none", n-1)
		}
		time.Sleep(time.Millisecond)
		all("0", cacheguard.Stale)
		time.Sleep(10 * time.Millisecond)
		all("1", cacheguard.Fresh)
		if n := r.loads.Load(); n != 2 {
			t.Errorf("%d loads after it, want 1", n-1)
		}
	})
}

// What a writer has set stays, also if somebody insists on a load.
func TestWhatWasSetOutlivesALoadInTheHoldOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &replica{takes: time.Millisecond, lag: lag}
		gs := fleet(t, 2, memstore.New(memstore.Options{}), options{HoldOff: holdOff})
		r.commit(1)
		if err := gs[0].Set(t.Context(), "k", "1"); err != nil {
			t.Fatal(err)
		}
		if v, err := gs[1].Refresh(t.Context(), "k", r.load); v != "0" || err != nil {
			t.Fatalf("Refresh = %q, %v", v, err)
		}
		for _, g := range gs {
			if v, err := g.Get(t.Context(), "k", r.load); v != "1" || err != nil {
				t.Errorf("Get = %q, %v; want what was set", v, err)
			}
		}
	})
}

// The message of a write comes while a load is under way that began after the
// write and before the message.
func TestAMessageInTheMiddleOfALoadHoldsItOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &replica{takes: 100 * time.Millisecond, lag: lag}
		s := memstore.New(memstore.Options{})
		g := newGuard(t, &late{Store: s, by: 50 * time.Millisecond}, options{HoldOff: 10 * time.Millisecond})
		writer := newGuard(t, s, options{})
		r.commit(1)
		if err := writer.Invalidate(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		if v, err := g.Get(t.Context(), "k", r.load); v != "0" || err != nil {
			t.Fatalf("Get = %q, %v", v, err)
		}
		time.Sleep(10 * time.Second)
		if v, err := g.Get(t.Context(), "k", r.load); v != "1" || err != nil {
			t.Errorf("Get = %q, %v", v, err)
		}
	})
}

// late is a store whose messages come later.
type late struct {
	store.Store
	by time.Duration
}

func (l *late) Listen(space string, fn func(store.Event)) (stop func()) {
	return l.Store.Listen(space, func(ev store.Event) { time.AfterFunc(l.by, func() { fn(ev) }) })
}
