package watchdog

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/internal/tuning"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errAway = &store.Fault{Op: "renew", Class: store.ClassConnection, Err: errors.New("refused")}

// leases is a store that answers renewals as answer says, nil for yes. It
// remembers the calls.
type leases struct {
	store.Leases // the rest is not called
	answer       func(ctx context.Context, rs []store.Renewal) []error

	mu    sync.Mutex
	calls []call
}

type call struct {
	at       time.Time
	renewals []store.Renewal
}

func (l *leases) Renew(ctx context.Context, rs []store.Renewal) []error {
	l.mu.Lock()
	l.calls = append(l.calls, call{time.Now(), slices.Clone(rs)})
	l.mu.Unlock()
	if l.answer == nil {
		return nil
	}
	return l.answer(ctx, rs)
}

// seen returns the calls so far.
func (l *leases) seen() []call {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.calls)
}

// instants returns when the calls came, as durations since start.
func (l *leases) instants(start time.Time) []time.Duration {
	var at []time.Duration
	for _, c := range l.seen() {
		at = append(at, c.at.Sub(start))
	}
	return at
}

// silent is a store that says yes and remembers nothing.
type silent struct{ store.Leases }

func (silent) Renew(context.Context, []store.Renewal) []error { return nil }

func all(n int, err error) []error { return slices.Repeat([]error{err}, n) }

// told collects what the holders are told.
type told struct {
	mu   sync.Mutex
	what []string
}

func (t *told) by(name string, start time.Time) func(Reason) {
	return func(r Reason) {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.what = append(t.what, fmt.Sprintf("%s %v at %v", name, r, time.Since(start)))
	}
}

func (t *told) want(tb testing.TB, want ...string) {
	tb.Helper()
	t.mu.Lock()
	defer t.mu.Unlock()
	if !slices.Equal(t.what, want) {
		tb.Errorf("told %q, want %q", t.what, want)
	}
}

// faults collects the outcomes of renewals.
type faults struct {
	mu   sync.Mutex
	errs []error
}

func (f *faults) add(_ store.Grant, _ time.Duration, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.errs = append(f.errs, err)
}

func (f *faults) all() []error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.errs)
}

// bench is a watchdog in a bubble, with what it sent and told.
type bench struct {
	*Watchdog
	store *leases
	told  told
	start time.Time
}

func inBubble(t *testing.T, store *leases, hooks Hooks, test func(t *testing.T, b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{Watchdog: New(store, hooks), store: store, start: time.Now()}
		defer b.Close()
		test(t, b)
	})
}

func grant(name string, length time.Duration) store.Grant {
	return store.Grant{Key: store.Key{ID: name}, Holder: store.NewHolder("p", name), Token: 1, Length: length}
}

// hold holds a lease of one second that was claimed now and may be kept for ten,
// changed by the options.
func (b *bench) hold(name string, options ...func(*Lease)) *Held {
	l := Lease{Grant: grant(name, time.Second), Sent: time.Now(), Cap: time.Now().Add(10 * time.Second)}
	for _, o := range options {
		o(&l)
	}
	return b.Hold(l, b.told.by(name, b.start))
}

func TestLeaseDroppedBeforeItIsDueIsNeverRenewed(t *testing.T) {
	inBubble(t, &leases{}, Hooks{}, func(t *testing.T, b *bench) {
		h := b.hold("a")
		time.Sleep(580 * time.Millisecond)
		if !h.Drop() {
			t.Error("Drop = false for a lease that had not ended")
		}
		time.Sleep(time.Minute)
		if at := b.store.instants(b.start); at != nil {
			t.Errorf("renewed at %v", at)
		}
		b.told.want(t)
	})
}

func TestSteadyLoadUnderATunedLeaseIsNeverRenewed(t *testing.T) {
	inBubble(t, &leases{}, Hooks{}, func(t *testing.T, b *bench) {
		cfg, err := tuning.Config{Min: time.Millisecond}.Resolve(30 * time.Second) // no floor to hide behind
		if err != nil {
			t.Fatal(err)
		}
		tuner, rnd := tuning.New(cfg), rand.New(rand.NewPCG(1, 2))
		rebuild := func(load time.Duration) {
			h := b.hold("a", func(l *Lease) { l.Grant.Length = tuner.Length(0) })
			time.Sleep(load)
			h.Drop()
			tuner.Observe(load, 0)
		}
		for range 1000 {
			rebuild(time.Duration(30+rnd.IntN(20)) * time.Millisecond)
		}
		if at := b.store.instants(b.start); at != nil {
			t.Errorf("renewed at %v", at)
		}
		// The first load after a step up does outlive its lease's 0.6: there the
		// watchdog does its work, and no other than a few times.
		for range 100 {
			rebuild(400*time.Millisecond + time.Duration(rnd.IntN(50))*time.Millisecond)
		}
		b.told.want(t)
		if n := len(b.store.seen()); n == 0 || n > 40 {
			t.Errorf("%d renewals after a step up", n)
		}
	})
}

