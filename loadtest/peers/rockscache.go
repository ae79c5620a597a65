package main

import (
	"context"
	"time"

	"github.com/dtm-labs/rockscache"
	"github.com/redis/go-redis/v9"
)

var rocksCache = strategy{
	name: "rockscache", how: "Fetch2, TagAsDeleted2, default consistency, LockExpire " + lockLife.String() + ", LockSleep 10ms (its default is 100ms)",
	module: "github.com/dtm-labs/rockscache",
	open: func(e env) (storage, error) {
		client := newClient(e)
		opts := rockscache.NewDefaultOptions()
		opts.LockExpire, opts.LockSleep = lockLife, 10*time.Millisecond
		return &rocks{client: client, cache: rockscache.NewClient(client, opts), load: e.load}, nil
	},
}

type rocks struct {
	client *redis.Client
	cache  *rockscache.Client
	load   loader
}

func (r *rocks) Get(ctx context.Context, key string) ([]byte, error) {
	// It refreshes in the background under the context that it is given, which must
	// outlive the call; the client bounds each command.
	ctx = context.WithoutCancel(ctx)
	v, err := r.cache.Fetch2(ctx, key, life, func() (string, error) {
		data, err := r.load(ctx, key)
		return string(data), err
	})
	return []byte(v), err
}

func (r *rocks) Delete(ctx context.Context, key string) error { return r.cache.TagAsDeleted2(ctx, key) }

func (r *rocks) Close() error { return r.client.Close() }
