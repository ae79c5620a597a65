package main

import (
	"context"
	"slices"
	"time"

	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

// slow is what a strategy made of loads that take longer than a lock lives that
// nobody renews: whether anything is ever stored, and how often the origin is
// asked meanwhile.
type slow struct {
	Loads  int
	AtOnce int // loads under way at one time, at most
	Calls  int
	Cached int // calls that were answered at once: from a cache
	Failed int // calls without a value
}

const (
	slowLoad      = 2 * lockLife
	slowFleet     = 6 // processes with one caller each
	slowPause     = 250 * time.Millisecond
	slowDeadline  = 15 * time.Second
	answersAtOnce = 100 * time.Millisecond
)

// runSlow asks all strategies at one time for a key whose load outlasts a lock.
func runSlow(ctx context.Context, r *run) error {
	r.progress.step("loads of %v, locks of %v, for %v", slowLoad, lockLife, r.slowFor)
	return withStage(ctx, r.progress, func(st *stage, _ *redistest.Server) error {
		return st.together(ctx, r.fleets(), slowFleet, func(c crowds) error {
			keys := c.create("slow", item{service: slowLoad})
			calls := make([]*waiting[LoopReply], len(c))
			for i, f := range c {
				calls[i] = begin[LoopArgs, LoopReply](f.workers, "Loop", LoopArgs{Key: keys[i], Callers: 1,
					Pause: slowPause, Deadline: slowDeadline, For: r.slowFor})
			}
			return ends(ctx, c, calls, func(f *fleet, replies []LoopReply) error {
				r.report.of(f.strategy).Slow = judgeSlow(f.loads("slow-"+f.strategy.name), replies)
				return nil
			})
		})
	})
}

func judgeSlow(loads []load, replies []LoopReply) *slow {
	out := &slow{Loads: len(loads), AtOnce: atOnce(loads, slowLoad)}
	for _, r := range replies {
		for _, s := range r.Samples {
			out.Calls++
			switch {
			case s.Failed:
				out.Failed++
			case s.Took < answersAtOnce:
				out.Cached++
			}
		}
	}
	return out
}

// atOnce is how many loads that take as long as service were under way at one
// time, at most.
func atOnce(loads []load, service time.Duration) (most int) {
	for i, last := range loads {
		begun := slices.IndexFunc(loads, func(l load) bool { return l.at.Add(service).After(last.at) })
		most = max(most, i-begun+1)
	}
	return most
}
