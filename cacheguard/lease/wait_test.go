package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
)

func TestReleaseWakesTheWaiterAtOnce(t *testing.T) {
	inBubble(t, func(w *world) {
		a, _ := w.locker(Options{})
		b, _ := w.locker(Options{PollInterval: time.Hour})
		h := w.acquire(a, "job")
		time.AfterFunc(time.Second, func() { h.Release(context.Background()) })
		w.acquire(b, "job")
		w.at(time.Second, "acquired")
	})
}

func TestLostMessageIsMadeUpForByPolling(t *testing.T) {
	inBubble(t, func(w *world) {
		a, _ := w.locker(Options{})
		b, line := w.locker(Options{PollInterval: 2 * time.Second})
		line.deaf = true
		h := w.acquire(a, "job")
		time.AfterFunc(10*time.Second, func() { h.Release(context.Background()) })
		w.acquire(b, "job")
		w.between(10*time.Second, 13*time.Second, "acquired")
	})
}

func TestUpMakesEverybodyLookAgain(t *testing.T) {
	inBubble(t, func(w *world) {
		a, _ := w.locker(Options{})
		b, line := w.locker(Options{PollInterval: time.Hour})
		line.deaf = true
		h := w.acquire(a, "job")
		time.AfterFunc(time.Second, func() { h.Release(context.Background()) })
		time.AfterFunc(2*time.Second, func() { b.lines.heard(store.Event{Kind: store.Up}) })
		w.acquire(b, "job")
		w.at(2*time.Second, "acquired")
	})
}

func TestCrashedHolderDelaysTheNextByWhatIsLeftOfItsLease(t *testing.T) {
	inBubble(t, func(w *world) {
		a, line := w.locker(Options{Length: 3 * time.Second})
		var waiters []*Locker
		for range 4 {
			l, _ := w.locker(Options{PollInterval: time.Hour})
			waiters = append(waiters, l)
		}
		w.acquire(a, "job")
		line.cut() // as if killed
		got := make(chan *Lease, len(waiters))
		for _, l := range waiters {
			go func() {
				if h, err := l.Acquire(w.Context(), "job"); err == nil {
					got <- h
				}
			}()
		}
		h := <-got
		w.between(3*time.Second, 3*time.Second+5*time.Millisecond, "one acquired")
		synctest.Wait()
		if len(got) != 0 {
			w.Error("more than one acquired")
		}
		for range len(waiters) - 1 {
			h.Release(w.Context())
			h = <-got
		}
		h.Release(w.Context())
	})
}

func TestWaitersOfOneProcessAreServedInOrder(t *testing.T) {
	inBubble(t, func(w *world) {
		l, line := w.locker(Options{PollInterval: time.Hour})
		h := w.acquire(l, "job")
		const n = 50
		var order []int
		var waiters sync.WaitGroup
		for i := range n {
			waiters.Go(func() {
				err := l.Do(w.Context(), "job", func(context.Context, store.Token) error {
					order = append(order, i) // protected by the lease itself
					return nil
				})
				if err != nil {
					w.Error(err)
				}
			})
			synctest.Wait()
		}
		h.Release(w.Context())
		waiters.Wait()
		if !slices.IsSorted(order) || len(order) != n {
			w.Errorf("served in the order %v", order)
		}
		// One asks at a time: refused once while the one before holds, then granted.
		if claims := len(line.claimed()); claims > 2*n+2 {
			w.Errorf("%d claims for %d holds", claims, n)
		}
	})
}

func TestProcessWaitsWithOneClaimHoweverManyCallersItHas(t *testing.T) {
	inBubble(t, func(w *world) {
		holder, _ := w.locker(Options{})
		h := w.acquire(holder, "job")
		const processes, callers = 5, 200
		ctx, cancel := context.WithTimeout(w.Context(), 5*time.Second)
		defer cancel()
		var lines []*wire
		var waiters sync.WaitGroup
		for range processes {
			l, line := w.locker(Options{PollInterval: 500 * time.Millisecond})
			lines = append(lines, line)
			for range callers {
				waiters.Go(func() {
					if _, err := l.Acquire(ctx, "job"); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, store.ErrHeld) {
						w.Errorf("Acquire = %v, want DeadlineExceeded and ErrHeld", err)
					}
				})
			}
		}
		waiters.Wait()
		w.at(5*time.Second, "gave up")
		for _, line := range lines {
			// Every 250 ms at the most, and the first.
			if n := len(line.claimed()); n < 5 || n > 21 {
				w.Errorf("%d claims of one process in 5 s", n)
			}
		}
		h.Release(w.Context())
		w.free("job")
	})
}

