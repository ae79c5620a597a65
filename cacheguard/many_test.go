package cacheguard_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
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

// shop is an origin that is asked for many keys at once. Keys that begin with
// "no" do not exist.
type shop struct {
	takes time.Duration
	mu    sync.Mutex
	asked [][]string // sorted; one for each load
	count map[string]int
	err   func(keys []string) error
}

func (s *shop) load(ctx context.Context, keys []string) (map[string]string, error) {
	s.mu.Lock()
	if s.count == nil {
		s.count = make(map[string]int)
	}
	s.asked = append(s.asked, slices.Sorted(slices.Values(keys)))
	for _, k := range keys {
		s.count[k]++
	}
	s.mu.Unlock()
	select {
	case <-time.After(s.takes):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	got := make(map[string]string)
	for _, k := range keys {
		if k[:2] != "no" {
			got[k] = "v" + k
		}
	}
	if s.err != nil {
		if err := s.err(keys); err != nil {
			var each *cacheguard.ManyError
			if errors.As(err, &each) {
				maps.DeleteFunc(got, func(k, _ string) bool { return each.Errs[k] != nil })
			} else {
				clear(got)
			}
			return got, err
		}
	}
	return got, nil
}

func (s *shop) loads() [][]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

func runtimeGoexit() { runtime.Goexit() }

func keysOf(prefix string, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("%s%03d", prefix, i)
	}
	return keys
}

// counting is a store that counts the calls for many keys, too.
type counting struct {
	*tap
	many atomic.Int64
}

func (c *counting) LoadMany(ctx context.Context, keys []store.Key) ([]store.Entry, []error) {
	c.many.Add(1)
	return c.Store.LoadMany(ctx, keys)
}

func (c *counting) ClaimMany(ctx context.Context, claims []store.Claim) ([]store.Verdict, []error) {
	c.many.Add(1)
	return c.Store.ClaimMany(ctx, claims)
}

func (c *counting) FillMany(ctx context.Context, fills []store.Filling) []error {
	c.many.Add(1)
	return c.Store.FillMany(ctx, fills)
}

func TestManyColdKeysAreOneLoadAndThreeRoundTrips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shop{takes: 50 * time.Millisecond}
		st := &counting{tap: newTap(memstore.New(memstore.Options{}))}
		g := newGuard(t, st, options{})
		keys := keysOf("k", 100)
		begin := time.Now()
		got, err := g.GetMany(t.Context(), append(keys, keys[:10]...), s.load)
		if err != nil || len(got) != 100 || got["k007"] != "vk007" {
			t.Fatalf("GetMany = %d values, %v", len(got), err)
		}
		if took := time.Since(begin); took != s.takes {
			t.Errorf("took %v, want the load's %v", took, s.takes)
		}
		if loads := s.loads(); len(loads) != 1 || !slices.Equal(loads[0], keys) {
			t.Errorf("%d loads, want one of all keys, each once", len(loads))
		}
		if n := st.many.Load(); n != 3 {
			t.Errorf("%d round trips, want 3: load, claim, fill", n)
		}
		for _, op := range []string{"load", "claim", "fill"} {
			if n := st.count(op); n != 0 {
				t.Errorf("%d calls of %s for single keys", n, op)
			}
		}
		got, err = g.GetMany(t.Context(), keys, s.load)
		if err != nil || len(got) != 100 || st.many.Load() != 4 || len(s.loads()) != 1 {
			t.Errorf("hits: %d values, %v, %d round trips, want one more", len(got), err, st.many.Load())
		}
	})
}

