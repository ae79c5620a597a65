package cacheguard_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
)

// rebuild loads keys that nobody has loaded before, each for takes.
func rebuild(t *testing.T, g *guard, n int, takes time.Duration, key func() string) {
	t.Helper()
	for range n {
		if _, err := g.Get(t.Context(), key(), (&origin{takes: takes}).load); err != nil {
			t.Fatal(err)
		}
	}
}

// counter returns keys that are all different.
func counter() func() string {
	var n atomic.Int64
	return func() string { return "key " + time.Duration(n.Add(1)).String() }
}

// The lease follows the load times, and hooks tell both.
func TestLeaseFollowsTheLoadTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var length, took atomic.Int64
		var renewals atomic.Int64
		g := newGuard(t, memstore.New(memstore.Options{}), options{Hooks: cacheguard.Hooks{
			Load: func(i cacheguard.LoadInfo) {
				length.Store(int64(i.Length))
				took.Store(int64(i.Took))
			},
			Renew: func(cacheguard.RenewInfo) { renewals.Add(1) },
		}})
		key := counter()
		rebuild(t, g, 1, 300*time.Millisecond, key)
		if d := time.Duration(length.Load()); d != 3*time.Second {
			t.Errorf("the first lease was %v, want the initial 3s", d)
		}
		rebuild(t, g, 100, 300*time.Millisecond, key)
		if d := time.Duration(length.Load()); d < 360*time.Millisecond || d > 620*time.Millisecond {
			t.Errorf("after 100 loads of 300ms the lease is %v, want about twice that", d)
		}
		if d := time.Duration(took.Load()); d != 300*time.Millisecond {
			t.Errorf("Hooks.Load told %v, want 300ms", d)
		}
		if n := renewals.Load(); n != 0 {
			t.Errorf("%d renewals for loads that the leases were tuned to", n)
		}
		// A step up: the watchdog covers it until the lease has followed.
		rebuild(t, g, 30, 3*time.Second, key)
		if d := time.Duration(length.Load()); d < 3600*time.Millisecond {
			t.Errorf("30 loads of 3s later the lease is %v", d)
		}
		if renewals.Load() == 0 {
			t.Error("no renewal for loads of 3 s under leases of 0.6 s")
		}
	})
}

// Loads that fail, or that nobody could wait for, teach nothing.
func TestFailedLoadsTeachNoLength(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var length atomic.Int64
		g := newGuard(t, memstore.New(memstore.Options{}), options{Cooldown: -1, LoadLimit: 20 * time.Second, Hooks: cacheguard.Hooks{
			Claim: func(i cacheguard.ClaimInfo) { length.Store(int64(i.Length)) },
		}})
		key := counter()
		rebuild(t, g, 60, 300*time.Millisecond, key)
		want := length.Load()

		failing := &origin{takes: 10 * time.Second}
		failing.fails.Store(true)
		hanging := &origin{takes: time.Hour}
		for range 10 {
			if _, err := g.Get(t.Context(), key(), failing.load); err == nil {
				t.Fatal("the load did not fail")
			}
			if _, err := g.Get(t.Context(), key(), hanging.load); err == nil {
				t.Fatal("the load was not cut at LoadLimit")
			}
		}
		rebuild(t, g, 1, 300*time.Millisecond, key)
		if got := length.Load(); got != want {
			t.Errorf("the lease was %v and is %v", time.Duration(want), time.Duration(got))
		}
	})
}
