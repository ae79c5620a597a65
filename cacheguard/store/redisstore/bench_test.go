package redisstore_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
)

// BenchmarkLoad compares a Load with the bare client's GET of the same bytes.
// Only the ratio of two rows of one run says anything.
func BenchmarkLoad(b *testing.B) {
	client := newClient(b, sharedServer(b).Addr)
	s := newStore(b, client, redisstore.Options{})
	for _, size := range []int{1 << 10, 16 << 10} {
		key := newKey(b)
		if err := s.Set(b.Context(), store.Write{Key: key, Content: value(strings.Repeat("x", size))}); err != nil {
			b.Fatal(err)
		}
		name := key.Space + ":{" + key.ID + "}"
		ctx := context.Background()
		get := func() error { _, err := client.Get(ctx, name).Bytes(); return err }
		loadKey := func() error { _, err := s.Load(ctx, key); return err }
		for _, goroutines := range []int{1, 32} {
			for round := range 3 { // alternating, so that drift of the machine hits both
				for _, row := range []struct {
					name string
					call func() error
				}{{"get", get}, {"load", loadKey}} {
					b.Run(fmt.Sprintf("%dKiB/goroutines=%d/%s/%d", size>>10, goroutines, row.name, round), func(b *testing.B) {
						b.ReportAllocs()
						spread(b, goroutines, row.call)
					})
				}
			}
		}
	}
}

// spread runs call b.N times on some goroutines.
func spread(b *testing.B, goroutines int, call func() error) {
	var left atomic.Int64
	left.Store(int64(b.N))
	done := make(chan error, goroutines)
	for range goroutines {
		go func() {
			var err error
			for left.Add(-1) >= 0 && err == nil {
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
