package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// catalogue is the repository of products: cache-aside on the read path, the
// origin first on the write path.
type catalogue struct {
	origin   *pool
	products cache[product]
	lists    cache[[]product]
}

// newCatalogue opens the origin and the caches in front of it that cfg asks
// for.
func newCatalogue(cfg config, s store.Store, m *metrics) (*catalogue, error) {
	name, o := "in memory", origin(newMemOrigin(memProducts, cfg.load))
	if cfg.origin != "" {
		name, o = cfg.origin, newRemoteOrigin(cfg.origin, cfg.pool)
	}
	c := &catalogue{origin: newPool(name, o, cfg.pool)}
	m.watchOrigin(c.origin)

	var err error
	if c.products, err = newCache[product](cfg, productSpace, s, m.hooks(productSpace)); err != nil {
		return nil, err
	}
	if c.lists, err = newCache[[]product](cfg, listSpace, s, m.hooks(listSpace)); err != nil {
		return nil, errors.Join(err, c.products.Close())
	}
	return c, nil
}

// The namespaces of the caches, which are also their names in metrics and logs.
const (
	productSpace = "products"
	listSpace    = "product-lists"
)

// memProducts is how many products the origin in memory has.
const memProducts = 100

// Product returns a product as it is now, or as it was at most TTL + grace ago
// unless it was written meanwhile.
func (c *catalogue) Product(ctx context.Context, id string) (cacheguard.Entry[product], error) {
	return c.products.GetEntry(ctx, id, c.origin.Load)
}

// Products returns all products.
func (c *catalogue) Products(ctx context.Context) (cacheguard.Entry[[]product], error) {
	return c.lists.GetEntry(ctx, allProducts, func(ctx context.Context, _ string) ([]product, error) {
		return c.origin.List(ctx)
	})
}

// allProducts is the key of the one list.
const allProducts = "all"

// Write commits p to the origin and then invalidates what was cached of it:
// the other way round, a load between the two would bring the old product back.
// It returns when both are done, and the invalidation does not end with ctx:
// a client that goes away after the commit must not leave the old product in
// the cache.
func (c *catalogue) Write(ctx context.Context, p product) (product, error) {
	written, err := c.origin.Write(ctx, p)
	if errors.Is(err, cacheguard.ErrNotFound) {
		return product{}, err
	}
	// A write that failed may have been committed: it is invalidated too.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), invalidateLimit)
	defer cancel()
	stale := errors.Join(c.products.Invalidate(ctx, p.ID), c.lists.Invalidate(ctx, allProducts))
	if err != nil {
		return product{}, errors.Join(err, stale)
	}
	if stale != nil {
		return written, fmt.Errorf("%w: %w", errNotInvalidated, stale)
	}
	return written, nil
}

// errNotInvalidated says that a write is committed, but the cache could not be
// told.
var errNotInvalidated = errors.New("written, but the cache could not be told")

const invalidateLimit = 5 * time.Second

// Close gives back the leases and waits for what is under way.
func (c *catalogue) Close() error {
	return errors.Join(c.products.Close(), c.lists.Close())
}
