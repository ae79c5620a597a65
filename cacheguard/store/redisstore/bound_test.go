package redisstore_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

// margin is what a busy machine may add to a bound of 100 ms. What is defended
// against takes 5 s and more.
const margin = 900 * time.Millisecond

// methods is every method that talks to the server, each with its error.
func methods(s *redisstore.Store, key store.Key) map[string]func(ctx context.Context) error {
	g := store.Grant{Key: key, Holder: "p/1", Token: 1, Birth: "b"}
	large := value(strings.Repeat("x", 100<<10))
	return map[string]func(ctx context.Context) error{
		"load": func(ctx context.Context) error { _, err := s.Load(ctx, key); return err },
		"claim": func(ctx context.Context) error {
			_, err := s.Claim(ctx, store.Claim{Key: key, Holder: "p/1", Length: time.Second, Keep: time.Second})
			return err
		},
		"renew": func(ctx context.Context) error {
			return errors.Join(s.Renew(ctx, []store.Renewal{{Grant: g, Length: time.Second}})...)
		},
		"release":    func(ctx context.Context) error { return s.Release(ctx, g, nil) },
		"fill":       func(ctx context.Context) error { return s.Fill(ctx, g, value("v")) },
		"fill large": func(ctx context.Context) error { return s.Fill(ctx, g, large) },
		"begin":      func(ctx context.Context) error { _, err := s.Begin(ctx, key, time.Second); return err },
		"set":        func(ctx context.Context) error { return s.Set(ctx, store.Write{Key: key, Content: value("v")}) },
		"set large":  func(ctx context.Context) error { return s.Set(ctx, store.Write{Key: key, Content: large}) },
		"invalidate": func(ctx context.Context) error { return errors.Join(s.Invalidate(ctx, []store.Key{key, key})...) },
		"expire":     func(ctx context.Context) error { return errors.Join(s.Expire(ctx, []store.Key{key, key})...) },
		"check":      func(ctx context.Context) error { return s.Check(ctx) },
	}
}

// contexts: a call whose context cannot end may run on another path than one
// whose can.
func contexts(t *testing.T) map[string]context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	return map[string]context.Context{"no end": context.Background(), "an end": ctx}
}

func wantInTime(t *testing.T, s *redisstore.Store, class ...store.Class) {
	t.Helper()
	for kind, ctx := range contexts(t) {
		for name, call := range methods(s, newKey(t)) {
			began := time.Now()
			err := call(ctx)
			if took := time.Since(began); took > 100*time.Millisecond+margin {
				t.Errorf("%s with a context of %s took %v", name, kind, took)
			}
			got := store.ClassOf(err)
			ok := false
			for _, c := range class {
				ok = ok || got == c
			}
			if err == nil || !ok {
				t.Errorf("%s with a context of %s: %v (class %s), want class %v", name, kind, err, got, class)
			}
		}
	}
}

func TestEveryMethodReturnsInTimeWhenTheServerHangs(t *testing.T) {
	readPaths(t, everyMethodReturnsInTimeWhenTheServerHangs)
}

func everyMethodReturnsInTimeWhenTheServerHangs(t *testing.T, opts redisstore.Options) {
	server := redistest.Start(t)
	s := newStore(t, newClient(t, server.Addr), opts)
	for name, call := range methods(s, newKey(t)) { // connections, scripts
		if err := call(t.Context()); err != nil && !errors.Is(err, store.ErrFenced) && !errors.Is(err, store.ErrLost) {
			t.Fatal(name, err)
		}
	}
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	wantInTime(t, s, store.ClassTimeout)

	// Many callers queue for few connections; none may wait longer for it.
	var callers sync.WaitGroup
	for range 200 {
		for _, ctx := range contexts(t) {
			callers.Go(func() {
				began := time.Now()
				_, err := s.Load(ctx, store.Key{Space: "x", ID: "y"})
				if took := time.Since(began); err == nil || took > 100*time.Millisecond+margin {
					t.Errorf("one of 400 loads: %v after %v", err, took)
				}
			})
		}
	}
	callers.Wait()

	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
	wantRecovery(t, s)
}

// wantRecovery waits until a load works again.
func wantRecovery(t *testing.T, s *redisstore.Store) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; {
		_, err := s.Load(t.Context(), newKey(t))
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("no recovery: %v", err)
		}
		time.Sleep(10 * time.Millisecond) // a poll, not a wait for luck: the loop decides
	}
}

func TestEveryMethodReturnsInTimeWhenDialingHangs(t *testing.T) {
	readPaths(t, everyMethodReturnsInTimeWhenDialingHangs)
}

func everyMethodReturnsInTimeWhenDialingHangs(t *testing.T, opts redisstore.Options) {
	release := make(chan struct{})
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", Dialer: func(context.Context, string, string) (net.Conn, error) {
		<-release // a dialer that looks at no context
		return nil, errors.New("no")
	}})
	s := newStore(t, client, opts)
	t.Cleanup(func() { close(release); client.Close() })
	wantInTime(t, s, store.ClassTimeout)
}

