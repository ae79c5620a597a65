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

// notes collects what hooks were told.
type notes[I any] struct {
	mu  sync.Mutex
	all []I
}

func (n *notes[I]) add(info I) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = append(n.all, info)
}

func (n *notes[I]) list() []I {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.all)
}

func (n *notes[I]) only(t *testing.T) I {
	t.Helper()
	all := n.list()
	if len(all) != 1 {
		t.Fatalf("%d notes, want one: %+v", len(all), all)
	}
	return all[0]
}

// within gives up on what hangs, so that the test says so and ends.
func within(t *testing.T, limit time.Duration, what string, do func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); do() }()
	select {
	case <-done:
	case <-time.After(limit):
		t.Fatalf("%s hangs", what)
	}
}

func TestHookThatPanicsIsReportedOnceAndSwitchedOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls, answers notes[string]
		var panics notes[cacheguard.PanicInfo]
		var faults notes[cacheguard.FaultInfo]
		g := newGuard(t, memstore.New(memstore.Options{}), options{Hooks: cacheguard.Hooks{
			Answer: func(a cacheguard.AnswerInfo) { answers.add(a.Key); panic("broken hook") },
			Load:   func(l cacheguard.LoadInfo) { calls.add(l.Key) },
			Fault:  faults.add,
			Panic:  panics.add,
		}})
		o := &origin{takes: time.Millisecond}
		for _, key := range []string{"a", "b", "c"} {
			if v, err := g.Get(t.Context(), key, o.load); err != nil || v != key+"@0" {
				t.Errorf("Get(%s) = %q, %v", key, v, err)
			}
		}
		if got := answers.list(); !slices.Equal(got, []string{"a"}) {
			t.Errorf("the hook that panicked was called for %v, want for the first answer only", got)
		}
		if got := calls.list(); len(got) != 3 {
			t.Errorf("the other hook heard of %v, want three loads", got)
		}
		p := panics.only(t)
		if p.Where != "Hooks.Answer" || !p.Hook || p.Value != "broken hook" || len(p.Stack) == 0 {
			t.Errorf("Panic was told %+v", p)
		}
	})
}

func TestEveryHookMayPanicWithoutHarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var panics notes[cacheguard.PanicInfo]
		bang := func() { panic("bang") }
		s := newTap(memstore.New(memstore.Options{}))
		g := newGuard(t, s, options{Lease: cacheguard.LeaseTuning{Initial: 300 * time.Millisecond}, Hooks: cacheguard.Hooks{
			Opened:  func(cacheguard.GuardInfo) func() { panic("bang") },
			Answer:  func(cacheguard.AnswerInfo) { bang() },
			Claim:   func(cacheguard.ClaimInfo) { bang() },
			Load:    func(cacheguard.LoadInfo) { bang() },
			Fill:    func(cacheguard.FillInfo) { bang() },
			Follow:  func(cacheguard.FollowInfo) { bang() },
			Flight:  func(cacheguard.FlightInfo) { bang() },
			Renew:   func(cacheguard.RenewInfo) { bang() },
			Woken:   func(time.Duration) { bang() },
			Call:    func(cacheguard.CallInfo) { bang() },
			Breaker: func(bool) { bang() },
			Pending: func(int) { bang() },
			Fault:   func(cacheguard.FaultInfo) { bang() },
			Start: func(ctx context.Context, _ cacheguard.SpanInfo) (context.Context, func(cacheguard.SpanEnd)) {
				panic("bang")
			},
			Panic: func(p cacheguard.PanicInfo) { panics.add(p); bang() },
		}})
		o := &origin{takes: 400 * time.Millisecond} // outlives its lease: it is renewed
		other := newGuard(t, s.Store, options{})
		go func() { _, _ = other.Get(t.Context(), "followed", o.load) }()
		synctest.Wait()
		for _, key := range []string{"followed", "k"} {
			if v, err := g.Get(t.Context(), key, o.load); err != nil || v != key+"@0" {
				t.Errorf("Get = %q, %v", v, err)
			}
		}
		s.on(func(op, _ string) error { return lost(op, store.ClassTimeout) }, nil)
		for range 4 { // the breaker opens
			_, _ = g.Get(t.Context(), "k2", o.load)
		}
		_ = g.Invalidate(t.Context(), "k") // is pending
		s.on(nil, nil)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		var where []string
		for _, p := range panics.list() {
			where = append(where, p.Where)
		}
		slices.Sort(where)
		want := []string{
			"Hooks.Answer", "Hooks.Breaker", "Hooks.Call", "Hooks.Claim", "Hooks.Fault", "Hooks.Fill", "Hooks.Flight", "Hooks.Follow",
			"Hooks.Load", "Hooks.Opened", "Hooks.Pending", "Hooks.Renew", "Hooks.Start", "Hooks.Woken",
		}
		if !slices.Equal(where, want) {
			t.Errorf("reported panics of\n %v, want each hook once:\n %v", where, want)
		}
	})
}

