package main

import (
	"context"
	"errors"

	zerocache "github.com/zeromicro/go-zero/core/stores/cache"
	zeroredis "github.com/zeromicro/go-zero/core/stores/redis"
	"github.com/zeromicro/go-zero/core/syncx"
)

var goZero = strategy{
	name: "go-zero", how: "cache.Take, its own Redis client, whose time limits cannot be set",
	module: "github.com/zeromicro/go-zero",
	open: func(e env) (storage, error) {
		client, err := zeroredis.NewRedis(zeroredis.RedisConf{Host: e.redis, Type: zeroredis.NodeType}, zeroredis.WithHook(counter{e.commands}))
		if err != nil {
			return nil, err
		}
		return &zero{load: e.load, cache: zerocache.NewNode(client, syncx.NewSingleFlight(), zerocache.NewStat("peers"),
			errZeroNotFound, zerocache.WithExpiry(life))}, nil
	},
}

var errZeroNotFound = errors.New("not found")

type zero struct {
	cache zerocache.Cache
	load  loader
}

func (z *zero) Get(ctx context.Context, key string) (v []byte, err error) {
	err = z.cache.TakeCtx(ctx, &v, key, func(into any) error {
		data, err := z.load(ctx, key)
		*into.(*[]byte) = data
		return err
	})
	return v, err
}

func (z *zero) Delete(ctx context.Context, key string) error { return z.cache.DelCtx(ctx, key) }

// Close: its clients are shared by all of a process, and stay.
func (z *zero) Close() error { return nil }
