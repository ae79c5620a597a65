package faulttest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

// C068: the server is full and evicts nothing. Loads are answered and not
// stored; what is stored is served; and there is no loop of loads: one load for
// those who are there, as without a store.
func TestAFullServerServesWhatItHasAndEverythingElseIsLoaded(t *testing.T) {
	server := redistest.Start(t, "--maxmemory-policy", "noeviction")
	o := newOrigin(t, 20*time.Millisecond)
	o.size = 100 << 10
	f := startFleet(t, o, 2, plain(server.Addr), options{}, redisstore.Options{Timeout: time.Second})
	f.connected()
	f.members[0].mustRead("stored")
	ctl := admin(t, server.Addr)
	limit(t, ctl, 64<<10)
	keys := names(100)
	for _, key := range keys { // until it is full
		f.members[0].mustRead(key)
	}
	f.wantFault(store.ClassFull)
	began := time.Now()
	tr := f.start(pace{keys: append(keys[90:], "stored"), readers: 5, think: 5 * time.Millisecond, limit: 3 * time.Second})
	time.Sleep(time.Second)
	tr.stop()
	loads := o.loadsSince(began)
	if loads["stored"] > 0 {
		t.Errorf("what is stored was loaded %d times", loads["stored"])
	}
	// One after the other in each of two processes, and no more.
	if key, n := most(loads); n > 2*int(time.Since(began)/o.takes)+2 {
		t.Errorf("%s was loaded %d times", key, n)
	}
	for _, m := range f.members {
		if m.breakerIsOpen() {
			t.Error("the breaker is open although the server can be read")
		}
	}
	must(t, ctl.ConfigSet(t.Context(), "maxmemory", "0").Err())
	f.settled(keys[:10], 10*time.Second)
}

// C068: leases are granted and what is loaded under them is refused, for its size
// or by the server. No caller waits for more than a load of another process, one
// of its second opinion, and its own.
func TestValuesThatAreRefusedAreLoadedByEachProcessAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		shut, open []any
		opts       redisstore.Options
		class      store.Class
	}{
		"larger than MaxValue": {opts: redisstore.Options{MaxValue: 4 << 10}, class: store.ClassFull},
		"may not be renamed": {class: store.ClassDenied,
			shut: []any{"acl", "setuser", "default", "-rename"}, open: []any{"acl", "setuser", "default", "+@all"}},
	} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t)
			ctl := admin(t, server.Addr)
			o := newOrigin(t, 300*time.Millisecond)
			o.size = 20 << 10 // it is staged, and renamed
			const members = 10
			c.opts.Timeout = time.Second
			f := startFleet(t, o, members, plain(server.Addr), options{}, c.opts)
			f.connected()
			if c.shut != nil {
				must(t, ctl.Do(t.Context(), c.shut...).Err())
			}
			began := time.Now()
			took := f.herd(10, "k")
			if worst := took[len(took)-1]; worst > 3*o.takes+slack {
				t.Errorf("the slowest caller waited %v; one after the other are %v", worst, members*o.takes)
			}
			if _, n := most(o.loadsSince(began)); n > 2*members {
				t.Errorf("%d loads in %d processes", n, members)
			}
			t.Logf("the slowest caller waited %v", took[len(took)-1])
			f.wantFault(c.class)
			if c.open != nil {
				must(t, ctl.Do(t.Context(), c.open...).Err())
				f.settled([]string{"k"}, 5*time.Second)
			}
		})
	}
}

// limit makes the server as full as it is, and a little more.
func limit(t *testing.T, ctl *redis.Client, more int64) {
	t.Helper()
	info, err := ctl.Info(t.Context(), "memory").Result()
	must(t, err)
	var used int64
	for line := range strings.Lines(info) {
		if v, ok := strings.CutPrefix(line, "used_memory:"); ok {
			fmt.Sscan(v, &used)
		}
	}
	must(t, ctl.ConfigSet(t.Context(), "maxmemory", fmt.Sprint(used+more)).Err())
}

// C062: the server evicts what it likes, lease records too. A record that is
// gone is a lost lease: the load goes on, its fill is refused, its callers are
// answered, and nothing old lands.
func TestAServerThatEvictsEverythingCostsLoadsAndNoOldValue(t *testing.T) {
	server := redistest.Start(t, "--maxmemory-policy", "allkeys-lru")
	o := newOrigin(t, 20*time.Millisecond)
	o.size = 20 << 10
	f := startFleet(t, o, 3, plain(server.Addr), options{}, redisstore.Options{Timeout: time.Second})
	ctl := admin(t, server.Addr)
	limit(t, ctl, 1<<20) // about thirty values
	keys := names(200)
	tr := f.start(pace{keys: keys, readers: 5, think: 2 * time.Millisecond, writers: 1, limit: 3 * time.Second})
	time.Sleep(2 * time.Second)
	tr.stop()
	info, err := ctl.Info(t.Context(), "stats").Result()
	must(t, err)
	if strings.Contains(info, "evicted_keys:0\r") {
		t.Error("nothing was evicted")
	}
	must(t, ctl.ConfigSet(t.Context(), "maxmemory", "0").Err())
	f.settled(keys[:20], 10*time.Second)
}

