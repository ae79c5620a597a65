package redisstore_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// backends are the servers that every verb is tried on. connect makes a client
// with default options, which is the hard case.
func backends(t *testing.T, test func(t *testing.T, connect func(testing.TB) redis.UniversalClient)) {
	t.Run("server", func(t *testing.T) {
		addr := sharedServer(t).Addr
		test(t, func(t testing.TB) redis.UniversalClient { return newClient(t, addr) })
	})
	t.Run("cluster", func(t *testing.T) {
		addrs := sharedCluster(t).Addrs()
		test(t, func(t testing.TB) redis.UniversalClient {
			client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
			t.Cleanup(func() { client.Close() })
			return client
		})
	})
	t.Run("embedded", func(t *testing.T) {
		m := miniredis.RunT(t)
		m.ClockTTL(true)
		test(t, func(t testing.TB) redis.UniversalClient { return newClient(t, m.Addr()) })
	})
}

func TestVerbs(t *testing.T) {
	backends(t, func(t *testing.T, connect func(testing.TB) redis.UniversalClient) {
		s := newStore(t, connect(t), patient)
		key := newKey(t)
		if e := load(t, s, key); e.Kind != store.None || e.Fault != nil {
			t.Fatalf("empty: %+v", e)
		}
		g := claim(t, s, key, "p1/1")
		v, err := s.Claim(t.Context(), store.Claim{Key: key, Holder: "p2/1", Length: time.Second, Keep: keep, Wait: true})
		if err != nil || v.Outcome != store.Held || v.Holder != "p1/1" || v.Left <= 0 || v.Token != g.Token {
			t.Fatalf("second claim: %+v, %v", v, err)
		}
		one(t, s.Renew(t.Context(), []store.Renewal{{Grant: g, Length: 2 * time.Second}}))
		for _, size := range []int{0, 10, 9 << 10, 300 << 10} {
			want := strings.Repeat("x", size)
			if err := s.Fill(t.Context(), g, value(want)); err != nil {
				t.Fatal("fill:", err)
			}
			e := wantPayload(t, s, key, want)
			if e.Token != g.Token || e.Fresh <= 50*time.Second || e.Fresh > time.Minute || e.Left > 2*time.Minute || e.TTL != time.Minute || e.Cost != 3*time.Millisecond {
				t.Fatalf("entry: %+v", e)
			}
			one(t, s.Invalidate(t.Context(), []store.Key{key}))
			if e := load(t, s, key); e.Kind != store.None {
				t.Fatal("an entry after invalidate")
			}
			if err := s.Fill(t.Context(), g, value(want)); !errors.Is(err, store.ErrFenced) {
				t.Fatalf("fill below the fence: %v", err)
			}
			if err := s.Set(t.Context(), store.Write{Key: key, Content: value(want)}); err != nil {
				t.Fatal("set:", err)
			}
			wantPayload(t, s, key, want)
			one(t, s.Expire(t.Context(), []store.Key{key}))
			if e := wantPayload(t, s, key, want); e.Fresh > 0 || e.Left > time.Minute {
				t.Fatalf("fresh after expire: %+v", e)
			}
			b, err := s.Begin(t.Context(), key, keep)
			if err != nil {
				t.Fatal("begin:", err)
			}
			if err := s.Set(t.Context(), store.Write{Key: key, Content: value(want), Begun: &b}); err != nil {
				t.Fatal("begun set:", err)
			}
			if err := s.Set(t.Context(), store.Write{Key: key, Content: value(want), Begun: &b}); !errors.Is(err, store.ErrFenced) {
				t.Fatal("begun set below the fence:", err)
			}
			if e := load(t, s, key); e.Kind != store.None {
				t.Fatal("a begun set below the fence did not invalidate")
			}
			g = claim(t, s, key, store.NewHolder("p1", strings.Repeat("i", size%7+2)))
		}
		if err := s.Release(t.Context(), g, &store.Failure{Reason: "broken", Cooldown: time.Second}); err != nil {
			t.Fatal("release:", err)
		}
		v, err = s.Claim(t.Context(), store.Claim{Key: key, Holder: "p1/next", Length: time.Second, Keep: keep})
		if err != nil || v.Outcome != store.Cooling || v.Reason != "broken" || v.Left <= 0 {
			t.Fatalf("claim in cooldown: %+v, %v", v, err)
		}
		if g := claim(t, s, key, "p2/next"); !g.SecondOpinion {
			t.Fatal("no second opinion")
		}
	})
}

func TestEventsReachListeners(t *testing.T) {
	backends(t, func(t *testing.T, connect func(testing.TB) redis.UniversalClient) {
		s := newStore(t, connect(t), patient)
		key := newKey(t)
		events := make(chan store.Event, 100)
		stop := s.Listen(key.Space, func(e store.Event) { events <- e })
		defer stop()
		next := func(want store.EventKind) {
			t.Helper()
			select {
			case e := <-events:
				if e.Kind != want {
					t.Fatalf("heard %v, want %v", e.Kind, want)
				}
				if want >= store.Filled && e.ID != key.ID {
					t.Fatalf("%v of %q", want, e.ID)
				}
			case <-time.After(10 * time.Second):
				t.Fatalf("%v was not heard", want)
			}
		}
		next(store.Up)
		g := claim(t, s, key, "p/1")
		if _, err := s.Claim(t.Context(), store.Claim{Key: key, Holder: "q/1", Length: time.Second, Keep: keep, Wait: true}); err != nil {
			t.Fatal(err)
		}
		if err := s.Fill(t.Context(), g, value("v")); err != nil {
			t.Fatal(err)
		}
		next(store.Filled)
		one(t, s.Invalidate(t.Context(), []store.Key{key}))
		next(store.Invalidated)
		if err := s.Set(t.Context(), store.Write{Key: key, Content: value("w")}); err != nil {
			t.Fatal(err)
		}
		next(store.Written)
		one(t, s.Expire(t.Context(), []store.Key{key}))
		next(store.Expired)
	})
}