func TestJoinedHooksHearEverythingAndOneThatPanicsIsSwitchedOffAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var first, second notes[cacheguard.AnswerInfo]
		var panics1, panics2 notes[cacheguard.PanicInfo]
		var opened, closed int
		hooks := cacheguard.JoinHooks(
			cacheguard.Hooks{Answer: func(a cacheguard.AnswerInfo) { first.add(a); panic("first") }, Panic: panics1.add},
			cacheguard.Hooks{},
			cacheguard.Hooks{Answer: second.add, Panic: panics2.add, Opened: func(cacheguard.GuardInfo) func() {
				opened++
				return func() { closed++ }
			}},
		)
		if hooks.Claim != nil || hooks.Start != nil {
			t.Error("a hook that none of them sets is set: it would cost something")
		}
		g, err := cacheguard.New(memstore.New(memstore.Options{}), steady(options{Hooks: hooks}))
		if err != nil {
			t.Fatal(err)
		}
		o := &origin{}
		for range 3 {
			if _, err := g.Get(t.Context(), "k", o.load); err != nil {
				t.Fatal(err)
			}
		}
		if n, m := len(first.list()), len(second.list()); n != 1 || m != 3 {
			t.Errorf("the first was called %d times and the second %d times, want 1 and 3", n, m)
		}
		if p, q := panics1.only(t), panics2.only(t); p.Value != "first" || q.Value != "first" || p.Where != "Hooks.Answer" || !p.Hook {
			t.Errorf("told of %+v and %+v, want both of the first's panic", p, q)
		}
		for range 2 {
			if err := g.Close(); err != nil {
				t.Error(err)
			}
		}
		if opened != 1 || closed != 1 {
			t.Errorf("opened %d times and closed %d times, want once each", opened, closed)
		}
	})
}

func TestSlowHookHoldsUpNobodyElse(t *testing.T) {
	// Each hook blocks for ever, in its turn. Callers of other keys, who need
	// every lock that the guard has, are answered all the same.
	release := make(chan struct{})
	for name, hooks := range map[string]func(block func()) cacheguard.Hooks{
		"Answer": func(block func()) cacheguard.Hooks {
			return cacheguard.Hooks{Answer: func(cacheguard.AnswerInfo) { block() }}
		},
		"Claim": func(block func()) cacheguard.Hooks {
			return cacheguard.Hooks{Claim: func(cacheguard.ClaimInfo) { block() }}
		},
		"Load": func(block func()) cacheguard.Hooks {
			return cacheguard.Hooks{Load: func(cacheguard.LoadInfo) { block() }}
		},
		"Fill": func(block func()) cacheguard.Hooks {
			return cacheguard.Hooks{Fill: func(cacheguard.FillInfo) { block() }}
		},
		"Flight": func(block func()) cacheguard.Hooks {
			return cacheguard.Hooks{Flight: func(cacheguard.FlightInfo) { block() }}
		},
		"Call": func(block func()) cacheguard.Hooks {
			return cacheguard.Hooks{Call: func(cacheguard.CallInfo) { block() }}
		},
		"Start": func(block func()) cacheguard.Hooks {
			return cacheguard.Hooks{Start: func(ctx context.Context, _ cacheguard.SpanInfo) (context.Context, func(cacheguard.SpanEnd)) {
				block()
				return ctx, nil
			}}
		},
		"Breaker": func(block func()) cacheguard.Hooks {
			return cacheguard.Hooks{Breaker: func(bool) { block() }}
		},
		"Fault": func(block func()) cacheguard.Hooks {
			return cacheguard.Hooks{Fault: func(cacheguard.FaultInfo) { block() }}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newTap(memstore.New(memstore.Options{}))
			blocked := make(chan struct{}, 1)
			var first atomic.Bool
			g := newGuard(t, s, options{Near: cacheguard.Near{MaxEntries: 100}, Hooks: hooks(func() {
				if first.CompareAndSwap(false, true) {
					blocked <- struct{}{}
					<-release
				}
			})})
			var slow sync.WaitGroup
			defer slow.Wait()
			defer func() {
				if first.Load() {
					release <- struct{}{}
				}
			}()
			if name == "Breaker" || name == "Fault" {
				s.on(func(op, _ string) error { return lost(op, store.ClassTimeout) }, nil)
			}
			o := &origin{}
			slow.Go(func() {
				for i := range 3 { // opens the breaker; a key that was loaded is in the near cache
					_, _ = g.Get(t.Context(), fmt.Sprint("slow", i), o.load)
				}
			})
			within(t, 10*time.Second, "reaching the hook", func() { <-blocked })
			within(t, 10*time.Second, "a caller of another key", func() {
				for _, key := range []string{"a", "b", "c", "d"} {
					if v, err := g.Get(context.Background(), key, o.load); err != nil || v != key+"@0" {
						t.Errorf("Get = %q, %v", v, err)
					}
				}
			})
		})
	}
}

