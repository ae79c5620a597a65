package faulttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
	"github.com/cacheguard-go/cacheguard/internal/faultproxy"
	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

// Resets, late and slow replies, one after the other, under readers and
// writers.
func TestABadNetworkUnderLoadGivesNoOldValueAndNoError(t *testing.T) {
	server := redistest.Start(t)
	p := newProxy(t, server.Addr)
	o := newOrigin(t, 20*time.Millisecond)
	f := startFleet(t, o, 3, plain(p.Addr), options{}, redisstore.Options{Timeout: 100 * time.Millisecond})
	keys := names(5)
	tr := f.start(pace{keys: keys, readers: 5, think: 5 * time.Millisecond, writers: 1, limit: 2 * time.Second})
	for range 10 {
		time.Sleep(50 * time.Millisecond)
		p.Reset()
	}
	for _, faults := range []faultproxy.Faults{
		{Latency: 20 * time.Millisecond},
		{Latency: 150 * time.Millisecond}, // past the store's bound
		{Rate: 2000},
		{Refuse: true},
		{Hang: true},
	} {
		f.breakersClose(5 * time.Second) // or nobody would notice
		p.Set(faults)
		if faults.Refuse {
			p.Reset()
		}
		time.Sleep(400 * time.Millisecond)
		p.Set(faultproxy.Faults{})
		time.Sleep(100 * time.Millisecond)
	}
	tr.stop()
	f.wantFault(store.ClassConnection)
	f.wantFault(store.ClassTimeout)
	f.settled(keys, 5*time.Second)
}

// C028: the reply to a claim, or to a fill, is lost with its connection. It is
// asked again with the same holder or token: one load, one value, and no lease
// that others would wait for.
func TestALostReplyIsAskedAgainAndCostsNoSecondLoad(t *testing.T) {
	server := redistest.Start(t)
	// Which scripts these are is not known here: the first and the second
	// EVALSHA of a load are its claim and its fill.
	for name, loses := range map[string]int64{"claim": 1, "fill": 2} {
		t.Run(name, func(t *testing.T) {
			p := newProxy(t, server.Addr)
			o := newOrigin(t, 20*time.Millisecond)
			f := startFleet(t, o, 2, plain(p.Addr), options{Namespace: "lost-" + name}, redisstore.Options{Timeout: time.Second})
			f.connected()
			f.members[0].mustRead("warms the scripts up")
			var scripts, lost atomic.Int64
			p.Set(faultproxy.Faults{Fate: func(request []byte) faultproxy.Fate {
				if !bytes.Contains(bytes.ToLower(request), []byte("evalsha")) || scripts.Add(1) != loses {
					return faultproxy.Fate{}
				}
				lost.Add(1)
				return faultproxy.Fate{Lost: true}
			}})
			began := time.Now()
			f.members[0].mustRead("k")
			p.Set(faultproxy.Faults{})
			if lost.Load() != 1 {
				t.Fatalf("%d replies were lost", lost.Load())
			}
			f.wantFault(store.ClassConnection)
			e, err := f.members[1].guard.GetEntry(t.Context(), "k", f.members[1].load)
			if err != nil || e.State != cacheguard.Fresh {
				t.Errorf("another process gets %v, %v; want the stored value", e.State, err)
			}
			if n := o.loadsSince(began)["k"]; n != 1 {
				t.Errorf("%d loads, want 1", n)
			}
			if took := time.Since(began); took > time.Second {
				t.Errorf("it took %v: somebody waited for a lease to run out", took)
			}
		})
	}
}

