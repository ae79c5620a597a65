package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// What is here tells beforehand how long a run will take, and bounds it.

// needs is how long a scenario takes in one mode, besides what each takes: so
// much once, and so much in each round.
type needs struct{ once, round time.Duration }

// needsOf are measured, on a machine with two processors.
var needsOf = map[string]func(o options) needs{
	cold.name:       func(o options) needs { return needs{0, 300*time.Millisecond + 2*o.load} },
	invalidate.name: func(o options) needs { return needs{0, 100*time.Millisecond + 4*o.load} },
	expiry.name: func(o options) needs {
		ttl, _ := expiry.lifetime(o.load)
		return needs{ttl, 400*time.Millisecond + o.load}
	},
	crash.name:         func(o options) needs { return needs{tuneLoads * o.load, 400*time.Millisecond + 5*o.load} },
	stopped.name:       func(o options) needs { return needs{tuneLoads * o.load, 200*time.Millisecond + 5*o.load} },
	partition.name:     func(o options) needs { return needs{tuneLoads * o.load, 300*time.Millisecond + 5*o.load} },
	redisHang.name:     func(o options) needs { return needs{0, 2500*time.Millisecond + 8*o.load} },
	redisRestart.name:  func(o options) needs { return needs{0, 3*time.Second + 8*o.load} },
	failingOrigin.name: func(o options) needs { return needs{0, failingTTL + failFor + 500*time.Millisecond + 3*o.load} },
	manyKeys.name:      func(o options) needs { return needs{0, manyFor + 200*time.Millisecond + o.load} },
	deploy.name: func(o options) needs {
		return needs{0, time.Duration(o.replicas) * (1400*time.Millisecond + 5*o.load)}
	},
	httpStorm.name: func(o options) needs { return needs{2 * o.load, 600*time.Millisecond + 3*o.load} },
	uncacheable.name: func(o options) needs {
		return needs{2 * o.load, time.Duration(len(ownPages)) * (350*time.Millisecond + 4*o.load)}
	},
	vary.name: func(o options) needs { return needs{2 * o.load, 400*time.Millisecond + 2*o.load} },
	atARate.name: func(o options) needs {
		ttl, _ := atARate.lifetime(o.load)
		span := steadySpan(o, ttl)
		return needs{ttl + span + o.load, 0}
	},
	soak.name: func(o options) needs { return needs{o.duration, 0} },
}

// takes is about how long a scenario takes in one mode.
func (sc scenario) takes(o options) time.Duration {
	rounds := o.rounds
	if sc.once {
		rounds = 1
	}
	n := needsOf[sc.name](o)
	// The fleet is started, rehearsed and ended.
	fleet := 1200*time.Millisecond + 4*o.load + time.Duration(o.replicas)*60*time.Millisecond
	return fleet + n.once + time.Duration(rounds)*n.round
}

// stepLimit is when a scenario that should take so long is given up: what cannot
// go on must not go on for ever.
func stepLimit(takes time.Duration) time.Duration { return 5*takes + 2*time.Minute }

// within runs a step with a limit, and says so if that is why it failed.
func within(ctx context.Context, limit time.Duration, step func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("it was given up after %v", limit))
	defer cancel()
	err := step(ctx)
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return err
}

// plan is what is still to be done. Its methods may be used concurrently.
type plan struct {
	mu    sync.Mutex
	steps []time.Duration // that are left, as estimated; guarded by mu
	began time.Time       // when the first of them did; guarded by mu

	// What the steps that are over were to take and took: a busy machine is
	// slower in the others, too. Guarded by mu.
	estimated, took time.Duration
}

func newPlan(o options) *plan {
	p := &plan{began: time.Now()}
	for _, sc := range o.scenarios {
		for range o.modes {
			p.steps = append(p.steps, sc.takes(o))
		}
	}
	return p
}

// begin begins the next step.
func (p *plan) begin(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.began = now
}

// done ends it.
func (p *plan) done(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.estimated += p.steps[0]
	p.took += now.Sub(p.began)
	p.steps, p.began = p.steps[1:], now
}

// left is about how long it will still take.
func (p *plan) left(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	pace := 1.0
	if p.estimated > 0 {
		pace = float64(p.took) / float64(p.estimated)
	}
	var left time.Duration
	for i, step := range p.steps {
		step = time.Duration(float64(step) * pace)
		if i == 0 {
			step = max(0, step-now.Sub(p.began))
		}
		left += step
	}
	return left
}

// roughly is a time as one says it.
func roughly(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%ds", int(d.Round(time.Second).Seconds()))
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Round(5*time.Second).Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", int(d.Round(time.Minute).Minutes()))
	}
	return fmt.Sprintf("%d h", int(d.Round(time.Hour).Hours()))
}
