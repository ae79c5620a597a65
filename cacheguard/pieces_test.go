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

// busy is a store whose calls take time, for each key that they are about, and
// that fail when that is more than the store's bound: as a server does.
type busy struct {
	*memstore.Store
	perKey time.Duration
	carry  int // calls at once; 0: any number

	together int // reads at once besides; 0: they are among them

	mu    sync.Mutex
	calls map[string]int // for many keys; guarded by mu
	hung  atomic.Bool

	now, most atomic.Int64 // calls under way
}

func newBusy(perKey time.Duration) *busy {
	return &busy{Store: memstore.New(memstore.Options{}), perKey: perKey, calls: make(map[string]int)}
}

func (b *busy) Parallel() (calls, reads int) { return b.carry, b.together }

// call is one call about so many keys. Those that the store cannot carry wait
// for their turn, and their time runs.
func (b *busy) call(op string, keys int) error {
	n := b.now.Add(1)
	defer b.now.Add(-1)
	for m := b.most.Load(); n > m && !b.most.CompareAndSwap(m, n); m = b.most.Load() {
	}
	b.mu.Lock()
	b.calls[op]++
	b.mu.Unlock()
	takes := time.Duration(keys) * b.perKey
	if b.carry > 0 {
		takes *= (time.Duration(n) + time.Duration(b.carry) - 1) / time.Duration(b.carry)
	}
	if takes > storeBound || b.hung.Load() {
		time.Sleep(storeBound)
		return lost(op, store.ClassTimeout)
	}
	time.Sleep(takes)
	return nil
}

func (b *busy) count(op string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.calls[op]
}

func allLost(err error, n int) []error {
	errs := make([]error, n)
	for i := range errs {
		errs[i] = err
	}
	return errs
}

func (b *busy) Load(ctx context.Context, key store.Key) (store.Entry, error) {
	if err := b.call("load", 1); err != nil {
		return store.Entry{}, err
	}
	return b.Store.Load(ctx, key)
}

func (b *busy) Claim(ctx context.Context, c store.Claim) (store.Verdict, error) {
	if err := b.call("claim", 1); err != nil {
		return store.Verdict{}, err
	}
	return b.Store.Claim(ctx, c)
}

func (b *busy) Fill(ctx context.Context, g store.Grant, c store.Content) error {
	if err := b.call("fill", 1); err != nil {
		return err
	}
	return b.Store.Fill(ctx, g, c)
}

func (b *busy) LoadMany(ctx context.Context, keys []store.Key) ([]store.Entry, []error) {
	if err := b.call("load many", len(keys)); err != nil {
		return make([]store.Entry, len(keys)), allLost(err, len(keys))
	}
	return b.Store.LoadMany(ctx, keys)
}

func (b *busy) ClaimMany(ctx context.Context, claims []store.Claim) ([]store.Verdict, []error) {
	if err := b.call("claim many", len(claims)); err != nil {
		return make([]store.Verdict, len(claims)), allLost(err, len(claims))
	}
	return b.Store.ClaimMany(ctx, claims)
}

func (b *busy) FillMany(ctx context.Context, fills []store.Filling) []error {
	size := 0
	for _, f := range fills {
		size += len(f.Content.Payload)
	}
	if err := b.call("fill many", len(fills)+size>>10); err != nil {
		return allLost(err, len(fills))
	}
	return b.Store.FillMany(ctx, fills)
}

func (b *busy) Invalidate(ctx context.Context, keys []store.Key) []error {
	if err := b.call("invalidate", len(keys)); err != nil {
		return allLost(err, len(keys))
	}
	return b.Store.Invalidate(ctx, keys)
}

func (b *busy) Expire(ctx context.Context, keys []store.Key) []error {
	if err := b.call("expire", len(keys)); err != nil {
		return allLost(err, len(keys))
	}
	return b.Store.Expire(ctx, keys)
}

// Ten thousand keys are more than a store can answer for within the bound of one
// call. They are asked for in pieces, and are one load all the same.
func TestTenThousandKeysAreNotAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shop{takes: 50 * time.Millisecond}
		b := newBusy(100 * time.Microsecond) // a thousand keys fill the bound
		g := newGuard(t, b, options{Hooks: cacheguard.Hooks{Fault: func(f cacheguard.FaultInfo) { t.Error(f.Err) }}})
		keys := keysOf("k", 10_000)
		got, err := g.GetMany(t.Context(), keys, s.load)
		if err != nil || len(got) != len(keys) {
			t.Fatalf("GetMany = %d values, %v", len(got), err)
		}
		if n := len(s.loads()); n != 1 {
			t.Errorf("%d loads, want 1", n)
		}
		for _, op := range []string{"load many", "claim many", "fill many"} {
			if n := b.count(op); n != 40 {
				t.Errorf("%d calls of %s, want 40 of at most 256 keys", n, op)
			}
		}
		for name, write := range map[string]func(context.Context, ...string) error{"Expire": g.Expire, "Invalidate": g.Invalidate} {
			if err := write(t.Context(), keys...); err != nil {
				t.Errorf("%s of ten thousand keys = %.200v", name, err)
			}
		}
		if got, err := g.GetMany(t.Context(), keys, s.load); err != nil || len(got) != len(keys) || len(s.loads()) != 2 {
			t.Errorf("after the Invalidate: %d values, %v, %d loads", len(got), err, len(s.loads()))
		}
	})
}

