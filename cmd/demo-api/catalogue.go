package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/lease"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// catalogue is the repository of products: cache-aside on the read path, the
// origin first on the write path.
type catalogue struct {
	origin   *pool
	products *switched[product]
	lists    *switched[[]product]
	current  atomic.Value  // the mode of both, a string
	leases   *lease.Locker // of the stock
	close    func() error  // of the origin

	// tell, if set, invalidates what else was made of a product that was written.
	tell func(ctx context.Context, id string) error
}

// newCatalogue opens the origin and the caches in front of it that cfg asks
// for.
func newCatalogue(ctx context.Context, cfg config, s store.Store, m *metrics, watch *leaseWatch) (_ *catalogue, err error) {
	p, closeOrigin, err := openOrigin(ctx, cfg)
	if err != nil {
		return nil, err
	}
	c := &catalogue{origin: p, leases: newStockLeases(s), close: closeOrigin}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	m.watchOrigin(c.origin)
	c.current.Store(cfg.mode)
	hooks := cacheguard.JoinHooks(m.hooks(productSpace), watch.hooks())
	if c.products, err = newCache[product](cfg, productSpace, s, hooks); err != nil {
		return nil, err
	}
	if c.lists, err = newCache[[]product](cfg, listSpace, s, m.hooks(listSpace)); err != nil {
		return nil, err
	}
	return c, nil
}

// The namespaces of the caches, which are also their names in metrics and logs.
const (
	productSpace = "products"
	listSpace    = "product-lists"
)

// openOrigin returns the origin that cfg asks for, and what closes it.
func openOrigin(ctx context.Context, cfg config) (p *pool, closeOrigin func() error, err error) {
	none := func() error { return nil }
	switch {
	case cfg.postgres != "":
		o, name, err := openPostgres(ctx, cfg.postgres, cfg.pool)
		if err != nil {
			return nil, nil, err
		}
		return newPool(name, o, cfg.pool), o.Close, nil
	case cfg.origin != "":
		return newPool(cfg.origin, newRemoteOrigin(cfg.origin, cfg.pool), cfg.pool), none, nil
	}
	return newPool("in memory", newMemOrigin(memProducts, cfg.load), cfg.pool), none, nil
}

// memProducts is how many products there are to begin with, where the demo
// makes them.
const memProducts = 100

// Product returns a product as it is now, or as it was at most TTL + grace ago
// unless it was written meanwhile.
func (c *catalogue) Product(ctx context.Context, id string) (cacheguard.Entry[product], error) {
	return c.products.now().GetEntry(ctx, id, c.origin.Load)
}

// Products returns all products.
func (c *catalogue) Products(ctx context.Context) (cacheguard.Entry[[]product], error) {
	return c.lists.now().GetEntry(ctx, allProducts, func(ctx context.Context, _ string) ([]product, error) {
		return c.origin.List(ctx)
	})
}

// mode is how the origin is protected now.
func (c *catalogue) mode() string { return c.current.Load().(string) }

// switchTo changes that.
func (c *catalogue) switchTo(mode string) error {
	if err := errors.Join(c.products.switchTo(mode), c.lists.switchTo(mode)); err != nil {
		return err
	}
	c.current.Store(mode)
	return nil
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
	return c.written(ctx, p.ID, written, err)
}

// written invalidates what was cached of a product after a write of it. One
// that failed may have been committed: it is invalidated too.
func (c *catalogue) written(ctx context.Context, id string, written product, err error) (product, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), invalidateLimit)
	defer cancel()
	stale := errors.Join(c.products.Invalidate(ctx, id), c.lists.Invalidate(ctx, allProducts))
	if c.tell != nil {
		stale = errors.Join(stale, c.tell(ctx, id))
	}
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

// Close gives back the leases, waits for what is under way, and then lets go
// of the origin.
func (c *catalogue) Close() error {
	err := c.leases.Close()
	if c.products != nil {
		err = errors.Join(err, c.products.Close())
	}
	if c.lists != nil {
		err = errors.Join(err, c.lists.Close())
	}
	return errors.Join(err, c.close())
}