func TestAnswersTellWhereTheyCameFromAndWhyTheyAreStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var answers notes[cacheguard.AnswerInfo]
		s := newTap(memstore.New(memstore.Options{}))
		g := newGuard(t, s, options{
			Lifetime: cacheguard.Lifetime{TTL: 2 * time.Second, Grace: time.Minute},
			Near:     cacheguard.Near{MaxEntries: 10},
			Hooks:    cacheguard.Hooks{Answer: answers.add},
		})
		o := &origin{takes: 100 * time.Millisecond}
		get := func() { _, _ = g.Get(t.Context(), "k", o.load) }
		get() // loads
		get() // near
		time.Sleep(1500 * time.Millisecond)
		get() // the near copy's time is over
		time.Sleep(1500 * time.Millisecond)
		get() // stale
		time.Sleep(5 * time.Second)
		s.on(func(op, _ string) error { return lost(op, store.ClassTimeout) }, nil)
		get()          // the store is away
		s.on(nil, nil) //
		o.fails.Store(true)
		_, _ = g.Do(t.Context(), "k", cacheguard.Ask[string]{
			Accept: func(cacheguard.Entry[string]) cacheguard.Use { return cacheguard.Reload },
			Prepare: func() cacheguard.Reloader[string] {
				return func(context.Context, cacheguard.Entry[string]) (string, error) { return "", errOrigin }
			},
		})
		type told struct {
			state cacheguard.State
			via   cacheguard.Via
			stale cacheguard.StaleReason
		}
		var got []told
		for _, a := range answers.list() {
			got = append(got, told{a.State, a.Via, a.Stale})
		}
		want := []told{
			{cacheguard.Rebuilt, cacheguard.ViaFlight, 0},
			{cacheguard.Fresh, cacheguard.ViaNear, 0},
			{cacheguard.Fresh, cacheguard.ViaStore, 0},
			{cacheguard.Stale, cacheguard.ViaStore, cacheguard.StaleGrace},
			{cacheguard.Stale, cacheguard.ViaNear, cacheguard.StaleOutage},
			{cacheguard.Stale, cacheguard.ViaFlight, cacheguard.StaleError},
		}
		if !slices.Equal(got, want) {
			t.Errorf("answers were told as\n %+v, want\n %+v", got, want)
		}
		if w := answers.list()[0].Waited; w != o.takes {
			t.Errorf("the first waited %v for its flight, want the load's %v", w, o.takes)
		}
		if w := answers.list()[1].Waited; w != 0 {
			t.Errorf("the second waited %v, want nothing: it joined no flight", w)
		}
	})
}

func TestFlightsTellHowTheyEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var first, second notes[cacheguard.FlightInfo]
		mem := memstore.New(memstore.Options{})
		s := newTap(mem)
		opts := options{Lifetime: cacheguard.Lifetime{TTL: time.Second, Grace: time.Minute}, WaitLimit: time.Second}
		opts.Hooks = cacheguard.Hooks{Flight: first.add}
		g1 := newGuard(t, mem, opts)
		opts.Hooks = cacheguard.Hooks{Flight: second.add}
		g2 := newGuard(t, s, opts)
		o := &origin{takes: 200 * time.Millisecond}
		last := func(n *notes[cacheguard.FlightInfo]) cacheguard.FlightEnd {
			synctest.Wait()
			all := n.list()
			if len(all) == 0 {
				return 0
			}
			return all[len(all)-1].End
		}
		expect := func(what string, n *notes[cacheguard.FlightInfo], want cacheguard.FlightEnd) {
			t.Helper()
			if got := last(n); got != want {
				t.Errorf("%s: the flight's end is %v, want %v", what, got, want)
			}
		}

		go func() { _, _ = g1.Get(t.Context(), "k", o.load) }()
		synctest.Wait()
		_, _ = g2.Get(t.Context(), "k", o.load)
		expect("holder", &first, cacheguard.FlightLed)
		expect("follower", &second, cacheguard.FlightFollowed)

		time.Sleep(2 * time.Second) // stale
		_, _ = g1.Get(t.Context(), "k", o.load)
		synctest.Wait()
		_, _ = g2.Get(t.Context(), "k", o.load)
		expect("background, another holds the lease", &second, cacheguard.FlightYielded)

		time.Sleep(time.Second)
		o.takes = 5 * time.Second
		go func() { _, _ = g1.Get(t.Context(), "long", o.load) }()
		synctest.Wait()
		if _, err := g2.Get(t.Context(), "long", o.load); !errors.Is(err, cacheguard.ErrWaitLimit) {
			t.Errorf("Get = %v, want ErrWaitLimit", err)
		}
		expect("gave up waiting", &second, cacheguard.FlightFailed)
		time.Sleep(10 * time.Second)

		o.takes = 0
		o.fails.Store(true)
		_, _ = g1.Get(t.Context(), "bad", o.load)
		_, _ = g2.Get(t.Context(), "bad", o.load) // second opinion
		expect("a load that failed", &second, cacheguard.FlightLed)
		g3 := newGuard(t, mem, options{Hooks: cacheguard.Hooks{Flight: first.add}})
		_, _ = g3.Get(t.Context(), "bad", o.load)
		expect("both have failed", &first, cacheguard.FlightCooling)

		o.fails.Store(false)
		s.on(func(op, _ string) error { return lost(op, store.ClassTimeout) }, nil)
		_, _ = g2.Get(t.Context(), "away", o.load)
		expect("no store", &second, cacheguard.FlightAlone)
	})
}

func TestFillToldAsOvertakenIfAWriteCameBetween(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fills notes[cacheguard.FillInfo]
		g := newGuard(t, memstore.New(memstore.Options{}), options{Hooks: cacheguard.Hooks{Fill: fills.add}})
		o := &origin{takes: time.Second}
		go func() { _, _ = g.Get(t.Context(), "k", o.load) }()
		time.Sleep(o.takes / 2)
		if err := g.Invalidate(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(o.takes)
		if f := fills.list()[0]; !errors.Is(f.Err, store.ErrFenced) || !f.Overtaken {
			t.Errorf("fill was told as %+v, want fenced and overtaken", f)
		}
	})
}

func TestLoadCutAtLoadLimitSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var loads notes[cacheguard.LoadInfo]
		g := newGuard(t, memstore.New(memstore.Options{}), options{
			LoadLimit: time.Second, Hooks: cacheguard.Hooks{Load: loads.add},
		})
		o := &origin{takes: time.Minute}
		_, err := g.Get(t.Context(), "k", o.load)
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, cacheguard.ErrLoadLimit) {
			t.Errorf("Get = %v, want ErrLoadLimit and a deadline", err)
		}
		if l := loads.only(t); !errors.Is(l.Err, cacheguard.ErrLoadLimit) || l.Took != time.Second {
			t.Errorf("the load was told as %+v, want cut after a second", l)
		}
	})
}

func TestBreakerHookHearsOfTheOutageAndItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var changes notes[bool]
		var faults notes[cacheguard.FaultInfo]
		var info cacheguard.GuardInfo
		s := newTap(memstore.New(memstore.Options{}))
		g := newGuard(t, s, options{Hooks: cacheguard.Hooks{
			Breaker: changes.add, Fault: faults.add,
			Opened: func(i cacheguard.GuardInfo) func() { info = i; return nil },
		}})
		o := &origin{}
		s.on(func(op, _ string) error { return lost(op, store.ClassTimeout) }, nil)
		for range 10 {
			_, _ = g.Get(t.Context(), "k", o.load)
		}
		if !info.Stats().BreakerOpen {
			t.Error("Stats says that the breaker is not open")
		}
		refused := 0
		for _, f := range faults.list() {
			if f.Refused {
				refused++
			}
		}
		if refused == 0 || refused == len(faults.list()) {
			t.Errorf("%d of %d faults are of calls that were not made, want some", refused, len(faults.list()))
		}
		s.on(nil, nil)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if got := changes.list(); !slices.Equal(got, []bool{true, false}) {
			t.Errorf("Breaker was told %v, want open, then closed", got)
		}
		if info.Stats().BreakerOpen {
			t.Error("Stats says that the breaker is still open")
		}
	})
}

