package cacheguard_test

import (
	"strings"
	"testing"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
)

// adviceOn is what the advisor says to a guard with these options.
func adviceOn(t *testing.T, opts cacheguard.Options[string]) []string {
	t.Helper()
	var settings cacheguard.Settings
	opts.Hooks.Opened = func(i cacheguard.GuardInfo) func() { settings = i.Settings; return nil }
	g, err := cacheguard.New(memstore.New(memstore.Options{}), opts)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	return settings.Advice()
}

func TestDoubtfulSettingsGetOneLineOfAdviceEach(t *testing.T) {
	for what, opts := range map[string]options{
		"Lease.Min (20s)":   {Lease: cacheguard.LeaseTuning{Min: 20 * time.Second}},
		"both 5s":           {Lease: cacheguard.LeaseTuning{Min: 5 * time.Second, Max: 5 * time.Second}},
		"Grace is 0":        {Lifetime: cacheguard.Lifetime{TTL: time.Minute}, EarlyRefresh: -1},
		"WaitLimit (1s)":    {WaitLimit: time.Second},
		"Cooldown is off":   {Cooldown: -1},
		"Near.TTL (10m0s)":  {Near: cacheguard.Near{MaxEntries: 1, TTL: 10 * time.Minute}},
		"NegativeTTL (1h0m": {NegativeTTL: time.Hour},
		"HoldOff (2m0s)":    {HoldOff: 2 * time.Minute},
	} {
		advice := adviceOn(t, opts)
		if len(advice) != 1 || !strings.Contains(advice[0], what) {
			t.Errorf("advice is %q, want one line that says %q", advice, what)
		}
	}
}

func TestPlainSettingsGetNoAdvice(t *testing.T) {
	for _, opts := range []options{
		{},
		{Lifetime: cacheguard.Lifetime{TTL: 10 * time.Second, Grace: time.Minute}, Near: cacheguard.Near{MaxEntries: 1000}, NegativeTTL: 5 * time.Second},
		{Lifetime: cacheguard.Lifetime{TTL: time.Minute}}, // early refresh rebuilds before the end
		{LoadLimit: 2 * time.Second, Lease: cacheguard.LeaseTuning{Max: time.Second}},
	} {
		if advice := adviceOn(t, opts); len(advice) != 0 {
			t.Errorf("%+v: advice %q, want none", opts.Lifetime, advice)
		}
	}
}