func TestEveryMethodReturnsInTimeWhenTheServerIsGone(t *testing.T) {
	readPaths(t, everyMethodReturnsInTimeWhenTheServerIsGone)
}

func everyMethodReturnsInTimeWhenTheServerIsGone(t *testing.T, opts redisstore.Options) {
	server := redistest.Start(t)
	s := newStore(t, newClient(t, server.Addr), opts)
	load(t, s, newKey(t))
	server.Stop()
	wantInTime(t, s, store.ClassConnection, store.ClassTimeout)
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantRecovery(t, s)
}

func TestEveryMethodReturnsInTimeWhenAClusterHangs(t *testing.T) {
	cluster := redistest.StartCluster(t, 3)
	var stores []*redisstore.Store
	for _, looksAtDeadlines := range []bool{false, true} {
		client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs(), ContextTimeoutEnabled: looksAtDeadlines})
		s := newStore(t, client, redisstore.Options{ReadPipelines: 2}) // of no use to a cluster
		t.Cleanup(func() { client.Close() })                           // before the store: what was abandoned ends with it
		wantRecovery(t, s)                                             // it may take a moment until the client knows all nodes
		stores = append(stores, s)
	}
	for _, node := range cluster.Nodes {
		if err := node.Pause(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { node.Resume() })
	}
	for _, s := range stores {
		wantInTime(t, s, store.ClassTimeout)
	}
}

func TestACallerThatLeavesIsNotKept(t *testing.T) {
	server := redistest.Start(t)
	s := newStore(t, newClient(t, server.Addr), redisstore.Options{Timeout: 30 * time.Second})
	load(t, s, newKey(t))
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	defer server.Resume()
	for name, call := range methods(s, newKey(t)) {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		began := time.Now()
		err := call(ctx)
		cancel()
		if took := time.Since(began); took > margin || store.ClassOf(err) != store.ClassCanceled || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v (class %s) after %v", name, err, store.ClassOf(err), took)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := s.Load(ctx, newKey(t)); store.ClassOf(err) != store.ClassCanceled || !errors.Is(err, context.Canceled) {
		t.Errorf("load for a caller that has left: %v", err)
	}
}

func TestCallsUnderWayAreBounded(t *testing.T) {
	server := redistest.Start(t)
	s := newStore(t, newClient(t, server.Addr), redisstore.Options{Timeout: 5 * time.Second, MaxCalls: 2})
	load(t, s, newKey(t))
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	results := make(chan error, 20)
	for range cap(results) {
		go func() { _, err := s.Load(t.Context(), store.Key{}); results <- err }()
	}
	for range cap(results) - 2 {
		if err := <-results; store.ClassOf(err) != store.ClassPool {
			t.Errorf("with two calls under way: %v", err)
		}
	}
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := <-results; err != nil {
			t.Errorf("a call within the bound: %v", err)
		}
	}
}

func TestAPanicInTheClientIsAnError(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: sharedServer(t).Addr, ContextTimeoutEnabled: true})
	t.Cleanup(func() { client.Close() })
	client.AddHook(panicHook{})
	s := newStore(t, client, patient)
	for kind, ctx := range contexts(t) {
		if _, err := s.Load(ctx, newKey(t)); err == nil || !strings.Contains(err.Error(), "boom") {
			t.Errorf("context of %s: %v", kind, err)
		}
	}
}

type panicHook struct{}

func (panicHook) DialHook(next redis.DialHook) redis.DialHook { return next }
func (panicHook) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(context.Context, []redis.Cmder) error { panic("boom") }
}
func (panicHook) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(context.Context, redis.Cmder) error { panic("boom") }
}

func TestCloseEndsTheStoreAndNotTheClient(t *testing.T) {
	client := newClient(t, sharedServer(t).Addr)
	s := newStore(t, client, patient)
	stop := s.Listen("a", func(store.Event) {})
	load(t, s, newKey(t))
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for kind, ctx := range contexts(t) {
		for name, call := range methods(s, newKey(t)) {
			if err := call(ctx); !errors.Is(err, redisstore.ErrClosed) {
				t.Errorf("%s with a context of %s after Close: %v", name, kind, err)
			}
		}
	}
	stop()
	s.Listen("a", func(store.Event) { t.Error("an event after Close") })()
	if err := client.Ping(t.Context()).Err(); err != nil {
		t.Errorf("the client after Close: %v", err)
	}
}

func TestCloseWaitsForCallsUnderWay(t *testing.T) {
	s := newStore(t, newClient(t, sharedServer(t).Addr), patient)
	var callers sync.WaitGroup
	for range 20 {
		callers.Go(func() {
			for {
				if _, err := s.Load(context.Background(), store.Key{}); err != nil {
					if !errors.Is(err, redisstore.ErrClosed) {
						t.Error(err)
					}
					return
				}
			}
		})
	}
	load(t, s, newKey(t))
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	callers.Wait()
}
