package cacheguard_test

import (
	"context"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
)

// Each option that is out of range is refused, with its name and with what to
// write instead (S13 among them).
func TestOptionsOutOfRangeSayWhatToWrite(t *testing.T) {
	type life = cacheguard.Lifetime
	type tuning = cacheguard.LeaseTuning
	type near = cacheguard.Near
	day := 24 * time.Hour
	for name, c := range map[string]struct {
		opts options
		want []string
	}{
		"long namespace":       {options{Namespace: strings.Repeat("n", 65)}, []string{"Options.Namespace", "65 bytes", "at most 64"}},
		"negative TTL":         {options{Lifetime: life{TTL: -1}}, []string{"Options.Lifetime", "zero or more"}},
		"negative grace":       {options{Lifetime: life{TTL: 1, Grace: -1}}, []string{"Options.Lifetime", "zero or more"}},
		"endless TTL":          {options{Lifetime: life{TTL: math.MaxInt64}}, []string{"Options.Lifetime", "at most"}},
		"endless sum":          {options{Lifetime: life{TTL: math.MaxInt64, Grace: math.MaxInt64}}, []string{"Options.Lifetime", "at most"}},
		"long sum":             {options{Lifetime: life{TTL: 6 * 365 * day, Grace: 6 * 365 * day}}, []string{"Options.Lifetime", "at most"}},
		"negative NegativeTTL": {options{NegativeTTL: -1}, []string{"Options.NegativeTTL", "do not cache absence"}},
		"endless NegativeTTL":  {options{NegativeTTL: math.MaxInt64}, []string{"Options.NegativeTTL"}},
		"large beta":           {options{EarlyRefresh: 1001}, []string{"Options.EarlyRefresh", "at most 1000", "negative one for off"}},
		"beta NaN":             {options{EarlyRefresh: math.NaN()}, []string{"Options.EarlyRefresh"}},
		"beta infinite":        {options{EarlyRefresh: math.Inf(1)}, []string{"Options.EarlyRefresh"}},
		"jitter of all":        {options{Jitter: 1}, []string{"Options.Jitter", "below 1", "negative one for off"}},
		"jitter NaN":           {options{Jitter: math.NaN()}, []string{"Options.Jitter"}},
		"lease over LoadLimit": {options{LoadLimit: time.Second, Lease: tuning{Max: 2 * time.Second}}, []string{"Options.Lease", "Max", "1s"}},
		"lease Min over Max":   {options{Lease: tuning{Min: 2, Max: 1}}, []string{"Options.Lease", "Min"}},
		"lease Min negative":   {options{Lease: tuning{Min: -1}}, []string{"Options.Lease", "Min"}},
		"lease Max negative":   {options{Lease: tuning{Max: -1}}, []string{"Options.Lease", "Max"}},
		"lease Initial low":    {options{Lease: tuning{Initial: 1}}, []string{"Options.Lease", "Initial"}},
		"lease Quantile":       {options{Lease: tuning{Quantile: 99}}, []string{"Options.Lease", "Quantile", "0.99"}},
		"lease Quantile NaN":   {options{Lease: tuning{Quantile: math.NaN()}}, []string{"Options.Lease", "Quantile"}},
		"lease Headroom":       {options{Lease: tuning{Headroom: 0.5}}, []string{"Options.Lease", "Headroom"}},
		"LoadLimit negative":   {options{LoadLimit: -1}, []string{"Options.LoadLimit", "0 for 30s"}},
		"LoadLimit tiny":       {options{LoadLimit: time.Microsecond}, []string{"Options.LoadLimit", "at least 1ms"}},
		"LoadLimit endless":    {options{LoadLimit: 25 * time.Hour}, []string{"Options.LoadLimit", "at most 24h"}},
		"WaitLimit negative":   {options{WaitLimit: -1}, []string{"Options.WaitLimit", "0 for LoadLimit + Lease.Max"}},
		"WaitLimit endless":    {options{WaitLimit: 49 * time.Hour}, []string{"Options.WaitLimit", "at most 48h"}},
		"HoldOff negative":     {options{HoldOff: -1}, []string{"Options.HoldOff", "at most 24h", "0 for off"}},
		"HoldOff endless":      {options{HoldOff: 25 * time.Hour}, []string{"Options.HoldOff", "at most 24h"}},
		"Cooldown endless":     {options{Cooldown: 25 * time.Hour}, []string{"Options.Cooldown", "at most 24h", "negative one for off"}},
		"unknown outage":       {options{Outage: 7}, []string{"Options.Outage is 7", "Local or FailFast"}},
		"OutageLoads negative": {options{OutageLoads: -1}, []string{"Options.OutageLoads", "0 for 64"}},
		"near negative":        {options{Near: near{MaxEntries: -1}}, []string{"Options.Near", "above zero"}},
		"near with two bounds": {options{Near: near{MaxEntries: 1, MaxBytes: 1}}, []string{"Options.Near", "one of them"}},
		"near without a bound": {options{Near: near{TTL: 1}}, []string{"Options.Near", "MaxEntries or MaxBytes"}},
		"near TTL negative":    {options{Near: near{MaxEntries: 1, TTL: -1}}, []string{"Options.Near.TTL", "0 for 1s"}},
	} {
		t.Run(name, func(t *testing.T) {
			g, err := cacheguard.New(memstore.New(memstore.Options{}), c.opts)
			if err == nil {
				_ = g.Close()
				t.Fatal("taken")
			}
			for _, want := range append(c.want, "cacheguard: ") {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not contain %q", err, want)
				}
			}
		})
	}
}

