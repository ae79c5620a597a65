package middleware_test

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
	"github.com/cacheguard-go/cacheguard/middleware"
)

// fetch asks h for a path and returns the body and what the cache says.
func fetch(h http.Handler, path string, pairs ...string) string {
	r := httptest.NewRequest("GET", "http://shop.example"+path, nil)
	for i := 0; i < len(pairs); i += 2 {
		r.Header.Set(pairs[i], pairs[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	how := "from the handler"
	if strings.Contains(w.Header().Get("Cache-Status"), "; hit") {
		how = "from the cache"
	}
	return fmt.Sprintf("%s (%s)", strings.TrimSpace(w.Body.String()), how)
}

func Example() {
	getProduct := func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "product %s", chi.URLParam(r, "id"))
	}

	pages, err := middleware.New(memstore.New(memstore.Options{}), middleware.Options{
		Policy: middleware.Policy{Lifetime: time.Minute}})
	if err != nil {
		log.Fatal(err)
	}
	defer pages.Close()
	r := chi.NewRouter()
	r.With(pages.Handler).Get("/products/{id}", getProduct)

	fmt.Println(fetch(r, "/products/7"))
	fmt.Println(fetch(r, "/products/7"))
	// Output:
	// product 7 (from the handler)
	// product 7 (from the cache)
}

// The cache in front of any origin: what the origin says is kept is kept.
func Example_reverseProxy() {
	origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60, stale-if-error=3600")
		fmt.Fprint(w, "from the origin")
	}))
	target, err := url.Parse(origin.URL)
	if err != nil {
		log.Fatal(err)
	}

	pages, err := middleware.New(memstore.New(memstore.Options{}), middleware.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer pages.Close()
	proxy := pages.Handler(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }})

	fmt.Println(fetch(proxy, "/"))
	origin.Close()
	fmt.Println(fetch(proxy, "/"))
	// Output:
	// from the origin (from the handler)
	// from the origin (from the cache)
}

// Pages that differ by user, kept for each of them: somebody in front of the
// cache has checked who asks, and Identity says so.
func ExampleOptions_identity() {
	pages, err := middleware.New(memstore.New(memstore.Options{}), middleware.Options{
		Policy: middleware.Policy{Lifetime: time.Minute},
		Identity: func(r *http.Request) (string, bool) {
			user := r.Header.Get("X-Checked-User")
			return user, user != ""
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer pages.Close()
	h := pages.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "orders of "+r.Header.Get("X-Checked-User"))
	}))

	fmt.Println(fetch(h, "/orders", "X-Checked-User", "ann", "Authorization", "Bearer a"))
	fmt.Println(fetch(h, "/orders", "X-Checked-User", "bob", "Authorization", "Bearer b"))
	fmt.Println(fetch(h, "/orders", "X-Checked-User", "ann", "Authorization", "Bearer a"))
	// Output:
	// orders of ann (from the handler)
	// orders of bob (from the handler)
	// orders of ann (from the cache)
}
