package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

// outage is what a strategy made of an origin that fails, and of a Redis that
// does not answer for a while.
type outage struct {
	FailLoads int     // of the failing key
	FailFor   float64 // seconds in which it was asked for
	FailWait  float64 // of the slowest caller, in ms

	Calls     int     // that were under way while Redis was stopped
	Failed    int     // of them
	Slowest   float64 // of them, in ms
	Median    float64 // of them, in ms
	HangLoads int     // of the origin, for them
	Recovery  float64 // ms from Redis' return until the beginning of the last call that failed or was slow; 0: none was
}

// What runs for all strategies at one time: their callers are few, and mostly
// sleep.
const (
	crowd        = 4 // processes of each strategy
	crowdCallers = 5 // of each process
	failFor      = 4 * time.Second
	hangAfter    = time.Second
	hangFor      = 5 * time.Second
	hangRest     = 3 * time.Second
	hangDeadline = 500 * time.Millisecond
	slowCall     = hangDeadline / 2
)

// crowds are fleets of all strategies.
type crowds []*fleet

func (st *stage) startCrowds(ctx context.Context, all []strategy) (c crowds, err error) {
	for _, s := range all {
		f, err := st.start(ctx, s, crowd)
		if err != nil {
			c.stop()
			return nil, err
		}
		c = append(c, f)
	}
	return c, nil
}

func (c crowds) stop() {
	for _, f := range c {
		f.stop()
	}
}

// fail lets the origin fail for a key of each strategy, and its callers come
// again and again.
func (c crowds) fail(ctx context.Context, out map[string]*outage) error {
	loops := make([]*waiting[LoopReply], len(c))
	for i, f := range c {
		key := "failing-" + f.strategy.name
		f.create(key, stormLoad, true)
		loops[i] = begin[LoopArgs, LoopReply](f.workers, "Loop", LoopArgs{Key: key, Callers: crowdCallers,
			Pause: 50 * time.Millisecond, Deadline: 10 * time.Second, For: failFor})
	}
	for i, f := range c {
		replies, err := loops[i].end(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", f.strategy.name, err)
		}
		o := out[f.strategy.name]
		o.FailLoads, o.FailFor = len(f.loads("failing-"+f.strategy.name)), failFor.Seconds()
		for _, r := range replies {
			for _, s := range r.Samples {
				if !s.Failed {
					return fmt.Errorf("%s: an answer came from an origin that fails", f.strategy.name)
				}
				o.FailWait = max(o.FailWait, ms(s.Took))
			}
		}
	}
	return nil
}

// hang stops Redis while the callers of each strategy read a key that is there.
func (c crowds) hang(ctx context.Context, server *redistest.Server, out map[string]*outage) (err error) {
	loops := make([]*waiting[LoopReply], len(c))
	for _, f := range c {
		key := "present-" + f.strategy.name
		f.create(key, stormLoad, false)
		if _, err := on[KeysArgs, ReadReply](ctx, f.workers, "Read", KeysArgs{[]string{key}}); err != nil {
			return fmt.Errorf("%s: %w", f.strategy.name, err)
		}
	}
	before := map[string]int{}
	for i, f := range c {
		key := "present-" + f.strategy.name
		before[f.strategy.name] = len(f.loads(key))
		loops[i] = begin[LoopArgs, LoopReply](f.workers, "Loop", LoopArgs{Key: key, Callers: crowdCallers,
			Pause: 100 * time.Millisecond, Deadline: hangDeadline, For: hangAfter + hangFor + hangRest})
	}
	if err := pause(ctx, hangAfter); err != nil {
		return err
	}
	if err := server.Pause(); err != nil {
		return err
	}
	stopped := time.Now()
	err = pause(ctx, hangFor)
	resumed := time.Now()
	if err := errors.Join(err, server.Resume()); err != nil {
		return err
	}
	for i, f := range c {
		replies, err := loops[i].end(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", f.strategy.name, err)
		}
		o := out[f.strategy.name]
		o.HangLoads = len(f.loads("present-"+f.strategy.name)) - before[f.strategy.name]
		o.judge(replies, stopped, resumed)
	}
	return nil
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
