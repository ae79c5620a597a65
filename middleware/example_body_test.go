package middleware_test

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
	"github.com/cacheguard-go/cacheguard/middleware"
)

// A search whose terms are in the body of a POST.
func ExamplePolicy_postReads() {
	findProducts := func(w http.ResponseWriter, r *http.Request) {
		terms, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "found for %s", terms)
	}

	pages, err := middleware.New(memstore.New(memstore.Options{}), middleware.Options{
		Policy:  middleware.Policy{Lifetime: time.Minute},
		KeyBody: 64 << 10,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer pages.Close()
	r := chi.NewRouter()
	search := pages.With(middleware.Policy{PostReads: true})
	r.With(search).Post("/search", findProducts)

	for _, terms := range []string{"lamps", "chairs", "lamps"} {
		w := httptest.NewRecorder()
		r.ServeHTTP(w, httptest.NewRequest("POST", "http://shop.example/search", strings.NewReader(terms)))
		fmt.Println(w.Body, strings.Contains(w.Header().Get("Cache-Status"), "; hit"))
	}
	// Output:
	// found for lamps false
	// found for chairs false
	// found for lamps true
}
