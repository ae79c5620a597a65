package memstore_test

import (
	"context"
	"fmt"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
)

// Two guards over one store are a fleet in one process.
func ExampleNew() {
	shared := memstore.New(memstore.Options{MaxBytes: 16 << 20})
	a, _ := cacheguard.New(shared, cacheguard.Options[string]{Namespace: "products"})
	b, _ := cacheguard.New(shared, cacheguard.Options[string]{Namespace: "products"})
	defer a.Close()
	defer b.Close()

	load := func(context.Context, string) (string, error) { fmt.Println("loaded"); return "lamp", nil }
	fmt.Println(a.Get(context.Background(), "1", load))
	fmt.Println(b.Get(context.Background(), "1", load))
	// Output:
	// loaded
	// lamp <nil>
	// lamp <nil>
}

// What happens when the store has no room for an entry: it is a miss.
func ExampleStore_DropEntry() {
	s := memstore.New(memstore.Options{})
	guard, _ := cacheguard.New(s, cacheguard.Options[string]{Namespace: "products"})
	defer guard.Close()

	load := func(context.Context, string) (string, error) { fmt.Println("loaded"); return "lamp", nil }
	_, _ = guard.Get(context.Background(), "1", load)
	s.DropEntry(store.Key{Space: "products", ID: "1"})
	_, _ = guard.Get(context.Background(), "1", load)
	// Output:
	// loaded
	// loaded
}

// What happens when the store forgets a lease: what its holder loads is for its
// own callers, and is not stored.
func ExampleStore_DropRecord() {
	s := memstore.New(memstore.Options{})
	guard, _ := cacheguard.New(s, cacheguard.Options[string]{Namespace: "products"})
	defer guard.Close()

	key := store.Key{Space: "products", ID: "1"}
	v, err := guard.Get(context.Background(), "1", func(context.Context, string) (string, error) {
		s.DropRecord(key)
		return "lamp", nil
	})
	fmt.Println(v, err)
	e, _ := s.Load(context.Background(), key)
	fmt.Println("stored:", e.Kind)
	// Output:
	// lamp <nil>
	// stored: none
}
