package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

// One server and one cluster serve all tests of the package that do not hurt
// them; every test has a space of its own.
var shared struct {
	dir string

	serverOnce sync.Once
	server     *redistest.Server
	serverErr  error

	clusterOnce sync.Once
	cluster     *redistest.Cluster
	clusterErr  error
}

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "redisstore")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	shared.dir = dir
	code := m.Run()
	if shared.server != nil {
		shared.server.Stop()
	}
	if shared.cluster != nil {
		shared.cluster.Stop()
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines are left after all tests:", err)
			return 1
		}
	}
	return code
}

func sharedServer(t testing.TB) *redistest.Server {
	t.Helper()
	shared.serverOnce.Do(func() {
		shared.server, shared.serverErr = redistest.StartServer(context.Background(), shared.dir)
	})
	redistest.Need(t, shared.serverErr)
	return shared.server
}

func sharedCluster(t testing.TB) *redistest.Cluster {
	t.Helper()
	shared.clusterOnce.Do(func() {
		shared.cluster, shared.clusterErr = redistest.StartClusterIn(context.Background(), shared.dir, 3)
	})
	redistest.Need(t, shared.clusterErr)
	return shared.cluster
}

// newClient is a client with default options, which is the hard case.
func newClient(t testing.TB, addr string) *redis.Client {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { client.Close() })
	return client
}

func newStore(t testing.TB, client redis.UniversalClient, opts redisstore.Options) *redisstore.Store {
	t.Helper()
	s, err := redisstore.New(client, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil && !errors.Is(err, redisstore.ErrClosed) {
			t.Error("Close:", err)
		}
	})
	return s
}

// patient is for tests that are not about the bound: a busy machine must not
// fail them.
var patient = redisstore.Options{Timeout: 5 * time.Second}

// pipelined is patient, and sends reads together.
var pipelined = redisstore.Options{Timeout: patient.Timeout, ReadPipelines: 2}

// readPaths runs a test of a store's bound for each way that reads are sent.
func readPaths(t *testing.T, test func(t *testing.T, opts redisstore.Options)) {
	t.Run("each by itself", func(t *testing.T) { test(t, redisstore.Options{}) })
	t.Run("together", func(t *testing.T) { test(t, redisstore.Options{ReadPipelines: 2}) })
}

var spaceNumber atomic.Int64

// newKey is a key that no other test uses.
func newKey(t testing.TB) store.Key {
	return store.Key{Space: fmt.Sprintf("test%d", spaceNumber.Add(1)), ID: "42"}
}

const keep = 10 * time.Second

func claim(t testing.TB, s store.Store, key store.Key, holder store.Holder) store.Grant {
	t.Helper()
	e := load(t, s, key)
	v, err := s.Claim(t.Context(), store.Claim{Key: key, Seen: e.Token, Holder: holder, Length: 5 * time.Second, Keep: keep})
	if err != nil {
		t.Fatal("claim:", err)
	}
	if v.Outcome != store.Granted {
		t.Fatalf("claim by %s: %v, want granted", holder, v.Outcome)
	}
	return v.Grant
}

func load(t testing.TB, s store.Store, key store.Key) store.Entry {
	t.Helper()
	e, err := s.Load(t.Context(), key)
	if err != nil {
		t.Fatal("load:", err)
	}
	return e
}

func value(payload string) store.Content {
	return store.Content{Kind: store.Value, Payload: []byte(payload), TTL: time.Minute, Grace: time.Minute,
		HandOver: time.Second, Cost: 3 * time.Millisecond}
}

func wantPayload(t testing.TB, s store.Store, key store.Key, want string) store.Entry {
	t.Helper()
	e := load(t, s, key)
	if e.Fault != nil || e.Kind != store.Value || string(e.Payload) != want {
		t.Fatalf("load: kind %v, payload of %d bytes, fault %v; want a value of %d bytes", e.Kind, len(e.Payload), e.Fault, len(want))
	}
	return e
}

func one(t testing.TB, errs []error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}