// C027: callers leave while the replies to their claims are under way. No lease
// is left behind that others would wait for.
func TestCallersWhoLeaveEarlyLeaveNoLeaseBehind(t *testing.T) {
	server := redistest.Start(t)
	p := newProxy(t, server.Addr)
	o := newOrigin(t, time.Millisecond)
	f := startFleet(t, o, 2, plain(p.Addr), options{}, redisstore.Options{})
	f.members[0].mustRead("warm")
	p.Set(faultproxy.Faults{Latency: 50 * time.Millisecond})
	keys := names(50)
	var wg sync.WaitGroup
	for i, key := range keys {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(20+3*i)*time.Millisecond)
			defer cancel()
			if _, err := f.members[0].read(ctx, key); err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	p.Set(faultproxy.Faults{})
	ctl := admin(t, server.Addr)
	f.eventually(5*time.Second, "no lease is held", func() bool {
		for _, key := range keys {
			n, err := ctl.HExists(t.Context(), "cacheguard:{"+key+"}:lease", "holder").Result()
			if err != nil || n {
				return false
			}
		}
		return true
	})
	begin := time.Now()
	for _, key := range keys {
		f.members[1].mustRead(key)
	}
	if took := time.Since(begin); took > 2*time.Second {
		t.Errorf("the others waited %v", took)
	}
}

// C051: the reply to what a client sends when it connects comes after the
// client has stopped waiting for it. Whatever the client makes of its
// connection then, no key is given the value of another.
func TestAReplyThatComesAfterItsTimeoutIsNeverTheAnswerToAnotherKey(t *testing.T) {
	server := redistest.Start(t)
	p := newProxy(t, server.Addr)
	connect := func() redis.UniversalClient {
		return redis.NewClient(&redis.Options{Addr: p.Addr, PoolSize: 2, ReadTimeout: 30 * time.Millisecond})
	}
	o := newOrigin(t, time.Millisecond)
	keys := names(20)
	filler := startFleet(t, o, 1, plain(server.Addr), options{}, redisstore.Options{})
	for _, key := range keys {
		filler.members[0].mustRead(key)
	}
	var late atomic.Int64
	p.Set(faultproxy.Faults{Fate: func(request []byte) faultproxy.Fate {
		r := strings.ToLower(string(request))
		identity := strings.Contains(r, "hello") || strings.Contains(r, "setinfo")
		if n := late.Add(1); identity && n%2 == 0 || n%20 == 0 {
			return faultproxy.Fate{Late: 50 * time.Millisecond}
		}
		return faultproxy.Fate{}
	}})
	f := startFleet(t, o, 2, connect, options{}, redisstore.Options{Timeout: 60 * time.Millisecond})
	tr := f.start(pace{keys: keys, readers: 5, think: 2 * time.Millisecond, limit: 2 * time.Second})
	time.Sleep(1500 * time.Millisecond)
	tr.stop()
	f.wantFault(store.ClassTimeout, store.ClassConnection, store.ClassPool)
	p.Set(faultproxy.Faults{})
	f.settled(keys, 5*time.Second)
}