// spanNotes is a tracer as a test needs it: spans know their parent from the
// context.
type spanNotes struct {
	mu    sync.Mutex
	spans []*spanNote
}

type spanNote struct {
	info   cacheguard.SpanInfo
	parent *spanNote
	end    *cacheguard.SpanEnd
}

type spanKey struct{}

func (s *spanNotes) start(ctx context.Context, info cacheguard.SpanInfo) (context.Context, func(cacheguard.SpanEnd)) {
	n := &spanNote{info: info}
	n.parent, _ = ctx.Value(spanKey{}).(*spanNote)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spans = append(s.spans, n)
	return context.WithValue(ctx, spanKey{}, n), func(end cacheguard.SpanEnd) {
		s.mu.Lock()
		defer s.mu.Unlock()
		n.end = &end
	}
}

func (s *spanNotes) of(span cacheguard.Span) (found []*spanNote) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.spans {
		if n.info.Span == span {
			found = append(found, n)
		}
	}
	return found
}

func TestSpansOfARebuildHangTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var spans spanNotes
		g := newGuard(t, memstore.New(memstore.Options{}), options{Hooks: cacheguard.Hooks{Start: spans.start}})
		var inLoader *spanNote
		load := func(ctx context.Context, key string) (string, error) {
			inLoader, _ = ctx.Value(spanKey{}).(*spanNote)
			time.Sleep(100 * time.Millisecond)
			return "v", nil
		}
		root := &spanNote{}
		ctx := context.WithValue(t.Context(), spanKey{}, root)
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = g.Get(ctx, "k", load) })
		synctest.Wait()
		wg.Go(func() { _, _ = g.Get(t.Context(), "k", load) }) // joins, without a look of its own
		wg.Wait()

		loads, fills, waits := spans.of(cacheguard.SpanLoad), spans.of(cacheguard.SpanFill), spans.of(cacheguard.SpanWait)
		if len(loads) != 1 || len(fills) != 1 || len(waits) != 2 || len(spans.of(cacheguard.SpanLookup)) != 1 {
			t.Fatalf("%d loads, %d fills, %d waits, %d lookups; want 1, 1, 2, 1", len(loads), len(fills), len(waits), len(spans.of(cacheguard.SpanLookup)))
		}
		if inLoader != loads[0] {
			t.Error("the loader does not run under the load's span")
		}
		if loads[0].parent != root || fills[0].parent != root {
			t.Error("load and fill are not part of the trace of the caller that began them")
		}
		if loads[0].info.Token == 0 || loads[0].info.Token != fills[0].info.Token {
			t.Errorf("load and fill have the tokens %d and %d, want the grant's", loads[0].info.Token, fills[0].info.Token)
		}
		coalesced := 0
		for _, w := range waits {
			if w.end == nil || w.end.Load == nil || w.end.Load.Value(spanKey{}) != any(loads[0]) {
				t.Errorf("a wait does not know the load that it was for: %+v", w.end)
				continue
			}
			if w.end.Token != loads[0].info.Token || w.end.State != cacheguard.Rebuilt || w.end.Err != nil {
				t.Errorf("a wait ended as %+v", w.end)
			}
			if w.end.Coalesced {
				coalesced++
			}
		}
		if coalesced != 1 {
			t.Errorf("%d waits are told as coalesced, want one", coalesced)
		}
		for _, n := range spans.spans {
			if n.end == nil {
				t.Errorf("the %v span was not ended", n.info.Span)
			}
		}
	})
}

func TestSpanOfALoadEndsThoughNobodyWaitsForIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var spans spanNotes
		mem := memstore.New(memstore.Options{})
		s := newTap(mem)
		g := newGuard(t, s, options{Lease: cacheguard.LeaseTuning{Initial: time.Second}, Hooks: cacheguard.Hooks{Start: spans.start}})
		o := &origin{takes: 20 * time.Second}
		s.on(func(op, _ string) error { // its renewals do not arrive: another takes over
			if op == "renew" {
				return lost(op, store.ClassTimeout)
			}
			return nil
		}, nil)
		go func() { _, _ = g.Get(t.Context(), "k", o.load) }()
		time.Sleep(5 * time.Second)
		quick := &origin{}
		if _, err := newGuard(t, mem, options{}).Get(t.Context(), "k", quick.load); err != nil {
			t.Fatal(err)
		}
		s.on(nil, nil)
		time.Sleep(30 * time.Second)
		if l := spans.of(cacheguard.SpanLoad)[0]; l.end == nil {
			t.Error("the load's span was not ended")
		}
	})
}

