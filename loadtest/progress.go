package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// progress tells on the log what is going on: on a terminal in one line that
// changes, elsewhere a line for each step and none for each round.
type progress struct {
	log      io.Writer
	terminal bool
	begin    time.Time
	width    int // of the line that is there
}

func newProgress(log io.Writer) *progress {
	p := &progress{log: log, begin: time.Now()}
	if f, ok := log.(*os.File); ok {
		info, err := f.Stat()
		p.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	return p
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
	if p.terminal {
		fmt.Fprintf(p.log, "\r%s\r", strings.Repeat(" ", p.width))
		p.width = 0
	}
}

func (p *progress) show(what string, line bool) {
	text := fmt.Sprintf("%5.1fs  %s", time.Since(p.begin).Seconds(), what)
	if line {
		fmt.Fprintln(p.log, text)
		return
	}
	fmt.Fprintf(p.log, "\r%s%s", text, strings.Repeat(" ", max(0, p.width-len(text))))
	p.width = len(text)
}
