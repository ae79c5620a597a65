package main

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// cache is what the catalogue reads through: a guard, or, to see the
// difference, less.
type cache[V any] interface {
	GetEntry(ctx context.Context, key string, load cacheguard.Loader[V]) (cacheguard.Entry[V], error)
	Invalidate(ctx context.Context, keys ...string) error
	Expire(ctx context.Context, keys ...string) error
	Close() error
}

// newCache returns a cache over s that can be switched to any mode, and is in
// cfg's, under a namespace of its own.
func newCache[V any](cfg config, namespace string, s store.Store, hooks cacheguard.Hooks) (*switched[V], error) {
	return newSwitched(cfg.mode, func(mode string) (cache[V], error) {
		cfg := cfg
		cfg.mode = mode
		return openMode[V](cfg, namespace, s, hooks)
	})
}

// openMode returns the cache of cfg's mode.
func openMode[V any](cfg config, namespace string, s store.Store, hooks cacheguard.Hooks) (cache[V], error) {
	if cfg.mode != "guard" {
		u := &unguarded[V]{store: s, space: namespace, ttl: cfg.ttl, answered: hooks.Answer}
		if cfg.mode == "local" {
			u.flights = new(singleflight.Group)
		}
		return u, nil
	}
	g, err := cacheguard.New(s, cacheguard.Options[V]{
		Namespace:   namespace,
		Lifetime:    cacheguard.Lifetime{TTL: cfg.ttl, Grace: cfg.grace},
		NegativeTTL: cfg.ttl,
		LoadLimit:   loadLimit,
		Hooks:       hooks,
	})
	if err != nil {
		return nil, err // not a *Guard that is nil: that is a cache that is not nil
	}
	return g, nil
}

// unguarded is cache-aside as it is often written: look, load if nothing is
// there, store what came. With flights, the callers of one process share a
// load; without, each has its own. No lease, no fence, no grace.
type unguarded[V any] struct {
	store    store.Store
	space    string
	ttl      time.Duration
	flights  *singleflight.Group // nil: no sharing
	answered func(cacheguard.AnswerInfo)
}

func (u *unguarded[V]) GetEntry(ctx context.Context, key string, load cacheguard.Loader[V]) (cacheguard.Entry[V], error) {
	entry, err := u.get(ctx, key, load)
	u.answered(cacheguard.AnswerInfo{Key: key, State: entry.State, Coalesced: entry.Coalesced, Err: err})
	return entry, err
}

func (u *unguarded[V]) get(ctx context.Context, key string, load cacheguard.Loader[V]) (cacheguard.Entry[V], error) {
	k := store.Key{Space: u.space, ID: key}
	found, err := u.store.Load(ctx, k)
	if err == nil && found.Kind == store.Value && found.Fresh > 0 {
		var v V
		if json.Unmarshal(found.Payload, &v) == nil {
			return cacheguard.Entry[V]{Value: v, State: cacheguard.Fresh, Age: found.Age, Left: found.Fresh, Token: found.Token}, nil
		}
	}
	if u.flights == nil {
		v, err := u.rebuild(ctx, k, load)
		return rebuilt(v, false, err)
	}
	// The load is everybody's: the first caller's cancellation must not end it.
	led := false
	flight := u.flights.DoChan(key, func() (any, error) {
		led = true
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), loadLimit)
		defer cancel()
		return u.rebuild(ctx, k, load)
	})
	select {
	case r := <-flight:
		v, _ := r.Val.(V)
		return rebuilt(v, !led, r.Err)
	case <-ctx.Done():
		return cacheguard.Entry[V]{}, context.Cause(ctx)
	}
}

// rebuild loads and stores. A store that fails does not fail the answer.
func (u *unguarded[V]) rebuild(ctx context.Context, k store.Key, load cacheguard.Loader[V]) (V, error) {
	v, err := load(ctx, k.ID)
	if err != nil {
		return v, err
	}
	if payload, err := json.Marshal(v); err == nil {
		_ = u.store.Set(ctx, store.Write{Key: k, Content: store.Content{Kind: store.Value, Payload: payload, TTL: u.ttl}})
	}
	return v, nil
}

// rebuilt is the answer that a load gives.
func rebuilt[V any](v V, coalesced bool, err error) (cacheguard.Entry[V], error) {
	entry := cacheguard.Entry[V]{Value: v, State: cacheguard.Rebuilt, Coalesced: coalesced}
	switch {
	case errors.Is(err, cacheguard.ErrNotFound):
		entry.State = cacheguard.Absent
	case err != nil:
		return cacheguard.Entry[V]{}, err
	}
	return entry, err
}

func (u *unguarded[V]) Invalidate(ctx context.Context, keys ...string) error {
	return errors.Join(u.store.Invalidate(ctx, u.keys(keys))...)
}

// Expire leaves an entry that this cache takes for none.
func (u *unguarded[V]) Expire(ctx context.Context, keys ...string) error {
	return errors.Join(u.store.Expire(ctx, u.keys(keys))...)
}

func (u *unguarded[V]) keys(ids []string) []store.Key {
	keys := make([]store.Key, len(ids))
	for i, id := range ids {
		keys[i] = store.Key{Space: u.space, ID: id}
	}
	return keys
}

func (u *unguarded[V]) Close() error { return nil }