func TestGuardIntroducesItself(t *testing.T) {
	var info cacheguard.GuardInfo
	g := newGuard(t, memstore.New(memstore.Options{}), options{Namespace: "products", Near: cacheguard.Near{MaxEntries: 10}, Hooks: cacheguard.Hooks{
		Opened: func(i cacheguard.GuardInfo) func() { info = i; return nil },
	}})
	if info.Namespace != "products" || info.Settings.LoadLimit != 30*time.Second || info.Settings.Near.TTL != time.Second {
		t.Errorf("introduced as %+v, want its options with their defaults", info)
	}
	o := &origin{}
	if _, err := g.Get(t.Context(), "k", o.load); err != nil {
		t.Fatal(err)
	}
	if s := info.Stats(); s.NearEntries != 1 || !s.Listening || s.Lease <= 0 {
		t.Errorf("Stats = %+v, want one copy, listening, a lease length", s)
	}
}

func BenchmarkNearHit(b *testing.B) {
	for name, hooks := range map[string]cacheguard.Hooks{
		"unset": {},
		"others": {Load: func(cacheguard.LoadInfo) {}, Start: func(ctx context.Context, _ cacheguard.SpanInfo) (context.Context, func(cacheguard.SpanEnd)) {
			return ctx, nil
		}},
		"answer": {Answer: func(cacheguard.AnswerInfo) {}},
	} {
		b.Run(name, func(b *testing.B) {
			g, err := cacheguard.New(memstore.New(memstore.Options{}), options{Near: cacheguard.Near{MaxEntries: 100, TTL: time.Hour}, Lifetime: cacheguard.Lifetime{TTL: time.Hour}, Hooks: hooks})
			if err != nil {
				b.Fatal(err)
			}
			defer g.Close()
			o := &origin{}
			ctx, load := context.Background(), o.load
			if _, err := g.Get(ctx, "k", load); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				_, _ = g.Get(ctx, "k", load)
			}
		})
	}
}

func TestNearHitAllocatesNothingWithOrWithoutHooks(t *testing.T) {
	for name, hooks := range map[string]cacheguard.Hooks{
		"unset": {}, "answer": {Answer: func(cacheguard.AnswerInfo) {}},
		"joined": cacheguard.JoinHooks(cacheguard.Hooks{Answer: func(cacheguard.AnswerInfo) {}}, cacheguard.Hooks{Answer: func(cacheguard.AnswerInfo) {}}),
	} {
		g := newGuard(t, memstore.New(memstore.Options{}), options{Near: cacheguard.Near{MaxEntries: 100, TTL: time.Hour}, Lifetime: cacheguard.Lifetime{TTL: time.Hour}, Hooks: hooks})
		o := &origin{}
		ctx, load := t.Context(), o.load
		_, _ = g.Get(ctx, "k", load)
		if n := testing.AllocsPerRun(1000, func() { _, _ = g.Get(ctx, "k", load) }); n != 0 {
			t.Errorf("hooks %s: %v allocations per hit, want none", name, n)
		}
	}
}

func TestLeaseThatRunsOutUnderItsLoadIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var renewals notes[cacheguard.RenewInfo]
		s := newTap(memstore.New(memstore.Options{}))
		g := newGuard(t, s, options{Lease: cacheguard.LeaseTuning{Initial: time.Second}, Hooks: cacheguard.Hooks{Renew: renewals.add}})
		s.on(func(op, _ string) error {
			if op == "renew" {
				return lost(op, store.ClassTimeout)
			}
			return nil
		}, nil)
		o := &origin{takes: 3 * time.Second}
		if v, err := g.Get(t.Context(), "k", o.load); err != nil || v != "k@0" {
			t.Errorf("Get = %q, %v", v, err)
		}
		lapsed := 0
		for _, r := range renewals.list() {
			switch {
			case r.Lapsed:
				lapsed++
			case r.Err == nil:
				t.Errorf("told of %+v, want faults and one lapse", r)
			}
		}
		if lapsed != 1 {
			t.Errorf("told of %d lapses, want one", lapsed)
		}
	})
}
