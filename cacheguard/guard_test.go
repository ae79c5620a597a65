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

// origin is what loaders ask: one version number for all keys, a service time,
// and a count of the loads.
type origin struct {
	takes   time.Duration
	version atomic.Int64
	loads   atomic.Int64
	fails   atomic.Bool
}

var errOrigin = errors.New("origin is down")

// load reads the version, and is then under way for the service time.
func (o *origin) load(ctx context.Context, key string) (string, error) {
	o.loads.Add(1)
	v := o.version.Load()
	select {
	case <-time.After(o.takes):
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	if o.fails.Load() {
		return "", errOrigin
	}
	return fmt.Sprintf("%s@%d", key, v), nil
}

type guard = cacheguard.Guard[string]
type options = cacheguard.Options[string]

// steady are options without chance in them.
func steady(opts options) options {
	if opts.Jitter == 0 {
		opts.Jitter = -1
	}
	if opts.EarlyRefresh == 0 {
		opts.EarlyRefresh = -1
	}
	return opts
}

func newGuard(t *testing.T, s store.Store, opts options) *guard {
	t.Helper()
	g, err := cacheguard.New(s, steady(opts))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return g
}

// fleet is n guards, as in n processes, on one store.
func fleet(t *testing.T, n int, s store.Store, opts options) []*guard {
	gs := make([]*guard, n)
	for i := range gs {
		gs[i] = newGuard(t, s, opts)
	}
	return gs
}

func TestColdKeyIsLoadedOnceInTheFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &origin{takes: 100 * time.Millisecond}
		gs := fleet(t, 8, memstore.New(memstore.Options{}), options{})
		begin := time.Now()
		var wg sync.WaitGroup
		for _, g := range gs {
			for range 50 {
				wg.Go(func() {
					v, err := g.Get(t.Context(), "k", o.load)
					if err != nil || v != "k@0" {
						t.Errorf("Get = %q, %v", v, err)
					}
				})
			}
		}
		wg.Wait()
		if n := o.loads.Load(); n != 1 {
			t.Errorf("%d loads, want 1", n)
		}
		if took := time.Since(begin); took != o.takes {
			t.Errorf("took %v, want the load's %v: followers are woken, they do not poll", took, o.takes)
		}
	})
}

func TestStaleIsServedWhileOneRebuilds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &origin{takes: 100 * time.Millisecond}
		gs := fleet(t, 4, memstore.New(memstore.Options{}), options{Lifetime: cacheguard.Lifetime{TTL: time.Second, Grace: time.Minute}})
		if _, err := gs[0].Get(t.Context(), "k", o.load); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		o.version.Store(1)
		begin := time.Now()
		var wg sync.WaitGroup
		for _, g := range gs {
			for range 50 {
				wg.Go(func() {
					e, err := g.GetEntry(t.Context(), "k", o.load)
					if err != nil || e.Value != "k@0" || e.State != cacheguard.Stale {
						t.Errorf("GetEntry = %+v, %v", e, err)
					}
				})
			}
		}
		wg.Wait()
		if took := time.Since(begin); took != 0 {
			t.Errorf("callers waited %v for a load that they had a stale value for", took)
		}
		time.Sleep(time.Second / 2)
		if n := o.loads.Load(); n != 2 {
			t.Errorf("%d loads, want 2", n)
		}
		e, err := gs[3].GetEntry(t.Context(), "k", o.load)
		if err != nil || e.Value != "k@1" || e.State != cacheguard.Fresh {
			t.Errorf("GetEntry = %+v, %v", e, err)
		}
	})
}
