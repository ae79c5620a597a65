package middleware

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

// trips counts what a client sends, but for what it says on a new connection.
type trips struct{ n atomic.Int64 }

func (c *trips) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (c *trips) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() != "hello" {
			c.n.Add(1)
		}
		return next(ctx, cmd)
	}
}

func (c *trips) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if cmds[0].Name() != "client" {
			c.n.Add(1)
		}
		return next(ctx, cmds)
	}
}

// onReadPaths runs a test for each way that the stores send their reads.
func onReadPaths(t *testing.T, test func(t *testing.T, opts redisstore.Options)) {
	t.Run("reads by themselves", func(t *testing.T) { test(t, redisstore.Options{}) })
	t.Run("reads together", func(t *testing.T) { test(t, redisstore.Options{ReadPipelines: 2}) })
}

// overRedis returns stores with clients of their own to one server.
func overRedis(t *testing.T, addr string, count *trips, opts redisstore.Options) func() store.Store {
	return func() store.Store {
		client := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true, MaxRetries: -1, Protocol: 2})
		if count != nil {
			client.AddHook(count)
		}
		t.Cleanup(func() { client.Close() })
		s, err := redisstore.New(client, opts)
		if err != nil {
			t.Fatal(err)
		}
		if closer, ok := any(s).(io.Closer); ok {
			t.Cleanup(func() { closer.Close() })
		}
		return s
	}
}

func TestAFleetOverRedisRunsTheHandlerOnce(t *testing.T) {
	onReadPaths(t, aFleetOverRedisRunsTheHandlerOnce)
}

func aFleetOverRedisRunsTheHandlerOnce(t *testing.T, opts redisstore.Options) {
	server := redistest.Start(t)
	f := newFleetOver(t, overRedis(t, server.Addr, nil, opts), 3, Options{}, cacheable, nil)
	f.warm(50)
	answers := f.storm(150, func(i int) answer { return f.ask(i%3, "GET", "/p") })
	f.wantRuns(1)
	for _, a := range answers {
		if a.err != nil || a.status != 200 || a.body != "page /p" {
			t.Fatalf("got %d %q %v", a.status, a.body, a.err)
		}
	}
	if d := slowest(answers); d > 2*handlerTime {
		t.Errorf("slowest took %v", d)
	}
}

func TestTheFleetRemembersWhatIsNotToBeShared(t *testing.T) {
	onReadPaths(t, theFleetRemembersWhatIsNotToBeShared)
}

func theFleetRemembersWhatIsNotToBeShared(t *testing.T, opts redisstore.Options) {
	server := redistest.Start(t)
	f := newFleetOver(t, overRedis(t, server.Addr, nil, opts), 3, Options{}, func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(handlerTime)
		w.Header().Set("Cache-Control", "private")
		io.WriteString(w, "hello "+r.Header.Get("X-User"))
	}, nil)
	f.warm(10)
	for round, limit := range []time.Duration{2 * handlerTime, handlerTime} {
		answers := f.storm(30, func(i int) answer { return f.ask(i%3, "GET", "/me", "X-User", fmt.Sprint(i)) })
		for i, a := range answers {
			if a.body != "hello "+fmt.Sprint(i) {
				t.Errorf("user %d got %q, %v", i, a.body, a.err)
			}
		}
		if d := slowest(answers); d > limit+handlerTime/2 {
			t.Errorf("round %d took %v, want at most %v", round, d, limit)
		}
	}
}

func TestAHitCostsOneRoundTripAndAMissThree(t *testing.T) {
	onReadPaths(t, aHitCostsOneRoundTripAndAMissThree)
}

func aHitCostsOneRoundTripAndAMissThree(t *testing.T, opts redisstore.Options) {
	server := redistest.Start(t)
	var count trips
	f := newFleetOver(t, overRedis(t, server.Addr, &count, opts), 1, Options{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		w.Header().Set("Vary", "A")
		io.WriteString(w, "page")
	}, nil)
	for range 5 {
		f.get("/warm") // scripts, clock, subscription
	}
	cost := func(path string, pairs ...string) int64 {
		before := count.n.Load()
		f.get(path, pairs...)
		return count.n.Load() - before
	}
	for _, tt := range []struct {
		what  string
		path  string
		pairs []string
		most  int64
	}{
		{"miss", "/p", nil, 3},
		{"hit", "/p", nil, 1},
		{"miss of a variant", "/p", []string{"A", "1"}, 7}, // three of them for its seat
		{"hit of a variant", "/p", []string{"A", "1"}, 2},
	} {
		if n := cost(tt.path, tt.pairs...); n > tt.most {
			t.Errorf("%s: %d round trips, want at most %d", tt.what, n, tt.most)
		}
	}
}

func TestNoRequestFailsBecauseRedisIsAway(t *testing.T) {
	onReadPaths(t, noRequestFailsBecauseRedisIsAway)
}

func noRequestFailsBecauseRedisIsAway(t *testing.T, opts redisstore.Options) {
	server := redistest.Start(t)
	f := newFleetOver(t, overRedis(t, server.Addr, nil, opts), 2, Options{}, func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(20 * time.Millisecond)
		w.Header().Set("Cache-Control", "max-age=1")
		io.WriteString(w, "page")
	}, nil)
	f.warm(10)
	stop := time.AfterFunc(150*time.Millisecond, server.Stop)
	defer stop.Stop()
	end := time.Now().Add(time.Second)
	for i := 0; time.Now().Before(end); i++ {
		for _, a := range f.storm(10, func(n int) answer { return f.ask(n%2, "GET", fmt.Sprint("/p", i%3)) }) {
			if a.err != nil || a.status != 200 || a.body != "page" {
				t.Fatalf("got %d %q %v", a.status, a.body, a.err)
			}
		}
	}
}
