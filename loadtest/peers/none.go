package main

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/singleflight"
)

// none: look into Redis, ask the origin, store.
var none = strategy{
	name: "no protection", how: "GET, and on a miss the origin and SET, for each caller",
	module: "github.com/redis/go-redis/v9",
	open:   func(e env) (storage, error) { return &aside{client: newClient(e), load: e.load}, nil },
}

// aside is the cache-aside pattern over go-redis.
type aside struct {
	client *redis.Client
	load   loader
}

func (a *aside) Get(ctx context.Context, key string) ([]byte, error) {
	v, err := a.read(ctx, key)
	if err == nil {
		return v, nil
	}
	if v, loadErr := a.load(ctx, key); loadErr != nil || !errors.Is(err, redis.Nil) {
		return v, loadErr // while Redis is away there is no point in writing to it
	} else {
		return v, a.write(ctx, key, v)
	}
}

func (a *aside) read(ctx context.Context, key string) ([]byte, error) {
	return a.client.Get(ctx, key).Bytes()
}

// write stores a value. That Redis did not take it is not the caller's fault,
// who has one.
func (a *aside) write(ctx context.Context, key string, v []byte) error {
	_ = a.client.Set(ctx, key, v, life).Err()
	return nil
}

func (a *aside) Delete(ctx context.Context, key string) error {
	return a.client.Del(ctx, key).Err()
}

func (a *aside) Close() error { return a.client.Close() }

// flightOnly: the same, one at a time for each key and process.
var flightOnly = strategy{
	name: "singleflight only", how: "the same inside a singleflight.Group of each process",
	module: "golang.org/x/sync",
	open: func(e env) (storage, error) {
		return &flight{aside: aside{client: newClient(e), load: e.load}}, nil
	},
}

type flight struct {
	aside
	flights singleflight.Group
}

func (f *flight) Get(ctx context.Context, key string) ([]byte, error) {
	return share(&f.flights, key, func() ([]byte, error) { return f.aside.Get(ctx, key) })
}

// share runs get once for all who ask for key meanwhile.
func share(flights *singleflight.Group, key string, get func() ([]byte, error)) ([]byte, error) {
	v, err, _ := flights.Do(key, func() (any, error) { return get() })
	data, _ := v.([]byte)
	return data, err
}