func TestGivingUpSaysWhoHoldsItAndForHowLong(t *testing.T) {
	inBubble(t, func(w *world) {
		a, _ := w.locker(Options{Owner: "billing", Length: 10 * time.Second})
		b, _ := w.locker(Options{})
		w.acquire(a, "job")
		stop := errors.New("shutting down")
		ctx, cancel := context.WithCancelCause(w.Context())
		time.AfterFunc(4*time.Second, func() { cancel(stop) })
		first, second := make(chan error, 1), make(chan error, 1)
		wait := func(errs chan error) { _, err := b.Acquire(ctx, "job"); errs <- err }
		go wait(first)
		go wait(second) // one of them never got to ask the store
		for _, errs := range []chan error{first, second} {
			err := <-errs
			w.at(4*time.Second, "gave up")
			held, ok := errors.AsType[*store.HeldError](err)
			if !ok || !strings.HasPrefix(string(held.Holder), "billing-") || held.Left <= 0 || held.Left > 10*time.Second {
				w.Errorf("Acquire = %v, want who holds it", err)
			}
			if !errors.Is(err, context.Canceled) || !errors.Is(err, stop) || !errors.Is(err, store.ErrHeld) {
				w.Errorf("Acquire = %v, want Canceled, its cause and ErrHeld", err)
			}
		}
	})
}

func TestLeaseIsNotReentrant(t *testing.T) {
	inBubble(t, func(w *world) {
		l, _ := w.locker(Options{})
		err := l.Do(w.Context(), "job", func(ctx context.Context, _ store.Token) error {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			return l.Do(ctx, "job", func(context.Context, store.Token) error { t.Error("ran inside itself"); return nil })
		})
		held, ok := errors.AsType[*store.HeldError](err)
		if !ok || held.Holder.Process() != l.process || !errors.Is(err, context.DeadlineExceeded) {
			w.Errorf("Do = %v, want held by this process", err)
		}
	})
}

func TestProcessThatReacquiresInALoopLetsTheOthersGoFirst(t *testing.T) {
	for _, held := range []time.Duration{0, time.Millisecond, time.Minute} {
		t.Run(held.String(), func(t *testing.T) { reacquiresInALoop(t, held) })
	}
}

func reacquiresInALoop(t *testing.T, held time.Duration) {
	inBubble(t, func(w *world) {
		greedy, _ := w.locker(Options{})
		modest, line := w.locker(Options{PollInterval: time.Hour})
		line.claim = func(ctx context.Context, c store.Claim) (store.Verdict, error) {
			time.Sleep(5 * time.Millisecond) // it is further from the store, too
			return w.store.Claim(ctx, c)
		}
		served := make(chan struct{})
		h := w.acquire(greedy, "job")
		go func() {
			defer close(served)
			if h, err := modest.Acquire(w.Context(), "job"); err == nil {
				h.Release(w.Context())
			}
		}()
		time.Sleep(10 * time.Millisecond)
		grants := 1
		for done := false; !done; grants++ {
			time.Sleep(held)
			h.Release(w.Context())
			h = w.acquire(greedy, "job")
			select {
			case <-served:
				done = true
			default:
			}
			if grants > 10*share {
				w.Fatalf("%d grants in a row while another waits", grants)
			}
		}
		h.Release(w.Context())
		w.between(0, (share+1)*held+2*giveWay, "served")
	})
}

func TestProcessThatIsAloneNeverPauses(t *testing.T) {
	inBubble(t, func(w *world) {
		l, _ := w.locker(Options{})
		for range 10 * share {
			w.acquire(l, "job").Release(w.Context())
		}
		w.at(0, "done")
	})
}

