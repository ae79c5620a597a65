package main

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/middleware"
)

// pages are the catalogue once more, cached as HTTP answers: at /pages/products
// it is the answer that is kept, by the middleware, and not the product, as at
// /products. Their handlers ask the origin itself, so that a page is never
// older than its own lifetime allows.
//
// In a mode other than guard there is no cache in front of them.
type pages struct {
	catalogue *catalogue
	cache     *middleware.Cache
}

// pageSpace is the namespace of the pages, and their name in metrics and logs.
const pageSpace = "pages"

// listPage is the one page of all products; pageOf is that of one. A page is
// kept under its one URL whatever a client wrote: nothing on it depends on host
// and query, so processes at several ports of one machine are one fleet, nobody
// fills the store by inventing queries, and what a write has to invalidate is
// known.
const listPage = "http://demo-api/pages/products"

func pageOf(id string) string { return listPage + "/" + url.PathEscape(id) }

func newPages(cfg config, c *catalogue, s store.Store, m *metrics) (*pages, error) {
	cache, err := middleware.New(s, middleware.Options{
		Namespace: pageSpace,
		Policy: middleware.Policy{
			Lifetime:             cfg.ttl,
			StaleWhileRevalidate: orOff(cfg.grace),
			StaleIfError:         orOff(cfg.grace),
		},
		StatusLifetime: map[int]time.Duration{http.StatusNotFound: cfg.ttl},
		AutoETag:       true,
		FillLimit:      loadLimit,
		Hooks:          m.hooks(pageSpace),
	})
	if err != nil {
		return nil, err
	}
	return &pages{catalogue: c, cache: cache}, nil
}

// orOff is d as a field of a Policy: a zero there takes another's value.
func orOff(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}

func (p *pages) routes(r chi.Router) {
	r.With(at(func(*http.Request) string { return listPage }), p.cached).Get("/products", p.list)
	r.With(at(func(r *http.Request) string { return pageOf(r.PathValue("id")) }), p.cached).Get("/products/{id}", p.product)
}

// at makes every request one for the URL that the page is kept under.
func at(page func(*http.Request) string) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			u, err := url.Parse(page(r))
			if err != nil {
				http.Error(w, "no such page", http.StatusBadRequest)
				return
			}
			one := *r
			one.Host, one.RequestURI = u.Host, u.EscapedPath()
			u.Scheme, u.Host = "", ""
			one.URL = u
			next.ServeHTTP(w, &one)
		})
	}
}

// cached is the middleware in mode guard, and nothing in the others.
func (p *pages) cached(next http.Handler) http.Handler {
	guarded := p.cache.Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p.catalogue.mode() == "guard" {
			guarded.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (p *pages) product(w http.ResponseWriter, r *http.Request) {
	found, err := p.catalogue.origin.Load(r.Context(), r.PathValue("id"))
	if err != nil {
		fail(w, r, err)
		return
	}
	answer(w, found)
}

func (p *pages) list(w http.ResponseWriter, r *http.Request) {
	all, err := p.catalogue.origin.List(r.Context())
	if err != nil {
		fail(w, r, err)
		return
	}
	answer(w, all)
}

// written invalidates the pages that a product is on.
func (p *pages) written(ctx context.Context, id string) error {
	return p.cache.Invalidate(ctx, pageOf(id), listPage)
}

// Close ends the cache and the runs of it.
func (p *pages) Close() error { return p.cache.Close() }
