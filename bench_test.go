// Package bench measures the guard against the bare client in one run: only
// ratios within a run mean anything.
//
//	go test -bench . -benchmem .
//
// What needs a real Redis starts a redis-server from PATH and is skipped where
// there is none.
package bench_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
	"github.com/cacheguard-go/cacheguard/internal/redistest"
	"github.com/cacheguard-go/cacheguard/middleware"
)

var sizes = []struct {
	name  string
	bytes int
}{{"1KiB", 1 << 10}, {"16KiB", 16 << 10}}

// distinct is how many keys a benchmark spreads over, where it is not about a
// hot one.
const distinct = 1024

func keys(prefix string) []string {
	all := make([]string, distinct)
	for i := range all {
		all[i] = fmt.Sprintf("%s%d", prefix, i)
	}
	return all
}

type bytesGuard = cacheguard.Guard[[]byte]

func newGuard(b *testing.B, s store.Store, opts cacheguard.Options[[]byte]) *bytesGuard {
	b.Helper()
	opts.Codec = cacheguard.Bytes()
	opts.EarlyRefresh = -1
	if opts.Lifetime == (cacheguard.Lifetime{}) {
		opts.Lifetime = cacheguard.Lifetime{TTL: time.Hour}
	}
	g, err := cacheguard.New(s, opts)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := g.Close(); err != nil {
			b.Error(err)
		}
	})
	return g
}

// redisFor starts a server, and returns a bare client and a store on another.
func redisFor(b *testing.B) (*redis.Client, *redisstore.Store) {
	b.Helper()
	server := redistest.Start(b)
	bare := redis.NewClient(&redis.Options{Addr: server.Addr})
	client := redis.NewClient(&redis.Options{Addr: server.Addr})
	s, err := redisstore.New(client, redisstore.Options{Timeout: 5 * time.Second})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Close(); _ = client.Close(); _ = bare.Close() })
	return bare, s
}

// loads returns a loader of a value, which hits never call.
func loads(value []byte) cacheguard.Loader[[]byte] {
	return func(context.Context, string) ([]byte, error) { return value, nil }
}

