package cacheguard_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

// onReadPaths runs a test for each way that a redisstore sends its reads.
func onReadPaths(t *testing.T, test func(t *testing.T, opts redisstore.Options)) {
	t.Run("reads by themselves", func(t *testing.T) { test(t, redisstore.Options{}) })
	t.Run("reads together", func(t *testing.T) { test(t, redisstore.Options{ReadPipelines: 2}) })
}

// overRedis is a guard as in a process of its own.
func overRedis(t *testing.T, server *redistest.Server, storeOpts redisstore.Options, opts options) *guard {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: server.Addr})
	s, err := redisstore.New(client, storeOpts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close(); _ = client.Close() })
	return newGuard(t, s, opts)
}

// P2, over a real server, with enough readers that reads are sent together:
// what is read after an Invalidate has returned is not older than it.
func TestNothingOlderThanAnInvalidationOverRedis(t *testing.T) {
	onReadPaths(t, nothingOlderThanAnInvalidationOverRedis)
}

func nothingOlderThanAnInvalidationOverRedis(t *testing.T, storeOpts redisstore.Options) {
	const processes, readers, keys, writes = 2, 32, 8, 200
	server := redistest.Start(t)
	storeOpts.Timeout = 5 * time.Second // a busy machine must not pass for an outage
	var version, floor [keys]atomic.Int64
	load := func(_ context.Context, key string) (string, error) {
		n, err := strconv.Atoi(key)
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("%s@%d", key, version[n].Load()), nil
	}
	var gs []*guard
	for range processes {
		gs = append(gs, overRedis(t, server, storeOpts, options{}))
	}
	var over atomic.Bool
	var all sync.WaitGroup
	for r := range readers {
		all.Go(func() {
			for i := r; !over.Load(); i++ {
				n := i % keys
				least := floor[n].Load()
				v, err := gs[r%processes].Get(context.Background(), strconv.Itoa(n), load)
				var key, got int64
				if _, scanErr := fmt.Sscanf(v, "%d@%d", &key, &got); err != nil || scanErr != nil || key != int64(n) || got < least {
					t.Errorf("key %d: %q, %v; want version %d or later", n, v, err, least)
					return
				}
			}
		})
	}
	for i := range writes {
		n := i % keys
		v := version[n].Add(1)
		if err := gs[i%processes].Invalidate(t.Context(), strconv.Itoa(n)); err != nil {
			t.Error(err)
		}
		floor[n].Store(v)
	}
	over.Store(true)
	all.Wait()
}

// P8, over a real server that hangs: each call is answered within the store's
// bound and a load, soon without the bound, and all is as before when the server
// goes on. What is left of it goleak sees.
func TestReadsAreAnsweredWhileRedisHangs(t *testing.T) {
	onReadPaths(t, readsAreAnsweredWhileRedisHangs)
}

func readsAreAnsweredWhileRedisHangs(t *testing.T, storeOpts redisstore.Options) {
	const (
		callers = 200
		margin  = 900 * time.Millisecond // what a busy machine may add
		normal  = 2 * time.Second        // until all is as before
	)
	server := redistest.Start(t)
	var open atomic.Bool
	g := overRedis(t, server, storeOpts, options{
		Lifetime: cacheguard.Lifetime{TTL: time.Hour}, OutageLoads: callers,
		Hooks: cacheguard.Hooks{Breaker: func(is bool) { open.Store(is) }},
	})
	o := &origin{takes: 5 * time.Millisecond}
	for i := range callers {
		if _, err := g.Get(t.Context(), fmt.Sprint(i), o.load); err != nil {
			t.Fatal(err)
		}
	}
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	defer server.Resume()
	slowest := func() time.Duration {
		var longest atomic.Int64
		var all sync.WaitGroup
		for i := range callers {
			all.Go(func() {
				began := time.Now()
				if v, err := g.Get(context.Background(), fmt.Sprint(i), o.load); err != nil || v != fmt.Sprintf("%d@0", i) {
					t.Errorf("%q, %v", v, err)
				}
				took := int64(time.Since(began))
				for was := longest.Load(); took > was && !longest.CompareAndSwap(was, took); was = longest.Load() {
				}
			})
		}
		all.Wait()
		return time.Duration(longest.Load())
	}
	if took := slowest(); took > 2*storeBound+margin { // the read, and a claim of those that were first
		t.Errorf("at first the slowest took %v", took)
	}
	if !open.Load() {
		t.Error("the breaker has not opened")
	}
	if took := slowest(); took > margin {
		t.Errorf("with the breaker open the slowest took %v", took)
	}
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
	resumed := time.Now()
	for open.Load() && time.Since(resumed) < 10*time.Second {
		time.Sleep(time.Millisecond)
	}
	if took := time.Since(resumed); took > normal {
		t.Errorf("the breaker closed after %v", took)
	}
	loads := o.loads.Load()
	slowest()
	if n := o.loads.Load() - loads; n != 0 {
		t.Errorf("%d loads of what is stored", n)
	}
}
