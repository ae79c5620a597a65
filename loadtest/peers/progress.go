package main

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// progress tells a person what is going on and how far it is. It may be used
// concurrently.
type progress struct {
	begin time.Time
	total int // steps; 0: not known

	mu   sync.Mutex
	out  io.Writer // guarded by mu
	done int       // steps that have begun; guarded by mu
}

func newProgress(out io.Writer, total int) *progress {
	return &progress{begin: time.Now(), total: total, out: out}
}

// step tells that the next one begins.
func (p *progress) step(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done++
	where := fmt.Sprint(p.done)
	if p.total > 0 {
		where += fmt.Sprintf("/%d", p.total)
	}
	p.line(where, format, args)
}

// say tells something else.
func (p *progress) say(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.line("", format, args)
}

func (p *progress) line(where, format string, args []any) {
	fmt.Fprintf(p.out, "%6.1fs  %7s  %s\n", time.Since(p.begin).Seconds(), where, fmt.Sprintf(format, args...))
}
