package lease

import (
	"context"
	"errors"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

func TestDoRunsUnderALeaseAndReleasesIt(t *testing.T) {
	inBubble(t, func(w *world) {
		l, _ := w.locker(Options{})
		type key struct{}
		ctx := context.WithValue(w.Context(), key{}, "kept")
		err := l.Do(ctx, "job", func(ctx context.Context, token store.Token) error {
			w.taken("job")
			if got, ok := TokenFromContext(ctx); !ok || got != token || token <= 0 {
				w.Errorf("token in context is %d, %v; want %d", got, ok, token)
			}
			if ctx.Value(key{}) != "kept" {
				w.Error("the context's values are gone")
			}
			return nil
		})
		if err != nil {
			w.Fatal(err)
		}
		w.free("job")
	})
}

func TestDoReturnsTheErrorOfItsFunction(t *testing.T) {
	inBubble(t, func(w *world) {
		l, line := w.locker(Options{})
		failed := errors.New("no paper")
		if err := l.Do(w.Context(), "job", func(context.Context, store.Token) error { return failed }); err != failed {
			w.Errorf("Do = %v, want %v", err, failed)
		}
		// A release that does not get through does not undo what was done.
		err := l.Do(w.Context(), "job", func(context.Context, store.Token) error { line.cut(); return nil })
		if err != nil {
			w.Errorf("Do = %v after a release that failed, want nil", err)
		}
	})
}

func TestDoTellsThatTheLeaseWasLost(t *testing.T) {
	inBubble(t, func(w *world) {
		l, line := w.locker(Options{})
		failed := errors.New("no paper")
		err := l.Do(w.Context(), "job", func(ctx context.Context, _ store.Token) error {
			line.cut()
			<-ctx.Done()
			return failed
		})
		if !errors.Is(err, store.ErrLost) || !errors.Is(err, failed) {
			w.Errorf("Do = %v, want both ErrLost and the function's error", err)
		}
		line.mend()
		err = l.Do(w.Context(), "job", func(ctx context.Context, _ store.Token) error {
			line.cut()
			<-ctx.Done()
			return context.Cause(ctx)
		})
		if !errors.Is(err, store.ErrLost) || strings.Count(err.Error(), "lease lost") != 1 {
			w.Errorf("Do = %q, want ErrLost once", err)
		}
	})
}

func TestDoEndsWithItsContext(t *testing.T) {
	inBubble(t, func(w *world) {
		l, _ := w.locker(Options{})
		ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
		defer cancel()
		err := l.Do(ctx, "job", func(ctx context.Context, _ store.Token) error {
			<-ctx.Done()
			return ctx.Err()
		})
		w.at(time.Minute, "Do returned")
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, store.ErrLost) {
			w.Errorf("Do = %v, want the deadline alone", err)
		}
		w.free("job")
	})
}

func TestPanicReleasesTheLeaseAndTakesItsCourse(t *testing.T) {
	inBubble(t, func(w *world) {
		l, _ := w.locker(Options{})
		func() {
			defer func() {
				if r := recover(); r != "broken" {
					w.Errorf("recovered %v, want broken", r)
				}
			}()
			l.Do(w.Context(), "job", func(context.Context, store.Token) error { panic("broken") })
		}()
		w.free("job")
	})
}

func TestGoexitReleasesTheLease(t *testing.T) {
	inBubble(t, func(w *world) {
		l, _ := w.locker(Options{})
		done := make(chan struct{})
		go func() {
			defer close(done)
			l.Do(w.Context(), "job", func(context.Context, store.Token) error { runtime.Goexit(); return nil })
			w.Error("Do returned after Goexit")
		}()
		<-done
		w.free("job")
	})
}

func TestContextOutlivesTheOneItWasAcquiredWith(t *testing.T) {
	inBubble(t, func(w *world) {
		l, _ := w.locker(Options{})
		ctx, cancel := context.WithTimeout(w.Context(), time.Second) // for the wait
		h, err := l.Acquire(ctx, "job")
		cancel()
		if err != nil {
			w.Fatal(err)
		}
		time.Sleep(time.Minute)
		if err := h.Context().Err(); err != nil {
			w.Errorf("context ended: %v", context.Cause(h.Context()))
		}
		w.taken("job")
		if err := h.Release(ctx); err != nil { // ctx has ended: it must not matter
			w.Errorf("Release = %v", err)
		}
		if cause := context.Cause(h.Context()); cause != context.Canceled {
			w.Errorf("cause after Release is %v, want context.Canceled", cause)
		}
		w.free("job")
	})
}

