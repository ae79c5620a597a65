package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// product is a row of the catalogue.
type product struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	Price   int64  `json:"price"` // in cents
	Stock   int64  `json:"stock"`
	Version int64  `json:"version"` // grows by one with each write
}

// origin is where the products really are: slow, dear, and what the guard
// protects. It is used concurrently. A product that is not there is
// cacheguard.ErrNotFound.
type origin interface {
	Load(ctx context.Context, id string) (product, error)
	List(ctx context.Context) ([]product, error)

	// Write replaces the name and price of the product with p's ID, and returns
	// it as it is committed. If it fails for another reason than ErrNotFound it
	// may have been committed all the same.
	Write(ctx context.Context, p product) (product, error)

	// SetStock replaces the stock of a product unless that was done under a
	// higher token before: then the error is a *fencedError, and nothing is
	// written. Otherwise as Write.
	SetStock(ctx context.Context, token store.Token, id string, stock int64) (product, error)
}

// memOrigin is a catalogue in memory that answers as slowly as a database.
type memOrigin struct {
	service time.Duration // how long each question takes

	mu       sync.Mutex
	products map[string]product // guarded by mu

	fences fences // of the stock
}

// newMemOrigin returns n products with the ids 1 to n.
func newMemOrigin(n int, service time.Duration) *memOrigin {
	o := &memOrigin{service: service, products: make(map[string]product, n)}
	for i := range n {
		id := strconv.Itoa(i + 1)
		o.products[id] = product{ID: id, Name: fmt.Sprintf("Product %s", id), Price: int64(199 + 100*(i%50)), Stock: int64(10 + i%90), Version: 1}
	}
	return o
}

// Load reads first and then takes its time, as a query does that sees the rows
// of the moment when it began: what it brings may be old when it arrives.
func (o *memOrigin) Load(ctx context.Context, id string) (product, error) {
	o.mu.Lock()
	p, found := o.products[id]
	o.mu.Unlock()
	if err := sleep(ctx, o.service); err != nil {
		return product{}, err
	}
	if !found {
		return product{}, cacheguard.ErrNotFound
	}
	return p, nil
}

func (o *memOrigin) List(ctx context.Context) ([]product, error) {
	o.mu.Lock()
	list := make([]product, 0, len(o.products))
	for _, p := range o.products {
		list = append(list, p)
	}
	o.mu.Unlock()
	if err := sleep(ctx, o.service); err != nil {
		return nil, err
	}
	slices.SortFunc(list, func(a, b product) int {
		if len(a.ID) != len(b.ID) {
			return len(a.ID) - len(b.ID) // "10" after "9"
		}
		return strings.Compare(a.ID, b.ID)
	})
	return list, nil
}

// Write takes its time first: what it commits is there when it returns.
func (o *memOrigin) Write(ctx context.Context, p product) (product, error) {
	if err := sleep(ctx, o.service); err != nil {
		return product{}, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.change(p.ID, func(old *product) { old.Name, old.Price = p.Name, p.Price })
}

func (o *memOrigin) SetStock(ctx context.Context, token store.Token, id string, stock int64) (p product, err error) {
	if err := sleep(ctx, o.service); err != nil {
		return product{}, err
	}
	err = o.fences.admit(token, id, func() error {
		o.mu.Lock()
		defer o.mu.Unlock()
		p, err = o.change(id, func(old *product) { old.Stock = stock })
		return err
	})
	return p, err
}

// change commits the next version of a product; o.mu is held.
func (o *memOrigin) change(id string, change func(*product)) (product, error) {
	p, found := o.products[id]
	if !found {
		return product{}, cacheguard.ErrNotFound
	}
	change(&p)
	p.Version++
	o.products[id] = p
	return p, nil
}

// sleep waits for d, or until ctx ends and returns why.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