func TestLeaseIsRenewedAfterSixTenthsOfItsLengthUpToItsCap(t *testing.T) {
	inBubble(t, &leases{}, Hooks{}, func(t *testing.T, b *bench) {
		h := b.hold("a", func(l *Lease) { l.Cap = b.start.Add(2500 * time.Millisecond) })
		time.Sleep(time.Minute)
		want := []time.Duration{600 * time.Millisecond, 1200 * time.Millisecond, 1800 * time.Millisecond}
		if at := b.store.instants(b.start); !slices.Equal(at, want) {
			t.Errorf("renewed at %v, want %v", at, want)
		}
		// The last renewal asks for no more than what is left to the cap.
		if got := b.store.seen()[2].renewals[0].Length; got != 700*time.Millisecond {
			t.Errorf("last renewal asked for %v, want 700ms", got)
		}
		b.told.want(t, "a capped at 2.5s")
		if h.Drop() {
			t.Error("Drop = true for a lease that had ended")
		}
	})
}

func TestRenewalAsksForTheLengthOfTheDay(t *testing.T) {
	inBubble(t, &leases{}, Hooks{}, func(t *testing.T, b *bench) {
		// Slow loads so far, then a step down.
		b.hold("a", func(l *Lease) {
			l.Length = func() time.Duration {
				if time.Since(b.start) < time.Second {
					return 3 * time.Second
				}
				return 100 * time.Millisecond
			}
		})
		time.Sleep(2500 * time.Millisecond)
		got := []time.Duration{b.store.seen()[0].renewals[0].Length, b.store.seen()[1].renewals[0].Length}
		// Never less than what is left: that would take from the holder what it
		// relies on.
		if want := []time.Duration{3 * time.Second, 1200 * time.Millisecond}; !slices.Equal(got, want) {
			t.Errorf("asked for %v, want %v", got, want)
		}
	})
}

func TestDeadlineCountsFromBeforeTheRequestWasSent(t *testing.T) {
	slow := &leases{answer: func(context.Context, []store.Renewal) []error {
		time.Sleep(150 * time.Millisecond)
		return nil
	}}
	inBubble(t, slow, Hooks{}, func(t *testing.T, b *bench) {
		h := b.hold("a", func(l *Lease) { l.Sent = b.start.Add(-100 * time.Millisecond) })
		if got := h.Deadline().Sub(b.start); got != 900*time.Millisecond {
			t.Errorf("deadline of the claim is %v, want 900ms", got)
		}
		time.Sleep(651 * time.Millisecond) // sent at 500 ms, answered at 650 ms
		if got := h.Deadline().Sub(b.start); got != 1500*time.Millisecond {
			t.Errorf("deadline of the renewal is %v, want 1.5s", got)
		}
	})
}

func TestLostIsToldAtOnceAndOnce(t *testing.T) {
	lost := &leases{answer: func(_ context.Context, rs []store.Renewal) []error { return all(len(rs), store.ErrLost) }}
	inBubble(t, lost, Hooks{}, func(t *testing.T, b *bench) {
		h := b.hold("a")
		time.Sleep(time.Minute)
		b.told.want(t, "a lost at 600ms")
		if n := len(b.store.instants(b.start)); n != 1 {
			t.Errorf("%d renewals, want 1", n)
		}
		if h.Drop() {
			t.Error("Drop = true for a lost lease")
		}
	})
}

