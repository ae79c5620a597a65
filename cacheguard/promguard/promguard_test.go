package promguard_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/promguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
	"github.com/cacheguard-go/cacheguard/middleware"
)

type options = cacheguard.Options[string]

func newGuard(t testing.TB, s store.Store, opts options) *cacheguard.Guard[string] {
	t.Helper()
	if opts.EarlyRefresh == 0 {
		opts.EarlyRefresh = -1
	}
	opts.Jitter = -1
	g, err := cacheguard.New(s, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close() })
	return g
}

func loads(value string, takes time.Duration, err error) cacheguard.Loader[string] {
	return func(context.Context, string) (string, error) {
		time.Sleep(takes)
		return value, err
	}
}

// registered returns a collector and its registry.
func registered(t testing.TB) (*promguard.Collector, *prometheus.Registry) {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	c, err := promguard.Register(reg, promguard.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c, reg
}

// values are all numbers of a scrape but zeros, as in the text format:
// histograms by their count.
func values(t testing.TB, reg prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			name := f.GetName() + "{" + strings.Join(labels, ",") + "}"
			switch f.GetType() {
			case dto.MetricType_COUNTER:
				found[name] = m.GetCounter().GetValue()
			case dto.MetricType_GAUGE:
				found[name] = m.GetGauge().GetValue()
			case dto.MetricType_HISTOGRAM:
				found[name] = float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	maps.DeleteFunc(found, func(_ string, v float64) bool { return v == 0 })
	return found
}

// expect checks some of a scrape's numbers.
func expect(t *testing.T, reg prometheus.Gatherer, want map[string]float64) {
	t.Helper()
	got := values(t, reg)
	for name, v := range want {
		if got[name] != v {
			t.Errorf("%s is %v, want %v", name, got[name], v)
		}
	}
	if t.Failed() {
		for _, name := range slices.Sorted(maps.Keys(got)) {
			t.Logf("%s %v", name, got[name])
		}
	}
}

func TestLoadsAvoidedAreCountedInTheProcessAndAcrossTheFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, reg := registered(t)
		s := memstore.New(memstore.Options{})
		load := loads("v", 100*time.Millisecond, nil)
		var wg sync.WaitGroup
		for _, name := range []string{"first", "second"} {
			g := newGuard(t, s, options{Hooks: c.Hooks(name)})
			for range 10 {
				wg.Go(func() { _, _ = g.Get(t.Context(), "k", load) })
			}
			synctest.Wait() // the first guard is the holder, the second follows
		}
		wg.Wait()
		synctest.Wait()
		expect(t, reg, map[string]float64{
			`cacheguard_loads_total{cause="miss",guard="first",outcome="value"}`:        1,
			`cacheguard_loads_total{cause="miss",guard="second",outcome="value"}`:       0,
			`cacheguard_loads_avoided_total{by="process",guard="first"}`:                9,
			`cacheguard_loads_avoided_total{by="fleet",guard="first"}`:                  0,
			`cacheguard_loads_avoided_total{by="process",guard="second"}`:               9,
			`cacheguard_loads_avoided_total{by="fleet",guard="second"}`:                 1,
			`cacheguard_answers_total{guard="first",state="rebuilt",via="flight"}`:      10,
			`cacheguard_answers_total{guard="second",state="followed",via="flight"}`:    10,
			`cacheguard_flights_total{begun_by="caller",end="led",guard="first"}`:       1,
			`cacheguard_flights_total{begun_by="caller",end="followed",guard="second"}`: 1,
			`cacheguard_follows_total{guard="second",outcome="value"}`:                  1,
			`cacheguard_follow_seconds{guard="second"}`:                                 1,
			`cacheguard_wait_seconds{guard="first"}`:                                    10,
			`cacheguard_wait_seconds{guard="second"}`:                                   10,
			`cacheguard_claims_total{guard="first",outcome="granted"}`:                  1,
			`cacheguard_claims_total{guard="second",outcome="held"}`:                    1,
			`cacheguard_fills_total{guard="first",outcome="landed"}`:                    1,
			`cacheguard_load_seconds{guard="first"}`:                                    1,
			`cacheguard_load_lease_ratio{guard="first"}`:                                1,
			`cacheguard_lease_length_seconds{guard="first"}`:                            1,
			`cacheguard_store_call_seconds{guard="first",op="claim"}`:                   1,
			`cacheguard_store_call_seconds{guard="first",op="fill"}`:                    1,
			`cacheguard_listening{guard="first"}`:                                       1,
			`cacheguard_duplicate_loads_total{guard="first"}`:                           0,
			`cacheguard_setting_seconds{guard="first",setting="load_limit"}`:            30,
		})
	})
}

