package memstore

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

func BenchmarkLoad(b *testing.B) {
	const keys = 1024
	s := New(Options{})
	for i := range keys {
		_ = s.Set(b.Context(), store.Write{Key: key(i), Content: content(1024, time.Hour)})
	}
	spread := make([]store.Key, keys)
	for i := range spread {
		spread[i] = key(i)
	}
	b.Run("one", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			_, _ = s.Load(b.Context(), spread[i%keys])
		}
	})
	b.Run("parallel", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for i := rand.IntN(keys); pb.Next(); i++ {
				_, _ = s.Load(b.Context(), spread[i%keys])
			}
		})
	})
	b.Run("parallel, one key", func(b *testing.B) {
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				_, _ = s.Load(b.Context(), spread[0])
			}
		})
	})
}

// BenchmarkFill is of a store that is full: each fill evicts.
func BenchmarkFill(b *testing.B) {
	s := New(Options{MaxBytes: 8 << 20})
	c := content(1024, time.Hour)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		v, _ := s.Claim(b.Context(), store.Claim{Key: key(i), Holder: "A/1", Length: time.Minute, Keep: time.Minute})
		_ = s.Fill(b.Context(), v.Grant, c)
	}
}
