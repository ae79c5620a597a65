package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

// outage is what a strategy made of a Redis that does not answer for a while.
type outage struct {
	Calls     int     // that were under way while Redis was stopped
	Failed    int     // of them
	Slowest   float64 // of them, in ms
	Median    float64 // of them, in ms
	HangLoads int     // of the origin, for them
	Recovery  float64 // ms from Redis' return until the beginning of the last call that failed or was slow; 0: none was
}

const (
	hangAfter    = time.Second
	hangRest     = 3 * time.Second
	hangDeadline = 500 * time.Millisecond
	slowCall     = hangDeadline / 2
)

// runOutage stops Redis under all strategies at one time.
func runOutage(ctx context.Context, r *run) error {
	r.progress.step("Redis is stopped for %v", r.hangFor)
	return withStage(ctx, r.progress, func(st *stage, server *redistest.Server) error {
		return st.together(ctx, r.fleets(), crowd, func(c crowds) error { return c.outage(ctx, r, server) })
	})
}

// outage stops Redis while the callers of each strategy read a key that is
// there.
func (c crowds) outage(ctx context.Context, r *run, server *redistest.Server) (err error) {
	loops := make([]*waiting[LoopReply], len(c))
	for _, f := range c {
		key := "present-" + f.strategy.name
		f.create(key, stormLoad, false)
		if err := f.fetch(ctx, key); err != nil {
			return fmt.Errorf("%s: %w", f.strategy.name, err)
		}
	}
	before := map[string]int{}
	for i, f := range c {
		key := "present-" + f.strategy.name
		before[f.strategy.name] = len(f.loads(key))
		loops[i] = begin[LoopArgs, LoopReply](f.workers, "Loop", LoopArgs{Key: key, Callers: crowdCallers,
			Pause: 100 * time.Millisecond, Deadline: hangDeadline, For: hangAfter + r.hangFor + hangRest})
	}
	if err := pause(ctx, hangAfter); err != nil {
		return err
	}
	if err := server.Pause(); err != nil {
		return err
	}
	stopped := time.Now()
	err = pause(ctx, r.hangFor)
	resumed := time.Now()
	if err := errors.Join(err, server.Resume()); err != nil {
		return err
	}
	for i, f := range c {
		replies, err := loops[i].end(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", f.strategy.name, err)
		}
		o := &outage{HangLoads: len(f.loads("present-"+f.strategy.name)) - before[f.strategy.name]}
		o.judge(replies, stopped, resumed)
		r.report.of(f.strategy).Outage = o
	}
	return nil
}

// fetch lets the workers read a key, so that it is there. On a busy machine that
// can fail for a lock that nobody gives up in time, and is tried again.
func (f *fleet) fetch(ctx context.Context, key string) (err error) {
	for range 3 {
		if _, err = on[KeysArgs, ReadReply](ctx, f.workers, "Read", KeysArgs{[]string{key}}); err == nil || ctx.Err() != nil {
			return err
		}
	}
	return err
}

func (o *outage) judge(replies []LoopReply, stopped, resumed time.Time) {
	var during []time.Duration
	for _, r := range replies {
		for _, s := range r.Samples {
			at := time.Unix(0, s.At)
			switch {
			case at.Add(s.Took).Before(stopped):
			case at.Before(resumed):
				during = append(during, s.Took)
				o.Calls++
				if s.Failed {
					o.Failed++
				}
			case s.Failed || s.Took > slowCall:
				o.Recovery = math.Max(o.Recovery, ms(at.Sub(resumed)))
			}
		}
	}
	o.Slowest, o.Median = quantile(during, 1), quantile(during, 0.5)
}
