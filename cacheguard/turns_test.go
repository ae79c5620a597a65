package cacheguard

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Whoever leaves the queue before his turn takes none with him, also if it is
// handed on at that very instant: never more calls than there are turns, and all
// of the turns in the end.
func TestWhoLeavesTheQueueTakesNoTurnWithHim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const calls = 3
		turn := newTurn(calls)
		var now, most, served atomic.Int64
		var wg sync.WaitGroup
		for i := range 300 {
			wg.Go(func() {
				// Turns are handed on every 10 ms, and at every second of these
				// instants somebody leaves.
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%50)*5*time.Millisecond)
				defer cancel()
				if err := turn.take(ctx, "load", i%3 == 0); err != nil {
					return
				}
				n := now.Add(1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				served.Add(1)
				time.Sleep(10 * time.Millisecond)
				now.Add(-1)
				turn.leave()
			})
		}
		wg.Wait()
		if most.Load() != calls || served.Load() == 300 || served.Load() < 25*calls/2 {
			t.Errorf("%d of 300 were served, %d at once; want some, %d at once", served.Load(), most.Load(), calls)
		}
		if left := turn.left.Load(); left != calls {
			t.Errorf("%d turns are left, want %d", left, calls)
		}
	})
}

// Under the race detector and with real time, where whoever gives a turn back
// meets those who come and those who leave.
func TestTurnsAreNeitherLostNorDoubled(t *testing.T) {
	const calls = 2
	turn := newTurn(calls)
	var now atomic.Int64
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := range 2000 {
				ctx, cancel := context.WithCancel(context.Background())
				if n%4 == 0 {
					go cancel()
				}
				if turn.take(ctx, "load", i == 0) == nil {
					if n := now.Add(1); n > calls {
						t.Errorf("%d at once, want %d", n, calls)
					}
					now.Add(-1)
					turn.leave()
				}
				cancel()
			}
		})
	}
	wg.Wait()
	if left := turn.left.Load(); left != calls {
		t.Errorf("%d turns are left, want %d", left, calls)
	}
}
