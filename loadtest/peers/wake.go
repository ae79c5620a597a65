package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

// wake is how soon the processes that wait have the value, by one way of
// waking them.
type wake struct {
	Way      string
	P50, P99 float64 // of one key at a time, in ms
	Keys     int     // that are waited for at once
	ManyP99  float64 // of them, in ms
	ManyCPU  float64 // of Redis, from the first wait to the last value, in ms
}

// wakeFleet is one process that fills, and those that wait.
const wakeFleet = 4

func runWake(ctx context.Context, r *run) error {
	return withStage(ctx, r.progress, func(st *stage, server *redistest.Server) error {
		client := redis.NewClient(&redis.Options{Addr: server.Addr})
		defer client.Close()
		for _, w := range ways {
			st.step("wake-up: %s", w.name)
			out, err := st.wake(ctx, client, w, r.options)
			if err != nil {
				return fmt.Errorf("%s: %w", w.name, err)
			}
			r.report.Wake = append(r.report.Wake, out)
		}
		return nil
	})
}

func (st *stage) wake(ctx context.Context, client *redis.Client, w way, o options) (wake, error) {
	out := wake{Way: w.name, Keys: o.wakeKeys}
	if err := client.FlushAll(ctx).Err(); err != nil {
		return out, err
	}
	f, err := st.start(ctx, idle, wakeFleet)
	if err != nil {
		return out, err
	}
	defer f.stop()
	if _, err := on[WayArgs, struct{}](ctx, f.workers, "OpenWay", WayArgs{w.name}); err != nil {
		return out, err
	}
	var waits []time.Duration
	for i := range wakeWarmUp + o.rounds {
		// Not in step with who polls.
		took, err := f.wakeOnce(ctx, []string{fmt.Sprintf("one-%d", i)}, 5*time.Millisecond+rand.N(50*time.Millisecond))
		if err != nil {
			return out, err
		}
		if i >= wakeWarmUp {
			waits = append(waits, took...)
		}
	}
	out.P50, out.P99 = quantile(waits, 0.5), quantile(waits, 0.99)
	keys := make([]string, o.wakeKeys)
	for i := range keys {
		keys[i] = fmt.Sprintf("many-%d", i)
	}
	before, err := stats(ctx, client)
	if err != nil {
		return out, err
	}
	many, err := f.wakeOnce(ctx, keys, stormLoad)
	if err != nil {
		return out, err
	}
	after, err := stats(ctx, client)
	out.ManyP99, out.ManyCPU = quantile(many, 0.99), after.since(before).CPU/1000
	return out, err
}

// wakeWarmUp rounds open what is opened on first use.
const wakeWarmUp = 5

// wakeOnce lets the first process hold keys and all others wait for them, fills
// them a while later, and returns how long after each fill began each of the
// others had the value.
func (f *fleet) wakeOnce(ctx context.Context, keys []string, after time.Duration) (waits []time.Duration, err error) {
	holder, others := f.workers[:1], f.workers[1:]
	if _, err = on[KeysArgs, struct{}](ctx, holder, "Hold", KeysArgs{keys}); err != nil {
		return nil, err
	}
	if _, err = on[KeysArgs, struct{}](ctx, others, "Wait", KeysArgs{keys}); err != nil {
		return nil, err
	}
	if err = pause(ctx, after); err != nil {
		return nil, err
	}
	filled, err := on[KeysArgs, FillReply](ctx, holder, "Fill", KeysArgs{keys})
	if err != nil {
		return nil, err
	}
	arrived, err := on[struct{}, ArrivedReply](ctx, others, "Arrived", struct{}{})
	if err != nil {
		return nil, err
	}
	for i, key := range keys {
		for _, a := range arrived {
			if a.Errors[i] != "" {
				return nil, fmt.Errorf("%s: %s", key, a.Errors[i])
			}
			waits = append(waits, time.Duration(a.At[i]-filled[0].At[i]))
		}
	}
	return waits, nil
}
