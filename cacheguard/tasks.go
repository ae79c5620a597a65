package cacheguard

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// tasks counts the goroutines that work for a guard, so that Close can refuse
// new ones and wait for the rest. A sync.WaitGroup would not do: its Add must
// not race with its Wait.
type tasks struct {
	n    atomic.Int64 // running tasks; plus tasksClosed once closed
	once sync.Once    // closes idle
	idle chan struct{}
}

const tasksClosed = 1 << 62

// enter begins a task. It is refused once the guard is closed.
func (t *tasks) enter() bool {
	if t.n.Add(1) > tasksClosed {
		t.leave()
		return false
	}
	return true
}

// another begins a task from within one, which cannot be refused.
func (t *tasks) another() { t.n.Add(1) }

// leave ends a task that was entered.
func (t *tasks) leave() {
	if t.n.Add(-1) == tasksClosed {
		t.once.Do(func() { close(t.idle) })
	}
}

// close refuses new tasks from now on. Closing twice is fine.
func (t *tasks) close() {
	for {
		n := t.n.Load()
		if n >= tasksClosed {
			return
		}
		// One task of its own, so that leave finds out whether it is the last.
		if t.n.CompareAndSwap(n, n+1+tasksClosed) {
			t.leave()
			return
		}
	}
}

// wait waits until the tasks have ended, at most for limit. close comes first.
func (t *tasks) wait(limit time.Duration) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-t.idle:
		return nil
	case <-timer.C:
		return fmt.Errorf("cacheguard: %d loads did not heed their context and are still running", t.n.Load()-tasksClosed)
	}
}
