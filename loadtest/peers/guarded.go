package main

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
)

var guarded = strategy{
	name: "cacheguard", how: "defaults",
	module: "github.com/cacheguard-go/cacheguard",
	open:   func(e env) (storage, error) { return openGuard(e, cacheguard.Near{}) },
}

var guardedNear = strategy{
	name: "cacheguard + near cache", how: "with Near",
	module: "github.com/cacheguard-go/cacheguard", memory: true, hitsOnly: true,
	open: func(e env) (storage, error) { return openGuard(e, cacheguard.Near{MaxEntries: 1000, TTL: memoryLife}) },
}

func openGuard(e env, near cacheguard.Near) (storage, error) {
	return openGuardOn(newClient(e), redisstore.Options{}, e.load, near)
}

func openGuardOn(client *redis.Client, opts redisstore.Options, load loader, near cacheguard.Near) (storage, error) {
	s, err := redisstore.New(client, opts)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	g, err := cacheguard.New(s, cacheguard.Options[[]byte]{
		Namespace: "peers", Lifetime: cacheguard.Lifetime{TTL: life}, Codec: cacheguard.Bytes(), Near: near,
	})
	if err != nil {
		return nil, errors.Join(err, s.Close(), client.Close())
	}
	return &guard{client: client, store: s, guard: g, load: cacheguard.Loader[[]byte](load)}, nil
}

type guard struct {
	client *redis.Client
	store  *redisstore.Store
	guard  *cacheguard.Guard[[]byte]
	load   cacheguard.Loader[[]byte]
}

func (g *guard) Get(ctx context.Context, key string) ([]byte, error) {
	return g.guard.Get(ctx, key, g.load)
}

func (g *guard) Delete(ctx context.Context, key string) error { return g.guard.Invalidate(ctx, key) }

func (g *guard) Close() error {
	return errors.Join(g.guard.Close(), g.store.Close(), g.client.Close())
}