func TestUnreachableStoreIsRetriedUntilTheDeadline(t *testing.T) {
	away := &leases{answer: func(_ context.Context, rs []store.Renewal) []error { return all(len(rs), errAway) }}
	var failed faults
	hooks := Hooks{Renewed: failed.add}
	inBubble(t, away, hooks, func(t *testing.T, b *bench) {
		h := b.hold("a")
		before := h.Deadline()
		time.Sleep(time.Minute)
		b.told.want(t, "a lapsed at 1s")
		at := b.store.instants(b.start)
		if len(at) < 6 || len(at) > 20 || at[len(at)-1] >= time.Second {
			t.Errorf("tried at %v, want 6 to 20 times before 1s", at)
		}
		if got := failed.all(); len(got) != len(at) || !errors.Is(got[0], errAway) {
			t.Errorf("%d faults told of %d attempts: %v", len(got), len(at), got)
		}
		if !h.Deadline().Equal(before) {
			t.Errorf("a failed renewal moved the deadline by %v", h.Deadline().Sub(before))
		}
	})
}

// A store that refuses at once, as a closed port does, is asked again after a
// pause, also where the pause is shorter than what renewals may come early.
func TestRefusedRenewalIsNotRetriedWithoutAPause(t *testing.T) {
	const length = 100 * time.Millisecond
	s := &leases{answer: func(_ context.Context, rs []store.Renewal) []error { return all(len(rs), errAway) }}
	inBubble(t, s, Hooks{}, func(t *testing.T, b *bench) {
		b.hold("a", func(l *Lease) { l.Grant.Length = length })
		time.Sleep(2 * length)
		at := s.instants(b.start)
		if len(at) < 4 || len(at) > 25 {
			t.Errorf("%d tries in the last 40 ms of a lease", len(at))
		}
		for i := 1; i < len(at); i++ {
			if pause := at[i] - at[i-1]; pause < minBackoff/2 {
				t.Errorf("try %d came %v after the one before", i, pause)
			}
		}
	})
}

func TestStoreThatComesBackInTimeSavesTheLease(t *testing.T) {
	s := &leases{}
	inBubble(t, s, Hooks{}, func(t *testing.T, b *bench) {
		s.answer = func(_ context.Context, rs []store.Renewal) []error {
			if since := time.Since(b.start); since < 900*time.Millisecond {
				return all(len(rs), errAway)
			}
			return nil
		}
		h := b.hold("a")
		time.Sleep(5 * time.Second)
		b.told.want(t)
		// The back-off does not stick: renewals are at 0.6 of the length again.
		at := s.instants(b.start)
		for i := len(at) - 3; i < len(at); i++ {
			if step := at[i] - at[i-1]; step != 600*time.Millisecond {
				t.Errorf("renewed %v after the one before, want 600ms", step)
			}
		}
		h.Drop()
	})
}

func TestDroppedReplyLeavesTimeForAnotherAttempt(t *testing.T) {
	s := &leases{}
	inBubble(t, s, Hooks{}, func(t *testing.T, b *bench) {
		s.answer = func(ctx context.Context, rs []store.Renewal) []error {
			if len(s.instants(b.start)) == 1 {
				<-ctx.Done() // the reply never comes
				return all(len(rs), &store.Fault{Op: "renew", Class: store.ClassTimeout, Err: ctx.Err()})
			}
			return nil
		}
		b.hold("a")
		time.Sleep(5 * time.Second)
		b.told.want(t)
	})
}

func TestStoreThatHangsDoesNotKeepTheHolderFromHearing(t *testing.T) {
	release := make(chan struct{})
	hang := &leases{answer: func(_ context.Context, rs []store.Renewal) []error {
		<-release // heeds no context
		return all(len(rs), errAway)
	}}
	synctest.Test(t, func(t *testing.T) {
		release = make(chan struct{})
		b := &bench{Watchdog: New(hang, Hooks{}), store: hang, start: time.Now()}
		const n = maxCalls * 2 // each due at another time: more than may be under way
		var want []string
		for i := range n {
			name := strconv.Itoa(i)
			b.hold(name, func(l *Lease) { l.Grant.Length = time.Second + time.Duration(i)*100*time.Millisecond })
			want = append(want, fmt.Sprintf("%d lapsed at %v", i, time.Second+time.Duration(i)*100*time.Millisecond))
		}
		time.Sleep(time.Minute)
		b.told.want(t, want...)
		if calls := len(hang.instants(b.start)); calls != maxCalls {
			t.Errorf("%d calls under way, want %d", calls, maxCalls)
		}
		close(release)
		b.Close()
	})
}

