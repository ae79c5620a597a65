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
	"errors"
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

// goroutines are the numbers of callers that a hit is measured with.
var goroutines = []int{1, 32}

// BenchmarkHit: what a value costs that is stored and fresh. What comes from
// Redis is measured in turns with the bare client's GET of the same value, on as
// many connections. An entry's head and name are some 80 bytes more, and part of
// what the guard costs.
func BenchmarkHit(b *testing.B) {
	ctx := context.Background()
	for _, size := range sizes {
		value := make([]byte, size.bytes)
		load := loads(value)
		// gets is a way to get one of all from g; it has them from the first.
		gets := func(b *testing.B, g *bytesGuard, all []string) way {
			get := func(i int) error { _, err := g.Get(ctx, all[i%len(all)], load); return err }
			if err := spread(len(all), 0, get); err != nil {
				b.Fatal(err)
			}
			return calling(get)
		}
		bareGets := func(b *testing.B, bare *redis.Client, all []string) way {
			for _, key := range all {
				if err := bare.Set(ctx, "raw:"+key, value, time.Hour).Err(); err != nil {
					b.Fatal(err)
				}
			}
			raw := keys("raw:k")[:len(all)]
			if len(all) == 1 {
				raw[0] = "raw:" + all[0]
			}
			return calling(func(i int) error { return bare.Get(ctx, raw[i%len(raw)]).Err() })
		}
		inMemory := func(name string, near cacheguard.Near) {
			b.Run(name+"/"+size.name, func(b *testing.B) {
				g := newGuard(b, memstore.New(memstore.Options{}), cacheguard.Options[[]byte]{Near: near})
				alone(b, gets(b, g, keys("k")))
			})
		}
		beside := func(name string, all []string) {
			b.Run(name+"/"+size.name, func(b *testing.B) {
				bare, s := redisFor(b)
				g := newGuard(b, s, cacheguard.Options[[]byte]{})
				for _, n := range goroutines {
					t := turns{goroutines: n, bare: bareGets(b, bare, all), ours: gets(b, g, all)}
					b.Run(fmt.Sprintf("goroutines=%d", n), t.run)
				}
			})
		}
		b.Run("raw-get/"+size.name, func(b *testing.B) {
			bare, _ := redisFor(b)
			alone(b, bareGets(b, bare, keys("k")))
		})
		beside("redis", keys("k"))
		beside("redis-hotkey", []string{"hot"})
		inMemory("near", cacheguard.Near{MaxEntries: 10 * distinct, TTL: time.Hour})
		inMemory("memory", cacheguard.Near{})
	}
}

