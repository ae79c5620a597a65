package bench_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
)

// BenchmarkStep: the parts of a hit and a miss, each on its own. (A fill is
// BenchmarkFill.) The bare counterparts are what the client needs for a command
// that does nothing.
func BenchmarkStep(b *testing.B) {
	ctx := context.Background()
	b.Run("guard", func(b *testing.B) {
		g := newGuard(b, immediate{at: time.Now()}, cacheguard.Options[[]byte]{})
		load := loads(nil)
		b.ReportAllocs()
		for b.Loop() {
			if _, err := g.Get(ctx, "k", load); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("read", func(b *testing.B) {
		bare, s := redisFor(b)
		if errs := s.Invalidate(ctx, []store.Key{{Space: "bench", ID: "missing"}}); errs != nil { // and brings the server's time
			b.Fatal(errs)
		}
		missing := func(int) error {
			e, err := s.Load(ctx, store.Key{Space: "bench", ID: "missing"})
			if err == nil && e.Kind != 0 {
				err = errors.New("it is there")
			}
			return err
		}
		turns{bare: calling(func(int) error { return bare.Ping(ctx).Err() }), ours: calling(missing), server: bare}.run(b)
	})
	b.Run("claim", func(b *testing.B) {
		bare, s := redisFor(b)
		turns{bare: calling(func(int) error { return bare.Ping(ctx).Err() }), ours: claims(s), server: bare}.run(b)
	})
}

// immediate is a store that has everything, and at once.
type immediate struct {
	store.Store
	at time.Time
}

func (s immediate) Load(context.Context, store.Key) (store.Entry, error) {
	return store.Entry{At: s.at, Kind: store.Value, Fresh: time.Hour, Left: time.Hour, Token: 1}, nil
}

func (immediate) Listen(string, func(store.Event)) (stop func()) { return func() {} }

// claims are claims of keys that were never claimed.
func claims(s *redisstore.Store) way {
	attempt := 0
	return way{
		prepare: func(int) error { attempt++; return nil },
		call: func(i int) error {
			key := store.Key{Space: "bench", ID: fmt.Sprint("claim ", attempt, " ", i)}
			v, err := s.Claim(context.Background(), store.Claim{Key: key, Holder: "bench/1", Length: time.Minute, Keep: time.Minute})
			if err == nil && v.Outcome != store.Granted {
				err = fmt.Errorf("the claim was not granted but %v", v.Outcome)
			}
			return err
		},
	}
}