func TestHungCallDoesNotHoldUpTheOthers(t *testing.T) {
	s := &leases{}
	inBubble(t, s, Hooks{}, func(t *testing.T, b *bench) {
		s.answer = func(ctx context.Context, rs []store.Renewal) []error {
			if rs[0].Grant.Key.ID == "hung" {
				<-ctx.Done()
				return all(len(rs), errAway)
			}
			return nil
		}
		b.hold("hung")
		time.Sleep(50 * time.Millisecond)
		b.hold("other")
		time.Sleep(5 * time.Second)
		b.told.want(t, "hung lapsed at 1s")
	})
}

func TestRenewalsDueTogetherTravelTogether(t *testing.T) {
	inBubble(t, &leases{}, Hooks{}, func(t *testing.T, b *bench) {
		const n = 3*maxBatch + 1
		for i := range n {
			b.hold(strconv.Itoa(i))
			if i%100 == 0 {
				time.Sleep(time.Millisecond)
			}
		}
		time.Sleep(650*time.Millisecond - time.Since(b.start))
		seen := make(map[string]bool)
		for _, c := range b.store.seen() {
			if len(c.renewals) > maxBatch {
				t.Errorf("%d renewals in one call, want at most %d", len(c.renewals), maxBatch)
			}
			for _, r := range c.renewals {
				seen[r.Grant.Key.ID] = true
			}
		}
		if len(seen) != n || len(b.store.seen()) != 4 {
			t.Errorf("%d leases renewed in %d calls, want %d in 4", len(seen), len(b.store.seen()), n)
		}
	})
}

func TestAnswersAreMatchedToTheirLeases(t *testing.T) {
	mixed := &leases{answer: func(_ context.Context, rs []store.Renewal) []error {
		errs := make([]error, len(rs))
		for i, r := range rs {
			switch r.Grant.Key.ID {
			case "lost":
				errs[i] = fmt.Errorf("renewing: %w", store.ErrLost)
			case "away":
				errs[i] = errAway
			}
		}
		return errs
	}}
	inBubble(t, mixed, Hooks{}, func(t *testing.T, b *bench) {
		b.hold("good", func(l *Lease) { l.Cap = b.start.Add(3 * time.Second) })
		b.hold("lost")
		b.hold("away")
		time.Sleep(time.Minute)
		b.told.want(t, "lost lost at 600ms", "away lapsed at 1s", "good capped at 3s")
	})
}

func TestWrongNumberOfAnswersIsAFault(t *testing.T) {
	odd := &leases{answer: func(_ context.Context, rs []store.Renewal) []error { return all(len(rs)+1, nil) }}
	var got faults
	hooks := Hooks{Renewed: got.add}
	inBubble(t, odd, hooks, func(t *testing.T, b *bench) {
		b.hold("a")
		b.hold("b", func(l *Lease) { l.Grant.Length += time.Millisecond })
		time.Sleep(time.Minute)
		b.told.want(t, "a lapsed at 1s", "b lapsed at 1.001s")
		if all := got.all(); len(all) == 0 || store.ClassOf(all[0]) != store.ClassData {
			t.Errorf("told %v, want faults of class data", all)
		}
	})
}

func TestMarginEndsTheHoldBeforeTheDeadline(t *testing.T) {
	away := &leases{answer: func(_ context.Context, rs []store.Renewal) []error { return all(len(rs), errAway) }}
	inBubble(t, away, Hooks{}, func(t *testing.T, b *bench) {
		h := b.hold("lapses", func(l *Lease) { l.Margin = 100 * time.Millisecond })
		b.hold("capped", func(l *Lease) { l.Margin, l.Cap = 100*time.Millisecond, b.start.Add(500*time.Millisecond) })
		time.Sleep(time.Minute)
		b.told.want(t, "capped capped at 400ms", "lapses lapsed at 900ms")
		if got := h.Deadline().Sub(b.start); got != time.Second {
			t.Errorf("deadline %v, want 1s", got)
		}
	})
}

func TestPausedHolderIsToldThatItsLeaseLapsed(t *testing.T) {
	inBubble(t, &leases{}, Hooks{}, func(t *testing.T, b *bench) {
		// As after a SIGSTOP of a minute: when the loop runs again, renewal and
		// deadline have both passed.
		b.hold("a", func(l *Lease) { l.Sent = b.start.Add(-time.Minute) })
		synctest.Wait()
		b.told.want(t, "a lapsed at 0s")
		if at := b.store.instants(b.start); at != nil {
			t.Errorf("renewed at %v", at)
		}
	})
}

