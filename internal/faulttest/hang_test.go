package faulttest

import (
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
	"github.com/cacheguard-go/cacheguard/internal/faultproxy"
	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

// slack is what a busy machine may add to a bound: little against the seconds for
// which a client with default options hangs. How close to the bound calls come is
// for the load test to say, and logged here.
const slack = time.Second

// herd lets n callers of each member read a key at once, and returns how long
// each took, in order.
func (f *fleet) herd(n int, key string) []time.Duration {
	f.t.Helper()
	var mu sync.Mutex
	var all []time.Duration
	var wg sync.WaitGroup
	for _, m := range f.members {
		for range n {
			wg.Go(func() {
				took, err := m.read(f.t.Context(), key)
				if err != nil {
					f.t.Errorf("process %d: %v", m.id, err)
				}
				mu.Lock()
				defer mu.Unlock()
				all = append(all, took)
			})
		}
	}
	wg.Wait()
	return sorted(all)
}

// hangs are the ways in which a server does not answer although its connections
// stay open, and clients with default options and with good ones.
func hangs(t *testing.T, test func(t *testing.T, connect func() redis.UniversalClient, hang, resume func())) {
	for name, deadlines := range map[string]bool{"default client": false, "client that looks at deadlines": true} {
		t.Run("SIGSTOP/"+name, func(t *testing.T) {
			server := redistest.Start(t)
			connect := func() redis.UniversalClient {
				return redis.NewClient(&redis.Options{Addr: server.Addr, ContextTimeoutEnabled: deadlines})
			}
			test(t, connect, func() { must(t, server.Pause()) }, func() { must(t, server.Resume()) })
		})
		t.Run("half-open/"+name, func(t *testing.T) {
			server := redistest.Start(t)
			p := newProxy(t, server.Addr)
			connect := func() redis.UniversalClient {
				return redis.NewClient(&redis.Options{Addr: p.Addr, ContextTimeoutEnabled: deadlines})
			}
			test(t, connect, func() { p.Set(faultproxy.Faults{Hang: true}) }, func() { p.Set(faultproxy.Faults{}) })
		})
	}
}

func newProxy(t *testing.T, target string) *faultproxy.Proxy {
	t.Helper()
	p, err := faultproxy.Start(target)
	must(t, err)
	t.Cleanup(p.Close)
	return p
}

// P8, C038, C050: Redis hangs under 200 callers of a warm key. The first calls
// wait for one store timeout and the load, and once the breaker is open, nobody
// waits for Redis any more. When Redis is back, one process loads the key for
// all.
func TestAHangingServerCostsEachCallerOneTimeoutAndThenNone(t *testing.T) {
	hangs(t, func(t *testing.T, connect func() redis.UniversalClient, hang, resume func()) {
		const takes = 50 * time.Millisecond
		o := newOrigin(t, takes)
		f := startFleet(t, o, 2, connect, options{}, redisstore.Options{Timeout: 100 * time.Millisecond})
		f.connected()
		f.herd(100, "k")

		hang()
		hung := time.Now()
		first := f.herd(100, "k")
		// A look, and a load: a caller must not pay for a claim too.
		if worst := first[len(first)-1]; worst > 100*time.Millisecond+takes+slack {
			t.Errorf("the slowest of the first calls took %v", worst)
		}
		f.eventually(2*time.Second, "the breakers open", func() bool {
			f.herd(1, "k")
			return f.members[0].breakerIsOpen() && f.members[1].breakerIsOpen()
		})
		var after []time.Duration
		opened := time.Now()
		for range 5 {
			after = append(after, f.herd(100, "k")...)
		}
		sorted(after)
		// A caller may come in the middle of a load, and must not share it (P2):
		// it waits for the rest and for one of its own.
		if worst := after[len(after)-1]; worst > 2*takes+slack {
			t.Errorf("with an open breaker the slowest call took %v", worst)
		}
		if _, n := most(o.loadsSince(opened)); n > 5*2*2 {
			t.Errorf("%d loads for 5 herds at 2 processes", n)
		}
		t.Logf("first: p50 %v max %v; breaker open: p50 %v max %v, of which %v is the load",
			quantile(first, .5), quantile(first, 1), quantile(after, .5), quantile(after, 1), takes)
		f.wantFault(store.ClassTimeout)

		time.Sleep(max(0, time.Second-time.Since(hung)))
		resume()
		back := time.Now()
		f.eventually(2*time.Second+slack, "both processes serve the stored value again", func() bool {
			for _, m := range f.members {
				e, err := m.guard.GetEntry(t.Context(), "k", m.load)
				if err != nil || e.State != cacheguard.Fresh {
					return false
				}
			}
			return true
		})
		t.Logf("normal %v after the server came back", time.Since(back).Round(time.Millisecond))
		returned := time.Now()
		f.herd(100, "k")
		if n := o.loadsSince(returned); len(n) > 0 {
			t.Errorf("loads after all was normal: %v", n)
		}
	})
}

// A near cache answers for as long as the store would have kept what it has,
// and nobody asks the origin.
func TestAHangingServerIsNotNoticedByReadersOfNearCopies(t *testing.T) {
	server := redistest.Start(t)
	o := newOrigin(t, 50*time.Millisecond)
	f := startFleet(t, o, 2, plain(server.Addr), options{Near: cacheguard.Near{MaxEntries: 100, TTL: 50 * time.Millisecond}}, redisstore.Options{})
	f.connected()
	f.herd(20, "k")
	time.Sleep(100 * time.Millisecond)
	f.herd(20, "k") // both have a copy
	must(t, server.Pause())
	began := time.Now()
	for range 10 {
		for _, m := range f.members {
			e, err := m.guard.GetEntry(t.Context(), "k", m.load)
			if err != nil || e.State == cacheguard.Rebuilt {
				t.Errorf("Get = %v, %v", e.State, err)
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	if n := o.loadsSince(began); len(n) > 0 {
		t.Errorf("the origin was asked: %v", n)
	}
	must(t, server.Resume())
	f.settled([]string{"k"}, 5*time.Second)
}

// DEBUG SLEEP and a long script: a server that is away for a moment, again and
// again, under readers and writers.
func TestAServerThatStallsAgainAndAgainIsSurvived(t *testing.T) {
	server := redistest.Start(t, "--enable-debug-command", "yes")
	o := newOrigin(t, 20*time.Millisecond)
	f := startFleet(t, o, 3, plain(server.Addr), options{}, redisstore.Options{Timeout: 100 * time.Millisecond})
	keys := names(5)
	tr := f.start(pace{keys: keys, readers: 5, think: 5 * time.Millisecond, writers: 1, limit: 2 * time.Second})
	ctl := admin(t, server.Addr)
	for range 4 {
		time.Sleep(300 * time.Millisecond)
		must(t, ctl.Do(t.Context(), "DEBUG", "SLEEP", "0.35").Err())
	}
	tr.stop()
	f.wantFault(store.ClassTimeout)
	f.settled(keys, 5*time.Second)
}

// C013, C038: a request that does ten guarded reads of keys that are not there
// ends in time although no read of Redis comes back, whatever the client's
// options are.
func TestARequestOfManyReadsPaysForTheOutageOnce(t *testing.T) {
	server := redistest.Start(t)
	p := newProxy(t, server.Addr)
	connect := func() redis.UniversalClient { return redis.NewClient(&redis.Options{Addr: p.Addr}) } // retries three times, and waits for 3 s
	o := newOrigin(t, 10*time.Millisecond)
	f := startFleet(t, o, 1, connect, options{}, redisstore.Options{Timeout: 100 * time.Millisecond})
	m := f.members[0]
	m.mustRead("warm")
	p.Set(faultproxy.Faults{Latency: 2 * time.Second})
	begin := time.Now()
	for _, key := range names(10) {
		m.mustRead(key)
	}
	// Three time-outs open the breaker.
	if took, limit := time.Since(begin), 3*100*time.Millisecond+10*o.takes+slack; took > limit {
		t.Errorf("ten reads took %v, want at most %v", took, limit)
	}
	p.Set(faultproxy.Faults{})
	f.settled([]string{"warm"}, 5*time.Second)
}