// away is a store out of reach, while it is on.
type away struct {
	store.Store
	mu  sync.Mutex
	off bool // out of reach
}

func (a *away) set(off bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.off = off
}

func (a *away) fault(op string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.off {
		return &store.Fault{Op: op, Class: store.ClassTimeout, Err: context.DeadlineExceeded}
	}
	return nil
}

func (a *away) Load(ctx context.Context, key store.Key) (store.Entry, error) {
	if err := a.fault("load"); err != nil {
		return store.Entry{}, err
	}
	return a.Store.Load(ctx, key)
}

func (a *away) Invalidate(ctx context.Context, keys []store.Key) []error {
	if err := a.fault("invalidate"); err != nil {
		return slices.Repeat([]error{err}, len(keys))
	}
	return a.Store.Invalidate(ctx, keys)
}

func TestOutageShowsInFaultsBreakerAndLoadsWithoutALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, reg := registered(t)
		s := &away{Store: memstore.New(memstore.Options{})}
		g := newGuard(t, s, options{Hooks: c.Hooks("g"), Near: cacheguard.Near{MaxEntries: 10}})
		load := loads("v", 0, nil)
		_, _ = g.Get(t.Context(), "near", load)
		_, _ = g.Get(t.Context(), "near", load)
		time.Sleep(2 * time.Second)
		s.set(true)
		for _, key := range []string{"one", "two"} {
			_, _ = g.Get(t.Context(), key, load)
		}
		_, _ = g.Get(t.Context(), "near", load)
		_, _ = g.Get(t.Context(), "three", load) // the breaker is open
		_ = g.Invalidate(t.Context(), "k")
		expect(t, reg, map[string]float64{
			`cacheguard_answers_total{guard="g",state="fresh",via="near"}`:      1,
			`cacheguard_answers_total{guard="g",state="stale",via="near"}`:      1,
			`cacheguard_stale_answers_total{guard="g",reason="outage"}`:         1,
			`cacheguard_flights_total{begun_by="caller",end="alone",guard="g"}`: 3,
			`cacheguard_unleased_loads_total{guard="g"}`:                        3,
			`cacheguard_store_faults_total{class="timeout",guard="g"}`:          3,
			`cacheguard_store_faults_total{class="refused",guard="g"}`:          2,
			`cacheguard_breaker_opened_total{guard="g"}`:                        1,
			`cacheguard_breaker_open{guard="g"}`:                                1,
			`cacheguard_pending_writes{guard="g"}`:                              1,
			`cacheguard_near_entries{guard="g"}`:                                4,
		})
		s.set(false)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		expect(t, reg, map[string]float64{
			`cacheguard_breaker_open{guard="g"}`:   0,
			`cacheguard_pending_writes{guard="g"}`: 0,
		})
	})
}

