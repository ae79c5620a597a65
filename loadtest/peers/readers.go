package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
)

// reading is how many GETs a client brings through, with many goroutines of one
// process that each read a key of their own.
type reading struct {
	Client    string
	PerSecond float64
}

const (
	readerGoroutines = 256
	readerOurs       = "cacheguard over go-redis"
)

// get reads a key.
type get func(ctx context.Context, key string) ([]byte, error)

// readers measures each client for d.
func readers(ctx context.Context, addr string, d time.Duration) (all []reading, err error) {
	keys := make([]string, readerGoroutines)
	for i := range keys {
		keys[i] = fmt.Sprintf("reader-%d", i)
	}
	clients := []struct {
		name string
		open func(ctx context.Context, addr string, keys []string) (get, func() error, error)
	}{
		{"go-redis, its pool", openPooled}, {"rueidis", openRueidis}, {"go-redis, AutoPipeline (experimental)", openAutoPipeline},
		{readerOurs, openGuarded},
	}
	for _, c := range clients {
		get, end, err := c.open(ctx, addr, keys)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
		perSecond, err := readAll(ctx, keys, get, d)
		if err = errors.Join(err, end()); err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
		all = append(all, reading{c.name, perSecond})
	}
	return all, nil
}

func readAll(ctx context.Context, keys []string, get get, d time.Duration) (perSecond float64, err error) {
	var stop atomic.Bool
	var reads atomic.Int64
	errs := make([]error, len(keys))
	var all sync.WaitGroup
	begin := time.Now()
	for i, key := range keys {
		all.Go(func() {
			n := int64(0)
			for ; !stop.Load(); n++ {
				v, err := get(ctx, key)
				if err == nil && versionOf(key, v) != 1 {
					err = fmt.Errorf("not the value of %s: %.40q", key, v)
				}
				if err != nil {
					errs[i] = err
					break
				}
			}
			reads.Add(n)
		})
	}
	err = pause(ctx, d)
	stop.Store(true)
	all.Wait()
	return float64(reads.Load()) / time.Since(begin).Seconds(), errors.Join(err, errors.Join(errs...))
}

func openPooled(ctx context.Context, addr string, keys []string) (get, func() error, error) {
	client := redis.NewClient(&redis.Options{Addr: addr})
	for _, key := range keys {
		if err := client.Set(ctx, key, valueOf(key, 1), life).Err(); err != nil {
			return nil, nil, errors.Join(err, client.Close())
		}
	}
	return func(ctx context.Context, key string) ([]byte, error) { return client.Get(ctx, key).Bytes() }, client.Close, nil
}

// openAutoPipeline reads what openPooled has written.
func openAutoPipeline(_ context.Context, addr string, _ []string) (get, func() error, error) {
	client := redis.NewClient(&redis.Options{Addr: addr})
	auto, err := client.AutoPipeline()
	if err != nil {
		return nil, nil, errors.Join(err, client.Close())
	}
	return func(ctx context.Context, key string) ([]byte, error) { return auto.Get(ctx, key).Bytes() }, client.Close, nil
}

// openRueidis reads what openPooled has written.
func openRueidis(_ context.Context, addr string, _ []string) (get, func() error, error) {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}})
	if err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context, key string) ([]byte, error) {
		return client.Do(ctx, client.B().Get().Key(key).Build()).AsBytes()
	}, func() error { client.Close(); return nil }, nil
}

func openGuarded(ctx context.Context, addr string, keys []string) (get, func() error, error) {
	s, err := openGuardOn(redis.NewClient(&redis.Options{Addr: addr}), redisstore.Options{Timeout: 5 * time.Second},
		func(_ context.Context, key string) ([]byte, error) { return valueOf(key, 1), nil }, cacheguard.Near{})
	if err != nil {
		return nil, nil, err
	}
	for _, key := range keys {
		if _, err := s.Get(ctx, key); err != nil {
			return nil, nil, errors.Join(err, s.Close())
		}
	}
	return s.Get, s.Close, nil
}
