package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// stormLoad is what a load takes in storms; in faults it takes faultLoad.
const (
	stormLoad = 100 * time.Millisecond
	faultLoad = 300 * time.Millisecond
)

// shape is how many ask at once.
type shape struct{ Processes, Callers int }

func (s shape) String() string { return fmt.Sprintf("%d x %d", s.Processes, s.Callers) }

// shapes of storms; the largest has maxFleet processes.
var shapes = []shape{{4, 50}, {8, 50}, {4, 250}, {8, 250}}

const maxFleet = 8

// runStorms lets each strategy alone have the machine for all shapes.
func runStorms(ctx context.Context, r *run) error {
	for _, s := range r.fleets() {
		r.progress.step("storms: %s", s.name)
		err := attempt(ctx, r.progress, s, maxFleet, func(f *fleet) error {
			var all []storms
			for _, shape := range shapes {
				storms, err := f.storm(ctx, shape, r.storms)
				if err != nil {
					return fmt.Errorf("storm of %v: %w", shape, err)
				}
				all = append(all, storms)
			}
			r.report.of(s).Storms = all
			return nil
		})
		if err := r.miss(ctx, s, "storm", err); err != nil {
			return err
		}
	}
	return nil
}

// storms is what storms of one shape brought.
type storms struct {
	Shape    shape
	Loads    []int     // of each storm
	P99      []float64 // of each storm, in ms from its beginning
	Floor    []float64 // the same of callers that only sleep
	Commands []float64 // of each storm, sent to Redis by one process on average
	Errors   int
	Error    string `json:",omitempty"` // one of them
	Wrong    int
}

// overFloor is how much later than the floor the slowest callers were: the
// difference of the medians.
func (s storms) overFloor() float64 { return median(s.P99) - median(s.Floor) }

// storm runs n storms of a shape, each on a key of its own, with the floor of
// the same callers before every other one.
func (f *fleet) storm(ctx context.Context, s shape, n int) (storms, error) {
	out := storms{Shape: s}
	workers := f.workers[:s.Processes]
	for i := range n {
		if i%2 == 0 {
			replies, err := f.at(ctx, workers, StormArgs{Callers: s.Callers, Floor: stormLoad})
			if err != nil {
				return out, err
			}
			out.Floor = append(out.Floor, p99(replies))
		}
		key := fmt.Sprintf("storm-%s-%v-%d", f.strategy.name, s, i)
		f.create(key, stormLoad, false)
		before, err := on[struct{}, int64](ctx, workers, "Commands", struct{}{})
		if err != nil {
			return out, err
		}
		replies, err := f.at(ctx, workers, StormArgs{Key: key, Callers: s.Callers})
		if err != nil {
			return out, err
		}
		if err := f.settle(ctx); err != nil {
			return out, err
		}
		after, err := on[struct{}, int64](ctx, workers, "Commands", struct{}{})
		if err != nil {
			return out, err
		}
		out.add(replies, len(f.loads(key)), float64(sum(after)-sum(before))/float64(len(workers)))
	}
	return out, nil
}

func (s *storms) add(replies []StormReply, loads int, commands float64) {
	s.Loads = append(s.Loads, loads)
	s.P99 = append(s.P99, p99(replies))
	s.Commands = append(s.Commands, commands)
	for _, r := range replies {
		s.Errors += r.Errors
		if r.Errors > 0 {
			s.Error = r.Error
		}
		for version, n := range r.Versions {
			if version != 1 {
				s.Wrong += n
			}
		}
	}
}

// at lets workers storm together, an instant from now.
func (f *fleet) at(ctx context.Context, workers []*worker, args StormArgs) ([]StormReply, error) {
	args.At = time.Now().Add(50*time.Millisecond + time.Duration(len(workers)*args.Callers)*20*time.Microsecond).UnixNano()
	return on[StormArgs, StormReply](ctx, workers, "Storm", args)
}

// rehearse opens what is opened on first use (connections, subscriptions), and
// lets those who measure their loads measure some.
func (f *fleet) rehearse(ctx context.Context) error {
	for i, w := range f.workers {
		args := KeysArgs{}
		for n := range 10 {
			key := fmt.Sprintf("warm-%s-%d-%d", f.strategy.name, i, n)
			f.create(key, faultLoad, false)
			args.Keys = append(args.Keys, key)
		}
		defer func(c *waiting[ReadReply]) { _, _ = c.end(ctx) }(begin[KeysArgs, ReadReply]([]*worker{w}, "Read", args))
	}
	if err := f.settle(ctx); err != nil {
		return err
	}
	for n := range 2 {
		key := fmt.Sprintf("rehearsal-%s-%d", f.strategy.name, n)
		f.create(key, stormLoad, false)
		replies, err := f.at(ctx, f.workers, StormArgs{Key: key, Callers: 50})
		if err != nil {
			return err
		}
		for _, r := range replies {
			if r.Errors > 0 {
				return errors.New("rehearsal: " + r.Error)
			}
		}
	}
	return f.settle(ctx)
}

// p99 of all callers, in milliseconds.
func p99(replies []StormReply) float64 {
	var all []time.Duration
	for _, r := range replies {
		all = append(all, r.Latencies...)
	}
	return quantile(all, 0.99)
}

// quantile is the least latency, in milliseconds, that a share of all did not
// exceed.
func quantile(all []time.Duration, share float64) float64 {
	if len(all) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(all))
	return ms(sorted[min(len(sorted)-1, int(math.Ceil(share*float64(len(sorted))))-1)])
}

func median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

func sum[N int64 | int](values []N) (s N) {
	for _, v := range values {
		s += v
	}
	return s
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