func TestFailuresShowAsCooldownsAndSecondOpinions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, reg := registered(t)
		s := memstore.New(memstore.Options{})
		fails := loads("", 0, errors.New("origin is down"))
		first := newGuard(t, s, options{Hooks: c.Hooks("first")})
		second := newGuard(t, s, options{Hooks: c.Hooks("second")})
		_, _ = first.Get(t.Context(), "k", fails)
		_, _ = first.Get(t.Context(), "k", fails)
		_, _ = second.Get(t.Context(), "k", fails)
		panics := func(context.Context, string) (string, error) { panic("at the origin") }
		_, _ = first.Get(t.Context(), "p", panics)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _, _ = first.Get(ctx, "slow", loads("v", time.Second, nil)) }()
		synctest.Wait()
		cancel()
		synctest.Wait()
		expect(t, reg, map[string]float64{
			`cacheguard_loads_total{cause="miss",guard="first",outcome="failed"}`:  1,
			`cacheguard_loads_total{cause="miss",guard="first",outcome="panic"}`:   1,
			`cacheguard_loads_total{cause="miss",guard="second",outcome="failed"}`: 1,
			`cacheguard_second_opinions_total{guard="second"}`:                     1,
			`cacheguard_claims_total{guard="first",outcome="cooling"}`:             1,
			`cacheguard_answer_errors_total{guard="first",reason="cooldown"}`:      1,
			`cacheguard_answer_errors_total{guard="first",reason="load_failed"}`:   1,
			`cacheguard_answer_errors_total{guard="first",reason="panic"}`:         1,
			`cacheguard_answer_errors_total{guard="first",reason="caller_left"}`:   1,
			`cacheguard_panics_total{guard="first",where="loader"}`:                1,
		})
		time.Sleep(2 * time.Second)
	})
}

// ownAnswer is a loader's error that says that nothing has failed.
type ownAnswer struct{}

func (ownAnswer) Error() string   { return "for its own caller" }
func (ownAnswer) NotShared() bool { return true }

