package middleware_test

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
	"github.com/cacheguard-go/cacheguard/middleware"
)

// translated answers in the language that it is asked in, behind a cache.
func translated() (pages *middleware.Cache, get func(language string)) {
	pages, err := middleware.New(memstore.New(memstore.Options{}), middleware.Options{
		Policy:     middleware.Policy{Lifetime: time.Minute},
		TagHeaders: []string{"Surrogate-Key"},
	})
	if err != nil {
		panic(err)
	}
	h := pages.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Vary", "Accept-Language")
		fmt.Fprint(w, r.Header.Get("Accept-Language"))
	}))
	return pages, func(language string) {
		fmt.Println(fetch(h, "/about", "Accept-Language", language))
	}
}

// One translation was corrected: the others stay.
func ExampleCache_InvalidateVariant() {
	pages, get := translated()
	defer pages.Close()

	get("de")
	get("en")
	r, _ := http.NewRequest("GET", "http://shop.example/about", nil)
	r.Header.Set("Accept-Language", "de")
	fmt.Println(pages.InvalidateVariant(context.Background(), r))
	get("de")
	get("en")
	// Output:
	// de (from the handler)
	// en (from the handler)
	// <nil>
	// de (from the handler)
	// en (from the cache)
}

// As Expire, for one variant. Where no stale answer may be served, the next
// request is answered by the handler.
func ExampleCache_ExpireVariant() {
	pages, get := translated()
	defer pages.Close()

	get("de")
	r, _ := http.NewRequest("GET", "http://shop.example/about", nil)
	r.Header.Set("Accept-Language", "de")
	fmt.Println(pages.ExpireVariant(context.Background(), r))
	get("de")
	// Output:
	// de (from the handler)
	// <nil>
	// de (from the handler)
}

// After a deploy that changed every template.
func ExampleCache_ExpireAll() {
	pages, get := translated()
	defer pages.Close()

	get("de")
	fmt.Println(pages.ExpireAll(context.Background()))
	get("de")
	// Output:
	// de (from the handler)
	// <nil>
	// de (from the handler)
}

// A purge over HTTP, on a mux of its own that only the internal network sees.
func ExampleCache_PurgeHandler() {
	pages, get := translated()
	defer pages.Close()

	const secret = "Bearer correct horse battery staple"
	purge, err := pages.PurgeHandler(func(r *http.Request) error {
		if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte(secret)) != 1 {
			return errors.New("wrong token")
		}
		return nil
	})
	if err != nil {
		panic(err)
	}
	admin := http.NewServeMux()
	admin.Handle("/purge", purge)

	get("de")
	for _, token := range []string{"Bearer guess", secret} {
		r := httptest.NewRequest("POST", "http://admin.internal/purge", strings.NewReader(`{"urls": ["http://shop.example/about"]}`))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", token)
		w := httptest.NewRecorder()
		admin.ServeHTTP(w, r)
		fmt.Println(w.Code)
	}
	get("de")
	// Output:
	// de (from the handler)
	// 403
	// 204
	// de (from the handler)
}
