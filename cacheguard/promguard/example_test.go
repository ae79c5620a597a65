package promguard_test

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/promguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
)

func Example() {
	metrics := promguard.New(promguard.Options{})
	registry := prometheus.NewRegistry() // or prometheus.DefaultRegisterer
	registry.MustRegister(metrics)

	products, err := cacheguard.New(memstore.New(memstore.Options{}), cacheguard.Options[string]{
		Namespace: "products",
		Hooks:     metrics.Hooks("products"),
	})
	if err != nil {
		panic(err)
	}
	defer products.Close()
	load := func(context.Context, string) (string, error) { return "lamp", nil }
	for range 3 {
		_, _ = products.Get(context.Background(), "1", load)
	}

	n, err := testutil.GatherAndCount(registry, "cacheguard_loads_total")
	fmt.Println("series of loads:", n > 0, err)
	// Output:
	// series of loads: true <nil>
}

// A service that sets itself up anew in the same process goes on with the same
// series.
func ExampleRegister() {
	registry := prometheus.NewRegistry()
	first, err := promguard.Register(registry, promguard.Options{})
	fmt.Println(err)
	again, err := promguard.Register(registry, promguard.Options{})
	fmt.Println(first == again, err)
	// Output:
	// <nil>
	// true <nil>
}