func TestWhatIsNotToBeSharedIsCountedAsThatAndAsNoFailure(t *testing.T) {
	c, reg := registered(t)
	h := c.Hooks("g")
	h.Load(cacheguard.LoadInfo{Err: ownAnswer{}})
	h.Answer(cacheguard.AnswerInfo{Err: ownAnswer{}})
	h.Follow(cacheguard.FollowInfo{Err: ownAnswer{}})
	got := values(t, reg)
	for name, want := range map[string]float64{
		`cacheguard_loads_total{cause="miss",guard="g",outcome="not_shared"}`: 1,
		`cacheguard_loads_total{cause="miss",guard="g",outcome="failed"}`:     0,
		`cacheguard_answer_errors_total{guard="g",reason="not_shared"}`:       1,
		`cacheguard_answer_errors_total{guard="g",reason="load_failed"}`:      0,
		`cacheguard_follows_total{guard="g",outcome="value"}`:                 1,
		`cacheguard_follows_total{guard="g",outcome="failed"}`:                0,
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
}

// told is one hook called directly, and what that counts.
func TestEveryOutcomeHasItsSeries(t *testing.T) {
	lost, fenced := store.ErrLost, store.ErrFenced
	other := errors.New("other")
	for name, tell := range map[string]func(cacheguard.Hooks){
		`cacheguard_lease_renewals_total{guard="g",outcome="extended"}`:  func(h cacheguard.Hooks) { h.Renew(cacheguard.RenewInfo{}) },
		`cacheguard_lease_renewals_total{guard="g",outcome="lost"}`:      func(h cacheguard.Hooks) { h.Renew(cacheguard.RenewInfo{Err: lost}) },
		`cacheguard_lease_renewals_total{guard="g",outcome="overtaken"}`: func(h cacheguard.Hooks) { h.Renew(cacheguard.RenewInfo{Err: lost, Overtaken: true}) },
		`cacheguard_lease_renewals_total{guard="g",outcome="failed"}`:    func(h cacheguard.Hooks) { h.Renew(cacheguard.RenewInfo{Err: other}) },
		`cacheguard_lease_renewals_total{guard="g",outcome="lapsed"}`:    func(h cacheguard.Hooks) { h.Renew(cacheguard.RenewInfo{Err: other, Lapsed: true}) },
		`cacheguard_fills_total{guard="g",outcome="landed"}`:             func(h cacheguard.Hooks) { h.Fill(cacheguard.FillInfo{}) },
		`cacheguard_fills_total{guard="g",outcome="fenced"}`:             func(h cacheguard.Hooks) { h.Fill(cacheguard.FillInfo{Err: fenced}) },
		`cacheguard_fills_total{guard="g",outcome="overtaken"}`:          func(h cacheguard.Hooks) { h.Fill(cacheguard.FillInfo{Err: fenced, Overtaken: true}) },
		`cacheguard_fills_total{guard="g",outcome="failed"}`:             func(h cacheguard.Hooks) { h.Fill(cacheguard.FillInfo{Err: other}) },
		`cacheguard_lease_takeovers_total{guard="g"}`: func(h cacheguard.Hooks) {
			h.Claim(cacheguard.ClaimInfo{Outcome: store.Granted, Takeover: true})
		},
		`cacheguard_claims_total{guard="g",outcome="changed"}`: func(h cacheguard.Hooks) { h.Claim(cacheguard.ClaimInfo{Outcome: store.Changed}) },
		`cacheguard_loads_total{cause="early",guard="g",outcome="absent"}`: func(h cacheguard.Hooks) {
			h.Load(cacheguard.LoadInfo{Early: true, Background: true, Err: cacheguard.ErrNotFound})
		},
		`cacheguard_loads_total{cause="stale",guard="g",outcome="value"}`:     func(h cacheguard.Hooks) { h.Load(cacheguard.LoadInfo{Background: true}) },
		`cacheguard_loads_total{cause="miss",guard="g",outcome="overtaken"}`:  func(h cacheguard.Hooks) { h.Load(cacheguard.LoadInfo{Err: lost, Length: 1}) },
		`cacheguard_loads_total{cause="miss",guard="g",outcome="not_shared"}`: func(h cacheguard.Hooks) { h.Load(cacheguard.LoadInfo{Err: &cacheguard.PassError{For: 1}}) },
		`cacheguard_loads_total{cause="miss",guard="g",outcome="load_limit"}`: func(h cacheguard.Hooks) {
			h.Load(cacheguard.LoadInfo{Err: fmt.Errorf("x: %w", cacheguard.ErrLoadLimit)})
		},
		`cacheguard_loads_total{cause="miss",guard="g",outcome="closed"}`: func(h cacheguard.Hooks) { h.Load(cacheguard.LoadInfo{Err: cacheguard.ErrClosed}) },
		`cacheguard_loads_total{cause="miss",guard="g",outcome="panic"}`:  func(h cacheguard.Hooks) { h.Load(cacheguard.LoadInfo{Err: &cacheguard.PanicError{}}) },
		`cacheguard_follows_total{guard="g",outcome="lease"}`:             func(h cacheguard.Hooks) { h.Follow(cacheguard.FollowInfo{Granted: true}) },
		`cacheguard_follows_total{guard="g",outcome="cooldown"}`:          func(h cacheguard.Hooks) { h.Follow(cacheguard.FollowInfo{Err: cacheguard.ErrCooldown}) },
		`cacheguard_follows_total{guard="g",outcome="wait_limit"}`:        func(h cacheguard.Hooks) { h.Follow(cacheguard.FollowInfo{Err: cacheguard.ErrWaitLimit}) },
		`cacheguard_follows_total{guard="g",outcome="failed"}`:            func(h cacheguard.Hooks) { h.Follow(cacheguard.FollowInfo{Err: other}) },
		`cacheguard_answers_total{guard="g",state="none",via="none"}`:     func(h cacheguard.Hooks) { h.Answer(cacheguard.AnswerInfo{Err: cacheguard.ErrClosed}) },
		`cacheguard_answers_total{guard="g",state="stale",via="pass"}`: func(h cacheguard.Hooks) {
			h.Answer(cacheguard.AnswerInfo{State: cacheguard.Stale, Via: cacheguard.ViaPass})
		},
		`cacheguard_answer_errors_total{guard="g",reason="wait_limit"}`: func(h cacheguard.Hooks) { h.Answer(cacheguard.AnswerInfo{Err: cacheguard.ErrWaitLimit}) },
		`cacheguard_answer_errors_total{guard="g",reason="load_limit"}`: func(h cacheguard.Hooks) { h.Answer(cacheguard.AnswerInfo{Err: cacheguard.ErrLoadLimit}) },
		`cacheguard_answer_errors_total{guard="g",reason="cycle"}`:      func(h cacheguard.Hooks) { h.Answer(cacheguard.AnswerInfo{Err: cacheguard.ErrCycle}) },
		`cacheguard_answer_errors_total{guard="g",reason="not_cached"}`: func(h cacheguard.Hooks) { h.Answer(cacheguard.AnswerInfo{Err: cacheguard.ErrNotCached}) },
		`cacheguard_answer_errors_total{guard="g",reason="not_shared"}`: func(h cacheguard.Hooks) { h.Answer(cacheguard.AnswerInfo{Err: &cacheguard.PassError{For: 1}}) },
		`cacheguard_answer_errors_total{guard="g",reason="store"}`:      func(h cacheguard.Hooks) { h.Answer(cacheguard.AnswerInfo{Err: &store.Fault{Err: other}}) },
		`cacheguard_lookups_avoided_total{guard="g"}`: func(h cacheguard.Hooks) {
			h.Answer(cacheguard.AnswerInfo{State: cacheguard.Fresh, Via: cacheguard.ViaStore, Coalesced: true})
		},
		`cacheguard_store_faults_total{class="other",guard="g"}`:              func(h cacheguard.Hooks) { h.Fault(cacheguard.FaultInfo{Class: "a backend's own"}) },
		`cacheguard_panics_total{guard="g",where="hook"}`:                     func(h cacheguard.Hooks) { h.Panic(cacheguard.PanicInfo{Where: "Hooks.Load", Hook: true}) },
		`cacheguard_panics_total{guard="g",where="other"}`:                    func(h cacheguard.Hooks) { h.Panic(cacheguard.PanicInfo{Where: "Codec.Decode"}) },
		`cacheguard_watchdog_late_seconds{guard="g"}`:                         func(h cacheguard.Hooks) { h.Woken(time.Millisecond) },
		`cacheguard_flights_total{begun_by="caller",end="cooling",guard="g"}`: func(h cacheguard.Hooks) { h.Flight(cacheguard.FlightInfo{End: cacheguard.FlightCooling}) },
	} {
		c, reg := registered(t)
		tell(c.Hooks("g"))
		if got := values(t, reg)[name]; got != 1 {
			t.Errorf("%s is %v, want 1", name, got)
		}
	}
	for what, tell := range map[string]func(cacheguard.Hooks){
		"overtaken load": func(h cacheguard.Hooks) { h.Load(cacheguard.LoadInfo{Err: lost, Length: 1}) },
		"fenced fill":    func(h cacheguard.Hooks) { h.Fill(cacheguard.FillInfo{Err: fenced}) },
	} {
		c, reg := registered(t)
		tell(c.Hooks("g"))
		if got := values(t, reg)[`cacheguard_duplicate_loads_total{guard="g"}`]; got != 1 {
			t.Errorf("%s: %v duplicate loads, want 1", what, got)
		}
	}
}

func TestMillionKeysMakeNoNewSeries(t *testing.T) {
	c, reg := registered(t)
	h := c.Hooks("g")
	before := testutil.CollectAndCount(c)
	for i := range 1_000_000 {
		key := fmt.Sprintf("/products/%d?user=%d", i, i)
		h.Answer(cacheguard.AnswerInfo{Key: key, State: cacheguard.Fresh, Via: cacheguard.ViaStore})
		if i%100 == 0 {
			err := fmt.Errorf("user %d: %w", i, cacheguard.ErrNotFound)
			h.Load(cacheguard.LoadInfo{Key: key, Took: time.Duration(i), Length: time.Second, Err: err})
			h.Claim(cacheguard.ClaimInfo{Key: key, Outcome: store.Granted, Length: time.Second})
			h.Fill(cacheguard.FillInfo{Key: key, Size: i, Err: err})
			h.Fault(cacheguard.FaultInfo{Key: key, Op: key, Class: store.Class(key), Err: err})
			h.Panic(cacheguard.PanicInfo{Where: key})
		}
	}
	if after := testutil.CollectAndCount(c); after != before {
		t.Errorf("%d series, and %d after a million keys", before, after)
	}
	var text bytes.Buffer
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&text, f); err != nil {
			t.Fatal(err)
		}
	}
	if strings.Contains(text.String(), "/products/") || strings.Contains(text.String(), "user=") {
		t.Error("a key is in the scrape")
	}
}

