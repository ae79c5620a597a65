package redisstore_test

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

// ear hears the events of a space.
type ear struct {
	t      *testing.T
	events chan store.Event
}

func listen(t *testing.T, s store.Store, space string) (*ear, func()) {
	t.Helper()
	e := &ear{t, make(chan store.Event, 1000)}
	stop := s.Listen(space, func(event store.Event) { e.events <- event })
	t.Cleanup(stop)
	return e, stop
}

func (e *ear) next(want store.EventKind) store.Event {
	e.t.Helper()
	select {
	case event := <-e.events:
		if event.Kind != want {
			e.t.Fatalf("heard %v, want %v", event.Kind, want)
		}
		return event
	case <-time.After(15 * time.Second):
		e.t.Fatalf("%v was not heard", want)
		return store.Event{}
	}
}

// connections are the subscriptions that a server has.
func connections(t *testing.T, client *redis.Client) int {
	t.Helper()
	list, err := client.Do(t.Context(), "client", "list", "type", "pubsub").Text()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(list, "\n")
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

func TestAllSpacesShareOneConnectionThatEndsWithTheLastListener(t *testing.T) {
	server := redistest.Start(t)
	behind := newClient(t, server.Addr)
	client := newClient(t, server.Addr)
	s := newStore(t, client, patient)
	var stops []func()
	keys := []store.Key{newKey(t), newKey(t), newKey(t)}
	var ears []*ear
	for _, key := range keys {
		e, stop := listen(t, s, key.Space)
		ears, stops = append(ears, e), append(stops, stop)
	}
	for i, e := range ears {
		e.next(store.Up)
		one(t, s.Invalidate(t.Context(), keys[i:i+1]))
		e.next(store.Invalidated)
	}
	again, stopAgain := listen(t, s, keys[0].Space)
	again.next(store.Up) // at once: the space is up already
	if n := connections(t, behind); n != 1 {
		t.Errorf("%d connections for three spaces", n)
	}
	if stats := client.PoolStats(); stats.TotalConns-stats.IdleConns != 0 {
		t.Errorf("%d pooled connections are held", stats.TotalConns-stats.IdleConns)
	}
	stops[1]()
	one(t, s.Invalidate(t.Context(), keys))
	ears[0].next(store.Invalidated)
	ears[2].next(store.Invalidated)
	again.next(store.Invalidated)
	eventually(t, "the channel that nobody wants is given up", func() bool {
		return behind.PubSubNumSub(t.Context(), redisstore.ChannelName(keys[1].Space)).Val()[redisstore.ChannelName(keys[1].Space)] == 0
	})
	if len(ears[1].events) > 0 {
		t.Error("an event after stop")
	}
	stops[0]()
	stops[2]()
	stopAgain()
	eventually(t, "the connection ends", func() bool { return connections(t, behind) == 0 })
	e, _ := listen(t, s, keys[1].Space)
	e.next(store.Up) // and comes again
}

func TestALostSubscriptionIsDownUntilItWorksAgain(t *testing.T) {
	server := redistest.Start(t)
	behind := newClient(t, server.Addr)
	var faults atomic.Int64
	s := newStore(t, newClient(t, server.Addr), redisstore.Options{Timeout: 5 * time.Second, OnFault: func(error) { faults.Add(1) }})
	key := newKey(t)
	e, _ := listen(t, s, key.Space)
	e.next(store.Up)
	if err := behind.Do(t.Context(), "client", "kill", "type", "pubsub").Err(); err != nil {
		t.Fatal(err)
	}
	e.next(store.Down)
	e.next(store.Up)
	one(t, s.Invalidate(t.Context(), []store.Key{key}))
	e.next(store.Invalidated)
	if faults.Load() != 1 {
		t.Errorf("%d faults were reported, want 1", faults.Load())
	}

	server.Stop()
	e.next(store.Down)
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.next(store.Up)
	one(t, s.Invalidate(t.Context(), []store.Key{key}))
	e.next(store.Invalidated)
}

// A connection can be lost without a word: the server hangs, a firewall forgets.
func TestASilentSubscriptionIsDown(t *testing.T) {
	server := redistest.Start(t)
	s := newStore(t, newClient(t, server.Addr), patient)
	key := newKey(t)
	e, _ := listen(t, s, key.Space)
	e.next(store.Up)
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	e.next(store.Down)
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
	e.next(store.Up)
	one(t, s.Invalidate(t.Context(), []store.Key{key}))
	e.next(store.Invalidated)
}

// A subscription in which nothing happens is asked whether it lives, and stays.
func TestAQuietSubscriptionStaysUp(t *testing.T) {
	backends(t, func(t *testing.T, connect func(testing.TB) redis.UniversalClient) {
		t.Parallel()
		s := newStore(t, connect(t), patient)
		e, _ := listen(t, s, newKey(t).Space)
		e.next(store.Up)
		select {
		case event := <-e.events:
			t.Errorf("heard %v", event.Kind)
		case <-time.After(4 * time.Second): // longer than two checks
		}
	})
}

func TestASubscriptionThatIsDeniedIsReportedAndNothingFails(t *testing.T) {
	server := redistest.Start(t)
	admin := newClient(t, server.Addr)
	if err := admin.Do(t.Context(), "acl", "setuser", "deaf", "on", ">secret", "~*", "+@all", "resetchannels").Err(); err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(&redis.Options{Addr: server.Addr, Username: "deaf", Password: "secret"})
	t.Cleanup(func() { client.Close() })
	faults := make(chan error, 10)
	s := newStore(t, client, redisstore.Options{Timeout: 5 * time.Second, OnFault: func(err error) { faults <- err }})
	key := newKey(t)
	e, _ := listen(t, s, key.Space)
	select {
	case err := <-faults:
		var f *store.Fault
		if !errors.As(err, &f) || f.Op != "listen" || f.Class != store.ClassDenied {
			t.Errorf("reported: %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("nothing was reported")
	}
	if err := s.Set(t.Context(), store.Write{Key: key, Content: value("v")}); err != nil {
		t.Errorf("a set that may not publish: %v", err)
	}
	wantPayload(t, s, key, "v")
	if len(e.events) > 0 {
		t.Errorf("heard %v", (<-e.events).Kind)
	}
}

func TestMessagesOfOthersAreIgnored(t *testing.T) {
	server := redistest.Start(t)
	behind := newClient(t, server.Addr)
	s := newStore(t, newClient(t, server.Addr), patient)
	key := newKey(t)
	e, _ := listen(t, s, key.Space)
	e.next(store.Up)
	for _, m := range []string{"", "x", "\x05", "\x05\x00\x00\x00\x00\x00\x00\x00", "\x01\x00\x00\x00\x00\x00\x00\x00\x00id",
		"\x08\x00\x00\x00\x00\x00\x00\x00\x00id", "\x05\xff\xff\xff\xff\xff\xff\xff\xffid", strings.Repeat("x", 1000)} {
		if err := behind.Publish(t.Context(), redisstore.ChannelName(key.Space), m).Err(); err != nil {
			t.Fatal(err)
		}
	}
	one(t, s.Invalidate(t.Context(), []store.Key{key}))
	e.next(store.Invalidated)
}

// The last listener stops, its connection is about to end, and another comes.
// What the new one hears as Up must not be the old connection.
func TestAListenerThatFollowsTheLastOneMissesNothing(t *testing.T) {
	s := newStore(t, newClient(t, sharedServer(t).Addr), patient)
	key := newKey(t)
	for range 200 {
		e, stop := listen(t, s, key.Space)
		e.next(store.Up)
		one(t, s.Invalidate(t.Context(), []store.Key{key}))
		e.next(store.Invalidated)
		stop()
	}
}

// A message reaches every node of a cluster, and each passes it to its own
// subscribers: it is these that cost, so a fleet must not all be at one node.
func TestAFleetListensAtAllNodesOfACluster(t *testing.T) {
	addrs := sharedCluster(t).Addrs()
	key := newKey(t)
	const processes = 24 // that one of three nodes has none of them: once in 5,000 runs; that one has all: never
	var up sync.WaitGroup
	for range processes {
		client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
		t.Cleanup(func() { client.Close() })
		s := newStore(t, client, patient)
		up.Add(1)
		once := sync.OnceFunc(up.Done)
		t.Cleanup(s.Listen(key.Space, func(e store.Event) {
			if e.Kind == store.Up {
				once()
			}
		}))
	}
	up.Wait()
	all, most := int64(0), int64(0)
	for _, addr := range addrs {
		channel := redisstore.ChannelName(key.Space)
		n, err := newClient(t, addr).PubSubNumSub(t.Context(), channel).Result()
		if err != nil {
			t.Fatal(err)
		}
		all, most = all+n[channel], max(most, n[channel])
	}
	if all != processes || most == processes {
		t.Errorf("%d of %d processes listen at one node, %d in all", most, processes, all)
	}
}
