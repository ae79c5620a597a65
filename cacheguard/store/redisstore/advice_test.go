package redisstore_test

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

// advised is what is said about a client of a server.
func advised(t *testing.T, o *redis.Options) []string {
	t.Helper()
	client := redis.NewClient(o)
	t.Cleanup(func() { client.Close() })
	advice, err := newStore(t, client, patient).Advice(t.Context(), "products")
	if err != nil {
		t.Fatal(err)
	}
	return advice
}

// careful are options that nothing is to be said about.
func careful(addr string) *redis.Options {
	return &redis.Options{Addr: addr, ContextTimeoutEnabled: true}
}

func TestServerThatMayEvictLeasesIsAdvisedAgainst(t *testing.T) {
	server := redistest.Start(t, "--maxmemory", "50mb")
	admin := newClient(t, server.Addr)
	for policy, says := range map[string]int{"noeviction": 0, "allkeys-lru": 1, "volatile-ttl": 1} {
		if err := admin.ConfigSet(t.Context(), "maxmemory-policy", policy).Err(); err != nil {
			t.Fatal(err)
		}
		advice := advised(t, careful(server.Addr))
		if len(advice) != says || says == 1 && !strings.Contains(advice[0], policy) {
			t.Errorf("%s: advice is %q, want %d lines", policy, advice, says)
		}
	}
	if err := admin.ConfigSet(t.Context(), "maxmemory", "0").Err(); err != nil {
		t.Fatal(err)
	}
	if advice := advised(t, careful(server.Addr)); len(advice) != 0 {
		t.Errorf("a server without a limit evicts nothing, and yet: %q", advice)
	}
}

func TestClientOptionsAreAdvisedOn(t *testing.T) {
	addr := sharedServer(t).Addr
	for says, set := range map[string]func(*redis.Options){
		"ContextTimeoutEnabled": func(o *redis.Options) { o.ContextTimeoutEnabled = false },
		"UnstableResp3":         func(o *redis.Options) { o.UnstableResp3 = true },
		"AutoPipelineOptions":   func(o *redis.Options) { o.AutoPipelineOptions = &redis.AutoPipelineOptions{} },
	} {
		o := careful(addr)
		set(o)
		if advice := advised(t, o); len(advice) != 1 || !strings.Contains(advice[0], says) {
			t.Errorf("advice is %q, want one line about %s", advice, says)
		}
	}
}

func TestPipelinesOfAClientThatHasNoUseForThemAreAdvisedOn(t *testing.T) {
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: sharedCluster(t).Addrs(), ContextTimeoutEnabled: true})
	t.Cleanup(func() { client.Close() })
	advice, err := newStore(t, client, pipelined).Advice(t.Context())
	if err != nil || len(advice) != 1 || !strings.Contains(advice[0], "ReadPipelines") {
		t.Errorf("advice is %q, %v; want one line about ReadPipelines", advice, err)
	}
	single := redis.NewClient(careful(sharedServer(t).Addr))
	t.Cleanup(func() { single.Close() })
	if advice, err := newStore(t, single, pipelined).Advice(t.Context()); err != nil || len(advice) != 0 {
		t.Errorf("advice is %q, %v; want none", advice, err)
	}
}

func TestMissingPermissionsAreAdviceNotAnError(t *testing.T) {
	server := redistest.Start(t)
	rules := "on >secret ~products:* &products:events +get +set +eval +evalsha +time +getrange +setrange +exists +rename +unlink +publish +pubsub|numsub +hset +hmget +hdel +pexpire +pttl"
	args := []any{"acl", "setuser", "mute"}
	for _, r := range strings.Fields(rules) { // all but SUBSCRIBE
		args = append(args, r)
	}
	if err := newClient(t, server.Addr).Do(t.Context(), args...).Err(); err != nil {
		t.Fatal(err)
	}
	o := careful(server.Addr)
	o.Username, o.Password = "mute", "secret"
	// INFO is not permitted either: nothing is said about what is not known.
	if advice := advised(t, o); len(advice) != 1 || !strings.Contains(advice[0], "subscribe") {
		t.Errorf("advice is %q, want one line about the subscription", advice)
	}
}

func TestAdviceOfAServerThatIsAwayIsAFault(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", ContextTimeoutEnabled: true, MaxRetries: -1, DialerRetries: 1})
	defer client.Close()
	s := newStore(t, client, redisstore.Options{})
	if _, err := s.Advice(t.Context()); store.ClassOf(err) != store.ClassConnection && store.ClassOf(err) != store.ClassTimeout {
		t.Errorf("Advice = %v, want a fault of class connection", err)
	}
}
