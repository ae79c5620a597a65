package cacheguard_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

// During a deploy, two versions of the library, or of its options, are in one
// fleet. docs/operations.md promises what is tested here.

// rollout is a Redis with one key of a guard's in it.
type rollout struct {
	t      *testing.T
	client *redis.Client
	key    store.Key
}

const (
	rolloutEntry  = "rollout:{1}"
	rolloutRecord = "rollout:{1}:lease"
)

func newRollout(t *testing.T) *rollout {
	client := redis.NewClient(&redis.Options{Addr: redistest.Start(t).Addr, ContextTimeoutEnabled: true})
	t.Cleanup(func() { client.Close() })
	return &rollout{t: t, client: client, key: store.Key{Space: "rollout", ID: "1"}}
}

// store is one process's.
func (r *rollout) store() *redisstore.Store {
	r.t.Helper()
	s, err := redisstore.New(r.client, redisstore.Options{Timeout: 5 * time.Second})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { s.Close() })
	return s
}

func (r *rollout) guard(opts cacheguard.Options[string]) *cacheguard.Guard[string] {
	r.t.Helper()
	opts.Namespace = r.key.Space
	g, err := cacheguard.New(r.store(), opts)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { g.Close() })
	return g
}

// writeNewer leaves an entry as a later version of the library might write it:
// another number of the format, and what follows the token moved by a byte.
// It returns the entry's token.
func (r *rollout) writeNewer(g *cacheguard.Guard[string]) store.Token {
	r.t.Helper()
	e, err := g.GetEntry(r.t.Context(), r.key.ID, func(context.Context, string) (string, error) { return "newer", nil })
	if err != nil || e.State != cacheguard.Rebuilt {
		r.t.Fatalf("%v, %v", e, err)
	}
	const token = 4 // where the token begins, in every format: eight bytes
	b, err := r.client.Get(r.t.Context(), rolloutEntry).Bytes()
	if err != nil {
		r.t.Fatal(err)
	}
	newer := append([]byte{b[0], b[1], b[2] + 1}, b[3:token+8]...)
	newer = append(append(newer, 0xff), b[token+8:]...)
	if err := r.client.Set(r.t.Context(), rolloutEntry, newer, redis.KeepTTL).Err(); err != nil {
		r.t.Fatal(err)
	}
	return e.Token
}

func TestANewerFormatIsAMissWhoseTokenIsTold(t *testing.T) {
	r := newRollout(t)
	s := r.store()
	token := r.writeNewer(r.guard(cacheguard.Options[string]{}))

	e, err := s.Load(t.Context(), r.key)
	if err != nil {
		t.Fatal(err)
	}
	if e.Kind != store.None || e.Token != token || store.ClassOf(e.Fault) != store.ClassData {
		t.Errorf("Load = %+v; want no entry, token %d and a fault of its data", e, token)
	}
	claim := store.Claim{Key: r.key, Holder: store.NewHolder("old", "1"), Length: time.Second, Keep: time.Minute}
	if v, err := s.Claim(t.Context(), claim); err != nil || v.Outcome != store.Changed {
		t.Errorf("a claim that has not seen it = %v, %v; want changed", v.Outcome, err)
	}
	claim.Seen = token
	v, err := s.Claim(t.Context(), claim)
	if err != nil || v.Outcome != store.Granted || v.Grant.Token <= token {
		t.Errorf("a claim that has = %v, token %d, %v; want it granted with a token above %d", v.Outcome, v.Grant.Token, err, token)
	}
}

func TestTheOldVersionLoadsOnceWhatTheNewOneWrote(t *testing.T) {
	r := newRollout(t)
	newer := r.guard(cacheguard.Options[string]{})
	var told atomic.Int64
	hooks := cacheguard.Hooks{Fault: func(f cacheguard.FaultInfo) {
		if f.Class == store.ClassData {
			told.Add(1)
		}
	}}
	fleet := []*cacheguard.Guard[string]{r.guard(cacheguard.Options[string]{Hooks: hooks}), r.guard(cacheguard.Options[string]{Hooks: hooks})}
	token := r.writeNewer(newer)

	const callers = 40
	var loads atomic.Int64
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			e, err := fleet[i%2].GetEntry(t.Context(), r.key.ID, func(context.Context, string) (string, error) {
				loads.Add(1)
				time.Sleep(100 * time.Millisecond) // all others come meanwhile
				return "old", nil
			})
			if err != nil || e.Value != "old" || e.Token <= token {
				t.Errorf("%+v, %v; want old with a token above %d", e, err, token)
			}
		})
	}
	all.Wait()
	if n := loads.Load(); n != 1 {
		t.Errorf("%d loads, want 1", n)
	}
	if told.Load() == 0 {
		t.Error("nobody was told of the entry that could not be read")
	}
	if v, err := newer.Get(t.Context(), r.key.ID, refuse(t)); v != "old" || err != nil {
		t.Errorf("the new version reads %q, %v of the old one's entry", v, err)
	}
}