func TestOnlyALeaseThatNobodyCameToRenewIsStarved(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(ctx context.Context, rs []store.Renewal) []error
		change func(*Lease)
		after  time.Duration
		want   bool
	}{
		"stopped past the lease":  {change: func(l *Lease) { l.Sent = l.Sent.Add(-time.Minute) }, want: true},
		"stopped within it":       {change: func(l *Lease) { l.Sent = l.Sent.Add(-700 * time.Millisecond) }},
		"renewed":                 {after: time.Minute},
		"capped":                  {change: func(l *Lease) { l.Cap = l.Sent.Add(time.Second) }, after: time.Minute},
		"lost":                    {answer: func(_ context.Context, rs []store.Renewal) []error { return all(len(rs), store.ErrLost) }, after: time.Minute},
		"cut off":                 {answer: func(_ context.Context, rs []store.Renewal) []error { return all(len(rs), errAway) }, after: time.Minute},
		"the store does not hear": {answer: func(ctx context.Context, rs []store.Renewal) []error { <-ctx.Done(); return all(len(rs), errAway) }, after: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, &leases{answer: c.answer}, Hooks{}, func(t *testing.T, b *bench) {
				change := c.change
				if change == nil {
					change = func(*Lease) {}
				}
				h := b.hold("a", change)
				time.Sleep(c.after)
				synctest.Wait()
				if got := h.Starved(); got != c.want {
					t.Errorf("Starved = %v", got)
				}
				h.Drop()
				if got := h.Starved(); got != c.want {
					t.Errorf("Starved = %v once dropped", got)
				}
			})
		})
	}
}

func TestDropDuringARenewalIsTheLastWord(t *testing.T) {
	s := &leases{answer: func(_ context.Context, rs []store.Renewal) []error {
		time.Sleep(100 * time.Millisecond)
		return all(len(rs), store.ErrLost)
	}}
	inBubble(t, s, Hooks{}, func(t *testing.T, b *bench) {
		h := b.hold("a")
		time.Sleep(650 * time.Millisecond)
		if !h.Drop() {
			t.Error("Drop = false")
		}
		if h.Drop() {
			t.Error("second Drop = true")
		}
		time.Sleep(time.Minute)
		b.told.want(t)
	})
}

func TestEndedMayDrop(t *testing.T) {
	inBubble(t, &leases{}, Hooks{}, func(t *testing.T, b *bench) {
		held, dropped := make(chan *Held, 1), make(chan bool, 1)
		held <- b.Hold(Lease{Grant: grant("a", time.Second), Sent: time.Now(), Cap: time.Now().Add(time.Second)},
			func(Reason) { dropped <- (<-held).Drop() })
		if <-dropped {
			t.Error("Drop in ended = true, want false")
		}
	})
}

func TestCloseTellsWhatIsHeldAndLeavesNothing(t *testing.T) {
	s := &leases{answer: func(ctx context.Context, rs []store.Renewal) []error {
		<-ctx.Done() // Close must cut the call short
		return all(len(rs), errAway)
	}}
	inBubble(t, s, Hooks{}, func(t *testing.T, b *bench) {
		b.hold("a")
		b.hold("b").Drop()
		time.Sleep(650 * time.Millisecond)
		b.Close()
		b.Close()
		b.told.want(t, "a closed at 650ms")
		b.hold("late")
		b.told.want(t, "a closed at 650ms", "late closed at 650ms")
	})
}

func TestIdleWatchdogSleepsWithoutATimer(t *testing.T) {
	var wakes atomic.Int32
	hooks := Hooks{Woken: func(time.Duration) { wakes.Add(1) }}
	inBubble(t, &leases{}, hooks, func(t *testing.T, b *bench) {
		b.hold("a").Drop()
		time.Sleep(time.Hour)
		if n := wakes.Load(); n > 1 {
			t.Errorf("woken %d times with nothing held", n)
		}
	})
}