func TestGuardsShareANameAndRegistriesACollectorWithoutPanic(t *testing.T) {
	c, reg := registered(t)
	other := prometheus.NewRegistry()
	if err := other.Register(c); err != nil {
		t.Errorf("a second registry: %v", err)
	}
	again, err := promguard.Register(reg, promguard.Options{})
	if err != nil || again != c {
		t.Errorf("Register again = %p, %v, want the collector that is there, %p", again, err, c)
	}
	s := memstore.New(memstore.Options{})
	near := cacheguard.Near{MaxEntries: 10}
	first := newGuard(t, s, options{Namespace: "a", Near: near, Hooks: c.Hooks("g")})
	second := newGuard(t, s, options{Namespace: "b", Near: near, Hooks: again.Hooks("g")})
	for _, g := range []*cacheguard.Guard[string]{first, second} {
		if _, err := g.Get(t.Context(), "k", loads("v", 0, nil)); err != nil {
			t.Fatal(err)
		}
	}
	expect(t, reg, map[string]float64{
		`cacheguard_near_entries{guard="g"}`:                               2,
		`cacheguard_loads_total{cause="miss",guard="g",outcome="value"}`:   2,
		`cacheguard_answers_total{guard="g",state="rebuilt",via="flight"}`: 2,
	})
	_ = first.Close()
	expect(t, other, map[string]float64{`cacheguard_near_entries{guard="g"}`: 1})
	_ = second.Close()
	if v, ok := values(t, reg)[`cacheguard_setting_seconds{guard="g",setting="ttl"}`]; ok {
		t.Errorf("a closed guard still shows its settings: %v", v)
	}
	if v := values(t, reg)[`cacheguard_loads_total{cause="miss",guard="g",outcome="value"}`]; v != 2 {
		t.Errorf("after Close %v loads, want still 2: counters never go back", v)
	}
}