func TestContextEndsBeforeTheLeaseCanLapse(t *testing.T) {
	inBubble(t, func(w *world) {
		l, line := w.locker(Options{Length: 10 * time.Second})
		h := w.acquire(l, "job")
		line.cut()
		<-h.Context().Done()
		w.at(9*time.Second, "context ended")
		if cause := context.Cause(h.Context()); !errors.Is(cause, store.ErrLost) || !errors.Is(cause, errAway) {
			w.Errorf("cause is %v, want ErrLost and the store's fault", cause)
		}
		w.taken("job") // the store still has it: nobody was let in before us out
		line.mend()
		if err := h.Release(w.Context()); !errors.Is(err, store.ErrLost) {
			w.Errorf("Release = %v, want ErrLost", err)
		}
		w.free("job") // what the store still had is given back
	})
}

func TestContextEndsAtOnceWhenTheStoreSaysLost(t *testing.T) {
	inBubble(t, func(w *world) {
		l, _ := w.locker(Options{Length: 10 * time.Second})
		h := w.acquire(l, "job")
		w.store.Invalidate(w.Context(), []store.Key{{Space: "lease", ID: "job"}}) // ends any lease
		<-h.Context().Done()
		w.between(5*time.Second, 6*time.Second, "context ended") // at the next renewal
		if cause := context.Cause(h.Context()); !errors.Is(cause, store.ErrLost) {
			w.Errorf("cause is %v, want ErrLost", cause)
		}
	})
}

func TestHoldLimitEndsTheHold(t *testing.T) {
	inBubble(t, func(w *world) {
		l, _ := w.locker(Options{Length: 10 * time.Second, HoldLimit: time.Minute})
		other, _ := w.locker(Options{})
		h := w.acquire(l, "job") // and hangs
		w.acquire(other, "job").Release(w.Context())
		w.between(time.Minute, time.Minute+time.Second, "the other acquired")
		if cause := context.Cause(h.Context()); !errors.Is(cause, store.ErrLost) || !strings.Contains(cause.Error(), "HoldLimit") {
			w.Errorf("cause is %v, want ErrLost that names HoldLimit", cause)
		}
	})
}

func TestReleaseEndsOnlyOnesOwnLease(t *testing.T) {
	inBubble(t, func(w *world) {
		l, line := w.locker(Options{Length: 10 * time.Second})
		other, _ := w.locker(Options{})
		h := w.acquire(l, "job")
		line.mu.Lock()
		line.cutRenewals()
		line.mu.Unlock()
		next := w.acquire(other, "job")
		w.between(10*time.Second, 10*time.Second+5*time.Millisecond, "the other acquired")
		if err := h.Release(w.Context()); !errors.Is(err, store.ErrLost) {
			w.Errorf("Release = %v, want ErrLost", err)
		}
		w.taken("job")
		if err := next.Context().Err(); err != nil {
			w.Errorf("the other's context ended: %v", err)
		}
		if next.Token() <= h.Token() {
			w.Errorf("token %d after %d: must grow", next.Token(), h.Token())
		}
		if err := next.Release(w.Context()); err != nil {
			w.Error(err)
		}
	})
}

func TestReleaseTwiceIsReleaseOnce(t *testing.T) {
	inBubble(t, func(w *world) {
		l, line := w.locker(Options{})
		h := w.acquire(l, "job")
		if err := h.Release(w.Context()); err != nil {
			w.Error(err)
		}
		again := w.acquire(l, "job")
		if err := h.Release(w.Context()); err != nil {
			w.Error(err)
		}
		w.taken("job")
		line.cut()
		first := again.Release(w.Context())
		line.mend()
		if second := again.Release(w.Context()); store.ClassOf(first) != store.ClassConnection || second != first {
			w.Errorf("Release = %v, then %v; want the same fault twice", first, second)
		}
	})
}

func TestReleaseWhoseReplyIsLostIsSentAgain(t *testing.T) {
	inBubble(t, func(w *world) {
		l, line := w.locker(Options{})
		h := w.acquire(l, "job")
		sent := 0
		line.release = func(ctx context.Context, g store.Grant) error {
			if sent++; sent < asks {
				return errAway
			}
			return w.store.Release(ctx, g, nil)
		}
		if err := h.Release(w.Context()); err != nil {
			w.Errorf("Release = %v", err)
		}
		w.free("job")
	})
}

