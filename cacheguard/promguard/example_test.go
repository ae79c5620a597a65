package promguard_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/promguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
	"github.com/cacheguard-go/cacheguard/middleware"
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

// An HTTP cache shows the guard underneath, and its own answers.
func Example_httpCache() {
	store := memstore.New(memstore.Options{})
	metrics := promguard.New(promguard.Options{})
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics)

	answered := metrics.HTTP("http")
	pages, err := middleware.New(store, middleware.Options{
		Hooks:   metrics.Hooks("http"),
		Observe: func(o middleware.Outcome) { answered(promguard.HTTPOutcome(o)) },
	})
	if err != nil {
		panic(err)
	}
	defer pages.Close()
	handler := pages.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		fmt.Fprint(w, "lamp")
	}))
	for range 3 {
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/products/1", nil))
	}

	n, err := testutil.GatherAndCount(registry, "cacheguard_http_answers_total")
	fmt.Println("series of answers:", n > 0, err)
	// Output:
	// series of answers: true <nil>
}
