package main

import (
	"context"

	"github.com/redis/go-redis/v9"
	"github.com/viccon/sturdyc"
)

var sturdycRedis = strategy{
	name: "sturdyc + Redis", how: "GetOrFetch, WithDistributedStorage",
	module: "github.com/viccon/sturdyc", memory: true,
	open: func(e env) (storage, error) {
		d := distributed{newClient(e)}
		return &sturdy{storage: d, load: e.load, client: sturdyc.New[[]byte](10_000, 16, memoryLife, 10,
			sturdyc.WithDistributedStorage(d), sturdyc.WithLog(&sturdyc.NoopLogger{}))}, nil
	},
}

type sturdy struct {
	client  *sturdyc.Client[[]byte]
	storage distributed
	load    loader
}

func (s *sturdy) Get(ctx context.Context, key string) ([]byte, error) {
	return s.client.GetOrFetch(ctx, key, func(ctx context.Context) ([]byte, error) { return s.load(ctx, key) })
}

func (s *sturdy) Delete(ctx context.Context, key string) error {
	err := s.storage.client.Del(ctx, key).Err()
	s.client.Delete(key)
	return err
}

func (s *sturdy) Close() error { return s.storage.client.Close() }

// distributed is Redis as sturdyc wants it.
type distributed struct{ client *redis.Client }

func (d distributed) Get(ctx context.Context, key string) ([]byte, bool) {
	v, err := d.client.Get(ctx, key).Bytes()
	return v, err == nil
}

func (d distributed) Set(ctx context.Context, key string, value []byte) {
	d.client.Set(ctx, key, value, life)
}

func (d distributed) GetBatch(ctx context.Context, keys []string) map[string][]byte {
	found := map[string][]byte{}
	for _, key := range keys {
		if v, ok := d.Get(ctx, key); ok {
			found[key] = v
		}
	}
	return found
}

func (d distributed) SetBatch(ctx context.Context, records map[string][]byte) {
	for key, v := range records {
		d.Set(ctx, key, v)
	}
}