func TestAnyNameMakesAValidLabel(t *testing.T) {
	c, reg := registered(t)
	for _, name := range []string{"", "\xff\xfe", strings.Repeat("ä", 100), "a\nb\"c\\", "\x00"} {
		newGuard(t, memstore.New(memstore.Options{}), options{Hooks: c.Hooks(name)})
	}
	if _, err := reg.Gather(); err != nil {
		t.Error(err)
	}
}

func TestConstLabelsThatClashAreAnErrorNotAPanic(t *testing.T) {
	reg := prometheus.NewRegistry()
	if _, err := promguard.Register(reg, promguard.Options{ConstLabels: prometheus.Labels{"guard": "mine"}}); err == nil {
		t.Error("Register took a constant label that every series has already")
	}
	c := promguard.New(promguard.Options{ConstLabels: prometheus.Labels{"guard": "mine"}})
	h := c.Hooks("g") // unregistered: counts for nobody
	h.Answer(cacheguard.AnswerInfo{State: cacheguard.Fresh, Via: cacheguard.ViaNear})
}

func TestHTTPAnswersAreCountedByHowTheyCameAbout(t *testing.T) {
	for labels, o := range map[string]promguard.HTTPOutcome{
		`{detail="none",forwarded="none",guard="pages",result="hit"}`:              {Hit: true},
		`{detail="none",forwarded="none",guard="pages",result="stale"}`:            {Hit: true, Stale: true},
		`{detail="none",forwarded="uri-miss",guard="pages",result="collapsed"}`:    {Collapsed: true, Forwarded: "uri-miss", Status: 200},
		`{detail="none",forwarded="stale",guard="pages",result="stored"}`:          {Stored: true, Forwarded: "stale", Status: 200},
		`{detail="cookie",forwarded="bypass",guard="pages",result="forwarded"}`:    {Forwarded: "bypass", Detail: "cookie", Status: 200},
		`{detail="private",forwarded="uri-miss",guard="pages",result="forwarded"}`: {Forwarded: "uri-miss", Detail: "private", Status: 200},
		`{detail="busy",forwarded="none",guard="pages",result="refused"}`:          {Detail: "busy"},
	} {
		c, reg := registered(t)
		answered := c.HTTP("pages")
		for range 3 {
			answered(o)
		}
		if got := values(t, reg)["cacheguard_http_answers_total"+labels]; got != 3 {
			t.Errorf("%s is %v, want 3", labels, got)
		}
	}
}

