package redisstore_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

func TestScriptsSurviveAScriptFlush(t *testing.T) {
	server := redistest.Start(t)
	client := newClient(t, server.Addr)
	s := newStore(t, client, patient)
	flush := func() {
		t.Helper()
		if err := client.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	key := newKey(t)
	for _, payload := range []string{"small", strings.Repeat("x", 100<<10)} {
		flush()
		g := claim(t, s, key, store.NewHolder("p", payload[:2]))
		flush()
		one(t, s.Renew(t.Context(), []store.Renewal{{Grant: g, Length: time.Second}}))
		flush()
		if err := s.Fill(t.Context(), g, value(payload)); err != nil {
			t.Fatal("fill:", err)
		}
		wantPayload(t, s, key, payload)
		flush()
		one(t, s.Expire(t.Context(), []store.Key{key, newKey(t)}))
		flush()
		if err := s.Set(t.Context(), store.Write{Key: key, Content: value(payload)}); err != nil {
			t.Fatal("set:", err)
		}
		wantPayload(t, s, key, payload)
		flush()
		one(t, s.Invalidate(t.Context(), []store.Key{key, newKey(t)}))
		flush()
		if _, err := s.Begin(t.Context(), key, keep); err != nil {
			t.Fatal("begin:", err)
		}
		flush()
		if err := s.Release(t.Context(), g, nil); err != nil {
			t.Fatal("release:", err)
		}
	}
}

func executed(t *testing.T, client *redis.Client) map[string]int {
	t.Helper()
	info, err := client.Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for line := range strings.Lines(info) {
		name, rest, ok := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		if !ok {
			continue
		}
		var n int
		fmt.Sscanf(rest, "%d", &n)
		counts[name] = n
	}
	if err := client.ConfigResetStat(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	return counts
}

func TestALostReplyIsNotAskedAgainByTheClient(t *testing.T) {
	server := redistest.Start(t)
	behind := newClient(t, server.Addr)
	var swallow atomic.Bool
	p := startProxy(t, server.Addr, func(b []byte) ([]byte, bool) {
		if swallow.Load() {
			return nil, false // the connection breaks where the reply was
		}
		return b, true
	})
	for _, looksAtDeadlines := range []bool{false, true} {
		client := redis.NewClient(&redis.Options{Addr: p.Addr, ContextTimeoutEnabled: looksAtDeadlines}) // three retries by default
		t.Cleanup(func() { client.Close() })
		s := newStore(t, client, patient)
		for name, call := range methods(s, newKey(t)) {
			if name == "check" {
				continue
			}
			swallow.Store(false)
			for range 2 { // each verb may use two pools of connections at first
				if err := call(t.Context()); err != nil && !errors.Is(err, store.ErrFenced) && !errors.Is(err, store.ErrLost) {
					t.Fatal(name, err)
				}
			}
			executed(t, behind)
			swallow.Store(true)
			err := call(t.Context())
			if store.ClassOf(err) != store.ClassConnection {
				t.Errorf("%s with a lost reply: %v", name, err)
			}
			want := 1
			if name == "invalidate" || name == "expire" { // two keys
				want = 2
			}
			counts := executed(t, behind)
			if n := counts["evalsha"] + counts["eval"]; name != "load" && n != want {
				t.Errorf("%s was executed %d times, want %d", name, n, want)
			}
			if n := counts["get"]; name == "load" && n != 1 {
				t.Errorf("load was executed %d times", n)
			}
		}
	}
}

func TestEachVerbSendsOneCommand(t *testing.T) {
	server := redistest.Start(t)
	behind := newClient(t, server.Addr)
	s := newStore(t, newClient(t, server.Addr), patient)
	key := newKey(t)
	for _, call := range methods(s, newKey(t)) { // so that the server knows the scripts
		_ = call(t.Context())
	}
	sent := func(what string, want map[string]int, call func()) {
		t.Helper()
		executed(t, behind)
		call()
		counts := executed(t, behind)
		for _, name := range []string{"get", "eval", "evalsha", "time", "script|load", "multi"} {
			n := counts[name]
			if name == "time" {
				n -= counts["evalsha"] // inside each script
			}
			if n != want[name] {
				t.Errorf("%s sent %d %s, want %d (%v)", what, n, name, want[name], counts)
			}
		}
	}
	get, script := map[string]int{"get": 1}, map[string]int{"evalsha": 1}
	var g store.Grant
	sent("a miss", get, func() { load(t, s, key) })
	sent("a claim", map[string]int{"evalsha": 1, "get": 1}, func() { g = claim(t, s, key, "p/1") })
	sent("a renewal", script, func() { one(t, s.Renew(t.Context(), []store.Renewal{{Grant: g, Length: time.Second}})) })
	sent("a fill", script, func() {
		if err := s.Fill(t.Context(), g, value("v")); err != nil {
			t.Fatal(err)
		}
	})
	sent("1000 hits", map[string]int{"get": 1000}, func() {
		for range 1000 {
			wantPayload(t, s, key, "v")
		}
	})
	sent("an invalidation of 100 keys", map[string]int{"evalsha": 100}, func() {
		keys := make([]store.Key, 100)
		for i := range keys {
			keys[i] = newKey(t)
		}
		one(t, s.Invalidate(t.Context(), keys))
	})
}

func TestARefusedLargeValueIsStagedOnce(t *testing.T) {
	server := redistest.Start(t)
	behind := newClient(t, server.Addr)
	s := newStore(t, newClient(t, server.Addr), patient)
	key := newKey(t)
	old := claim(t, s, key, "a/1")
	g := claim2(t, s, key, "b/1", old)
	large := value(strings.Repeat("1", 1<<20))
	if err := s.Fill(t.Context(), g, large); err != nil {
		t.Fatal(err)
	}
	executed(t, behind)
	if err := s.Fill(t.Context(), old, value(strings.Repeat("0", 1<<20))); !errors.Is(err, store.ErrFenced) {
		t.Fatalf("a fill below the fence: %v", err)
	}
	if n := executed(t, behind)["set"]; n != 1 {
		t.Errorf("staged %d times", n)
	}
	wantPayload(t, s, key, string(large.Payload))
	names, err := behind.Keys(t.Context(), "*:stage:*").Result()
	if err != nil || len(names) > 0 {
		t.Errorf("staged bytes are left: %v %v", names, err)
	}
}

func claim2(t *testing.T, s store.Store, key store.Key, holder store.Holder, old store.Grant) store.Grant {
	t.Helper()
	if err := s.Release(t.Context(), old, nil); err != nil {
		t.Fatal(err)
	}
	return claim(t, s, key, holder)
}

func TestAValueAboveTheLimitIsNotSent(t *testing.T) {
	s := newStore(t, newClient(t, "127.0.0.1:1"), redisstore.Options{MaxValue: 10}) // nobody is there
	err := s.Set(t.Context(), store.Write{Key: newKey(t), Content: value("eleven byte")})
	if store.ClassOf(err) != store.ClassFull {
		t.Errorf("set: %v", err)
	}
	if err := s.Fill(t.Context(), store.Grant{}, value("eleven byte")); store.ClassOf(err) != store.ClassFull {
		t.Errorf("fill: %v", err)
	}
}

func TestTheServersTimeIsAskedForWhenTheSampleIsOld(t *testing.T) {
	server := redistest.Start(t)
	behind := newClient(t, server.Addr)
	s := newStore(t, newClient(t, server.Addr), patient)
	key := newKey(t)
	if err := s.Set(t.Context(), store.Write{Key: key, Content: value("v")}); err != nil {
		t.Fatal(err)
	}
	fresh := newStore(t, newClient(t, server.Addr), patient) // another process, with no sample
	executed(t, behind)
	e := wantPayload(t, fresh, key, "v")
	if e.Age < 0 || e.Age > 10*time.Second || e.Fresh < 50*time.Second || e.Fresh > time.Minute {
		t.Errorf("entry: %+v", e)
	}
	wantPayload(t, fresh, key, "v")
	if counts := executed(t, behind); counts["get"] != 2 || counts["eval"] != 1 {
		t.Errorf("two first hits: %v", counts)
	}
	fresh.AgeClock(6 * time.Second)
	wantPayload(t, fresh, key, "v") // finds it old
	wantPayload(t, fresh, key, "v") // asks
	wantPayload(t, fresh, key, "v")
	if counts := executed(t, behind); counts["get"] != 3 || counts["eval"] != 1 {
		t.Errorf("three hits after 6 s: %v", counts)
	}
	fresh.AgeClock(6 * time.Second)
	load(t, fresh, newKey(t))
	load(t, fresh, newKey(t))
	if counts := executed(t, behind); counts["get"] != 2 || counts["eval"] != 0 {
		t.Errorf("two misses after 6 s: %v", counts)
	}
}
