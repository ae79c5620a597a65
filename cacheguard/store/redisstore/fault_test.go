package redisstore_test

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

func TestARestartOfTheServerFencesOldGrantsAndNothingElse(t *testing.T) {
	server := redistest.Start(t)
	s := newStore(t, newClient(t, server.Addr), patient)
	key := newKey(t)
	g := claim(t, s, key, "p/1")
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantRecovery(t, s)
	if err := s.Fill(t.Context(), g, value("old")); !errors.Is(err, store.ErrFenced) {
		t.Errorf("fill of a grant from before the restart: %v", err)
	}
	g = claim(t, s, key, "p/2")
	if err := s.Fill(t.Context(), g, value("new")); err != nil {
		t.Fatal(err)
	}
	wantPayload(t, s, key, "new")
}

// executed counts how often a server has executed some commands since the last
// call, as clients sent them and as scripts did.
// What is refused by the fence has been sent once, however large it is.
// claim2 takes the key over from a grant that is given up without a failure.
func TestAFullServerTakesNothingNewAndLetsEverythingEnd(t *testing.T) {
	server := redistest.Start(t, "--maxmemory-policy", "noeviction")
	client := newClient(t, server.Addr)
	s := newStore(t, client, patient)
	kept, other := newKey(t), newKey(t)
	if err := s.Set(t.Context(), store.Write{Key: kept, Content: value("v")}); err != nil {
		t.Fatal(err)
	}
	g := claim(t, s, kept, "p/1")
	if err := client.ConfigSet(t.Context(), "maxmemory", "1kb").Err(); err != nil {
		t.Fatal(err)
	}
	_, claimErr := s.Claim(t.Context(), store.Claim{Key: other, Holder: "p/2", Length: time.Second, Keep: keep})
	for name, err := range map[string]error{
		"claim":      claimErr,
		"fill":       s.Fill(t.Context(), g, value("w")),
		"fill large": s.Fill(t.Context(), g, value(strings.Repeat("w", 100<<10))),
		"set":        s.Set(t.Context(), store.Write{Key: kept, Content: value("w")}),
		"set large":  s.Set(t.Context(), store.Write{Key: kept, Content: value(strings.Repeat("w", 100<<10))}),
	} {
		if store.ClassOf(err) != store.ClassFull {
			t.Errorf("%s on a full server: %v (class %s)", name, err, store.ClassOf(err))
		}
	}
	wantPayload(t, s, kept, "v")
	one(t, s.Renew(t.Context(), []store.Renewal{{Grant: g, Length: time.Second}}))
	if err := s.Release(t.Context(), g, &store.Failure{Reason: "full", Cooldown: time.Second}); err != nil {
		t.Error("release:", err)
	}
	one(t, s.Expire(t.Context(), []store.Key{kept, other}))
	if e := wantPayload(t, s, kept, "v"); e.Fresh > 0 {
		t.Error("fresh after expire")
	}
	one(t, s.Invalidate(t.Context(), []store.Key{kept, other}))
	if e := load(t, s, kept); e.Kind != store.None {
		t.Error("an entry after invalidate")
	}
}