func TestHTTPReasonsAreBounded(t *testing.T) {
	c, _ := registered(t)
	answered := c.HTTP("pages")
	for i := range 100_000 {
		answered(promguard.HTTPOutcome{Forwarded: "bypass", Detail: fmt.Sprintf("/path/%d", i)})
	}
	if n := testutil.CollectAndCount(c, "cacheguard_http_answers_total"); n > 70 {
		t.Errorf("%d series after 100,000 reasons", n)
	}
}

// exercised is a scrape in which everything has happened.
func exercised(t testing.TB) *prometheus.Registry {
	c, reg := registered(t)
	h := c.Hooks("products")
	newGuard(t, memstore.New(memstore.Options{}), options{Hooks: h})
	h.Answer(cacheguard.AnswerInfo{State: cacheguard.Rebuilt, Via: cacheguard.ViaFlight, Waited: time.Second})
	h.Load(cacheguard.LoadInfo{Took: time.Second, Length: time.Second})
	h.Fill(cacheguard.FillInfo{Size: 100})
	h.Call(cacheguard.CallInfo{Op: "load", Took: time.Millisecond})
	return reg
}

func TestMetricsKeepPrometheusConventions(t *testing.T) {
	problems, err := testutil.GatherAndLint(exercised(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

func TestPromtoolFindsNothingWrongWithTheMetrics(t *testing.T) {
	promtool := promtool(t)
	var text bytes.Buffer
	families, err := exercised(t).Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&text, f); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), promtool, "check", "metrics")
	cmd.Stdin = &text
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
}

// promtool is the path of the tool that comes with Prometheus.
func promtool(t testing.TB) string {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err == nil {
		return path
	}
	if os.Getenv("CACHEGUARD_REQUIRE_PROMTOOL") == "1" {
		t.Fatal("promtool is not on PATH, and CACHEGUARD_REQUIRE_PROMTOOL=1 forbids to skip this test; install the Debian package prometheus")
	}
	t.Skip("SKIPPED: promtool is not on PATH (Debian package prometheus)")
	return ""
}

func TestHistogramsAreClassicAndNative(t *testing.T) {
	for _, opts := range []promguard.Options{{}, {NoNative: true}, {NoClassic: true}} {
		reg := prometheus.NewRegistry()
		c, err := promguard.Register(reg, opts)
		if err != nil {
			t.Fatal(err)
		}
		c.Hooks("g").Woken(time.Millisecond)
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() != "cacheguard_watchdog_late_seconds" {
				continue
			}
			h := f.GetMetric()[0].GetHistogram()
			if native := len(h.GetPositiveSpan()) > 0; native == opts.NoNative {
				t.Errorf("%+v: native is %v", opts, native)
			}
			if classic := len(h.GetBucket()) > 0; classic == opts.NoClassic {
				t.Errorf("%+v: classic is %v", opts, classic)
			}
		}
	}
}