func TestManyKeysThatDoNotExistAreMissingFromTheMapAndCachedAsAbsent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shop{}
		g := newGuard(t, memstore.New(memstore.Options{}), options{NegativeTTL: time.Minute})
		for range 2 {
			got, err := g.GetMany(t.Context(), []string{"k1", "no1", "no2"}, s.load)
			if err != nil || len(got) != 1 || got["k1"] != "vk1" {
				t.Fatalf("GetMany = %v, %v", got, err)
			}
		}
		if n := len(s.loads()); n != 1 {
			t.Errorf("%d loads: absence was not cached", n)
		}
		if _, err := g.Get(t.Context(), "no1", (&origin{}).load); !errors.Is(err, cacheguard.ErrNotFound) {
			t.Errorf("Get of an absent key = %v", err)
		}
	})
}

func TestPartialFailureFailsOnlyItsKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shop{err: func([]string) error {
			return &cacheguard.ManyError{Errs: map[string]error{"k2": errOrigin}}
		}}
		g := newGuard(t, memstore.New(memstore.Options{}), options{})
		got, err := g.GetMany(t.Context(), []string{"k1", "k2", "k3", "no4"}, s.load)
		var each *cacheguard.ManyError
		if !errors.As(err, &each) || len(each.Errs) != 1 || !errors.Is(each.Errs["k2"], errOrigin) || !errors.Is(err, errOrigin) {
			t.Fatalf("error %v, want a *ManyError of k2", err)
		}
		if len(got) != 2 || got["k1"] == "" || got["k3"] == "" {
			t.Errorf("values %v, want those of k1 and k3", got)
		}
		// A loader that fails as a whole fails what it has not brought.
		s.err = func([]string) error { return errOrigin }
		got, err = g.GetMany(t.Context(), []string{"k1", "k5", "k6"}, s.load)
		if !errors.As(err, &each) || len(each.Errs) != 2 || len(got) != 1 {
			t.Errorf("GetMany = %v, %v; want k1 and errors of k5 and k6", got, err)
		}
	})
}

func TestPanicOfAManyLoaderIsAnErrorOfItsKeys(t *testing.T) {
	for name, load := range map[string]cacheguard.ManyLoader[string]{
		"panic":  func(context.Context, []string) (map[string]string, error) { panic("at the disco") },
		"goexit": func(context.Context, []string) (map[string]string, error) { runtimeGoexit(); return nil, nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGuard(t, memstore.New(memstore.Options{}), options{Cooldown: -1})
				_, err := g.GetMany(t.Context(), []string{"a1", "b2"}, load)
				var each *cacheguard.ManyError
				var p *cacheguard.PanicError
				if !errors.As(err, &each) || len(each.Errs) != 2 || !errors.As(err, &p) {
					t.Fatalf("GetMany = %v", err)
				}
				s := &shop{}
				if got, err := g.GetMany(t.Context(), []string{"a1", "b2"}, s.load); err != nil || len(got) != 2 {
					t.Errorf("after the panic: %v, %v", got, err)
				}
			})
		})
	}
}

// Overlapping sets in any order, in several processes: each key is loaded once
// in the fleet, and nobody waits for ever.
func TestManyOverlappingSetsNeitherDeadlockNorLoadTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shop{takes: 20 * time.Millisecond}
		gs := fleet(t, 4, memstore.New(memstore.Options{}), options{})
		all := keysOf("k", 60)
		begin := time.Now()
		var wg sync.WaitGroup
		for i, g := range gs {
			for j := range 5 {
				wg.Go(func() {
					set := slices.Clone(all[i*8 : i*8+30])
					if j%2 == 1 {
						slices.Reverse(set)
					}
					got, err := g.GetMany(t.Context(), set, s.load)
					if err != nil || len(got) != len(set) {
						t.Errorf("GetMany = %d values, %v", len(got), err)
					}
				})
			}
		}
		wg.Wait()
		s.mu.Lock()
		defer s.mu.Unlock()
		for k, n := range s.count {
			if n != 1 {
				t.Errorf("%s was loaded %d times", k, n)
			}
		}
		if took := time.Since(begin); took > 3*s.takes {
			t.Errorf("took %v for loads of %v", took, s.takes)
		}
	})
}

func TestManyJoinsFlightsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &origin{takes: 100 * time.Millisecond}
		s := &shop{takes: 10 * time.Millisecond}
		g := newGuard(t, memstore.New(memstore.Options{}), options{})
		go func() { _, _ = g.Get(t.Context(), "k1", o.load) }()
		synctest.Wait()
		got, err := g.GetMany(t.Context(), []string{"k1", "k2"}, s.load)
		if err != nil || got["k1"] != "k1@0" || got["k2"] != "vk2" {
			t.Fatalf("GetMany = %v, %v", got, err)
		}
		if loads := s.loads(); len(loads) != 1 || len(loads[0]) != 1 {
			t.Errorf("loads %v, want one of k2 alone", loads)
		}
	})
}

func TestManyServesStaleAndRebuildsTogetherInTheBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shop{takes: 50 * time.Millisecond}
		g := newGuard(t, memstore.New(memstore.Options{}), options{Lifetime: cacheguard.Lifetime{TTL: time.Second, Grace: time.Minute}})
		keys := keysOf("k", 20)
		if _, err := g.GetMany(t.Context(), keys, s.load); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		begin := time.Now()
		if got, err := g.GetMany(t.Context(), keys, s.load); err != nil || len(got) != 20 {
			t.Fatalf("GetMany = %d values, %v", len(got), err)
		}
		if took := time.Since(begin); took != 0 {
			t.Errorf("callers with stale values waited %v", took)
		}
		time.Sleep(time.Second / 2)
		if loads := s.loads(); len(loads) != 2 || len(loads[1]) != 20 {
			t.Errorf("%d loads, the second of %d keys; want one of 20", len(loads), len(loads[len(loads)-1]))
		}
	})
}

func TestManyCallerThatLeavesLeavesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shop{takes: time.Second}
		g := newGuard(t, memstore.New(memstore.Options{}), options{})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		begin := time.Now()
		_, err := g.GetMany(ctx, []string{"k1", "k2"}, s.load)
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != 10*time.Millisecond {
			t.Errorf("GetMany = %v after %v", err, time.Since(begin))
		}
		time.Sleep(2 * time.Second)
		if got, err := g.GetMany(t.Context(), []string{"k1", "k2"}, s.load); err != nil || len(got) != 2 || len(s.loads()) != 1 {
			t.Errorf("the load did not go on: %v, %v", got, err)
		}
	})
}

func TestManyWaitsForItselfIsACycle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, memstore.New(memstore.Options{}), options{})
		var inner error
		_, err := g.GetMany(t.Context(), []string{"a1", "b1"}, func(ctx context.Context, keys []string) (map[string]string, error) {
			_, inner = g.Get(ctx, "b1", (&origin{}).load)
			return nil, inner
		})
		if !errors.Is(inner, cacheguard.ErrCycle) || !errors.Is(err, cacheguard.ErrCycle) {
			t.Errorf("Get inside = %v, GetMany = %v; want ErrCycle", inner, err)
		}
	})
}

func TestManyIsAnsweredWithoutTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shop{takes: 10 * time.Millisecond}
		down := &counting{tap: newTap(memstore.New(memstore.Options{}))}
		g := newGuard(t, broken{down}, options{})
		for range 5 {
			got, err := g.GetMany(t.Context(), keysOf("k", 30), s.load)
			if err != nil || len(got) != 30 {
				t.Fatalf("GetMany = %d values, %v", len(got), err)
			}
		}
		if n := len(s.loads()); n != 5 {
			t.Errorf("%d loads for 5 calls", n)
		}
	})
}

// broken is a store that answers no read.
type broken struct{ *counting }

func (b broken) LoadMany(_ context.Context, keys []store.Key) ([]store.Entry, []error) {
	errs := make([]error, len(keys))
	for i := range errs {
		errs[i] = lost("load", store.ClassConnection)
	}
	return make([]store.Entry, len(keys)), errs
}