func TestOrphanLetsTheLeaseRunOut(t *testing.T) {
	inBubble(t, func(w *world) {
		l, _ := w.locker(Options{Length: 10 * time.Second})
		h := w.acquire(l, "job")
		time.Sleep(7 * time.Second) // renewed at 6 s
		h.Orphan()
		if h.Context().Err() == nil {
			w.Error("context of an orphan goes on")
		}
		if err := h.Release(w.Context()); err != nil {
			w.Errorf("Release after Orphan = %v", err)
		}
		w.taken("job")
		next := w.acquire(l, "job")
		w.between(16*time.Second, 16*time.Second+5*time.Millisecond, "the next acquired")
		next.Release(w.Context())
	})
}

func TestTryAcquireSaysWhoHoldsItAndForHowLong(t *testing.T) {
	inBubble(t, func(w *world) {
		l, _ := w.locker(Options{Owner: "billing", Length: 10 * time.Second})
		other, line := w.locker(Options{})
		h := w.acquire(l, "job")
		time.Sleep(time.Second)
		_, err := other.TryAcquire(w.Context(), "job")
		held, ok := errors.AsType[*store.HeldError](err)
		if !ok || !strings.HasPrefix(held.Holder.Process(), "billing-") || held.Left != 9*time.Second {
			w.Errorf("TryAcquire = %v (%+v), want held by billing-... for 9s", err, held)
		}
		if line.claimed()[0].Wait {
			w.Error("TryAcquire marks the lease as waited for")
		}
		h.Release(w.Context())
		h, err = other.TryAcquire(w.Context(), "job")
		if err != nil {
			w.Fatal(err)
		}
		time.Sleep(time.Minute)
		w.taken("job") // it is kept alive
		h.Release(w.Context())
	})
}

func TestTokensGrowAcrossLapsesFlushesAndLockers(t *testing.T) {
	inBubble(t, func(w *world) {
		a, line := w.locker(Options{Length: time.Second})
		b, _ := w.locker(Options{Length: time.Second})
		var last store.Token
		grows := func(what string, token store.Token) {
			w.Helper()
			if token <= last {
				w.Errorf("%s: token %d after %d", what, token, last)
			}
			last = token
		}
		for range 3 {
			h := w.acquire(a, "job")
			grows("released", h.Token())
			h.Release(w.Context())
			lapsing := w.acquire(a, "job")
			grows("next", lapsing.Token())
			line.mu.Lock()
			line.cutRenewals()
			line.mu.Unlock()
			h = w.acquire(b, "job")
			grows("after a lapse", h.Token())
			h.Release(w.Context())
			line.mend()
			lapsing.Release(w.Context())
			time.Sleep(3 * time.Hour) // the record is gone
		}
	})
}

func TestNameOfAGuardsKeyIsRefused(t *testing.T) {
	inBubble(t, func(w *world) {
		l, _ := w.locker(Options{Namespace: "products"})
		key := store.Key{Space: "products", ID: "7"}
		if _, err := w.store.Begin(w.Context(), key, time.Minute); err != nil {
			w.Fatal(err)
		}
		err := w.store.Set(w.Context(), store.Write{Key: key, Content: store.Content{Kind: store.Value, TTL: time.Hour}})
		if err != nil {
			w.Fatal(err)
		}
		if _, err := l.Acquire(w.Context(), "7"); !errors.Is(err, errShared) {
			w.Errorf("Acquire = %v, want errShared", err)
		}
		if _, err := l.TryAcquire(w.Context(), "7"); !errors.Is(err, errShared) {
			w.Errorf("TryAcquire = %v, want errShared", err)
		}
	})
}

func TestInvalidOptionsAreReportedByEveryVerb(t *testing.T) {
	long := strings.Repeat("x", maxLabel+1)
	for _, c := range []struct {
		opts Options
		want string
	}{
		{Options{Length: time.Millisecond}, "lease.Options.Length is 1ms: must be at least 100ms"},
		{Options{Length: -1}, "lease.Options.Length"},
		{Options{Length: time.Minute, HoldLimit: time.Second}, "lease.Options.HoldLimit is 1s: must be at least Length, 1m0s"},
		{Options{PollInterval: time.Microsecond}, "lease.Options.PollInterval is 1µs: must be at least 10ms"},
		{Options{Namespace: long}, "lease.Options.Namespace has 129 bytes: must have at most 128"},
		{Options{Owner: long}, "lease.Options.Owner"},
	} {
		l := New(nil, c.opts)
		_, acquire := l.Acquire(t.Context(), "job")
		_, try := l.TryAcquire(t.Context(), "job")
		do := l.Do(t.Context(), "job", func(context.Context, store.Token) error { t.Error("fn was run"); return nil })
		for verb, err := range map[string]error{"Acquire": acquire, "TryAcquire": try, "Do": do} {
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s with %+v = %v; want %q", verb, c.opts, err, c.want)
			}
		}
		l.Close()
	}
}

