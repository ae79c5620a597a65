package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/redis/go-redis/v9"
)

// warmUp opens what is opened on first use.
func (f *fleet) warmUp(ctx context.Context) error {
	for n := range 3 {
		key := fmt.Sprintf("warm-%d-%d", len(f.workers), n)
		f.create(key, stormLoad, false)
		if _, err := f.at(ctx, f.workers, StormArgs{Key: key, Callers: 20}); err != nil {
			return err
		}
	}
	return f.settle(ctx)
}

// tune lets each process load something for as long, so that its leases follow.
func (f *fleet) tune(ctx context.Context, d time.Duration) error {
	var calls []*waiting[ReadReply]
	for i, w := range f.workers {
		keys := []string{fmt.Sprintf("tune-%v-%d", d, i)}
		f.create(keys[0], d, false)
		calls = append(calls, begin[KeysArgs, ReadReply]([]*worker{w}, "Read", KeysArgs{keys}))
	}
	for _, c := range calls {
		if _, err := c.end(ctx); err != nil {
			return err
		}
	}
	return f.settle(ctx)
}

// quiet is what Redis does that nobody asked for: what is taken off.
type quiet struct {
	look   serverStats // for each look at what it has done
	second serverStats // in a second
}

// listen measures that, for a fleet that does nothing.
func (f *fleet) listen(ctx context.Context, client *redis.Client) (q quiet, err error) {
	if q.look, err = looking(ctx, client); err != nil {
		return q, err
	}
	q.second, err = idling(ctx, client, q.look)
	return q, err
}

// cost runs n storms in all processes.
func (f *fleet) cost(ctx context.Context, client *redis.Client, q quiet, name string, callers int, service time.Duration, n int) (c cost, err error) {
	c = cost{Processes: len(f.workers), Callers: callers, LoadTime: service}
	var over []float64
	for i := range n {
		key := fmt.Sprintf("%s-%d", name, i)
		f.create(key, service, false)
		sent, err := on[struct{}, int64](ctx, f.workers, "Commands", struct{}{})
		if err != nil {
			return c, err
		}
		before, err := stats(ctx, client)
		if err != nil {
			return c, err
		}
		begun := time.Now()
		replies, err := f.at(ctx, f.workers, StormArgs{Key: key, Callers: callers})
		if err != nil {
			return c, err
		}
		if err := f.settle(ctx); err != nil {
			return c, err
		}
		after, err := stats(ctx, client)
		if err != nil {
			return c, err
		}
		total, err := on[struct{}, int64](ctx, f.workers, "Commands", struct{}{})
		if err != nil {
			return c, err
		}
		for _, r := range replies {
			if r.Errors > 0 {
				return c, errors.New(r.Error)
			}
		}
		d := after.since(before).since(q.look).since(q.second.times(time.Since(begun).Seconds()))
		c.Sent += float64(sum(total)-sum(sent)) / float64(n*len(f.workers))
		c.Server.CPU += d.CPU / float64(n)
		c.Server.Commands += d.Commands / float64(n)
		c.Server.Sent += d.Sent / float64(n)
		c.Server.Received += d.Received / float64(n)
		c.Server.Clients = math.Max(c.Server.Clients, d.Clients)
		c.Loads = append(c.Loads, len(f.loads(key)))
		over = append(over, p99(replies)-ms(service))
	}
	c.Over = median(over)
	return c, nil
}
