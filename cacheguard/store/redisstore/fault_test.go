package redisstore_test

import (
	"bytes"
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

// What is refused by the fence has been sent once, however large it is.
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

// claim2 takes the key over from a grant that is given up without a failure.
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

func TestCheckNamesWhatIsNotPermitted(t *testing.T) {
	server := redistest.Start(t)
	admin := newClient(t, server.Addr)
	commands := strings.Fields("get set eval evalsha subscribe unsubscribe ping time getrange setrange exists rename unlink publish hset hmget hdel pexpire pttl")
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
		{MaxCalls: -1}, {MaxCalls: 1 << 20}, {StageAbove: -1}, {MaxValue: -1}, {MaxValue: 1 << 30},
	} {
		if _, err := redisstore.New(client, o); err == nil || !strings.Contains(err.Error(), "write a") {
			t.Errorf("%+v: %v", o, err)
		}
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
