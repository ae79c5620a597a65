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

// A claimer compares the token that Go read with the one that Lua sees: they
// must tell the same from any bytes, or a flight would hear "changed" for ever.
func TestLuaAndGoReadTheSameToken(t *testing.T) {
	whole := redisstore.EntryBytes("n", 1<<40+7, 1, store.Content{Kind: store.Value, Payload: []byte("p")})
	var cases [][]byte
	for n := range len(whole) + 1 {
		cases = append(cases, whole[:n])
	}
	for i := range 12 * 8 { // every bit of magic, version, flags and token
		b := append([]byte(nil), whole...)
		b[i/8] ^= 1 << (i % 8)
		cases = append(cases, b)
	}
	cases = append(cases, append([]byte(nil), "\xc7g\x01\x00\xff\xff\xff\xff\xff\xff\xff\xff"...), append([]byte(nil), "\xc7g\x01\x00\x00\x0f\xff\xff\xff\xff\xff\xff"...))
	backends(t, func(t *testing.T, connect func(testing.TB) redis.UniversalClient) {
		client := connect(t)
		for _, b := range cases {
			name := redisstore.EntryName(newKey(t))
			if err := client.Set(t.Context(), name, b, 0).Err(); err != nil {
				t.Fatal(err)
			}
			got, err := client.Eval(t.Context(), redisstore.ThereLua()+"return there", []string{name}).Int64()
			if err != nil || store.Token(got) != redisstore.TokenOf(b) {
				t.Errorf("%x: Lua reads token %d (%v), Go %d", b, got, err, redisstore.TokenOf(b))
			}
			client.Del(t.Context(), name)
		}
	})
}

// An include that is not spelt like one would be a comment.
func TestEveryPartIsInItsScript(t *testing.T) {
	for verb, source := range redisstore.Scripts {
		if strings.Contains(source, "include") || source == "" {
			t.Errorf("%s is sent as %q", verb, source)
		}
	}
}

// What a script costs the server is mostly what it calls there, whatever the
// size of the value. The figures are exact; whoever makes one larger says why.
func TestAScriptCallsNoMoreThanItHasTo(t *testing.T) {
	server := redistest.Start(t)
	behind := newClient(t, server.Addr)
	s := newStore(t, newClient(t, server.Addr), patient)
	key, other := newKey(t), newKey(t)
	for _, call := range methods(s, newKey(t)) { // so that the server knows the scripts
		_ = call(t.Context())
	}
	calls := func(what string, want int, call func() error) {
		t.Helper()
		executed(t, behind)
		if err := call(); err != nil {
			t.Fatal(what, err)
		}
		counts := executed(t, behind)
		inside := 0
		for name, n := range counts {
			if name != "evalsha" && name != "info" && name != "config|resetstat" {
				inside += n
			}
		}
		if inside != want || counts["evalsha"] != 1 {
			t.Errorf("%s is %d calls, want %d: %v", what, inside, want, counts)
		}
	}
	var g store.Grant
	taking := func(holder store.Holder, seen store.Token) func() error {
		return func() error {
			v, err := s.Claim(t.Context(), store.Claim{Key: key, Seen: seen, Holder: holder, Length: time.Second, Keep: keep, Wait: true})
			if v.Outcome == store.Granted {
				g = v.Grant
			}
			return err
		}
	}
	filling := func(payload string) func() error {
		return func() error { return s.Fill(t.Context(), g, value(payload)) }
	}
	calls("a claim of a new key", 5, taking("p/1", 0))    // TIME GETRANGE PTTL HSET PEXPIRE
	calls("a claim of what is held", 5, taking("q/1", 0)) // TIME GETRANGE PTTL HMGET HSET
	calls("a renewal", 5, func() error {                  // TIME HMGET PTTL PEXPIRE HSET
		return errors.Join(s.Renew(t.Context(), []store.Renewal{{Grant: g, Length: time.Second}})...)
	})
	calls("a fill that somebody waits for", 7, filling("v"))               // TIME HMGET SET HDEL HSET PUBSUB PUBLISH
	calls("a claim of a key that has a record", 6, taking("p/2", g.Token)) // TIME GETRANGE PTTL HMGET HSET PEXPIRE
	calls("a fill", 5, filling("v"))                                       // TIME HMGET SET HDEL HSET
	calls("a claim", 6, taking("p/3", g.Token))
	calls("a fill of a large value", 7, filling(strings.Repeat("v", 100<<10))) // SET, and TIME HMGET RENAME PEXPIRE HDEL HSET
	calls("a claim", 6, taking("p/4", g.Token))
	calls("a release", 3, func() error { return s.Release(t.Context(), g, nil) })                                    // TIME HMGET HDEL
	calls("an invalidation", 8, func() error { return errors.Join(s.Invalidate(t.Context(), []store.Key{key})...) }) // TIME PTTL HMGET GETRANGE UNLINK HSET PEXPIRE PUBLISH
	calls("an invalidation of what has no record", 5, func() error {                                                 // TIME PTTL GETRANGE UNLINK PUBLISH
		return errors.Join(s.Invalidate(t.Context(), []store.Key{other})...)
	})
	calls("a set", 5, func() error { return s.Set(t.Context(), store.Write{Key: other, Content: value("v")}) }) // TIME PTTL GETRANGE SET PUBLISH
}

// A fill brings its head along. Where less life is left than that says, the
// script writes another: over a small value as over a staged one.
func TestAFillThatComesTooLateOrFromAheadHasAnotherHead(t *testing.T) {
	backends(t, func(t *testing.T, connect func(testing.TB) redis.UniversalClient) {
		s := newStore(t, connect(t), patient)
		for _, size := range []int{10, 100 << 10} {
			payload := strings.Repeat("x", size)
			key := newKey(t)
			g := claim(t, s, key, "p/1")
			g.Time -= time.Hour.Microseconds()
			if err := s.Fill(t.Context(), g, value(payload)); err != nil {
				t.Fatal(err)
			}
			e := wantPayload(t, s, key, payload)
			if !e.HandOver || e.Token != g.Token || e.Age < time.Hour || e.Left <= 0 || e.Left > value("").HandOver {
				t.Errorf("%d bytes that were asked for an hour ago: %+v", size, e)
			}

			key = newKey(t)
			g = claim(t, s, key, "p/1")
			g.Time += time.Hour.Microseconds() // the server's clock has stepped back
			if err := s.Fill(t.Context(), g, value(payload)); err != nil {
				t.Fatal(err)
			}
			e = wantPayload(t, s, key, payload)
			if e.HandOver || e.Token != g.Token || e.Age > time.Minute || e.Fresh > time.Minute || e.Fresh < 0 || e.Left > 2*time.Minute {
				t.Errorf("%d bytes that were asked for in an hour: %+v", size, e)
			}
		}
	})
}
