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

// The primary dies and Sentinel promotes its replica: the store goes on by
// itself, with the record as far as it was replicated, and tokens still grow.
func TestAStoreFollowsSentinelToTheNewPrimary(t *testing.T) {
	primary, replica := redistest.Start(t), redistest.Start(t, "--repl-diskless-sync-delay", "0")
	onPrimary, onReplica := newClient(t, primary.Addr), newClient(t, replica.Addr)
	if err := onPrimary.ConfigSet(t.Context(), "repl-diskless-sync-delay", "0").Err(); err != nil {
		t.Fatal(err)
	}
	host, port, _ := strings.Cut(primary.Addr, ":")
	if err := onReplica.SlaveOf(t.Context(), host, port).Err(); err != nil {
		t.Fatal(err)
	}
	sentinel, err := redistest.StartSentinel(t.Context(), t.TempDir(), "main", primary)
	redistest.Need(t, err)
	t.Cleanup(sentinel.Stop)
	watch := redis.NewSentinelClient(&redis.Options{Addr: sentinel.Addr})
	t.Cleanup(func() { watch.Close() })
	eventually(t, "Sentinel knows the replica", func() bool {
		replicas, err := watch.Replicas(t.Context(), "main").Result()
		return err == nil && len(replicas) == 1 && replicas[0]["master-link-status"] == "ok"
	})

	client := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "main", SentinelAddrs: []string{sentinel.Addr}})
	t.Cleanup(func() { client.Close() })
	s := newStore(t, client, redisstore.Options{Timeout: time.Second})
	key := newKey(t)
	e, _ := listen(t, s, key.Space)
	e.next(store.Up)
	old := claim(t, s, key, "p/1")
	one(t, s.Invalidate(t.Context(), []store.Key{key}))
	e.next(store.Invalidated)
	if n := onPrimary.Wait(t.Context(), 1, 5*time.Second).Val(); n != 1 {
		t.Fatal("the replica does not follow")
	}

	primary.Stop()
	e.next(store.Down)
	var g store.Grant
	eventually(t, "a claim works again", func() bool {
		v, err := s.Claim(t.Context(), store.Claim{Key: key, Holder: "p/2", Length: time.Minute, Keep: time.Minute})
		g = v.Grant
		return err == nil && v.Outcome == store.Granted
	})
	if g.Token <= old.Token {
		t.Errorf("token %d after %d", g.Token, old.Token)
	}
	if err := s.Fill(t.Context(), old, value("old")); !errors.Is(err, store.ErrFenced) {
		t.Errorf("a fill of before the invalidation: %v", err)
	}
	if err := s.Fill(t.Context(), g, value("new")); err != nil {
		t.Fatal(err)
	}
	wantPayload(t, s, key, "new")
	e.next(store.Up)
}
