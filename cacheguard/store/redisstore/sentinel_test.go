package redisstore_test

import (
	"errors"
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
	r := redistest.StartSentinel(t, 1, 1)
	primary := r.Servers[0]
	onPrimary := newClient(t, primary.Addr)
	client := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: redistest.MasterName, SentinelAddrs: r.SentinelAddrs()})
	t.Cleanup(func() { client.Close() })
	s := newStore(t, client, redisstore.Options{Timeout: time.Second})
	together := newStore(t, client, redisstore.Options{Timeout: time.Second, ReadPipelines: 2})
	key := newKey(t)
	e, _ := listen(t, s, key.Space)
	e.next(store.Up)
	old := claim(t, s, key, "p/1")
	one(t, s.Invalidate(t.Context(), []store.Key{key}))
	e.next(store.Invalidated)
	if n := onPrimary.Wait(t.Context(), 1, 5*time.Second).Val(); n != 1 {
		t.Fatal("the replica does not follow")
	}

	stop := hammer(t, together, []store.Key{newKey(t)}, 16, time.Second)
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
	stop()
	wantPayload(t, together, key, "new")
	e.next(store.Up)
}