// refuse is a loader that nobody should need.
func refuse(t *testing.T) cacheguard.Loader[string] {
	return func(context.Context, string) (string, error) {
		t.Error("the origin was asked")
		return "", errors.New("not needed")
	}
}

func TestTheFenceHoldsBetweenTheVersions(t *testing.T) {
	for name, write := range map[string]func(*cacheguard.Guard[string]) error{
		"invalidate": func(g *cacheguard.Guard[string]) error { return g.Invalidate(t.Context(), "1") },
		"expire":     func(g *cacheguard.Guard[string]) error { return g.Expire(t.Context(), "1") },
		"set":        func(g *cacheguard.Guard[string]) error { return g.Set(t.Context(), "1", "later") },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRollout(t)
			old, newer, s := r.guard(cacheguard.Options[string]{}), r.guard(cacheguard.Options[string]{}), r.store()
			token := r.writeNewer(newer)
			v, err := s.Claim(t.Context(), store.Claim{Key: r.key, Seen: token, Holder: store.NewHolder("newer", "1"), Length: time.Second, Keep: time.Minute})
			if err != nil || v.Outcome != store.Granted {
				t.Fatal(v.Outcome, err)
			}
			if err := write(old); err != nil {
				t.Fatal(err)
			}
			late := store.Content{Kind: store.Value, Payload: []byte(`"late"`), TTL: time.Minute, HandOver: time.Second}
			if err := s.Fill(t.Context(), v.Grant, late); !errors.Is(err, store.ErrFenced) {
				t.Errorf("a load that began before the old version's %s: fill = %v, want it refused", name, err)
			}
			b, err := r.client.Get(t.Context(), rolloutEntry).Bytes()
			if name == "set" && (err != nil || b[2] != 1) || name != "set" && !errors.Is(err, redis.Nil) {
				t.Errorf("the newer entry is still there: %q, %v", b, err)
			}
		})
	}
}

func TestFieldsThatALaterVersionAddsToTheRecordStay(t *testing.T) {
	r := newRollout(t)
	g := r.guard(cacheguard.Options[string]{})
	load := func(context.Context, string) (string, error) {
		return "v", r.client.HSet(t.Context(), rolloutRecord, "added", "1").Err()
	}
	for range 2 {
		if v, err := g.Refresh(t.Context(), r.key.ID, load); v != "v" || err != nil {
			t.Fatal(v, err)
		}
	}
	if added, err := r.client.HGet(t.Context(), rolloutRecord, "added").Result(); added != "1" || err != nil {
		t.Errorf("the field is gone: %q, %v", added, err)
	}
}

func TestTwoFleetsWithDifferentOptionsAreOne(t *testing.T) {
	r := newRollout(t)
	before := r.guard(cacheguard.Options[string]{LoadLimit: time.Minute, Cooldown: 5 * time.Second, Lifetime: cacheguard.Lifetime{TTL: time.Hour}})
	after := r.guard(cacheguard.Options[string]{LoadLimit: 2 * time.Second, Cooldown: -1, Lifetime: cacheguard.Lifetime{TTL: time.Minute, Grace: time.Minute},
		EarlyRefresh: -1, Lease: cacheguard.LeaseTuning{Initial: time.Second, Max: time.Second}})

	var loads atomic.Int64
	load := func(context.Context, string) (string, error) {
		loads.Add(1)
		time.Sleep(100 * time.Millisecond) // all others come meanwhile
		return "v", nil
	}
	for round := range 3 {
		var all sync.WaitGroup
		for i := range 20 {
			all.Go(func() {
				g := []*cacheguard.Guard[string]{before, after}[i%2]
				if v, err := g.Get(t.Context(), r.key.ID, load); v != "v" || err != nil {
					t.Errorf("%q, %v", v, err)
				}
			})
		}
		all.Wait()
		if n := loads.Load(); n != int64(round)+1 {
			t.Errorf("%d loads in %d rounds", n, round+1)
		}
		if err := after.Invalidate(t.Context(), r.key.ID); err != nil {
			t.Fatal(err)
		}
	}

	// The record lives by the longer LoadLimit, whoever touched it last.
	if _, err := before.Get(t.Context(), r.key.ID, load); err != nil {
		t.Fatal(err)
	}
	if _, err := after.Refresh(t.Context(), r.key.ID, load); err != nil {
		t.Fatal(err)
	}
	if left, err := r.client.PTTL(t.Context(), rolloutRecord).Result(); err != nil || left < 50*time.Second {
		t.Errorf("the record lives for another %v, %v; want about a minute", left, err)
	}
}