// parallel runs get for one key after the other, with 1 and with 32 goroutines.
func parallel(b *testing.B, all []string, get func(key string) error) {
	for _, goroutines := range []int{1, 32} {
		b.Run(fmt.Sprintf("goroutines=%d", goroutines), func(b *testing.B) {
			b.ReportAllocs()
			each := (b.N + goroutines - 1) / goroutines
			var wg sync.WaitGroup
			for w := range goroutines {
				wg.Go(func() {
					for i := range each {
						if err := get(all[(w*31+i)%len(all)]); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
		})
	}
}

// BenchmarkHit: what a value costs that is stored and fresh.
func BenchmarkHit(b *testing.B) {
	ctx := context.Background()
	b.Run("raw-get", func(b *testing.B) {
		for _, size := range sizes {
			b.Run(size.name, func(b *testing.B) {
				bare, _ := redisFor(b)
				all := keys("raw")
				for _, key := range all {
					if err := bare.Set(ctx, key, make([]byte, size.bytes), time.Hour).Err(); err != nil {
						b.Fatal(err)
					}
				}
				parallel(b, all, func(key string) error { return bare.Get(ctx, key).Err() })
			})
		}
	})
	guarded := func(all []string, open func(b *testing.B) store.Store, near cacheguard.Near) func(*testing.B) {
		return func(b *testing.B) {
			for _, size := range sizes {
				b.Run(size.name, func(b *testing.B) {
					g := newGuard(b, open(b), cacheguard.Options[[]byte]{Near: near})
					load := loads(make([]byte, size.bytes))
					for _, key := range all {
						if _, err := g.Get(ctx, key, load); err != nil {
							b.Fatal(err)
						}
					}
					parallel(b, all, func(key string) error {
						_, err := g.Get(ctx, key, load)
						return err
					})
				})
			}
		}
	}
	onRedis := func(b *testing.B) store.Store { _, s := redisFor(b); return s }
	inMemory := func(*testing.B) store.Store { return memstore.New(memstore.Options{}) }
	b.Run("redis", guarded(keys("k"), onRedis, cacheguard.Near{}))
	b.Run("redis-hotkey", guarded([]string{"hot"}, onRedis, cacheguard.Near{}))
	b.Run("near", guarded(keys("k"), inMemory, cacheguard.Near{MaxEntries: 10 * distinct, TTL: time.Hour}))
	b.Run("memory", guarded(keys("k"), inMemory, cacheguard.Near{}))
}

// BenchmarkMiss: what a missing value costs besides its load: a read, a claim
// and a fill, against a GET and a SET.
func BenchmarkMiss(b *testing.B) {
	ctx := context.Background()
	value := make([]byte, 1<<10)
	b.Run("raw-get-set", func(b *testing.B) {
		bare, _ := redisFor(b)
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			key := fmt.Sprint("miss", i)
			_ = bare.Get(ctx, key).Err()
			if err := bare.Set(ctx, key, value, time.Minute).Err(); err != nil {
				b.Fatal(err)
			}
		}
	})
	miss := func(b *testing.B, s store.Store) {
		g := newGuard(b, s, cacheguard.Options[[]byte]{})
		load := loads(value)
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			if _, err := g.Get(ctx, fmt.Sprint("miss", i), load); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Run("redis", func(b *testing.B) { _, s := redisFor(b); miss(b, s) })
	b.Run("memory", func(b *testing.B) { miss(b, memstore.New(memstore.Options{})) })
}

// BenchmarkStampede: 1,000 goroutines ask for one missing key at once. The time
// is that of the whole storm; loads/op must be one.
func BenchmarkStampede(b *testing.B) {
	ctx := context.Background()
	storm := func(b *testing.B, s store.Store) {
		const callers = 1000
		g := newGuard(b, s, cacheguard.Options[[]byte]{})
		var loaded atomic.Int64
		load := func(context.Context, string) ([]byte, error) {
			loaded.Add(1)
			time.Sleep(10 * time.Millisecond)
			return []byte("v"), nil
		}
		b.ReportAllocs()
		n := 0
		for ; b.Loop(); n++ {
			key := fmt.Sprint("storm", n)
			begin := make(chan struct{})
			var wg sync.WaitGroup
			for range callers {
				wg.Go(func() {
					<-begin
					if _, err := g.Get(ctx, key, load); err != nil {
						b.Error(err)
					}
				})
			}
			close(begin)
			wg.Wait()
		}
		b.ReportMetric(float64(loaded.Load())/float64(n), "loads/op")
	}
	b.Run("redis", func(b *testing.B) { _, s := redisFor(b); storm(b, s) })
	b.Run("memory", func(b *testing.B) { storm(b, memstore.New(memstore.Options{})) })
}

// BenchmarkGetMany: 100 hits in one round trip, against MGET.
func BenchmarkGetMany(b *testing.B) {
	ctx := context.Background()
	all := keys("many")[:100]
	value := make([]byte, 1<<10)
	b.Run("raw-mget", func(b *testing.B) {
		bare, _ := redisFor(b)
		for _, key := range all {
			if err := bare.Set(ctx, key, value, time.Hour).Err(); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportAllocs()
		for b.Loop() {
			if err := bare.MGet(ctx, all...).Err(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("redis", func(b *testing.B) {
		_, s := redisFor(b)
		g := newGuard(b, s, cacheguard.Options[[]byte]{})
		load := func(_ context.Context, keys []string) (map[string][]byte, error) {
			got := make(map[string][]byte, len(keys))
			for _, key := range keys {
				got[key] = value
			}
			return got, nil
		}
		b.ReportAllocs()
		for b.Loop() {
			if got, err := g.GetMany(ctx, all, load); err != nil || len(got) != len(all) {
				b.Fatal(len(got), err)
			}
		}
	})
}

// BenchmarkFill: what a value costs to store under the fence, against a SET.
func BenchmarkFill(b *testing.B) {
	ctx := context.Background()
	for _, size := range []struct {
		name  string
		bytes int
	}{{"1KiB", 1 << 10}, {"256KiB", 256 << 10}} {
		value := make([]byte, size.bytes)
		b.Run("set/"+size.name, func(b *testing.B) {
			bare, _ := redisFor(b)
			b.ReportAllocs()
			for b.Loop() {
				if err := bare.Set(ctx, "k", value, time.Minute).Err(); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("fill/"+size.name, func(b *testing.B) {
			_, s := redisFor(b)
			key := store.Key{Space: "bench", ID: "k"}
			content := store.Content{Kind: store.Value, Payload: value, TTL: time.Minute, HandOver: time.Second}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				b.StopTimer()
				if errs := s.Invalidate(ctx, []store.Key{key}); errs != nil {
					b.Fatal(errs)
				}
				v, err := s.Claim(ctx, store.Claim{Key: key, Holder: store.NewHolder("bench", fmt.Sprint(i)), Length: time.Second, Keep: time.Minute})
				if err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				if err := s.Fill(ctx, v.Grant, content); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// nowhere is a ResponseWriter without a network.
type nowhere struct{ header http.Header }

func (w *nowhere) Header() http.Header         { return w.header }
func (w *nowhere) Write(p []byte) (int, error) { return len(p), nil }
func (w *nowhere) WriteHeader(int)             {}

// BenchmarkMiddleware: what the HTTP cache adds to a handler that does next to
// nothing: for a hit in the near cache, and for a request that it passes by.
func BenchmarkMiddleware(b *testing.B) {
	body := make([]byte, 1<<10)
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "max-age=3600")
		_, _ = w.Write(body)
	})
	serve := func(h http.Handler, header ...string) func(*testing.B) {
		return func(b *testing.B) {
			r := httptest.NewRequest(http.MethodGet, "http://bench.test/products/1", nil)
			for i := 0; i < len(header); i += 2 {
				r.Header.Set(header[i], header[i+1])
			}
			h.ServeHTTP(&nowhere{make(http.Header)}, r)
			b.ReportAllocs()
			for b.Loop() {
				h.ServeHTTP(&nowhere{make(http.Header)}, r)
			}
		}
	}
	pages, err := middleware.New(memstore.New(memstore.Options{}), middleware.Options{
		Near: cacheguard.Near{MaxEntries: 100, TTL: time.Hour},
	})
	if err != nil {
		b.Fatal(err)
	}
	defer pages.Close()
	b.Run("bare", serve(handler))
	b.Run("hit", serve(pages.Handler(handler)))
	b.Run("bypass", serve(pages.Handler(handler), "Cookie", "session=1"))
}
