package main

import (
	"context"

	"github.com/maypok86/otter/v2"
)

var otterAlone = strategy{
	name: "otter alone", how: "a loading cache of one process, without Redis",
	module: "github.com/maypok86/otter/v2", memory: true, hitsOnly: true,
	open: func(e env) (storage, error) {
		c, err := otter.New(&otter.Options[string, []byte]{MaximumSize: 1000, ExpiryCalculator: otter.ExpiryWriting[string, []byte](life)})
		return &inMemory{cache: c, loader: otter.LoaderFunc[string, []byte](e.load)}, err
	},
}

type inMemory struct {
	cache  *otter.Cache[string, []byte]
	loader otter.Loader[string, []byte]
}

func (m *inMemory) Get(ctx context.Context, key string) ([]byte, error) {
	return m.cache.Get(ctx, key, m.loader)
}

func (m *inMemory) Delete(_ context.Context, key string) error {
	m.cache.Invalidate(key)
	return nil
}

func (m *inMemory) Close() error {
	m.cache.StopAllGoroutines()
	return nil
}
