package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// pool is an origin behind a bounded number of connections, as a database is:
// who finds none free queues. It counts what it is asked.
type pool struct {
	*unruly
	name  string        // for a human
	slots chan struct{} // one for each connection in use

	waits    atomic.Int64 // questions that found no connection free
	loads    atomic.Int64 // of products, whatever came of them
	loading  atomic.Int64 // nanoseconds that they took, without the queue
	failures atomic.Int64 // loads that ended in an error other than "no such product"

	mu    sync.Mutex
	byKey map[string]int64 // loads of each product that exists; guarded by mu
}

func newPool(name string, o origin, connections int) *pool {
	return &pool{unruly: &unruly{origin: o}, name: name, slots: make(chan struct{}, connections), byKey: map[string]int64{}}
}

// Load counts each load, and each load of one product if there is such a
// product: ids that do not exist are without number, counters must not be.
func (p *pool) Load(ctx context.Context, id string) (product, error) {
	release, err := p.connect(ctx)
	if err != nil {
		return product{}, err
	}
	defer release()
	p.loads.Add(1)
	begin := time.Now()
	found, err := p.unruly.Load(ctx, id)
	p.loading.Add(int64(time.Since(begin)))
	switch {
	case err == nil:
		p.mu.Lock()
		p.byKey[id]++
		p.mu.Unlock()
	case !errors.Is(err, cacheguard.ErrNotFound):
		p.failures.Add(1)
	}
	return found, err
}

func (p *pool) List(ctx context.Context) ([]product, error) {
	release, err := p.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	return p.unruly.List(ctx)
}

func (p *pool) Write(ctx context.Context, w product) (product, error) {
	release, err := p.connect(ctx)
	if err != nil {
		return product{}, err
	}
	defer release()
	return p.origin.Write(ctx, w)
}

// Read is a load that nothing is cached of; it is not counted among the loads.
func (p *pool) Read(ctx context.Context, id string) (product, error) {
	release, err := p.connect(ctx)
	if err != nil {
		return product{}, err
	}
	defer release()
	return p.origin.Load(ctx, id)
}

func (p *pool) SetStock(ctx context.Context, token store.Token, id string, stock int64) (product, error) {
	release, err := p.connect(ctx)
	if err != nil {
		return product{}, err
	}
	defer release()
	return p.origin.SetStock(ctx, token, id, stock)
}

// LoadsOf is how often this process has loaded one product.
func (p *pool) LoadsOf(id string) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.byKey[id]
}

// connect waits for a connection until ctx ends.
func (p *pool) connect(ctx context.Context) (release func(), err error) {
	release = func() { <-p.slots }
	select {
	case p.slots <- struct{}{}:
		return release, nil
	default:
	}
	p.waits.Add(1)
	select {
	case p.slots <- struct{}{}:
		return release, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("no connection to the origin became free: %w", context.Cause(ctx))
	}
}