// Large values fill the bound of a call as many keys do.
func TestLargeValuesAreStoredAFewAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBusy(50 * time.Microsecond) // for each KiB, too: 2 MiB fill the bound
		var faults atomic.Int64
		g, err := cacheguard.New(b, cacheguard.Options[[]byte]{Codec: cacheguard.Bytes(),
			Hooks: cacheguard.Hooks{Fault: func(cacheguard.FaultInfo) { faults.Add(1) }}})
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		keys := keysOf("k", 40)
		_, err = g.GetMany(t.Context(), keys, func(_ context.Context, keys []string) (map[string][]byte, error) {
			got := make(map[string][]byte)
			for _, k := range keys {
				got[k] = make([]byte, 300<<10)
			}
			return got, nil
		})
		if err != nil || faults.Load() > 0 {
			t.Errorf("GetMany = %v, %d faults", err, faults.Load())
		}
		if n := b.count("fill many"); n < 12 || n > 20 {
			t.Errorf("%d fills of three values each or so, want 14", n)
		}
	})
}

// P8: ten thousand keys pay for an outage once, readers and writers alike, and
// are one load. They count as one among the loads without a lease.
func TestTenThousandKeysPayForAnOutageOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shop{takes: 50 * time.Millisecond}
		b := newBusy(0)
		g := newGuard(t, b, options{OutageLoads: 2})
		b.hung.Store(true)
		keys := keysOf("k", 10_000)
		begin := time.Now()
		got, err := g.GetMany(t.Context(), keys, s.load)
		if err != nil || len(got) != len(keys) {
			t.Fatalf("GetMany = %d values, %v", len(got), err)
		}
		if took, want := time.Since(begin), storeBound+s.takes; took > want+time.Millisecond {
			t.Errorf("took %v, want one time-out and one load, %v", took, want)
		}
		if n := len(s.loads()); n != 1 {
			t.Errorf("%d loads, want 1", n)
		}
		begin = time.Now()
		if err := g.Invalidate(t.Context(), keys...); err == nil {
			t.Error("Invalidate returned nil although the store was out of reach")
		}
		if took := time.Since(begin); took > storeBound {
			t.Errorf("Invalidate took %v, want one time-out at most", took)
		}
	})
}

// The places of the loads without a lease bound what the origin is asked at
// once: each GetMany is one question.
func TestEachGetManyTakesOnePlaceInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBusy(0)
		g := newGuard(t, b, options{OutageLoads: 3, WaitLimit: 250 * time.Millisecond})
		b.hung.Store(true)
		var running, most atomic.Int64
		load := func(_ context.Context, keys []string) (map[string]string, error) {
			n := running.Add(1)
			defer running.Add(-1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			time.Sleep(100 * time.Millisecond)
			got := make(map[string]string)
			for _, k := range keys {
				got[k] = "v"
			}
			return got, nil
		}
		var served, refused atomic.Int64
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				got, err := g.GetMany(t.Context(), keysOf(fmt.Sprint("set", i, "-"), 100), load)
				var each *cacheguard.ManyError
				switch {
				case err == nil && len(got) == 100:
					served.Add(1)
				case errors.As(err, &each) && len(each.Errs) == 100 && errors.Is(err, cacheguard.ErrWaitLimit):
					refused.Add(1)
				default:
					t.Errorf("GetMany = %d values, %v", len(got), err)
				}
			})
		}
		begin := time.Now()
		wg.Wait()
		if most.Load() != 3 {
			t.Errorf("%d loads at once, want OutageLoads, 3", most.Load())
		}
		if served.Load() != 9 || served.Load()+refused.Load() != 20 {
			t.Errorf("%d served, %d told ErrWaitLimit; want 9, in three rounds", served.Load(), refused.Load())
		}
		if took := time.Since(begin); took > time.Second {
			t.Errorf("took %v: those who are refused wait for WaitLimit once", took)
		}
	})
}

// A store that says how many calls it can carry gets no more at once: what the
// others would wait in there would count against their time-out, and look like a
// store that is away.
func TestMoreMissesThanTheStoreCanCarryAreNotAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &origin{takes: 50 * time.Millisecond}
		b := newBusy(10 * time.Millisecond)
		b.carry = 20
		g := newGuard(t, b, options{Hooks: cacheguard.Hooks{
			Fault:   func(f cacheguard.FaultInfo) { t.Error(f.Err) },
			Breaker: func(bool) { t.Error("the breaker changed") },
		}})
		const keys = 500
		var wg sync.WaitGroup
		for i := range keys {
			wg.Go(func() {
				if _, err := g.Get(t.Context(), fmt.Sprint(i), o.load); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := o.loads.Load(); n != keys {
			t.Errorf("%d loads of %d keys", n, keys)
		}
		if n := b.most.Load(); n > 20 {
			t.Errorf("%d calls at once, the store carries 20", n)
		}
	})
}