func TestProcessesWithOneOwnerAreNotTheSame(t *testing.T) {
	inBubble(t, func(w *world) {
		a, _ := w.locker(Options{Owner: "billing"})
		b, _ := w.locker(Options{Owner: "billing"})
		w.acquire(a, "job")
		if _, err := b.TryAcquire(w.Context(), "job"); !errors.Is(err, store.ErrHeld) {
			w.Errorf("TryAcquire = %v, want ErrHeld", err)
		}
	})
}

func TestCloseEndsEverything(t *testing.T) {
	inBubble(t, func(w *world) {
		l, _ := w.locker(Options{})
		other, _ := w.locker(Options{})
		mine := w.acquire(l, "mine")
		theirs := w.acquire(other, "theirs")
		waiters := make(chan error, 3)
		for range 3 {
			go func() {
				_, err := l.Acquire(context.Background(), "theirs")
				waiters <- err
			}()
		}
		synctest.Wait()
		l.Close()
		l.Close()
		for range 3 {
			if err := <-waiters; err != ErrClosed {
				w.Errorf("Acquire = %v, want ErrClosed", err)
			}
		}
		cause := context.Cause(mine.Context())
		if !errors.Is(cause, store.ErrLost) || !errors.Is(cause, ErrClosed) {
			w.Errorf("cause is %v, want ErrLost and ErrClosed", cause)
		}
		w.free("mine")
		if err := mine.Release(w.Context()); !errors.Is(err, ErrClosed) {
			w.Errorf("Release = %v, want ErrClosed", err)
		}
		if _, err := l.TryAcquire(w.Context(), "mine"); err != ErrClosed {
			w.Errorf("TryAcquire = %v, want ErrClosed", err)
		}
		if err := l.Do(w.Context(), "mine", nil); err != ErrClosed {
			w.Errorf("Do = %v, want ErrClosed", err)
		}
		if err := theirs.Context().Err(); err != nil {
			w.Errorf("another locker's lease ended: %v", err)
		}
	})
}

func TestCloseIsBoundedWithoutAStore(t *testing.T) {
	inBubble(t, func(w *world) {
		l, line := w.locker(Options{})
		for _, name := range []string{"a", "b", "c"} {
			w.acquire(l, name)
		}
		line.mu.Lock()
		line.release = func(ctx context.Context, _ store.Grant) error {
			<-ctx.Done()
			return &store.Fault{Op: "release", Class: store.ClassTimeout, Err: ctx.Err()}
		}
		line.mu.Unlock()
		l.Close()
		w.between(0, 2*releaseLimit, "Close returned")
	})
}

func TestManyLeasesNeedNoGoroutineEach(t *testing.T) {
	inBubble(t, func(w *world) {
		l, _ := w.locker(Options{Length: 3 * time.Second})
		ctx, cancel := context.WithCancel(w.Context()) // a context that can end, as those of requests
		defer cancel()
		before := runtime.NumGoroutine()
		var held []*Lease
		for i := range 10_000 {
			h, err := l.Acquire(ctx, strconv.Itoa(i))
			if err != nil {
				w.Fatal(err)
			}
			held = append(held, h)
		}
		time.Sleep(time.Minute)
		if grown := runtime.NumGoroutine() - before; grown > 10 {
			w.Errorf("%d goroutines more for %d leases", grown, len(held))
		}
		for _, h := range held {
			if err := h.Release(ctx); err != nil {
				w.Fatal(err)
			}
		}
	})
}

func TestLeaseThatWasLostLeavesNothingInTheLocker(t *testing.T) {
	inBubble(t, func(w *world) {
		l, line := w.locker(Options{})
		w.acquire(l, "job") // never released
		line.cut()
		time.Sleep(time.Minute)
		line.mend()
		w.acquire(l, "other").Release(w.Context()) // sweeps
		l.mu.Lock()
		held := len(l.held)
		l.mu.Unlock()
		l.lines.mu.Lock()
		defer l.lines.mu.Unlock()
		if _, there := l.lines.byName["job"]; held != 0 || there {
			w.Errorf("%d leases tracked, line of the lost one kept: %v", held, there)
		}
	})
}
