package faulttest

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
	"github.com/cacheguard-go/cacheguard/internal/faultproxy"
	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

// poolOf connects clients with that many connections.
func poolOf(n int, addr string) func() redis.UniversalClient {
	return func() redis.UniversalClient { return redis.NewClient(&redis.Options{Addr: addr, PoolSize: n}) }
}

// manyLoader asks the origin of a process for many keys at once.
func (m *member) manyLoader(ctx context.Context, keys []string) (map[string]string, error) {
	versions := make(map[string]int64, len(keys))
	for _, key := range keys {
		versions[key] = m.origin.begin(m.id, key)
		defer m.origin.end(m.id, key)
	}
	select {
	case <-time.After(m.origin.takes):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	got := make(map[string]string, len(keys))
	for _, key := range keys {
		got[key] = m.origin.value(key, versions[key])
	}
	return got, nil
}

// Ten thousand keys at once in one process, and half of them at the same time in
// another one, in the other order: each key is loaded once in the fleet, over
// twenty connections each, and the breakers stay closed.
func TestTenThousandKeysInTwoProcessesAreLoadedOnce(t *testing.T) {
	server := redistest.Start(t)
	o := newOrigin(t, 100*time.Millisecond)
	// On a busy machine so many flights take seconds: no lease is to run out.
	long := options{LoadLimit: 2 * time.Minute, Lease: cacheguard.LeaseTuning{Initial: time.Minute, Min: time.Minute}}
	f := startFleet(t, o, 2, poolOf(20, server.Addr), long, redisstore.Options{Timeout: 10 * time.Second})
	f.connected()
	all := names(10_000)
	if raceDetector {
		all = all[:2000]
	}
	backwards := slices.Clone(all[len(all)/2:])
	slices.Reverse(backwards)
	began := time.Now()
	var wg sync.WaitGroup
	for i, keys := range [][]string{all, backwards} {
		m := f.members[i]
		wg.Go(func() {
			got, err := m.guard.GetMany(t.Context(), keys, m.manyLoader)
			if err != nil || len(got) != len(keys) {
				t.Errorf("process %d: GetMany = %d values, %.300v", m.id, len(got), err)
			}
			for key, value := range got {
				if v, err := o.versionOf(key, value); err != nil || v != 1 {
					t.Fatalf("%s = %.60q", key, value)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("took %v; faults %v", time.Since(began).Round(time.Millisecond), f.faults())
	if key, n := most(o.loadsSince(began)); n != 1 {
		t.Errorf("%s was loaded %d times", key, n)
	}
	for _, m := range f.members {
		if m.timesOpened() > 0 {
			t.Errorf("process %d: the breaker opened", m.id)
		}
		if err := m.guard.Invalidate(t.Context(), all...); err != nil {
			t.Errorf("Invalidate of ten thousand keys: %.300v", err)
		}
	}
}

// More keys that miss at once than there are connections: their calls wait for
// each other, longer in all than the store's timeout, and that is not an outage.
func TestMoreMissesThanConnectionsAreLoadedOnceEach(t *testing.T) {
	server := redistest.Start(t)
	p := newProxy(t, server.Addr)
	o := newOrigin(t, 20*time.Millisecond)
	long := options{Lease: cacheguard.LeaseTuning{Initial: 10 * time.Second, Min: 10 * time.Second}} // none is to run out on a busy machine
	f := startFleet(t, o, 2, poolOf(20, p.Addr), long, redisstore.Options{Timeout: 300 * time.Millisecond})
	f.connected()
	for _, m := range f.members {
		m.mustRead("warm")
	}
	p.Set(faultproxy.Faults{Latency: 20 * time.Millisecond}) // of a wide network: a thousand calls a second
	keys := names(300)                                       // of three calls each
	began := time.Now()
	var wg sync.WaitGroup
	for _, key := range keys {
		for _, m := range f.members {
			wg.Go(func() { m.mustRead(key) })
		}
	}
	wg.Wait()
	t.Logf("took %v; faults %v", time.Since(began).Round(time.Millisecond), f.faults())
	if key, n := most(o.loadsSince(began)); n != 1 {
		t.Errorf("%s was loaded %d times", key, n)
	}
	for _, m := range f.members {
		if m.timesOpened() > 0 {
			t.Errorf("process %d: the breaker opened", m.id)
		}
	}
}