func TestLatenessIsReported(t *testing.T) {
	// In real time: the loop is held up by a holder that blocks in ended, as it
	// would be by a machine without processor time.
	const held = 150 * time.Millisecond
	var mu sync.Mutex
	var worst time.Duration
	w := New(&leases{}, Hooks{Woken: func(late time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		worst = max(worst, late)
	}})
	defer w.Close()
	now := time.Now()
	blocked := make(chan struct{})
	w.Hold(Lease{Grant: grant("a", 20*time.Millisecond), Sent: now, Cap: now.Add(20 * time.Millisecond)},
		func(Reason) { time.Sleep(held); close(blocked) })
	w.Hold(Lease{Grant: grant("b", 100*time.Millisecond), Sent: now, Cap: now.Add(time.Minute)}, func(Reason) {})
	<-blocked
	for ended := time.Now().Add(5 * time.Second); time.Now().Before(ended); time.Sleep(time.Millisecond) {
		mu.Lock()
		late := worst
		mu.Unlock()
		if late >= 50*time.Millisecond {
			return
		}
	}
	t.Errorf("worst lateness reported is %v for a loop that was held up by %v", worst, held)
}

// In real time, on one processor that others keep busy: renewals count from when
// the request was sent, so delays do not add up, and lateness is seen before
// leases are lost to it.
func TestStarvedProcessKeepsItsLeasesOrSaysWhy(t *testing.T) {
	const length = 500 * time.Millisecond
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var stop atomic.Bool
	var spinners sync.WaitGroup
	for range 4 {
		spinners.Go(func() {
			for !stop.Load() {
			}
		})
	}
	defer spinners.Wait()
	defer stop.Store(true)

	var worst atomic.Int64
	w := New(silent{}, Hooks{Woken: func(late time.Duration) {
		if int64(late) > worst.Load() {
			worst.Store(int64(late)) // the loop is the only writer
		}
	}})
	defer w.Close()
	var lapsed atomic.Int32
	now := time.Now()
	for i := range 100 {
		sent := now.Add(-time.Duration(i) * time.Millisecond)
		w.Hold(Lease{Grant: grant(strconv.Itoa(i), length), Sent: sent, Cap: now.Add(time.Hour)}, func(r Reason) {
			if r == Lapsed {
				lapsed.Add(1)
			}
		})
	}
	time.Sleep(6 * length)
	late := time.Duration(worst.Load())
	if late == 0 {
		t.Error("no lateness reported on a processor that is busy")
	}
	// Nothing outlives six lengths without renewals. One has 0.4 of the length; on a machine that leaves us less than
	// half of that (it has other work besides our spinners) all bets are off.
	if n := lapsed.Load(); n > 0 && late < length/5 {
		t.Errorf("%d leases lapsed, worst lateness reported is %v", n, late)
	}
}

func TestManyLeasesAreHeldByAFewGoroutines(t *testing.T) {
	const n = 10_000
	var peak atomic.Int64
	s := &leases{answer: func(context.Context, []store.Renewal) []error {
		if now := int64(runtime.NumGoroutine()); now > peak.Load() {
			peak.Store(now)
		}
		return nil
	}}
	inBubble(t, s, Hooks{}, func(t *testing.T, b *bench) {
		before := int64(runtime.NumGoroutine())
		for i := range n {
			b.hold(strconv.Itoa(i), func(l *Lease) { l.Length = func() time.Duration { return time.Second } })
		}
		time.Sleep(9 * time.Second)
		b.told.want(t)
		renewals := 0
		for _, c := range s.seen() {
			renewals += len(c.renewals)
		}
		if renewals < 14*n {
			t.Errorf("%d renewals, want %d or more", renewals, 14*n)
		}
		// The loop, the calls under way, and as many that are just over.
		if grown := peak.Load() - before; grown > 1+2*maxCalls {
			t.Errorf("%d goroutines more while %d leases are renewed, want at most %d", grown, n, 1+2*maxCalls)
		}
	})
}

func TestConcurrentHoldsAndDrops(t *testing.T) {
	w := New(&leases{}, Hooks{})
	var holders sync.WaitGroup
	for range 8 {
		holders.Go(func() {
			for i := range 500 {
				now := time.Now()
				ended := make(chan Reason, 1)
				h := w.Hold(Lease{
					Grant: grant(strconv.Itoa(i), 4*time.Millisecond), Sent: now, Cap: now.Add(3 * time.Millisecond),
				}, func(r Reason) { ended <- r })
				if i%10 == 0 {
					time.Sleep(4 * time.Millisecond)
				}
				// Exactly one of the two has the last word.
				if h.Drop() {
					continue
				}
				if r := <-ended; r != Capped {
					t.Errorf("told %v, want capped", r)
				}
			}
		})
	}
	holders.Wait()
	w.Close()
	if n := len(w.queue); n != 0 {
		t.Errorf("%d leases left in the queue", n)
	}
}
