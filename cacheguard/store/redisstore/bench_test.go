package redisstore_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
)

// BenchmarkLoad compares a Load with the bare client's GET of the same bytes.
// They take turns in short slices, so that what else the machine does hits both:
// the ratio says something, the times alone do not.
func BenchmarkLoad(b *testing.B) {
	ctx := context.Background()
	canEnd, cancel := context.WithCancel(ctx)
	defer cancel()
	client := newClient(b, sharedServer(b).Addr)
	s := newStore(b, client, patient)
	for _, size := range []int{1 << 10, 16 << 10} {
		key := newKey(b)
		if err := s.Set(ctx, store.Write{Key: key, Content: value(strings.Repeat("x", size))}); err != nil {
			b.Fatal(err)
		}
		name := redisstore.EntryName(key)
		get := func() error { _, err := client.Get(ctx, name).Bytes(); return err }
		for _, goroutines := range []int{1, 32} {
			for kind, ctx := range map[string]context.Context{"background": ctx, "cancellable": canEnd} {
				load := func() error { _, err := s.Load(ctx, key); return err }
				b.Run(fmt.Sprintf("%dKiB/goroutines=%d/%s", size>>10, goroutines, kind), func(b *testing.B) {
					takeTurns(b, goroutines, get, load)
				})
			}
		}
	}
}

// BenchmarkLoadTogether is the same for reads that are sent together.
func BenchmarkLoadTogether(b *testing.B) {
	ctx := context.Background()
	client := newClient(b, sharedServer(b).Addr)
	s := newStore(b, client, pipelined)
	key := newKey(b)
	if err := s.Set(ctx, store.Write{Key: key, Content: value(strings.Repeat("x", 1<<10))}); err != nil {
		b.Fatal(err)
	}
	name := redisstore.EntryName(key)
	get := func() error { _, err := client.Get(ctx, name).Bytes(); return err }
	load := func() error { _, err := s.Load(ctx, key); return err }
	for _, goroutines := range []int{1, 32, 256} {
		b.Run(fmt.Sprintf("goroutines=%d", goroutines), func(b *testing.B) { takeTurns(b, goroutines, get, load) })
	}
}

// takeTurns runs b.N calls of each kind in slices and reports both times.
func takeTurns(b *testing.B, goroutines int, bare, ours func() error) {
	slice := max(500, 20*goroutines)
	var took [2]time.Duration
	for done := 0; done < b.N; done += slice {
		for i, call := range []func() error{bare, ours} {
			began := time.Now()
			spread(b, min(slice, b.N-done), goroutines, call)
			took[i] += time.Since(began)
		}
	}
	b.ReportMetric(float64(took[0].Nanoseconds())/float64(b.N), "bare-ns/op")
	b.ReportMetric(float64(took[1].Nanoseconds())/float64(b.N), "ours-ns/op")
	b.ReportMetric(float64(took[0])/float64(took[1]), "x-of-bare")
	b.ReportMetric(testing.AllocsPerRun(100, func() { _ = ours() })-testing.AllocsPerRun(100, func() { _ = bare() }), "more-allocs")
}

// spread runs a call n times on some goroutines.
func spread(b *testing.B, n, goroutines int, call func() error) {
	var left atomic.Int64
	left.Store(int64(n))
	done := make(chan error, goroutines)
	for range goroutines {
		go func() {
			var err error
			for err == nil && left.Add(-1) >= 0 {
				err = call()
			}
			done <- err
		}()
	}
	for range goroutines {
		if err := <-done; err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkFill compares a fill, and a set, with the plain SET of as many bytes,
// with and without staging.
func BenchmarkFill(b *testing.B) {
	client := newClient(b, sharedServer(b).Addr)
	for _, size := range []int{1 << 10, 4 << 10, 8 << 10, 16 << 10, 64 << 10, 256 << 10} {
		content := value(strings.Repeat("x", size))
		bytes := string(content.Payload)
		key := newKey(b)
		whole := newStore(b, client, redisstore.Options{StageAbove: 1 << 30, Timeout: patient.Timeout})
		staged := newStore(b, client, redisstore.Options{StageAbove: 1, Timeout: patient.Timeout})
		g := claim(b, whole, key, "p/1")
		fill := func(s *redisstore.Store) func() error {
			return func() error {
				g.Token++ // or it would be the same fill again
				return s.Fill(context.Background(), g, content)
			}
		}
		for _, row := range []struct {
			name string
			call func() error
		}{
			{"plain", func() error {
				return client.Set(context.Background(), key.Space+":plain", bytes, patient.Timeout).Err()
			}},
			{"whole", fill(whole)},
			{"staged", fill(staged)},
		} {
			b.Run(fmt.Sprintf("%dKiB/%s", size>>10, row.name), func(b *testing.B) {
				b.ReportAllocs()
				before := serverTime(b, client)
				spread(b, b.N, 1, row.call)
				b.ReportMetric(float64(serverTime(b, client)-before)/float64(b.N), "server-us/op")
			})
		}
	}
}

// serverTime is how many microseconds of processor the server has used.
func serverTime(b *testing.B, client *redis.Client) int64 {
	info, err := client.Info(context.Background(), "cpu").Result()
	if err != nil {
		b.Fatal(err)
	}
	var total float64
	for line := range strings.Lines(info) {
		var seconds float64
		for _, field := range []string{"used_cpu_sys:", "used_cpu_user:"} {
			if n, _ := fmt.Sscanf(line, field+"%g", &seconds); n == 1 {
				total += seconds
			}
		}
	}
	return int64(total * 1e6)
}