// Those who wait for a turn at a store that has stopped do not wait for a
// time-out of their own each: the first few find out for all. The breaker opens
// after three calls, so two that take the turns of the first may wait once more.
func TestWhoWaitsForATurnPaysForAnOutageOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBusy(0)
		b.carry = 5
		g := newGuard(t, b, options{OutageLoads: 1000})
		b.hung.Store(true)
		o := &origin{takes: 50 * time.Millisecond}
		var twice atomic.Int64
		var wg sync.WaitGroup
		for i := range 200 {
			wg.Go(func() {
				begin := time.Now()
				if _, err := g.Get(t.Context(), fmt.Sprint(i), o.load); err != nil {
					t.Error(err)
				}
				if took := time.Since(begin); took > storeBound+o.takes+time.Millisecond {
					twice.Add(1)
				}
			})
		}
		wg.Wait()
		if n := twice.Load(); n > 2 {
			t.Errorf("%d of 200 calls took more than one time-out and the load", n)
		}
	})
}

// A store that sends its reads together wants as many as there are.
func TestReadsThatAreSentTogetherHaveTurnsOfTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBusy(0)
		b.carry, b.together = 1, 10
		g := newGuard(t, endless{b}, options{})
		if err := g.Set(t.Context(), "k", "v"); err != nil {
			t.Fatal(err)
		}
		release := make(chan struct{})
		ctx := context.WithValue(t.Context(), endless{}, release)
		var wg sync.WaitGroup
		wg.Go(func() { _ = g.Invalidate(ctx, "other") })
		synctest.Wait()
		begin := time.Now()
		get(t, g, (&origin{}).load, "v")
		if took := time.Since(begin); took != 0 {
			t.Errorf("a read has waited for %v", took)
		}
		close(release)
		wg.Wait()
	})
}

// What ends something does not queue behind what begins something, and does not
// keep it out either.
func TestWhatEndsSomethingGoesFirstButNotAlone(t *testing.T) {
	for _, c := range []struct {
		name                 string
		carry, reads, writes int
		read, write          time.Duration // when the last of them is answered
	}{
		{"a write after many reads", 1, 5, 1, 60 * time.Millisecond, 20 * time.Millisecond},
		{"a read among many writes", 3, 1, 5, 10 * time.Millisecond, 50 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBusy(10 * time.Millisecond)
				b.carry = c.carry
				g := newGuard(t, b, options{})
				begin := time.Now()
				var read, written atomic.Int64
				var wg sync.WaitGroup
				for i := range c.reads {
					wg.Go(func() {
						_, err := g.Do(t.Context(), fmt.Sprint(i), asked{}) // there is nothing, and nobody loads
						if !errors.Is(err, cacheguard.ErrNotCached) {
							t.Error(err)
						}
						read.Store(int64(time.Since(begin)))
					})
				}
				synctest.Wait()
				for i := range c.writes {
					wg.Go(func() {
						if err := g.Invalidate(t.Context(), fmt.Sprint("other", i)); err != nil {
							t.Error(err)
						}
						written.Store(int64(time.Since(begin)))
					})
				}
				wg.Wait()
				if got := time.Duration(read.Load()); got != c.read {
					t.Errorf("the last read was answered after %v, want %v", got, c.read)
				}
				if got := time.Duration(written.Load()); got != c.write {
					t.Errorf("the last write was answered after %v, want %v", got, c.write)
				}
			})
		})
	}
}

// The wait for a turn has a bound, and ends with the caller.
func TestTheWaitForATurnIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBusy(0)
		b.carry = 1
		g := newGuard(t, endless{b}, options{})
		release := make(chan struct{})
		ctx := context.WithValue(t.Context(), endless{}, release)
		var wg sync.WaitGroup
		wg.Go(func() { _ = g.Invalidate(ctx, "k") })
		synctest.Wait()

		begin := time.Now()
		if err := g.Invalidate(t.Context(), "other"); store.ClassOf(err) != store.ClassPool {
			t.Errorf("Invalidate = %v, want a fault of class pool", err)
		}
		if took := time.Since(begin); took != time.Second {
			t.Errorf("it waited %v for its turn, want a second", took)
		}
		short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if err := g.Invalidate(short, "other"); store.ClassOf(err) != store.ClassCanceled || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Invalidate of a caller that leaves = %v, want a fault of class canceled", err)
		}
		close(release)
		wg.Wait()
	})
}

// endless is a store whose Invalidate ends when its caller says so.
type endless struct{ *busy }

func (e endless) Invalidate(ctx context.Context, keys []store.Key) []error {
	if release, ok := ctx.Value(endless{}).(chan struct{}); ok {
		<-release
	}
	return e.busy.Invalidate(ctx, keys)
}
