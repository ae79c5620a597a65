package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/maypok86/otter/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"golang.org/x/sync/singleflight"
)

// read is what one of the things costs that hits are made of.
type read struct {
	What   string
	Bytes  int       // of the value; 0: there is none
	Nanos  []float64 // of the clock, by readsAtOnce, all goroutines together
	Allocs float64   // of each, with one goroutine
}

// readsAtOnce are the numbers of goroutines.
var readsAtOnce = []int{1, 32}

// ingredient is something that a read does, once each time it is called.
type ingredient struct {
	what  string
	bytes int
	do    func(ctx context.Context) error
}

// readings measures each ingredient for d with each number of goroutines.
func readings(ctx context.Context, addr string, d time.Duration) (all []read, err error) {
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	tracking, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}})
	if err != nil {
		return nil, err
	}
	defer tracking.Close()
	memory, err := otter.New(&otter.Options[string, []byte]{MaximumSize: 1000})
	if err != nil {
		return nil, err
	}
	defer memory.StopAllGoroutines()
	memory.Set(readName(1<<10), make([]byte, 1<<10))
	ingredients := inMemoryReads(memory)
	for _, bytes := range []int{1 << 10, 16 << 10, 256 << 10} {
		if err := client.Set(ctx, readName(bytes), make([]byte, bytes), life).Err(); err != nil {
			return nil, err
		}
		ingredients = append(ingredients, redisReads(client, bytes)...)
	}
	ingredients = append(ingredients, trackedReads(tracking)...)
	for _, in := range ingredients {
		out := read{What: in.what, Bytes: in.bytes}
		for _, n := range readsAtOnce {
			nanos, allocs, err := in.measure(ctx, n, d)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", in.what, err)
			}
			out.Nanos = append(out.Nanos, nanos)
			if n == 1 {
				out.Allocs = allocs
			}
		}
		all = append(all, out)
	}
	return all, nil
}

func readName(bytes int) string { return fmt.Sprintf("{read}%d", bytes) }

func inMemoryReads(memory *otter.Cache[string, []byte]) []ingredient {
	var flights singleflight.Group
	key := readName(1 << 10)
	return []ingredient{
		{"time.Now", 0, func(context.Context) error {
			if time.Now().IsZero() {
				return errors.New("no time")
			}
			return nil
		}},
		{"singleflight.Do", 0, func(context.Context) error {
			_, err, _ := flights.Do(key, func() (any, error) { return nil, nil })
			return err
		}},
		{"otter, GetIfPresent", 1 << 10, func(context.Context) error {
			if _, ok := memory.GetIfPresent(key); !ok {
				return errors.New("not there")
			}
			return nil
		}},
	}
}

func redisReads(client *redis.Client, bytes int) []ingredient {
	key := readName(bytes)
	all := []ingredient{
		{"go-redis GET", bytes, func(ctx context.Context) error { return client.Get(ctx, key).Err() }},
		{"EVALSHA of a script that gets or takes a lease", bytes, func(ctx context.Context) error {
			return getOrLease.Run(ctx, client, []string{key, key + ":lease"}, "holder", 1000).Err()
		}},
	}
	if bytes > 1<<10 {
		return all
	}
	return append(all, ingredient{"go-redis GET and PTTL in one pipeline", bytes, func(ctx context.Context) error {
		_, err := client.Pipelined(ctx, func(p redis.Pipeliner) error {
			p.Get(ctx, key)
			p.PTTL(ctx, key)
			return nil
		})
		return err
	}})
}

func trackedReads(client rueidis.Client) []ingredient {
	key := readName(1 << 10)
	return []ingredient{
		{"rueidis GET", 1 << 10, func(ctx context.Context) error { return client.Do(ctx, client.B().Get().Key(key).Build()).Error() }},
		{"rueidis DoCache", 1 << 10, func(ctx context.Context) error {
			return client.DoCache(ctx, client.B().Get().Key(key).Cache(), life).Error()
		}},
	}
}

// measure does it with n goroutines for d.
func (in ingredient) measure(ctx context.Context, n int, d time.Duration) (nanos, allocs float64, err error) {
	if err := in.do(ctx); err != nil { // opens what is opened on first use
		return 0, 0, err
	}
	var stop atomic.Bool
	var done atomic.Int64
	errs := make([]error, n)
	var all sync.WaitGroup
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	begin := time.Now()
	for i := range n {
		all.Go(func() {
			did := int64(0)
			for ; !stop.Load() && errs[i] == nil; did++ {
				errs[i] = in.do(ctx)
			}
			done.Add(did)
		})
	}
	err = pause(ctx, d)
	stop.Store(true)
	all.Wait()
	took := time.Since(begin)
	runtime.ReadMemStats(&after)
	each := float64(done.Load())
	return float64(took) / each, float64(after.Mallocs-before.Mallocs) / each, errors.Join(err, errors.Join(errs...))
}
