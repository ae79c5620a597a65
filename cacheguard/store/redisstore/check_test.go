package redisstore_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

func TestCheckNamesWhatIsNotPermitted(t *testing.T) {
	server := redistest.Start(t)
	admin := newClient(t, server.Addr)
	commands := strings.Fields("get set eval evalsha subscribe unsubscribe ping time getrange setrange exists rename unlink publish pubsub hset hmget hdel pexpire pttl")
	user := func(name string, rules ...string) *redisstore.Store {
		t.Helper()
		args := append([]any{"acl", "setuser", name, "on", ">secret"}, anys(rules)...)
		if err := admin.Do(t.Context(), args...).Err(); err != nil {
			t.Fatal(err)
		}
		client := redis.NewClient(&redis.Options{Addr: server.Addr, Username: name, Password: "secret"})
		t.Cleanup(func() { client.Close() })
		return newStore(t, client, patient)
	}
	least := []string{"~products:*", "&products:events"}
	for _, c := range commands {
		least = append(least, "+"+c)
	}

	s := user("least", least...)
	if err := s.Check(t.Context(), "products"); err != nil {
		t.Errorf("with the least permissions: %v", err)
	}
	key := store.Key{Space: "products", ID: "42"}
	for name, call := range methods(s, key) {
		if err := call(t.Context()); name != "check" && err != nil && !errors.Is(err, store.ErrFenced) && !errors.Is(err, store.ErrLost) {
			t.Errorf("%s with the least permissions: %v", name, err)
		}
	}
	up := make(chan store.Event, 1)
	stop := s.Listen("products", func(e store.Event) { up <- e })
	select {
	case e := <-up:
		if e.Kind != store.Up {
			t.Errorf("listening with the least permissions: %v", e.Kind)
		}
	case <-time.After(10 * time.Second):
		t.Error("listening with the least permissions: no Up")
	}
	stop()

	for _, c := range commands {
		if c == "ping" || c == "unsubscribe" {
			continue // of a subscription that works; nothing fails without them
		}
		err := user("no-"+c, append(least, "-"+c)...).Check(t.Context(), "products")
		if store.ClassOf(err) != store.ClassDenied || !strings.Contains(err.Error(), ": "+c+" (") {
			t.Errorf("without %s: %v (class %s)", c, err, store.ClassOf(err))
		}
	}
	if err := s.Check(t.Context(), "products", "users"); store.ClassOf(err) != store.ClassDenied {
		t.Errorf("on another space: %v", err)
	}
	names, err := admin.Keys(t.Context(), "*check*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names { // where the user could not delete them
		if left := admin.PTTL(t.Context(), name).Val(); left == -1 || left > time.Second {
			t.Errorf("Check left %s for %v", name, left)
		}
	}
}

func anys(words []string) []any {
	all := make([]any, len(words))
	for i, w := range words {
		all[i] = w
	}
	return all
}

func TestClientsThatCannotKeepTheContractAreRefused(t *testing.T) {
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	defer ring.Close()
	cluster := func(o redis.ClusterOptions) redis.UniversalClient {
		o.Addrs = []string{"127.0.0.1:1"}
		c := redis.NewClusterClient(&o)
		t.Cleanup(func() { c.Close() })
		return c
	}
	cached := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", Protocol: 3, ClientSideCacheConfig: &redis.ClientSideCacheConfig{}})
	defer cached.Close()
	for what, client := range map[string]redis.UniversalClient{
		"nil":                   nil,
		"a nil client":          (*redis.Client)(nil),
		"a nil cluster client":  (*redis.ClusterClient)(nil),
		"a ring":                ring,
		"reads from replicas":   cluster(redis.ClusterOptions{ReadOnly: true}),
		"reads by latency":      cluster(redis.ClusterOptions{RouteByLatency: true}),
		"reads from anybody":    cluster(redis.ClusterOptions{RouteRandomly: true}),
		"reads from own memory": cached,
	} {
		if s, err := redisstore.New(client, redisstore.Options{}); err == nil || s != nil {
			t.Errorf("%s is accepted", what)
		}
	}
}

func TestOptionsOutOfRangeAreRefused(t *testing.T) {
	client := newClient(t, "127.0.0.1:1")
	for _, o := range []redisstore.Options{
		{Timeout: -1}, {Timeout: time.Microsecond}, {Timeout: time.Hour},
		{MaxCalls: -1}, {MaxCalls: 1 << 20}, {StageAbove: -1}, {MaxValue: -1}, {MaxValue: 1 << 30}, {ReadPipelines: -1}, {ReadPipelines: 65},
	} {
		if _, err := redisstore.New(client, o); err == nil || !strings.Contains(err.Error(), "write a") {
			t.Errorf("%+v: %v", o, err)
		}
	}
}