// alone measures a way without another beside it.
func alone(b *testing.B, w way) {
	for _, n := range goroutines {
		b.Run(fmt.Sprintf("goroutines=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			if err := spread(b.N, n, w.call); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// BenchmarkMiss: what a missing value costs besides its load: a read, a claim
// and a fill, in turns with a GET and a SET.
func BenchmarkMiss(b *testing.B) {
	ctx := context.Background()
	value := make([]byte, 1<<10)
	load := loads(value)
	var last atomic.Int64
	next := func() string { return fmt.Sprint("miss", last.Add(1)) }
	misses := func(g *bytesGuard) way {
		return calling(func(int) error { _, err := g.Get(ctx, next(), load); return err })
	}
	b.Run("redis", func(b *testing.B) {
		bare, s := redisFor(b)
		getSet := func(int) error {
			key := next()
			if err := bare.Get(ctx, key).Err(); err != redis.Nil {
				return fmt.Errorf("GET of what is not there: %v", err)
			}
			return bare.Set(ctx, key, value, time.Minute).Err()
		}
		turns{bare: calling(getSet), ours: misses(newGuard(b, s, cacheguard.Options[[]byte]{})), server: bare}.run(b)
	})
	b.Run("memory", func(b *testing.B) {
		w := misses(newGuard(b, memstore.New(memstore.Options{}), cacheguard.Options[[]byte]{}))
		b.ReportAllocs()
		if err := spread(b.N, 0, w.call); err != nil {
			b.Fatal(err)
		}
	})
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

// BenchmarkGetMany: 100 hits in one round trip, in turns with MGET.
func BenchmarkGetMany(b *testing.B) {
	ctx := context.Background()
	all := keys("many")[:100]
	value := make([]byte, 1<<10)
	b.Run("redis", func(b *testing.B) {
		bare, s := redisFor(b)
		for _, key := range all {
			if err := bare.Set(ctx, key, value, time.Hour).Err(); err != nil {
				b.Fatal(err)
			}
		}
		g := newGuard(b, s, cacheguard.Options[[]byte]{})
		load := loadsMany(value)
		if _, err := g.GetMany(ctx, all, load); err != nil {
			b.Fatal(err)
		}
		turns{
			bare: calling(func(int) error { return bare.MGet(ctx, all...).Err() }),
			ours: calling(func(int) error {
				got, err := g.GetMany(ctx, all, load)
				if err == nil && len(got) != len(all) {
					err = fmt.Errorf("%d values of %d", len(got), len(all))
				}
				return err
			}),
			server: bare,
		}.run(b)
	})
}

// loadsMany returns a loader that has value for every key.
func loadsMany(value []byte) cacheguard.ManyLoader[[]byte] {
	return func(_ context.Context, keys []string) (map[string][]byte, error) {
		got := make(map[string][]byte, len(keys))
		for _, key := range keys {
			got[key] = value
		}
		return got, nil
	}
}

// BenchmarkFill: what a value costs to store under the fence, in turns with a
// SET of as many bytes. The server's own time is what counts: nobody but the
// loading process waits for a fill, but all wait for the server. Either replaces
// a value of that size, as a rebuild does, so that both get their memory from
// the same place: new pages from the system cost the server as much as the rest.
func BenchmarkFill(b *testing.B) {
	for _, size := range []struct {
		name  string
		bytes int
	}{{"1KiB", 1 << 10}, {"16KiB", 16 << 10}, {"256KiB", 256 << 10}, {"1MiB", 1 << 20}} {
		value := make([]byte, size.bytes)
		b.Run("set/"+size.name, func(b *testing.B) {
			bare, _ := redisFor(b)
			b.ReportAllocs()
			if err := spread(b.N, 0, sets(bare, value).call); err != nil {
				b.Fatal(err)
			}
		})
		b.Run("fill/"+size.name, func(b *testing.B) {
			bare, s := redisFor(b)
			turns{bare: sets(bare, value), ours: fills(s, value), server: bare, size: rebuilt}.run(b)
		})
	}
	b.Run("floor/256KiB", func(b *testing.B) {
		bare, _ := redisFor(b)
		value := make([]byte, 256<<10)
		turns{bare: sets(bare, value), ours: setsAndScript(b, bare, value), server: bare, size: rebuilt}.run(b)
	})
}

// setsAndScript are SETs with a script behind each that does nothing: less than
// any fill that asks before it writes.
func setsAndScript(b *testing.B, bare *redis.Client, value []byte) way {
	ctx := context.Background()
	digest, err := bare.ScriptLoad(ctx, "return 1").Result()
	if err != nil {
		b.Fatal(err)
	}
	return calling(func(i int) error {
		name := fmt.Sprint("staged", i%rebuilt)
		pipe := bare.Pipeline()
		pipe.Set(ctx, name, value, time.Minute)
		pipe.EvalSha(ctx, digest, []string{name})
		_, err := pipe.Exec(ctx)
		return err
	})
}

// rebuilt is how many values BenchmarkFill replaces again and again.
const rebuilt = 64

// sets are SETs.
func sets(bare *redis.Client, value []byte) way {
	ctx := context.Background()
	return calling(func(i int) error { return bare.Set(ctx, fmt.Sprint("plain", i%rebuilt), value, time.Minute).Err() })
}

// fills are fills under leases that were claimed before.
func fills(s *redisstore.Store, value []byte) way {
	ctx := context.Background()
	content := store.Content{Kind: store.Value, Payload: value, TTL: time.Minute, HandOver: time.Second}
	grants := make([]store.Grant, rebuilt)
	attempt := 0
	return way{
		prepare: func(n int) error {
			claims := make([]store.Claim, n)
			attempt++
			for i := range n {
				claims[i] = store.Claim{
					Key:    store.Key{Space: "bench", ID: fmt.Sprint("fill", i)},
					Seen:   grants[i].Token, // what it filled last is what it replaces
					Holder: store.NewHolder("bench", fmt.Sprint(attempt)), Length: time.Minute, Keep: time.Minute,
				}
			}
			verdicts, errs := s.ClaimMany(ctx, claims)
			for i, v := range verdicts {
				if errs == nil && v.Outcome != store.Granted {
					return fmt.Errorf("a claim was not granted but %v", v.Outcome)
				}
				grants[i] = v.Grant
			}
			return errors.Join(errs...)
		},
		call: func(i int) error { return s.Fill(ctx, grants[i], content) },
	}
}

// nowhere is a ResponseWriter without a network.
type nowhere struct{ header http.Header }

func (w *nowhere) Header() http.Header         { return w.header }
func (w *nowhere) Write(p []byte) (int, error) { return len(p), nil }
func (w *nowhere) WriteHeader(int)             {}

// BenchmarkMiddleware: what the HTTP cache adds to a handler that does next to
// nothing, in turns with it: for a hit in the near cache, and for a request that
// it passes by.
func BenchmarkMiddleware(b *testing.B) {
	body := make([]byte, 1<<10)
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "max-age=3600")
		_, _ = w.Write(body)
	})
	serving := func(h http.Handler, header ...string) way {
		r := httptest.NewRequest(http.MethodGet, "http://bench.test/products/1", nil)
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		h.ServeHTTP(&nowhere{make(http.Header)}, r)
		return calling(func(int) error { h.ServeHTTP(&nowhere{make(http.Header)}, r); return nil })
	}
	pages, err := middleware.New(memstore.New(memstore.Options{}), middleware.Options{
		Near: cacheguard.Near{MaxEntries: 100, TTL: time.Hour},
	})
	if err != nil {
		b.Fatal(err)
	}
	defer pages.Close()
	b.Run("bare", func(b *testing.B) {
		bare := serving(handler)
		b.ReportAllocs()
		if err := spread(b.N, 0, bare.call); err != nil {
			b.Fatal(err)
		}
	})
	b.Run("hit", turns{bare: serving(handler), ours: serving(pages.Handler(handler))}.run)
	b.Run("bypass", turns{bare: serving(handler, "Cookie", "session=1"), ours: serving(pages.Handler(handler), "Cookie", "session=1")}.run)
}
