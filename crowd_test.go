package bench_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

// BenchmarkCrowd: hits of 1 KiB by up to 256 goroutines, over one Redis: the
// bare client's pool, a guard, and a guard whose store sends reads together
// (redisstore.Options.ReadPipelines). They take turns in one run, and what is
// reported is the median of the rounds: the ratios say something, the times
// alone do not.
func BenchmarkCrowd(b *testing.B) {
	ctx := context.Background()
	server := redistest.Start(b)
	client := func() *redis.Client {
		c := redis.NewClient(&redis.Options{Addr: server.Addr})
		b.Cleanup(func() { _ = c.Close() })
		return c
	}
	value := make([]byte, 1<<10)
	guarded := func(name string, opts redisstore.Options) *bytesGuard {
		opts.Timeout = 5 * time.Second
		s, err := redisstore.New(client(), opts)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = s.Close() })
		return newGuard(b, s, cacheguard.Options[[]byte]{Namespace: name})
	}
	bare := client()
	each, together := guarded("each", redisstore.Options{}), guarded("together", redisstore.Options{ReadPipelines: 2})
	from := func(g *bytesGuard) func(string) error {
		load := loads(value)
		return func(key string) error { _, err := g.Get(ctx, key, load); return err }
	}
	for name, all := range map[string][]string{"distinct": keys("k"), "hotkey": {"hot"}} {
		for _, key := range all {
			if err := bare.Set(ctx, key, value, time.Hour).Err(); err != nil {
				b.Fatal(err)
			}
			for _, g := range []*bytesGuard{each, together} {
				if _, err := g.Get(ctx, key, loads(value)); err != nil {
					b.Fatal(err)
				}
			}
		}
		for _, goroutines := range []int{1, 32, 256} {
			b.Run(fmt.Sprintf("%s/goroutines=%d", name, goroutines), func(b *testing.B) {
				crowd{goroutines, all}.compare(b,
					func(key string) error { return bare.Get(ctx, key).Err() }, from(each), from(together))
			})
		}
	}
}

// crowd asks for all keys from some goroutines.
type crowd struct {
	goroutines int
	all        []string
}

// compare runs b.N calls of each way, in rounds that take turns.
func (c crowd) compare(b *testing.B, bare, each, together func(key string) error) {
	const rounds = 21
	var took [3][]float64 // nanoseconds a call
	for range rounds {
		for i, get := range []func(string) error{bare, each, together} {
			took[i] = append(took[i], c.round(b, max(b.N/rounds, c.goroutines), get))
		}
	}
	var median [3]float64
	for i := range took {
		slices.Sort(took[i])
		median[i] = took[i][rounds/2]
	}
	b.ReportMetric(0, "ns/op") // of all three ways: it says nothing
	b.ReportMetric(median[0], "bare-ns")
	b.ReportMetric(median[1], "each-ns")
	b.ReportMetric(median[2], "together-ns")
	b.ReportMetric(median[0]/median[1], "each-x-of-bare")
	b.ReportMetric(median[0]/median[2], "together-x-of-bare")
}

// round makes n calls, and returns how long each took, in nanoseconds of the
// whole.
func (c crowd) round(b *testing.B, n int, get func(string) error) float64 {
	var next atomic.Int64
	var all sync.WaitGroup
	began := time.Now()
	for range c.goroutines {
		all.Go(func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				if err := get(c.all[int(i)%len(c.all)]); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	return float64(time.Since(began)) / float64(n)
}
