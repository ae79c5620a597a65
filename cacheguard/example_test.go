package cacheguard_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
)

// products stands for a database.
var products = map[string]string{"1": "lamp", "2": "chair"}

func loadProduct(_ context.Context, id string) (string, error) {
	name, ok := products[id]
	if !ok {
		return "", fmt.Errorf("product %s: %w", id, cacheguard.ErrNotFound)
	}
	fmt.Println("loaded", id)
	return name, nil
}

// The store is memstore here, so that the examples run anywhere; a fleet shares
// a redisstore.
func Example() {
	guard, err := cacheguard.New(memstore.New(memstore.Options{}), cacheguard.Options[string]{Namespace: "products"})
	if err != nil {
		panic(err)
	}
	defer guard.Close()
	ctx := context.Background()

	for range 3 {
		name, err := guard.Get(ctx, "1", loadProduct)
		fmt.Println(name, err)
	}
	// Output:
	// loaded 1
	// lamp <nil>
	// lamp <nil>
	// lamp <nil>
}

func ExampleGuard_GetEntry() {
	guard, _ := cacheguard.New(memstore.New(memstore.Options{}), cacheguard.Options[string]{
		Lifetime: cacheguard.Lifetime{TTL: time.Minute, Grace: time.Hour},
		Jitter:   -1, // so that every run prints the same
	})
	defer guard.Close()
	ctx := context.Background()

	for range 2 {
		e, _ := guard.GetEntry(ctx, "1", loadProduct)
		fmt.Println(e.Value, e.State, e.TTL)
	}
	// Output:
	// loaded 1
	// lamp rebuilt 1m0s
	// lamp fresh 1m0s
}

func ExampleGuard_Set() {
	guard, _ := cacheguard.New(memstore.New(memstore.Options{}), cacheguard.Options[string]{})
	defer guard.Close()
	ctx := context.Background()

	_ = guard.Set(ctx, "1", "desk lamp")
	fmt.Println(guard.Get(ctx, "1", loadProduct))
	// Output:
	// desk lamp <nil>
}

// Update is for writers that may overlap.
func ExampleGuard_Update() {
	guard, _ := cacheguard.New(memstore.New(memstore.Options{}), cacheguard.Options[string]{})
	defer guard.Close()
	ctx := context.Background()

	stock := 4 // stands for a row in a database
	name, err := guard.Update(ctx, "stock of 1", func(context.Context) (string, error) {
		stock--
		return fmt.Sprintf("%d left", stock), nil
	})
	fmt.Println(name, err)
	fmt.Println(guard.Get(ctx, "stock of 1", loadProduct))
	// Output:
	// 3 left <nil>
	// 3 left <nil>
}

// Invalidate comes after the origin's write has been committed.
func ExampleGuard_Invalidate() {
	guard, _ := cacheguard.New(memstore.New(memstore.Options{}), cacheguard.Options[int]{})
	defer guard.Close()
	ctx := context.Background()

	price := 10
	load := func(context.Context, string) (int, error) { return price, nil }
	before, _ := guard.Get(ctx, "price of 1", load)
	price = 12
	if err := guard.Invalidate(ctx, "price of 1", "price list"); err != nil {
		fmt.Println(err)
	}
	after, _ := guard.Get(ctx, "price of 1", load)
	fmt.Println(before, after)
	// Output:
	// 10 12
}

// Expire lets nobody wait: the old value is served once more, while the new one
// is loaded.
func ExampleGuard_Expire() {
	guard, _ := cacheguard.New(memstore.New(memstore.Options{}), cacheguard.Options[int]{})
	defer guard.Close()
	ctx := context.Background()

	price, loaded := 10, make(chan struct{}, 2)
	load := func(context.Context, string) (int, error) {
		defer func() { loaded <- struct{}{} }()
		return price, nil
	}
	_, _ = guard.Get(ctx, "price of 1", load)
	<-loaded
	price = 12
	_ = guard.Expire(ctx, "price of 1")

	e, _ := guard.GetEntry(ctx, "price of 1", load)
	fmt.Println(e.Value, e.State)
	<-loaded // in the background
	// Output:
	// 10 stale
}

func ExampleGuard_Refresh() {
	guard, _ := cacheguard.New(memstore.New(memstore.Options{}), cacheguard.Options[int]{})
	defer guard.Close()
	ctx := context.Background()

	price := 10
	load := func(context.Context, string) (int, error) { return price, nil }
	_, _ = guard.Get(ctx, "price of 1", load)
	price = 12
	cached, _ := guard.Get(ctx, "price of 1", load)
	anew, _ := guard.Refresh(ctx, "price of 1", load)
	fmt.Println(cached, anew)
	// Output:
	// 10 12
}

// What does not exist is remembered for NegativeTTL. Without it, whoever waits
// at the time gets the answer, and nobody after.
func ExampleOptions_negativeCaching() {
	guard, _ := cacheguard.New(memstore.New(memstore.Options{}), cacheguard.Options[string]{NegativeTTL: 10 * time.Second})
	defer guard.Close()
	ctx := context.Background()

	load := func(ctx context.Context, id string) (string, error) {
		fmt.Println("asked for", id)
		return loadProduct(ctx, id)
	}
	for range 3 {
		_, err := guard.Get(ctx, "99", load)
		fmt.Println(errors.Is(err, cacheguard.ErrNotFound))
	}
	// Output:
	// asked for 99
	// true
	// true
	// true
}

// Each value may have a lifetime of its own; the zero Lifetime stores nothing.
func ExampleOptions_lifetimeFunc() {
	guard, _ := cacheguard.New(memstore.New(memstore.Options{}), cacheguard.Options[string]{
		LifetimeFunc: func(_, value string) cacheguard.Lifetime {
			if strings.HasPrefix(value, "draft") {
				return cacheguard.Lifetime{}
			}
			return cacheguard.Lifetime{TTL: time.Hour}
		},
	})
	defer guard.Close()
	ctx := context.Background()

	load := func(_ context.Context, key string) (string, error) { return key + " page", nil }
	for _, key := range []string{"final", "final", "draft", "draft"} {
		e, _ := guard.GetEntry(ctx, key, load)
		fmt.Println(e.Value, e.State)
	}
	// Output:
	// final page rebuilt
	// final page fresh
	// draft page rebuilt
	// draft page rebuilt
}

// Do leaves to its caller what is good enough. This one wants nothing that is
// older than ten seconds, unless there is nothing else.
func ExampleGuard_Do() {
	guard, _ := cacheguard.New(memstore.New(memstore.Options{}), cacheguard.Options[string]{})
	defer guard.Close()
	ctx := context.Background()
	_ = guard.Set(ctx, "1", "lamp, as it was stored")

	recent := cacheguard.Ask[string]{
		Accept: func(e cacheguard.Entry[string]) cacheguard.Use {
			if e.Age > 10*time.Second {
				return cacheguard.Reload
			}
			return cacheguard.Take
		},
		Prepare: func() cacheguard.Reloader[string] {
			return func(context.Context, cacheguard.Entry[string]) (string, error) {
				return "", errors.New("database is down")
			}
		},
	}
	e, err := guard.Do(ctx, "1", recent)
	fmt.Println(e.Value, err)

	recent.Accept = func(cacheguard.Entry[string]) cacheguard.Use { return cacheguard.Reload }
	e, err = guard.Do(ctx, "1", recent)
	fmt.Printf("%s (%v)\n", e.Value, err)
	// Output:
	// lamp, as it was stored <nil>
	// lamp, as it was stored (database is down)
}