func TestHitAllocatesNothingMoreWithMetrics(t *testing.T) {
	for name, near := range map[string]cacheguard.Near{"near": {MaxEntries: 100, TTL: time.Hour}, "store": {}} {
		c, _ := registered(t)
		allocs := func(h cacheguard.Hooks) float64 {
			g := newGuard(t, memstore.New(memstore.Options{}), options{Near: near, Lifetime: cacheguard.Lifetime{TTL: time.Hour}, Hooks: h})
			ctx, load := t.Context(), loads("v", 0, nil)
			_, _ = g.Get(ctx, "k", load)
			return testing.AllocsPerRun(1000, func() { _, _ = g.Get(ctx, "k", load) })
		}
		if with, without := allocs(c.Hooks("g")), allocs(cacheguard.Hooks{}); with > without {
			t.Errorf("%s hit: %v allocations with metrics, %v without", name, with, without)
		}
	}
}

func BenchmarkHit(b *testing.B) {
	for _, where := range []string{"near", "store"} {
		for _, metrics := range []string{"off", "on"} {
			b.Run(where+"/metrics="+metrics, func(b *testing.B) {
				c, _ := registered(b)
				opts := options{Lifetime: cacheguard.Lifetime{TTL: time.Hour}}
				if where == "near" {
					opts.Near = cacheguard.Near{MaxEntries: 100, TTL: time.Hour}
				}
				if metrics == "on" {
					opts.Hooks = c.Hooks("g")
				}
				g := newGuard(b, memstore.New(memstore.Options{}), opts)
				ctx, load := context.Background(), loads("v", 0, nil)
				_, _ = g.Get(ctx, "k", load)
				b.ReportAllocs()
				for b.Loop() {
					_, _ = g.Get(ctx, "k", load)
				}
			})
		}
	}
}

func BenchmarkHooks(b *testing.B) {
	c, _ := registered(b)
	h := c.Hooks("g")
	b.Run("answer", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			h.Answer(cacheguard.AnswerInfo{State: cacheguard.Fresh, Via: cacheguard.ViaNear})
		}
	})
	b.Run("call", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			h.Call(cacheguard.CallInfo{Op: "load", Took: 300 * time.Microsecond})
		}
	})
}

func BenchmarkScrape(b *testing.B) {
	c, reg := registered(b)
	for i := range 20 {
		h := c.Hooks(fmt.Sprint(i))
		newGuard(b, memstore.New(memstore.Options{}), options{Hooks: h})
		for took := time.Microsecond; took < time.Minute; took *= 2 {
			for _, op := range []string{"load", "claim", "fill"} {
				h.Call(cacheguard.CallInfo{Op: op, Took: took})
			}
			h.Load(cacheguard.LoadInfo{Took: took, Length: time.Second})
		}
	}
	for b.Loop() {
		if _, err := reg.Gather(); err != nil {
			b.Fatal(err)
		}
	}
}

// The middleware's outcome and ours are the same: this does not compile if they
// are not.
func TestOutcomesOfTheMiddlewareAreCounted(t *testing.T) {
	c, reg := registered(t)
	answered := c.HTTP("pages")
	pages, err := middleware.New(memstore.New(memstore.Options{}), middleware.Options{
		Hooks:   c.Hooks("pages"),
		Observe: func(o middleware.Outcome) { answered(promguard.HTTPOutcome(o)) },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer pages.Close()
	h := pages.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		_, _ = io.WriteString(w, "page")
	}))
	for range 3 {
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "http://example.com/a", nil))
	}
	private := httptest.NewRequest(http.MethodGet, "http://example.com/a", nil)
	private.Header.Set("Cookie", "session=4711")
	h.ServeHTTP(httptest.NewRecorder(), private)
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "http://example.com/a", nil))

	results := map[string]float64{}
	for name, v := range values(t, reg) {
		if labels, found := strings.CutPrefix(name, "cacheguard_http_answers_total"); found {
			result, _, _ := strings.Cut(labels[strings.Index(labels, `result="`)+len(`result="`):], `"`)
			results[result] += v
		}
	}
	if results["stored"] != 1 || results["hit"] != 2 || results["forwarded"] != 2 {
		t.Errorf("counted %v, want one stored, two hits and two forwarded", results)
	}
}