// All that is wrong is told at once.
func TestAllFaultsOfOptionsAreToldTogether(t *testing.T) {
	_, err := cacheguard.New(memstore.New(memstore.Options{}), options{LoadLimit: -1, Jitter: 2, Near: cacheguard.Near{TTL: 1}})
	for _, want := range []string{"LoadLimit", "Jitter", "Near"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not tell of %s", err, want)
		}
	}
	if _, err := cacheguard.New(nil, options{}); err == nil || !strings.Contains(err.Error(), "redisstore.New or memstore.New") {
		t.Errorf("New of a nil store: %v", err)
	}
}

// What lies on the bounds is allowed, and so is the zero value.
func TestOptionsOnTheirBounds(t *testing.T) {
	ten := 10 * 365 * 24 * time.Hour
	for name, opts := range map[string]options{
		"zero":      {},
		"largest":   {Namespace: strings.Repeat("n", 64), Lifetime: cacheguard.Lifetime{TTL: ten / 2, Grace: ten / 2}, NegativeTTL: ten, EarlyRefresh: 1000, Jitter: 0.999, LoadLimit: 24 * time.Hour, WaitLimit: 48 * time.Hour, Cooldown: 24 * time.Hour, HoldOff: 24 * time.Hour},
		"smallest":  {Lifetime: cacheguard.Lifetime{TTL: 1}, LoadLimit: time.Millisecond, WaitLimit: 1, Cooldown: 1, OutageLoads: 1},
		"off":       {EarlyRefresh: -1, Jitter: -1, Cooldown: -1},
		"all grace": {Lifetime: cacheguard.Lifetime{Grace: time.Minute}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, err := cacheguard.New(memstore.New(memstore.Options{}), opts)
				if err != nil {
					t.Fatal(err)
				}
				defer g.Close()
				for range 3 {
					if v, err := g.Get(t.Context(), "k", (&origin{}).load); v != "k@0" || err != nil {
						t.Errorf("Get = %q, %v", v, err)
					}
				}
			})
		})
	}
}

// A LifetimeFunc may return anything.
func TestLifetimeFuncMayReturnAnything(t *testing.T) {
	for _, c := range []struct {
		life  cacheguard.Lifetime
		state cacheguard.State // of the second Get
		left  time.Duration
	}{
		{cacheguard.Lifetime{}, cacheguard.Rebuilt, 0},
		{cacheguard.Lifetime{TTL: -1, Grace: -1}, cacheguard.Rebuilt, 0},
		{cacheguard.Lifetime{TTL: math.MinInt64, Grace: time.Minute}, cacheguard.Stale, 0},
		{cacheguard.Lifetime{TTL: time.Minute, Grace: math.MinInt64}, cacheguard.Fresh, time.Minute},
		{cacheguard.Lifetime{TTL: math.MaxInt64, Grace: math.MaxInt64}, cacheguard.Fresh, 5 * 365 * 24 * time.Hour},
	} {
		synctest.Test(t, func(t *testing.T) {
			g := newGuard(t, memstore.New(memstore.Options{}), options{LifetimeFunc: func(string, string) cacheguard.Lifetime { return c.life }})
			get(t, g, (&origin{}).load, "k@0")
			if r := ask(t.Context(), g, "k", (&origin{}).load).got(t, "k@0"); r.State != c.state || r.Left != c.left {
				t.Errorf("%v: %v for %v, want %v for %v", c.life, r.State, r.Left, c.state, c.left)
			}
			if err := g.Set(t.Context(), "k", "set"); err != nil {
				t.Error(err)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, memstore.New(memstore.Options{}), options{LifetimeFunc: func(string, string) cacheguard.Lifetime { panic("life") }})
		if v, err := g.Get(t.Context(), "k", (&origin{}).load); err == nil || !strings.Contains(err.Error(), "life") {
			t.Errorf("Get = %q, %v; want the panic as an error", v, err)
		}
		if err := g.Set(t.Context(), "k", "v"); err == nil {
			t.Error("Set = nil, want the panic as an error")
		}
	})
}

// EarlyRefresh rebuilds before the end, in the background, once in the fleet.
func TestEarlyRefreshKeepsAHotKeyFromExpiring(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(memstore.Options{})
		var gs []*guard
		for range 4 {
			g, err := cacheguard.New(mem, options{EarlyRefresh: 1, Jitter: -1, Lifetime: cacheguard.Lifetime{TTL: 10 * time.Second}})
			if err != nil {
				t.Fatal(err)
			}
			defer g.Close()
			gs = append(gs, g)
		}
		o := &origin{takes: 500 * time.Millisecond}
		ask(t.Context(), gs[0], "k", o.load).got(t, "k@0")
		for range 6000 { // a minute
			for _, g := range gs {
				if r := ask(t.Context(), g, "k", o.load).got(t, "k@0"); r.took != 0 {
					t.Fatalf("a reader waited %v", r.took)
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
		// Each life is cut by some multiples of the cost; none is rebuilt twice.
		if n := o.loads.Load(); n < 6 || n > 14 {
			t.Errorf("%d loads in a minute of lives of 10s", n)
		}
	})
}

// Cooldown off: a failing origin is asked by each who comes.
func TestCooldownOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuard(t, memstore.New(memstore.Options{}), options{Cooldown: -1})
		for range 5 {
			getFails(t, g, failing, errOrigin)
		}
		get(t, g, func(context.Context, string) (string, error) { return "v", nil }, "v")
	})
}