// C066: more callers than connections, who all have too little time, for a
// while: nothing is left of them.
func TestAFullPoolUnderImpatientCallersLeavesNothingBehind(t *testing.T) {
	server := redistest.Start(t)
	p := newProxy(t, server.Addr)
	connect := func() redis.UniversalClient { return redis.NewClient(&redis.Options{Addr: p.Addr, PoolSize: 10}) }
	o := newOrigin(t, 5*time.Millisecond)
	f := startFleet(t, o, 1, connect, options{}, redisstore.Options{MaxCalls: 100, Timeout: 100 * time.Millisecond})
	m := f.members[0]
	keys := names(1000)
	p.Set(faultproxy.Faults{Latency: 30 * time.Millisecond})
	burst := func(d time.Duration) (answered, left int64) {
		var yes, no atomic.Int64
		var wg sync.WaitGroup
		end := time.Now().Add(d)
		for i := range 500 {
			wg.Go(func() {
				for n := i; time.Now().Before(end); n += 7 {
					ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
					switch took, err := m.read(ctx, keys[n%len(keys)]); {
					case err == nil:
						yes.Add(1)
					case errors.Is(err, context.DeadlineExceeded):
						no.Add(1)
						if took > 20*time.Millisecond+slack {
							t.Errorf("a caller with 20 ms was held for %v", took)
						}
					default:
						t.Error(err)
					}
					cancel()
				}
			})
		}
		wg.Wait()
		return yes.Load(), no.Load()
	}
	burst(2 * time.Second) // to the size that it needs
	o.forget()
	before := footprintOf(t)
	answered, left := burst(3 * time.Second)
	o.forget()
	after := footprintOf(t)
	t.Logf("%d answered, %d left; before %v, after %v", answered, left, before, after)
	if left == 0 {
		t.Error("nobody left: the pool was never full")
	}
	f.wantFault(store.ClassPool, store.ClassTimeout)
	// Workers of the store that wait for the next call, 64 at most, and what serves
	// the connections of the pool in the client and in the proxy. A leak would be of
	// as many as have left.
	if after.goroutines > before.goroutines+64+3*10 {
		t.Errorf("goroutines grew from %d to %d", before.goroutines, after.goroutines)
	}
	if limit := before.heap + before.heap/2 + 8<<20; after.heap > limit {
		t.Errorf("the heap grew from %d to %d bytes", before.heap, after.heap)
	}
	p.Set(faultproxy.Faults{})
	f.settled(keys[:10], 5*time.Second)
}

// Connections are killed at the server, subscriptions and others, all the time.
func TestKilledConnectionsUnderLoadGiveNoOldValueAndNoError(t *testing.T) {
	for kind, class := range map[string]store.Class{"pubsub": "", "normal": store.ClassConnection} {
		t.Run(kind, func(t *testing.T) {
			server := redistest.Start(t)
			o := newOrigin(t, 20*time.Millisecond)
			f := startFleet(t, o, 3, plain(server.Addr), options{}, redisstore.Options{})
			keys := names(5)
			f.connected()
			tr := f.start(pace{keys: keys, readers: 5, think: 5 * time.Millisecond, writers: 1, limit: 2 * time.Second})
			ctl := admin(t, server.Addr)
			killed := int64(0)
			for range 30 {
				time.Sleep(40 * time.Millisecond)
				n, err := ctl.ClientKillByFilter(t.Context(), "TYPE", kind, "SKIPME", "yes").Result()
				must(t, err)
				killed += n
			}
			tr.stop()
			if killed < 10 {
				t.Errorf("only %d connections were killed", killed)
			}
			if class != "" {
				f.wantFault(class)
			}
			f.settled(keys, 5*time.Second)
			f.connected()
		})
	}
}

// Near copies are forgotten when the subscription is lost: what was written
// while nobody listened is seen at once when it is back.
func TestAWriteThatWasNotHeardOfIsSeenOnceTheSubscriptionIsBack(t *testing.T) {
	server := redistest.Start(t)
	p := newProxy(t, server.Addr)
	o := newOrigin(t, time.Millisecond)
	near := options{Near: cacheguard.Near{MaxEntries: 100, TTL: time.Minute}}
	f := startFleet(t, o, 1, plain(p.Addr), near, redisstore.Options{})
	writer := startFleet(t, o, 1, plain(server.Addr), options{}, redisstore.Options{}).members[0]
	f.connected()
	m := f.members[0]
	m.mustRead("k")
	p.Set(faultproxy.Faults{Refuse: true})
	p.Reset()
	v := o.commit("k")
	must(t, writer.guard.Invalidate(t.Context(), "k"))
	p.Set(faultproxy.Faults{})
	f.eventually(5*time.Second, "the near copy is gone", func() bool {
		value, err := m.guard.Get(t.Context(), "k", m.load)
		got, _ := o.versionOf("k", value)
		return err == nil && got == v
	})
}

// footprint is what a process takes.
type footprint struct {
	goroutines int
	heap       uint64
}

func (f footprint) String() string {
	return fmt.Sprintf("%d goroutines and %d KiB", f.goroutines, f.heap>>10)
}