func TestAReplicaThatIsAskedToWriteIsAFaultOfItsClass(t *testing.T) {
	primary, replica := redistest.Start(t), redistest.Start(t)
	client := newClient(t, replica.Addr)
	s := newStore(t, client, patient)
	host, port, _ := strings.Cut(primary.Addr, ":")
	if err := client.SlaveOf(t.Context(), host, port).Err(); err != nil {
		t.Fatal(err)
	}
	one := func(what string, err error) {
		t.Helper()
		if class := store.ClassOf(err); class != store.ClassReadOnly && class != store.ClassLoading {
			t.Errorf("%s: %v (class %s)", what, err, class)
		}
	}
	one("check", s.Check(t.Context()))
	one("invalidate", errors.Join(s.Invalidate(t.Context(), []store.Key{newKey(t)})...))
	_, err := s.Claim(t.Context(), store.Claim{Key: newKey(t), Holder: "p/1", Length: time.Second, Keep: keep})
	one("claim", err)
	if err := client.SlaveOf(t.Context(), "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	claim(t, s, newKey(t), "p/2") // recovers by itself
}

func TestWhatIsNoRecordIsAFaultUntilItIsInvalidated(t *testing.T) {
	backends(t, func(t *testing.T, connect func(testing.TB) redis.UniversalClient) {
		client := connect(t)
		s := newStore(t, client, patient)
		key := newKey(t)
		name := redisstore.LeaseName(key)
		for what, plant := range map[string]func() error{
			"a list":        func() error { return client.LPush(t.Context(), name, "x").Err() },
			"another hash":  func() error { return client.HSet(t.Context(), name, "colour", "red").Err() },
			"broken fields": func() error { return client.HSet(t.Context(), name, "birth", "b", "fence", "x").Err() },
		} {
			if err := plant(); err != nil {
				t.Fatal(err)
			}
			for verb, call := range methods(s, key) {
				if verb == "load" || verb == "check" || verb == "invalidate" {
					continue
				}
				if err := call(t.Context()); store.ClassOf(err) != store.ClassData {
					t.Errorf("%s under the record's name: %s: %v (class %s)", what, verb, err, store.ClassOf(err))
				}
			}
			one(t, s.Invalidate(t.Context(), []store.Key{key}))
			if err := s.Release(t.Context(), claim(t, s, key, "p/1"), nil); err != nil {
				t.Fatal(err)
			}
			if err := client.Del(t.Context(), name).Err(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// Each script reads the fields that it needs, and believes none of them.
func TestAFieldThatIsNoNumberIsAFaultOfData(t *testing.T) {
	backends(t, func(t *testing.T, connect func(testing.TB) redis.UniversalClient) {
		client := connect(t)
		s := newStore(t, client, patient)
		broken := 0
		for _, field := range []string{"fence", "last", "keep", "token", "until", "length", "waiting", "cooling_until", "cooling_for"} {
			key := newKey(t)
			g := claim(t, s, key, "p/1")
			if err := s.Release(t.Context(), g, &store.Failure{Reason: "broken", Cooldown: time.Minute}); err != nil {
				t.Fatal(err)
			}
			g = claim(t, s, key, "q/1")
			if err := client.HSet(t.Context(), redisstore.LeaseName(key), field, "x").Err(); err != nil {
				t.Fatal(err)
			}
			calls := methods(s, key)
			calls["renew"] = func(ctx context.Context) error {
				return errors.Join(s.Renew(ctx, []store.Renewal{{Grant: g, Length: time.Second}})...)
			}
			calls["release"] = func(ctx context.Context) error { return s.Release(ctx, g, &store.Failure{Cooldown: time.Hour}) }
			calls["fill"] = func(ctx context.Context) error { return s.Fill(ctx, g, value("v")) }
			delete(calls, "invalidate") // repairs it: below
			for _, verb := range slices.Sorted(maps.Keys(calls)) {
				switch err := calls[verb](t.Context()); {
				case store.ClassOf(err) == store.ClassData:
					broken++
				case err != nil && !errors.Is(err, store.ErrFenced) && !errors.Is(err, store.ErrLost):
					t.Errorf("%s of a record whose %s is no number: %v (class %s)", verb, field, err, store.ClassOf(err))
				}
			}
			one(t, s.Invalidate(t.Context(), []store.Key{key}))
		}
		if broken < 30 {
			t.Errorf("only %d times was it told", broken)
		}
	})
}

// A client or proxy that loses count hands one command the reply of another.
func TestAReplyOfAnotherKeyIsNotBelieved(t *testing.T) {
	server := redistest.Start(t)
	direct := newStore(t, newClient(t, server.Addr), patient)
	one, two := newKey(t), newKey(t)
	for _, key := range []store.Key{one, two} {
		if err := direct.Set(t.Context(), store.Write{Key: key, Content: value("secret of " + key.Space)}); err != nil {
			t.Fatal(err)
		}
	}
	// The reply to each GET is held back and the one before is sent instead.
	var before []byte
	p := startProxy(t, server.Addr, func(b []byte) ([]byte, bool) {
		if !bytes.Contains(b, []byte("secret of")) {
			return b, true
		}
		reply := before
		before = bytes.Clone(b)
		if reply == nil {
			return b, true
		}
		return reply, true
	})
	client := redis.NewClient(&redis.Options{Addr: p.Addr, PoolSize: 1})
	t.Cleanup(func() { client.Close() })
	s := newStore(t, client, patient)
	if err := s.Release(t.Context(), store.Grant{Key: one}, nil); err != nil { // brings the server's time: plain GETs from here on
		t.Fatal(err)
	}
	load(t, s, one)
	for i, key := range []store.Key{two, one, two, one} {
		e := load(t, s, key)
		if e.Kind != store.None || len(e.Payload) > 0 || store.ClassOf(e.Fault) != store.ClassData {
			t.Errorf("read %d: %v with %d bytes and fault %v; want none, and a fault of class data", i, e.Kind, len(e.Payload), e.Fault)
		}
	}
}
