package middleware_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
	"github.com/cacheguard-go/cacheguard/middleware"
)

// shop is a handler that counts how often it runs, behind a cache.
func shop(opts middleware.Options) (pages *middleware.Cache, get func(path string)) {
	pages, err := middleware.New(memstore.New(memstore.Options{}), opts)
	if err != nil {
		panic(err)
	}
	runs := 0
	h := pages.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		runs++
		fmt.Fprintf(w, "run %d", runs)
	}))
	return pages, func(path string) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "http://shop.example"+path, nil))
		fmt.Println(w.Body)
	}
}

// A purge: whoever asks after it has returned gets an answer that was made
// after it.
func ExampleCache_Invalidate() {
	pages, get := shop(middleware.Options{Policy: middleware.Policy{Lifetime: time.Minute}})
	defer pages.Close()

	get("/products/1")
	get("/products/1")
	err := pages.Invalidate(context.Background(), "http://shop.example/products/1", "http://shop.example/products")
	fmt.Println(err)
	get("/products/1")
	// Output:
	// run 1
	// run 1
	// <nil>
	// run 2
}

// Without permission to serve stale answers, an expired one is asked for at
// once.
func ExampleCache_Expire() {
	pages, get := shop(middleware.Options{Policy: middleware.Policy{Lifetime: time.Minute}})
	defer pages.Close()

	get("/products/1")
	fmt.Println(pages.Expire(context.Background(), "http://shop.example/products/1"))
	get("/products/1")
	// Output:
	// run 1
	// <nil>
	// run 2
}

// A route with times of its own.
func ExampleCache_With() {
	pages, err := middleware.New(memstore.New(memstore.Options{}), middleware.Options{Policy: middleware.Policy{Lifetime: time.Minute}})
	if err != nil {
		panic(err)
	}
	defer pages.Close()
	news := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "news") })

	mux := http.NewServeMux()
	mux.Handle("GET /news", pages.With(middleware.Policy{Lifetime: 2 * time.Second, StaleIfError: time.Hour})(news))
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest("GET", "http://shop.example/news", nil))
	fmt.Println(w.Body)
	// Output:
	// news
}

// The switch for when the cache is suspected.
func ExampleCache_SetEnabled() {
	pages, get := shop(middleware.Options{Policy: middleware.Policy{Lifetime: time.Minute}})
	defer pages.Close()

	get("/")
	pages.SetEnabled(false)
	get("/")
	pages.SetEnabled(true)
	get("/")
	// Output:
	// run 1
	// run 2
	// run 1
}

// One thing is shown on many pages: the handler names it, and all that bear the
// name are removed together.
func ExampleCache_InvalidateTags() {
	pages, err := middleware.New(memstore.New(memstore.Options{}), middleware.Options{
		Policy:     middleware.Policy{Lifetime: time.Minute, StaleWhileRevalidate: time.Minute},
		TagHeaders: []string{"Surrogate-Key"},
	})
	if err != nil {
		panic(err)
	}
	defer pages.Close()
	price := 10
	h := pages.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Surrogate-Key", "product-7")
		fmt.Fprintf(w, "%s: %d", r.URL.Path, price)
	}))
	get := func(path string) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "http://shop.example"+path, nil))
		fmt.Println(w.Body)
	}

	get("/products/7")
	get("/front")
	price = 12
	fmt.Println(pages.InvalidateTags(context.Background(), "product-7"))
	get("/products/7")
	get("/front")
	// Output:
	// /products/7: 10
	// /front: 10
	// <nil>
	// /products/7: 12
	// /front: 12
}

// Stale answers are served once more where the policy allows it, and asked for
// again in the background.
func ExampleCache_ExpireTags() {
	pages, get := shop(middleware.Options{
		Policy:     middleware.Policy{Lifetime: time.Minute},
		TagHeaders: []string{"Surrogate-Key"},
	})
	defer pages.Close()

	get("/")
	fmt.Println(pages.ExpireTags(context.Background(), "news")) // the page bears another name, or none
	get("/")
	fmt.Println(pages.InvalidateAll(context.Background()))
	get("/")
	// Output:
	// run 1
	// <nil>
	// run 1
	// <nil>
	// run 2
}
