//go:build !race

package bench_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
	"github.com/cacheguard-go/cacheguard/internal/redistest"
	"github.com/cacheguard-go/cacheguard/middleware"
)

// The budget: what may not grow unnoticed, because it is exact on any machine.
// Allocations are those of one call, beyond what the bare thing allocates in the
// same run. (Times belong to go test -bench, and to whoever reads them. The race
// detector allocates, too: this file is not built with it.)
const (
	budgetNearHit       = 0
	budgetMemoryHit     = 3 // with a context that can end
	budgetRedisHit      = 4 // more than the client's GET, with a context that cannot end
	budgetMiddlewareHit = 5 // more than the handler
	budgetBypass        = 1 // more than the handler
)

func within(t *testing.T, what string, bare, got, budget float64) {
	t.Helper()
	t.Logf("%s: %v allocations, %v of them ours, the budget is %v", what, got, got-bare, budget)
	if got-bare > budget {
		t.Errorf("%s allocates %v times more than what it stands on; the budget is %v", what, got-bare, budget)
	}
}

func budgetGuard(t *testing.T, opts cacheguard.Options[[]byte], redisAddr string) func(ctx context.Context) {
	t.Helper()
	opts.Codec, opts.EarlyRefresh = cacheguard.Bytes(), -1
	opts.Lifetime = cacheguard.Lifetime{TTL: time.Hour}
	var g *bytesGuard
	var err error
	if redisAddr == "" {
		g, err = cacheguard.New(memstore.New(memstore.Options{}), opts)
	} else {
		client := redis.NewClient(&redis.Options{Addr: redisAddr})
		var s *redisstore.Store
		if s, err = redisstore.New(client, redisstore.Options{Timeout: 5 * time.Second}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close(); _ = client.Close() })
		g, err = cacheguard.New(s, opts)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close() })
	load := loads(make([]byte, 1<<10))
	get := func(ctx context.Context) {
		if _, err := g.Get(ctx, "k", load); err != nil {
			t.Fatal(err)
		}
	}
	get(context.Background())
	return get
}

func TestAllocationBudgetOfHits(t *testing.T) {
	near := budgetGuard(t, cacheguard.Options[[]byte]{Near: cacheguard.Near{MaxEntries: 10, TTL: time.Hour}}, "")
	within(t, "a near hit", 0, testing.AllocsPerRun(1000, func() { near(t.Context()) }), budgetNearHit)
	memory := budgetGuard(t, cacheguard.Options[[]byte]{}, "")
	within(t, "a hit in memstore", 0, testing.AllocsPerRun(1000, func() { memory(t.Context()) }), budgetMemoryHit)
}

func TestAllocationBudgetOfARedisHit(t *testing.T) {
	server := redistest.Start(t)
	bare := redis.NewClient(&redis.Options{Addr: server.Addr})
	defer bare.Close()
	if err := bare.Set(t.Context(), "bare", make([]byte, 1<<10), time.Hour).Err(); err != nil {
		t.Fatal(err)
	}
	get := testing.AllocsPerRun(1000, func() {
		if err := bare.Get(context.Background(), "bare").Err(); err != nil {
			t.Fatal(err)
		}
	})
	hit := budgetGuard(t, cacheguard.Options[[]byte]{}, server.Addr)
	within(t, "a hit in Redis", get, testing.AllocsPerRun(1000, func() { hit(context.Background()) }), budgetRedisHit)
}

func TestAllocationBudgetOfTheMiddleware(t *testing.T) {
	body := make([]byte, 1<<10)
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "max-age=3600")
		_, _ = w.Write(body)
	})
	pages, err := middleware.New(memstore.New(memstore.Options{}), middleware.Options{Near: cacheguard.Near{MaxEntries: 10, TTL: time.Hour}})
	if err != nil {
		t.Fatal(err)
	}
	defer pages.Close()
	serve := func(h http.Handler, header ...string) float64 {
		r := httptest.NewRequest(http.MethodGet, "http://budget.test/products/1", nil)
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		h.ServeHTTP(&nowhere{make(http.Header)}, r)
		return testing.AllocsPerRun(1000, func() { h.ServeHTTP(&nowhere{make(http.Header)}, r) })
	}
	bare := serve(handler)
	within(t, "a hit of the HTTP cache", bare, serve(pages.Handler(handler)), budgetMiddlewareHit)
	within(t, "a request that the HTTP cache passes by", bare, serve(pages.Handler(handler), "Cookie", "session=1"), budgetBypass)
}
