package main

import (
	"context"

	"github.com/go-redis/cache/v9"
	"github.com/redis/go-redis/v9"
)

var goRedisCache = strategy{
	name: "go-redis/cache", how: "Once, with the TinyLFU of its README in front",
	module: "github.com/go-redis/cache/v9", memory: true,
	open: func(e env) (storage, error) {
		client := newClient(e)
		return &onceCache{client: client, load: e.load, cache: cache.New(&cache.Options{
			Redis: client, LocalCache: cache.NewTinyLFU(1000, memoryLife),
		})}, nil
	},
}

type onceCache struct {
	client *redis.Client
	cache  *cache.Cache
	load   loader
}

func (c *onceCache) Get(ctx context.Context, key string) (v []byte, err error) {
	err = c.cache.Once(&cache.Item{Ctx: ctx, Key: key, Value: &v, TTL: life,
		Do: func(item *cache.Item) (any, error) { return c.load(item.Context(), key) }})
	return v, err
}

func (c *onceCache) Delete(ctx context.Context, key string) error { return c.cache.Delete(ctx, key) }

func (c *onceCache) Close() error { return c.client.Close() }
