package docs_test

// The snippets of README.md and docs/ are lines of this file, or of the
// examples of the packages: TestEverySnippetIsCompiled looks for them.

import (
	"context"
	"crypto/tls"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/lease"
	"github.com/cacheguard-go/cacheguard/cacheguard/promguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
	"github.com/cacheguard-go/cacheguard/middleware"
)

// Product is what the snippets cache.
type Product struct{ ID, Name string }

// repository stands for a service's access to its database.
type repository struct{}

func (repository) loadProduct(_ context.Context, id string) (Product, error) {
	if id != "1" {
		return Product{}, fmt.Errorf("product %s: %w", id, cacheguard.ErrNotFound)
	}
	return Product{ID: id, Name: "Lamp"}, nil
}

func getProduct(w http.ResponseWriter, r *http.Request) {
	fmt.Fprint(w, chi.URLParam(r, "id"))
}

// The three quick starts.

func quickStartHTTP(s store.Store, r chi.Router) (*middleware.Cache, error) {
	pages, err := middleware.New(s, middleware.Options{Policy: middleware.Policy{Lifetime: time.Minute}})
	if err != nil {
		return nil, err
	}
	r.With(pages.Handler).Get("/products/{id}", getProduct)
	return pages, nil
}

func quickStartGuard(ctx context.Context, s store.Store, repo repository, id string) error {
	products, err := cacheguard.New(s, cacheguard.Options[Product]{Namespace: "products"})
	if err != nil {
		return err
	}
	p, err := products.Get(ctx, id, repo.loadProduct) // one load in the whole fleet
	if err != nil {
		return err
	}
	fmt.Println(p.Name)
	err = products.Invalidate(ctx, id) // after a write has been committed
	return errors.Join(err, products.Close())
}

func quickStartLease(ctx context.Context, s store.Store, db *sql.DB, id string, n int) error {
	locker := lease.New(s, lease.Options{Namespace: "jobs"})
	defer locker.Close()
	err := locker.Do(ctx, "stock/"+id, func(ctx context.Context, token store.Token) error {
		result, err := db.ExecContext(ctx, `UPDATE stock SET n = $3, last_token = $2 WHERE id = $1 AND last_token < $2`, id, int64(token), n)
		if err != nil {
			return err
		}
		if rows, err := result.RowsAffected(); err != nil || rows > 0 {
			return err
		}
		return store.ErrFenced // a later holder was here (or there is no such row)
	})
	return err
}

func quickStartJob(ctx context.Context, s store.Store, sendInvoices func(context.Context, store.Token) error) error {
	locker := lease.New(s, lease.Options{Namespace: "jobs"})
	defer locker.Close()
	err := locker.Do(ctx, "invoices/2026-11", func(ctx context.Context, token store.Token) error {
		return sendInvoices(ctx, token)
	})
	return err
}

// connect is the store of a fleet.
func connect(addr string) (*redisstore.Store, *redis.Client, error) {
	rdb := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	s, err := redisstore.New(rdb, redisstore.Options{})
	return s, rdb, err
}

func connectCluster() (*redisstore.Store, error) {
	rdb := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs:                 []string{"redis-0:6379", "redis-1:6379", "redis-2:6379"},
		ContextTimeoutEnabled: true,
	})
	return redisstore.New(rdb, redisstore.Options{})
}

func connectSentinel() (*redisstore.Store, error) {
	rdb := redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName:            "mymaster",
		SentinelAddrs:         []string{"sentinel-0:26379", "sentinel-1:26379", "sentinel-2:26379"},
		ContextTimeoutEnabled: true,
	})
	return redisstore.New(rdb, redisstore.Options{})
}

func connectTLS() (*redisstore.Store, error) {
	rdb := redis.NewClient(&redis.Options{
		Addr:                  "redis.example:6380",
		Username:              "cacheguard",
		Password:              "secret",
		TLSConfig:             &tls.Config{ServerName: "redis.example", MinVersion: tls.VersionTLS12},
		ContextTimeoutEnabled: true,
	})
	return redisstore.New(rdb, redisstore.Options{})
}

// What a process says at its start.
func checkAtStart(ctx context.Context, s *redisstore.Store, warn func(string)) error {
	if err := s.Check(ctx, "products", "jobs"); err != nil {
		return err
	}
	advice, err := s.Advice(ctx, "products", "jobs")
	for _, sentence := range advice {
		warn(sentence)
	}
	return err
}

// From singleflight.
func fromSingleflight(ctx context.Context, s store.Store, repo repository, id string) (Product, error) {
	products, err := cacheguard.New(s, cacheguard.Options[Product]{
		Namespace: "products",
		Lifetime:  cacheguard.Lifetime{TTL: time.Minute, Grace: 10 * time.Minute},
	})
	if err != nil {
		return Product{}, err
	}
	defer products.Close()
	return products.Get(ctx, id, repo.loadProduct)
}

// From go-redis/cache.
func fromGoRedisCache(ctx context.Context, rdb redis.UniversalClient, repo repository, id string) (Product, error) {
	s, err := redisstore.New(rdb, redisstore.Options{})
	if err != nil {
		return Product{}, err
	}
	defer s.Close()
	products, err := cacheguard.New(s, cacheguard.Options[Product]{
		Namespace: "products",
		Lifetime:  cacheguard.Lifetime{TTL: time.Hour, Grace: time.Hour},
		Near:      cacheguard.Near{MaxEntries: 1000, TTL: time.Second},
	})
	if err != nil {
		return Product{}, err
	}
	defer products.Close()
	p, err := products.Get(ctx, id, repo.loadProduct)
	return p, err
}