// C050, C058: everything is gone at once under load, again and again. The
// origin is asked once for each key that is asked for, by one process.
func TestAFlushUnderLoadIsOneLoadForEachKeyInTheFleet(t *testing.T) {
	server := redistest.Start(t)
	o := newOrigin(t, 20*time.Millisecond)
	f := startFleet(t, o, 5, plain(server.Addr), options{}, redisstore.Options{Timeout: 2 * time.Second})
	f.connected()
	keys := names(1000)
	warm(f, keys)
	ctl := admin(t, server.Addr)
	for range 2 {
		must(t, ctl.FlushAll(t.Context()).Err())
		o.forget()
		flushed := time.Now()
		tr := f.start(pace{keys: keys, readers: 20, think: 25 * time.Millisecond, limit: 4 * time.Second}) // 4,000 a second
		time.Sleep(time.Second)
		tr.stop()
		loads := o.loadsSince(flushed)
		if len(loads) < 500 {
			t.Errorf("only %d keys were asked for", len(loads))
		}
		for key, n := range loads {
			if n != 1 {
				t.Errorf("%s was loaded %d times", key, n)
			}
		}
		t.Logf("at most %d loads at once", o.mostAtOnce())
	}
	f.settled(keys[:20], 5*time.Second)
}

// warm reads all keys once, a few at a time.
func warm(f *fleet, keys []string) {
	f.t.Helper()
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			m := f.members[i%len(f.members)]
			for n := i; n < len(keys); n += 50 {
				if _, err := m.read(f.t.Context(), keys[n]); err != nil {
					f.t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// C050: Redis restarts empty, and reads its data set for a while. Meanwhile each
// process loads for itself, with a bound over all keys; when Redis is there,
// nothing more than one load a key happens in the fleet.
func TestAColdRestartIsNoStormOnTheOrigin(t *testing.T) {
	server := redistest.Start(t)
	o := newOrigin(t, 20*time.Millisecond)
	const members, bound = 5, 4
	f := startFleet(t, o, members, plain(server.Addr), options{OutageLoads: bound}, redisstore.Options{Timeout: 200 * time.Millisecond})
	f.connected()
	keys := names(200)
	warm(f, keys)

	// Something to read that takes a second or so: each key of it takes 1 ms.
	ctl := admin(t, server.Addr)
	must(t, ctl.FlushAll(t.Context()).Err())
	pipe := ctl.Pipeline()
	for i := range 1000 {
		pipe.Set(t.Context(), fmt.Sprint("ballast:", i), "x", 0)
	}
	_, err := pipe.Exec(t.Context())
	must(t, err)
	must(t, ctl.Save(t.Context()).Err())
	o.forget()
	stopped := time.Now()
	tr := f.start(pace{keys: keys, readers: 10, think: 10 * time.Millisecond, limit: 6 * time.Second,
		tolerate: isAny(cacheguard.ErrWaitLimit)})
	must(t, server.Relaunch("--key-load-delay", "1500", "--loading-process-events-interval-bytes", "1024"))
	sawLoading := false
	f.eventually(15*time.Second, "the server has read its data set", func() bool {
		err := ctl.Ping(t.Context()).Err()
		sawLoading = sawLoading || redis.HasErrorPrefix(err, "LOADING")
		return err == nil
	})
	if !sawLoading {
		t.Error("the server was never seen loading")
	}
	if n := o.mostAtOnce(); n > members*bound {
		t.Errorf("%d loads at once while Redis was away, want at most %d for each of %d processes", n, bound, members)
	}
	t.Logf("away for %v", time.Since(stopped).Round(time.Millisecond))
	f.breakersClose(2*time.Second + slack)
	// Loads that began without a lease may still be running.
	time.Sleep(2 * o.takes)
	normal := time.Now()
	time.Sleep(500 * time.Millisecond)
	tr.stop()
	for key, n := range o.loadsSince(normal) {
		if n > 1 {
			t.Errorf("%s was loaded %d times after Redis was back", key, n)
		}
	}
	f.wantFault(store.ClassLoading, store.ClassConnection) // while the breaker is open only its probe meets LOADING
	f.settled(keys[:20], 5*time.Second)
}

// NOAUTH, NOPERM: a server that lets nobody in is out of reach, and is used
// again when it does.
func TestAServerThatDeniesEverythingIsOutOfReachUntilItDoesNot(t *testing.T) {
	for name, deny := range map[string]struct{ shut, open []any }{
		"NOAUTH":     {shut: []any{"config", "set", "requirepass", "secret"}, open: []any{"config", "set", "requirepass", ""}},
		"NOPERM":     {shut: []any{"acl", "setuser", "default", "-@all", "+acl", "+auth"}, open: []any{"acl", "setuser", "default", "+@all"}},
		"no scripts": {shut: []any{"acl", "setuser", "default", "-eval", "-evalsha"}, open: []any{"acl", "setuser", "default", "+@all"}}, // C088
	} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t)
			ctl := admin(t, server.Addr)
			must(t, ctl.Ping(t.Context()).Err())
			connect := func() redis.UniversalClient {
				return redis.NewClient(&redis.Options{Addr: server.Addr, ConnMaxLifetime: 50 * time.Millisecond})
			}
			o := newOrigin(t, 5*time.Millisecond)
			f := startFleet(t, o, 2, connect, options{}, redisstore.Options{})
			f.members[0].mustRead("k")
			must(t, ctl.Conn().Do(t.Context(), deny.shut...).Err())
			time.Sleep(60 * time.Millisecond) // connections that were let in are at the end of their lives
			for i := range 10 {
				for _, m := range f.members {
					m.mustRead(fmt.Sprint("new", i))
				}
			}
			f.wantFault(store.ClassDenied)
			if name == "NOAUTH" {
				must(t, ctl.Do(t.Context(), "auth", "secret").Err())
			}
			must(t, ctl.Do(t.Context(), deny.open...).Err())
			f.settled([]string{"k", "new1"}, 5*time.Second)
		})
	}
}