// Three processes are near to the store and never stop asking; one is far from
// it, so that a race for a lease that comes free is one that it loses.
func TestNobodyStarves(t *testing.T) {
	inBubble(t, func(w *world) {
		const near, callers, holds = 3, 10, 50
		ctx, stop := context.WithCancel(w.Context())
		defer stop()
		var inside int       // protected by the lease
		var last store.Token // protected by the lease
		var served [1 + near]atomic.Int32
		var total atomic.Int32
		hold := func(l *Locker, p int) {
			err := l.Do(ctx, "job", func(_ context.Context, token store.Token) error {
				if inside++; inside != 1 || token <= last {
					w.Errorf("%d inside, token %d after %d", inside, token, last)
				}
				last = token
				time.Sleep(10 * time.Millisecond)
				inside--
				served[p].Add(1)
				// A quarter would be the far one's share.
				if total.Add(1) > 20*holds {
					stop()
				}
				return nil
			})
			if err != nil && !errors.Is(err, context.Canceled) {
				w.Error(err)
			}
		}
		var all sync.WaitGroup
		for p := range 1 + near {
			l, line := w.locker(Options{PollInterval: time.Hour})
			if p > 0 {
				for range callers {
					all.Go(func() {
						for ctx.Err() == nil {
							hold(l, p)
						}
					})
				}
				continue
			}
			line.claim = func(ctx context.Context, c store.Claim) (store.Verdict, error) {
				time.Sleep(5 * time.Millisecond)
				return w.store.Claim(ctx, c)
			}
			all.Go(func() {
				defer stop()
				for range holds {
					hold(l, p)
				}
			})
		}
		all.Wait()
		for p := range served {
			least := int32(holds)
			if p > 0 {
				least = holds / 5
			}
			if n := served[p].Load(); n < least {
				w.Errorf("process %d was served %d times of %d", p, n, total.Load())
			}
		}
	})
}

func TestOutageShorterThanALeaseIsWaitedOut(t *testing.T) {
	inBubble(t, func(w *world) {
		l, line := w.locker(Options{Length: 5 * time.Second})
		line.cut()
		time.AfterFunc(3*time.Second, line.mend)
		w.acquire(l, "job").Release(w.Context())
		w.between(3*time.Second, 5*time.Second, "acquired")
	})
}

func TestStoreThatStaysAwayIsReported(t *testing.T) {
	inBubble(t, func(w *world) {
		l, line := w.locker(Options{Length: 5 * time.Second})
		line.cut()
		_, err := l.Acquire(w.Context(), "job")
		if store.ClassOf(err) != store.ClassConnection {
			w.Errorf("Acquire = %v, want the fault", err)
		}
		w.between(5*time.Second, 7*time.Second, "gave up")
		_, err = l.TryAcquire(w.Context(), "job")
		if store.ClassOf(err) != store.ClassConnection {
			w.Errorf("TryAcquire = %v, want the fault", err)
		}
	})
}

func TestDenialIsReportedAtOnce(t *testing.T) {
	inBubble(t, func(w *world) {
		l, line := w.locker(Options{})
		line.claim = func(context.Context, store.Claim) (store.Verdict, error) {
			return store.Verdict{}, &store.Fault{Op: "claim", Class: store.ClassDenied, Err: errors.New("NOPERM")}
		}
		if _, err := l.Acquire(w.Context(), "job"); store.ClassOf(err) != store.ClassDenied {
			w.Errorf("Acquire = %v, want the fault", err)
		}
		w.at(0, "denied")
		if n := len(line.claimed()); n != 1 {
			w.Errorf("%d claims, want 1", n)
		}
	})
}

