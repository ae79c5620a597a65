package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// progress tells on the log what is going on: on a terminal in one line that
// changes, with what callers and origin do at the moment and how long it will
// still take; elsewhere a line for each step and none for each round.
type progress struct {
	log      io.Writer
	terminal bool
	begin    time.Time
	answered atomic.Int64 // requests of callers that were answered

	mu       sync.Mutex
	what     string        // is going on; guarded by mu
	width    int           // of the line that is there; guarded by mu
	plan     *plan         // of what is still to be done; nil: none; guarded by mu
	loads    func() int64  // of the origin since the begin; nil: it is not known; guarded by mu
	was      sample        // at the last look; guarded by mu
	stop     chan struct{} // ends the looks; nil: there are none; guarded by mu
	stopped  chan struct{} // closed by the goroutine of the looks
	lastRate float64       // answers a second at the last look; guarded by mu
}

// sample is what was counted by a moment.
type sample struct {
	at       time.Time
	answered int64
}

// lineWidth is that of the narrowest terminal: a line that is longer cannot be
// drawn over.
const lineWidth = 79

// lookGap is how often the line on a terminal is drawn anew.
const lookGap = 500 * time.Millisecond

func newProgress(log io.Writer) *progress {
	p := &progress{log: log, begin: time.Now()}
	if f, ok := log.(*os.File); ok {
		info, err := f.Stat()
		p.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	return p
}

// watch shows from now on, on a terminal, how fast callers are answered, what
// the origin was asked, and how much of the plan is left. Both may be nil. Whoever
// calls it must call end.
func (p *progress) watch(pl *plan, loads func() int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.plan, p.loads = pl, loads
	p.was = sample{time.Now(), p.answered.Load()}
	if !p.terminal || p.stop != nil {
		return
	}
	p.stop, p.stopped = make(chan struct{}), make(chan struct{})
	go p.look(p.stop)
}

func (p *progress) look(stop <-chan struct{}) {
	defer close(p.stopped)
	tick := time.NewTicker(lookGap)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		p.mu.Lock()
		now := sample{time.Now(), p.answered.Load()}
		p.lastRate = float64(now.answered-p.was.answered) / now.at.Sub(p.was.at).Seconds()
		p.was = now
		p.draw()
		p.mu.Unlock()
	}
}

// say tells a step.
func (p *progress) say(what string) { p.show(what, !p.terminal) }

// round tells how far a scenario is.
func (p *progress) round(scenario, mode string, n, of int) {
	if p.terminal {
		p.show(fmt.Sprintf("%s, mode %s: round %d of %d", scenario, mode, n, of), false)
	}
}

// end clears the line.
func (p *progress) end() {
	p.mu.Lock()
	stop := p.stop
	p.stop = nil
	p.mu.Unlock()
	if stop != nil {
		close(stop)
		<-p.stopped
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.terminal {
		fmt.Fprintf(p.log, "\r%s\r", strings.Repeat(" ", p.width))
		p.width = 0
	}
}

func (p *progress) show(what string, line bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.what = what
	if line {
		fmt.Fprintf(p.log, "%5.1fs  %s\n", time.Since(p.begin).Seconds(), what)
		return
	}
	p.draw()
}

// draw writes the line of a terminal. p.mu is held.
func (p *progress) draw() {
	var more string
	if p.stop != nil {
		more += fmt.Sprintf("  %.0f answers/s", p.lastRate)
		if p.loads != nil {
			more += fmt.Sprintf("  %d loads", p.loads())
		}
	}
	if p.plan != nil {
		more += fmt.Sprintf("  %s left", roughly(p.plan.left(time.Now())))
	}
	text := fmt.Sprintf("%5.1fs  %s", time.Since(p.begin).Seconds(), p.what)
	text = text[:min(len(text), lineWidth-len(more))] + more
	fmt.Fprintf(p.log, "\r%s%s", text, strings.Repeat(" ", max(0, p.width-len(text))))
	p.width = len(text)
}