// A flush takes the lease of a load under way with it: its fill is refused, its
// callers are answered.
func TestAFlushInTheMiddleOfALoadAnswersItsCallers(t *testing.T) {
	server := redistest.Start(t)
	o := newOrigin(t, 200*time.Millisecond)
	f := startFleet(t, o, 3, plain(server.Addr), options{}, redisstore.Options{Timeout: time.Second})
	f.connected()
	ctl := admin(t, server.Addr)
	ctx, cancel := context.WithCancel(t.Context())
	var flusher sync.WaitGroup
	flusher.Go(func() {
		for pause(ctx, 50*time.Millisecond) {
			must(t, ctl.FlushAll(t.Context()).Err())
		}
	})
	began := time.Now()
	took := f.herd(20, "k")
	cancel()
	flusher.Wait()
	// A load each for those who were there, and perhaps one for those who came
	// in its middle.
	if worst := took[len(took)-1]; worst > 3*o.takes+slack {
		t.Errorf("the slowest caller waited %v", worst)
	}
	if _, n := most(o.loadsSince(began)); n > 2*len(f.members) {
		t.Errorf("%d loads in %d processes", n, len(f.members))
	}
	f.settled([]string{"k"}, 5*time.Second)
}

// C031, C079: whatever goes wrong meanwhile, no key is ever in the server without
// an end, and when nobody asks any more the server is empty.
func TestNothingStaysInTheServerForEver(t *testing.T) {
	server := redistest.Start(t)
	p := newProxy(t, server.Addr)
	o := newOrigin(t, 5*time.Millisecond)
	o.size = 20 << 10 // staged under a side key
	opts := options{LoadLimit: time.Second, Lifetime: cacheguard.Lifetime{TTL: 300 * time.Millisecond, Grace: 300 * time.Millisecond}}
	f := startFleet(t, o, 3, plain(p.Addr), opts, redisstore.Options{})
	ctl := admin(t, server.Addr)
	tr := f.start(pace{keys: names(500), readers: 10, think: 2 * time.Millisecond, writers: 2, limit: 5 * time.Second})
	seen := 0
	for i := range 40 {
		time.Sleep(50 * time.Millisecond)
		if i%10 == 9 {
			p.Reset() // scripts whose replies are lost, pipelines that are cut
		}
		seen += f.allHaveAnEnd(ctl)
	}
	tr.stop()
	if seen < 1000 {
		t.Errorf("only %d keys were looked at", seen)
	}
	f.eventually(15*time.Second, "the server is empty", func() bool {
		n, err := ctl.DBSize(t.Context()).Result()
		return err == nil && n == 0
	})
}

// allHaveAnEnd checks that every key in the server expires, and returns how many
// it has seen.
func (f *fleet) allHaveAnEnd(ctl *redis.Client) int {
	f.t.Helper()
	keys, err := ctl.Keys(f.t.Context(), "*").Result()
	must(f.t, err)
	left := make(map[string]*redis.DurationCmd)
	_, err = ctl.Pipelined(f.t.Context(), func(p redis.Pipeliner) error {
		for _, key := range keys {
			left[key] = p.PTTL(f.t.Context(), key)
		}
		return nil
	})
	must(f.t, err)
	for key, cmd := range left {
		if cmd.Val() == -1 {
			f.t.Errorf("%s stays for ever", key)
		}
	}
	return len(keys)
}
