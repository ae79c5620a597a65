package bench_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

// BenchmarkWake: how long those who wait for another process' load wait besides,
// from when that process knows that its fill has landed until they have the
// value. Four guards with clients of their own stand for the processes. An
// operation is a storm: one caller in each asks for each key; when all others
// wait for them the loads end, each when the fill of the one before has landed.
func BenchmarkWake(b *testing.B) {
	for _, n := range []int{1, 1000} {
		b.Run(fmt.Sprintf("keys=%d", n), func(b *testing.B) {
			w := newWaking(b, 4)
			for round := range b.N {
				w.storm(b, round, n)
			}
			if len(w.waits) == 0 {
				b.Fatal("nobody waited")
			}
			slices.Sort(w.waits)
			b.ReportMetric(w.quantile(0.5), "p50-ms")
			b.ReportMetric(w.quantile(0.99), "p99-ms")
		})
	}
}

// waking measures followers.
type waking struct {
	guards []*bytesGuard

	mu     sync.Mutex
	claims int                  // that are still to be answered in this storm; guarded by mu
	baton  chan struct{}        // whose load takes it may end
	filled map[string]time.Time // when each key's fill had landed; guarded by mu
	waits  []time.Duration      // of all followers, in all storms
}

func newWaking(b *testing.B, processes int) *waking {
	w := &waking{}
	server := redistest.Start(b)
	for range processes {
		client := redis.NewClient(&redis.Options{Addr: server.Addr})
		s, err := redisstore.New(client, redisstore.Options{Timeout: 5 * time.Second})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = s.Close(); _ = client.Close() })
		// No lease runs out before the slowest machine has claimed all others.
		lease := cacheguard.LeaseTuning{Initial: 20 * time.Second, Min: 20 * time.Second, Max: 20 * time.Second}
		w.guards = append(w.guards, newGuard(b, watched{s, w}, cacheguard.Options[[]byte]{Lease: lease}))
	}
	w.storm(b, -1, 1) // opens the connections and subscriptions
	w.waits = nil
	return w
}

// watched is the store of one process: it knows when all have claimed, and when
// a fill has landed.
type watched struct {
	store.Store
	w *waking
}

func (s watched) Claim(ctx context.Context, c store.Claim) (store.Verdict, error) {
	v, err := s.Store.Claim(ctx, c)
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if s.w.claims--; s.w.claims == 0 {
		s.w.baton <- struct{}{}
	}
	return v, err
}

func (s watched) Fill(ctx context.Context, g store.Grant, c store.Content) error {
	err := s.Store.Fill(ctx, g, c)
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	s.w.filled[g.Key.ID] = time.Now()
	s.w.baton <- struct{}{}
	return err
}

// storm lets each process ask for each of n new keys at once.
func (w *waking) storm(b *testing.B, round, n int) {
	type answer struct {
		key string
		at  time.Time
	}
	w.claims, w.baton, w.filled = n*len(w.guards), make(chan struct{}, 1), make(map[string]time.Time, n)
	value := make([]byte, 1<<10)
	load := func(context.Context, string) ([]byte, error) {
		<-w.baton
		return value, nil
	}
	followers := make(chan answer, n*len(w.guards))
	var wg sync.WaitGroup
	for i := range n {
		key := fmt.Sprint("wake ", round, " ", i)
		for _, g := range w.guards {
			wg.Go(func() {
				e, err := g.GetEntry(context.Background(), key, load)
				if err != nil {
					b.Error(err)
				}
				if e.State == cacheguard.Followed {
					followers <- answer{key, time.Now()}
				}
			})
		}
	}
	wg.Wait()
	close(followers)
	for f := range followers {
		w.waits = append(w.waits, max(f.at.Sub(w.filled[f.key]), 0)) // it may be faster than the reply to the holder
	}
}

// quantile is in milliseconds; waits are sorted.
func (w *waking) quantile(q float64) float64 {
	return float64(w.waits[int(q*float64(len(w.waits)-1))]) / float64(time.Millisecond)
}
