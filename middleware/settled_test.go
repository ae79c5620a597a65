package middleware

import (
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard"
)

// flights knows how many flights the caches of a test have under way.
type flights struct{ stats []func() cacheguard.Stats }

// of returns opts for a cache whose flights are to be known.
func (f *flights) of(opts Options) Options {
	opts.Hooks = cacheguard.JoinHooks(opts.Hooks, cacheguard.Hooks{Opened: func(g cacheguard.GuardInfo) func() {
		f.stats = append(f.stats, g.Stats)
		return nil
	}})
	return opts
}

// settle waits a little until the answer that a client was let go with is stored:
// what a test asks for next is to find it, also on a busy machine.
func (f *flights) settle(a answer) {
	if !hasStatus(a, "fwd=") || hasStatus(a, "; stored") || hasStatus(a, "detail=") {
		return
	}
	for end := time.Now().Add(settlePatience); f.running() > 0 && time.Now().Before(end); {
		time.Sleep(100 * time.Microsecond)
	}
}

func (f *flights) running() (n int) {
	for _, stats := range f.stats {
		n += stats().Flights
	}
	return n
}
