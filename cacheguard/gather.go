package cacheguard

import (
	"sync"
	"time"
)

// gatherWindow bounds how long a gathering waits for the next to come. They
// usually come within microseconds of each other, on a machine that does much
// else within milliseconds; one that never comes (its key turned out to have a
// flight already) must not hold up the rest.
const gatherWindow = 10 * time.Millisecond

// gathering lets several goroutines, each with a piece of work, have it done by
// one call. It is done when all that are expected have come, or when nobody has
// come for gatherWindow.
type gathering[In, Out any] struct {
	do func([]In) ([]Out, []error) // one result each; errors nil if there is none

	mu       sync.Mutex
	expected int            // that may still come; guarded by mu
	open     *wave[In, Out] // what is being gathered, or nil; guarded by mu
}

// wave is one call's worth of work.
type wave[In, Out any] struct {
	in    []In
	timer *time.Timer
	done  chan struct{} // closed when out and errs are there
	out   []Out
	errs  []error
}

// expect announces n more.
func (g *gathering[In, Out]) expect(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.expected += n
}

// without says that one of the expected will not come.
func (g *gathering[In, Out]) without() {
	g.mu.Lock()
	g.expected--
	full := g.takeIfFull()
	g.mu.Unlock()
	g.run(full)
}

// with brings one piece of work and returns its result.
func (g *gathering[In, Out]) with(in In) (out Out, err error) {
	g.mu.Lock()
	w := g.open
	if w == nil {
		w = &wave[In, Out]{done: make(chan struct{})}
		w.timer = time.AfterFunc(gatherWindow, func() { g.run(g.take(w)) })
		g.open = w
	} else {
		w.timer.Reset(gatherWindow)
	}
	place := len(w.in)
	w.in = append(w.in, in)
	g.expected--
	full := g.takeIfFull()
	g.mu.Unlock()
	g.run(full)
	<-w.done
	if w.errs != nil {
		err = w.errs[place]
	}
	return w.out[place], err
}

// takeIfFull returns the open wave if nobody else is expected. mu is held.
func (g *gathering[In, Out]) takeIfFull() *wave[In, Out] {
	if g.expected > 0 || g.open == nil {
		return nil
	}
	w := g.open
	g.open = nil
	return w
}

// take returns w if it is still open.
func (g *gathering[In, Out]) take(w *wave[In, Out]) *wave[In, Out] {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open != w {
		return nil
	}
	g.open = nil
	return w
}

func (g *gathering[In, Out]) run(w *wave[In, Out]) {
	if w == nil {
		return
	}
	w.timer.Stop()
	defer close(w.done)
	w.out, w.errs = g.do(w.in)
}
