package main

import (
	"context"
	"errors"
	"time"

	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

// failing is what a strategy made of an origin that always fails.
type failing struct {
	// Of callers who all ask once, at one instant.
	OnceCallers, OnceLoads int
	OnceWait               float64 // of the slowest, in ms

	// Of the same callers, who come again and again.
	Loads int
	For   float64 // seconds
	Wait  float64 // of the slowest caller, in ms
}

// failDeadline is how long a caller waits for the error. It must be longer than
// all callers take one after another.
const failDeadline = 10 * time.Second

// runFailing lets the origin fail under all strategies at one time.
func runFailing(ctx context.Context, r *run) error {
	r.progress.step("an origin that always fails")
	return withStage(ctx, r.progress, func(st *stage, _ *redistest.Server) error {
		return st.together(ctx, r.fleets(), crowd, func(c crowds) error {
			for _, f := range c {
				r.report.of(f.strategy).Failing = new(failing)
			}
			if err := c.failOnce(ctx, r); err != nil {
				return err
			}
			return c.failAgain(ctx, r)
		})
	})
}

var errAnswered = errors.New("an answer came from an origin that fails")

func (c crowds) failOnce(ctx context.Context, r *run) error {
	keys := c.create("fails-once", item{service: stormLoad, failing: true})
	at := time.Now().Add(200 * time.Millisecond).UnixNano()
	calls := make([]*waiting[StormReply], len(c))
	for i, f := range c {
		calls[i] = begin[StormArgs, StormReply](f.workers, "Storm", StormArgs{Key: keys[i], Callers: crowdCallers, At: at})
	}
	return ends(ctx, c, calls, func(f *fleet, replies []StormReply) error {
		out := r.report.of(f.strategy).Failing
		out.OnceLoads = len(f.loads("fails-once-" + f.strategy.name))
		for _, reply := range replies {
			out.OnceCallers += len(reply.Latencies)
			out.OnceWait = max(out.OnceWait, quantile(reply.Latencies, 1))
			if reply.Errors != len(reply.Latencies) {
				return errAnswered
			}
		}
		return nil
	})
}

func (c crowds) failAgain(ctx context.Context, r *run) error {
	keys := c.create("failing", item{service: stormLoad, failing: true})
	calls := make([]*waiting[LoopReply], len(c))
	for i, f := range c {
		calls[i] = begin[LoopArgs, LoopReply](f.workers, "Loop", LoopArgs{Key: keys[i], Callers: crowdCallers,
			Pause: 50 * time.Millisecond, Deadline: failDeadline, For: r.failFor})
	}
	return ends(ctx, c, calls, func(f *fleet, replies []LoopReply) error {
		out := r.report.of(f.strategy).Failing
		out.Loads, out.For = len(f.loads("failing-"+f.strategy.name)), r.failFor.Seconds()
		for _, reply := range replies {
			for _, s := range reply.Samples {
				if !s.Failed {
					return errAnswered
				}
				out.Wait = max(out.Wait, ms(s.Took))
			}
		}
		return nil
	})
}