func TestLostReplyIsAskedAgainByTheSameHolder(t *testing.T) {
	inBubble(t, func(w *world) {
		l, line := w.locker(Options{Length: 10 * time.Second})
		line.claim = func(ctx context.Context, c store.Claim) (store.Verdict, error) {
			v, err := w.store.Claim(ctx, c)
			if len(line.claimed()) == 1 {
				time.Sleep(time.Second)
				return store.Verdict{}, errAway // granted, and the connection closed
			}
			return v, err
		}
		h := w.acquire(l, "job")
		claims := line.claimed()
		if len(claims) != 2 || claims[0].Holder != claims[1].Holder {
			w.Errorf("claims %+v, want two of one holder", claims)
		}
		w.between(time.Second, time.Second+50*time.Millisecond, "acquired")
		// The deadline counts from the claim that was answered.
		if got := h.held.Deadline().Sub(w.start); got < 11*time.Second {
			w.Errorf("deadline is %v, want more than 11s", got)
		}
		h.Release(w.Context())
		w.free("job")
	})
}

func TestCancelledCallersLeaveNoLeaseBehind(t *testing.T) {
	inBubble(t, func(w *world) {
		l, line := w.locker(Options{})
		line.claim = func(ctx context.Context, c store.Claim) (store.Verdict, error) {
			v, err := w.store.Claim(ctx, c)
			time.Sleep(100 * time.Millisecond) // the reply is slow
			return v, err
		}
		const n = 1000
		var callers sync.WaitGroup
		for i := range n {
			callers.Go(func() {
				ctx, cancel := context.WithTimeout(w.Context(), 50*time.Millisecond)
				defer cancel()
				name := fmt.Sprint("job ", i)
				verb := l.Acquire
				if i%2 == 1 {
					verb = l.TryAcquire
				}
				if _, err := verb(ctx, name); !errors.Is(err, context.DeadlineExceeded) {
					w.Errorf("err = %v, want DeadlineExceeded", err)
				}
				w.at(50*time.Millisecond, "gave up")
			})
		}
		callers.Wait()
		w.taken("job 0") // not yet: its claim is still under way
		time.Sleep(100 * time.Millisecond)
		for i := range n {
			w.free(fmt.Sprint("job ", i))
		}
	})
}

func TestClaimWhoseReplyNeverComesLeavesNoLeaseBehind(t *testing.T) {
	inBubble(t, func(w *world) {
		l, line := w.locker(Options{Length: 10 * time.Second})
		line.claim = func(ctx context.Context, c store.Claim) (store.Verdict, error) {
			w.store.Claim(ctx, c)
			return store.Verdict{}, errAway
		}
		if _, err := l.TryAcquire(w.Context(), "job"); err == nil {
			w.Error("TryAcquire succeeded")
		}
		if _, err := l.Acquire(w.Context(), "other job"); err == nil {
			w.Error("Acquire succeeded")
		}
		synctest.Wait()
		w.free("job")
		w.free("other job")
	})
}

func TestNamesNobodyWantsAreForgotten(t *testing.T) {
	inBubble(t, func(w *world) {
		l, _ := w.locker(Options{})
		for i := range 1000 {
			w.acquire(l, fmt.Sprint(i)).Release(w.Context())
		}
		time.Sleep(2 * recent)
		w.acquire(l, "job").Release(w.Context())
		l.lines.mu.Lock()
		defer l.lines.mu.Unlock()
		if n := len(l.lines.byName); n != 1 {
			w.Errorf("%d names are kept, want 1", n)
		}
	})
}

// In real time and with the race detector: many processes, many names, all verbs.
func TestOneHolderAtATime(t *testing.T) {
	const processes, names, rounds = 4, 3, 40
	st := memstore.New(memstore.Options{})
	var inside [names]int       // each protected by its lease
	var last [names]store.Token // each protected by its lease
	var fences [names]Fence     // and refused by none
	var all sync.WaitGroup
	for p := range processes {
		l := New(st, Options{PollInterval: minPoll})
		defer l.Close()
		for g := range names {
			all.Go(func() {
				for r := range rounds {
					n := (p + g + r) % names
					err := l.Do(t.Context(), fmt.Sprint(n), func(_ context.Context, token store.Token) error {
						return fences[n].Admit(token, func() error {
							if inside[n]++; inside[n] != 1 || token <= last[n] {
								t.Errorf("%d inside, token %d after %d", inside[n], token, last[n])
							}
							last[n] = token
							inside[n]--
							return nil
						})
					})
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	all.Wait()
}