// From a lock made with SET NX.
func fromSetNX(ctx context.Context, s store.Store, run func(context.Context, store.Token) error) error {
	locker := lease.New(s, lease.Options{Namespace: "jobs"})
	defer locker.Close()

	held, err := locker.TryAcquire(ctx, "invoices/2026-11")
	if errors.Is(err, store.ErrHeld) {
		return nil // another process is at it
	}
	if err != nil {
		return err
	}
	defer held.Release(ctx)
	return run(held.Context(), held.Token())
}

// From stampede.
func fromStampede(s store.Store, r chi.Router) (*middleware.Cache, error) {
	pages, err := middleware.New(s, middleware.Options{Policy: middleware.Policy{
		Lifetime:             5 * time.Second,
		StaleWhileRevalidate: 10 * time.Second,
	}})
	if err != nil {
		return nil, err
	}
	r.Use(pages.Handler)
	return pages, nil
}

// The order of mounting.
func mount(pages *middleware.Cache, authenticate, compress, requestID func(http.Handler) http.Handler) http.Handler {
	r := chi.NewRouter()
	r.Use(requestID, authenticate, compress) // made anew for each client: in front
	r.Group(func(r chi.Router) {
		r.Use(pages.Handler) // from here on, one run may answer many
		r.Get("/products/{id}", getProduct)
	})
	return r
}

func purge(ctx context.Context, pages *middleware.Cache, id string) error {
	err := pages.Invalidate(ctx, "https://shop.example/products/"+id, "https://shop.example/products")
	return err
}

// purgeOverHTTP mounts the purge handler beside the cached routes.
func purgeOverHTTP(pages *middleware.Cache, admin *http.ServeMux, authorize func(*http.Request) error) error {
	purge, err := pages.PurgeHandler(authorize) // func(*http.Request) error
	if err != nil {
		return err
	}
	admin.Handle("/purge", purge)
	return nil
}

// perRoute gives two routes their own times.
func perRoute(pages *middleware.Cache, r chi.Router, listProducts http.HandlerFunc) {
	r.With(pages.Handler).Get("/products/{id}", getProduct)
	r.With(pages.With(middleware.Policy{Lifetime: 5 * time.Second, StaleIfError: time.Hour})).Get("/products", listProducts)
}

// observed is an HTTP cache with its metrics.
func observed(store store.Store, metrics *promguard.Collector) (*middleware.Cache, error) {
	answered := metrics.HTTP("http")
	pages, err := middleware.New(store, middleware.Options{
		Hooks:   metrics.Hooks("http"),
		Observe: func(o middleware.Outcome) { answered(promguard.HTTPOutcome(o)) },
	})
	return pages, err
}

// The write paths.

// Repository reads through the guard and writes the database.
type Repository struct {
	db interface {
		UpdatePrice(ctx context.Context, id string, cents int64) error
	}
	products *cacheguard.Guard[Product]
}

func (r *Repository) UpdatePrice(ctx context.Context, id string, cents int64) error {
	if err := r.db.UpdatePrice(ctx, id, cents); err != nil { // 1. commit
		r.products.Invalidate(context.WithoutCancel(ctx), id) // it may have been committed all the same
		return err
	}
	return r.products.Invalidate(context.WithoutCancel(ctx), id) // 2. then invalidate
}

var _ = []any{connect, connectCluster, connectSentinel, connectTLS, checkAtStart, observed, quickStartLease, mount, purge, purgeOverHTTP, perRoute,
	fromGoRedisCache, (*Repository).UpdatePrice}

// The snippets that need no server are run as well.

func TestTheSnippetsDoWhatThePagesSay(t *testing.T) {
	ctx, repo := t.Context(), repository{}
	if err := quickStartGuard(ctx, inMemory(), repo, "1"); err != nil {
		t.Errorf("the guard: %v", err)
	}
	if p, err := fromSingleflight(ctx, inMemory(), repo, "1"); err != nil || p.Name != "Lamp" {
		t.Errorf("from singleflight: %v, %v", p, err)
	}
	var token store.Token
	work := func(_ context.Context, given store.Token) error { token = given; return nil }
	if err := quickStartJob(ctx, inMemory(), work); err != nil || token == 0 {
		t.Errorf("the lease: token %d, %v", token, err)
	}
	token = 0
	if err := fromSetNX(ctx, inMemory(), work); err != nil || token == 0 {
		t.Errorf("from SET NX: token %d, %v", token, err)
	}
	for name, route := range map[string]func(store.Store, chi.Router) (*middleware.Cache, error){
		"quick start": quickStartHTTP, "from stampede": func(s store.Store, r chi.Router) (*middleware.Cache, error) {
			pages, err := fromStampede(s, r)
			r.Get("/products/{id}", getProduct)
			return pages, err
		},
	} {
		r := chi.NewRouter()
		pages, err := route(inMemory(), r)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, want := range []string{"stored", "hit"} {
			w := httptest.NewRecorder()
			r.ServeHTTP(w, httptest.NewRequest("GET", "/products/7", nil))
			if status := w.Header().Get("Cache-Status"); w.Body.String() != "7" || !strings.Contains(status, want) {
				t.Errorf("%s: %q, Cache-Status %q; want 7 and %s", name, w.Body, status, want)
			}
		}
		pages.Close()
	}
}

func inMemory() store.Store { return memstore.New(memstore.Options{}) }
