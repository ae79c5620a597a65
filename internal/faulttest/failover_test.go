package faulttest

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

// The primary dies under readers and writers, and the Sentinels make a replica
// the primary. Nobody gets an old value, nobody an error, and the fleet comes
// back by itself.
//
// What is acknowledged and not replicated yet is lost by any failover, an
// invalidation like any write; so the writers rest, and replication catches up,
// before the primary dies. Writes go on while there is none.
func TestAFailoverUnderLoadGivesNoOldValueAndNoError(t *testing.T) {
	r := redistest.StartSentinel(t, 2, 3)
	connect := func() redis.UniversalClient {
		return redis.NewFailoverClient(&redis.FailoverOptions{MasterName: redistest.MasterName, SentinelAddrs: r.SentinelAddrs()})
	}
	o := newOrigin(t, 20*time.Millisecond)
	f := startFleet(t, o, 3, connect, options{}, redisstore.Options{})
	keys := names(5)
	before := f.start(pace{keys: keys, readers: 4, think: 5 * time.Millisecond, writers: 1, limit: 3 * time.Second})
	time.Sleep(500 * time.Millisecond)
	before.stop()
	primary := admin(t, r.Servers[0].Addr)
	if n, err := primary.Wait(t.Context(), 2, 5*time.Second).Result(); err != nil || n != 2 {
		t.Fatalf("%d replicas are in step, %v", n, err)
	}

	r.Servers[0].Stop()
	died := time.Now()
	during := f.start(pace{keys: keys, readers: 4, think: 5 * time.Millisecond, writers: 1, limit: 3 * time.Second})
	sentinel := redis.NewSentinelClient(&redis.Options{Addr: r.Sentinels[0].Addr})
	defer sentinel.Close()
	f.eventually(20*time.Second, "the Sentinels make another server the primary", func() bool {
		addr, err := sentinel.GetMasterAddrByName(t.Context(), redistest.MasterName).Result()
		return err == nil && strings.Join(addr, ":") != r.Servers[0].Addr
	})
	t.Logf("another primary %v after the first one died", time.Since(died).Round(time.Millisecond))
	time.Sleep(500 * time.Millisecond)
	during.stop()
	f.wantFault(store.ClassConnection, store.ClassTimeout)
	f.settled(keys, 10*time.Second)
}

// C065: the server that a client knows becomes a replica. Reads go on, what
// cannot be written is told of, and all is well when it is a primary again.
func TestAPrimaryThatBecomesAReplicaAndBackIsSurvived(t *testing.T) {
	server, other := redistest.Start(t), redistest.Start(t)
	o := newOrigin(t, 20*time.Millisecond)
	f := startFleet(t, o, 3, plain(server.Addr), options{}, redisstore.Options{})
	keys := names(5)
	for _, key := range keys {
		f.members[0].mustRead(key)
	}
	tr := f.start(pace{keys: keys, readers: 4, think: 5 * time.Millisecond, writers: 1, limit: 3 * time.Second})
	time.Sleep(200 * time.Millisecond)
	ctl := admin(t, server.Addr)
	host, port, _ := strings.Cut(other.Addr, ":")
	must(t, ctl.SlaveOf(t.Context(), host, port).Err())
	time.Sleep(time.Second)
	must(t, ctl.SlaveOf(t.Context(), "NO", "ONE").Err())
	time.Sleep(300 * time.Millisecond)
	tr.stop()
	f.wantFault(store.ClassReadOnly)
	f.settled(keys, 10*time.Second)
}

// FailFast: errors come instead of loads, they are the store's, and they end
// with the failover.
func TestFailFastGivesTheStoresFaultForAsLongAsTheStoreIsAway(t *testing.T) {
	server := redistest.Start(t)
	o := newOrigin(t, 20*time.Millisecond)
	f := startFleet(t, o, 2, plain(server.Addr), options{Outage: cacheguard.FailFast}, redisstore.Options{})
	f.members[0].mustRead("k")
	must(t, server.Pause())
	began := time.Now()
	for range 20 {
		_, err := f.members[1].read(t.Context(), "k")
		if fault, ok := errors.AsType[*store.Fault](err); !ok || fault.Op != "load" {
			t.Errorf("Get = %v, want the store's fault", err)
		}
	}
	if n := o.loadsSince(began); len(n) > 0 {
		t.Errorf("the origin was asked: %v", n)
	}
	must(t, server.Resume())
	f.eventually(5*time.Second, "errors end", func() bool {
		_, err := f.members[1].read(t.Context(), "k")
		return err == nil
	})
}
