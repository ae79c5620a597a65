package main

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

// redisServer is the Redis of the fleet.
type redisServer struct {
	addr  string // as for demo-api's -redis
	info  redisInfo
	close func() error

	// restart makes it forget everything, as one without persistence does. Nil
	// for one that was given: others may use it.
	restart func(context.Context) error
}

// Close ends it, unless it was given.
func (r *redisServer) Close() error { return r.close() }

// gone says that it does not answer any more. What was measured meanwhile says
// nothing of a scenario in which it should.
func (r *redisServer) gone(ctx context.Context) error {
	if ctx.Err() != nil {
		return nil // that is why
	}
	if _, err := redisVersion(ctx, r.addr); err != nil {
		return fmt.Errorf("the Redis of the fleet does not answer any more (%w); what is shown was measured before", err)
	}
	return nil
}

const (
	kindServer   = "redis-server"
	kindEmbedded = "embedded"
	kindGiven    = "given"
)

// openRedis uses the Redis at given; if that is empty it starts a redis-server
// from PATH, with priority if it can have that, and if there is none an embedded
// one.
func openRedis(ctx context.Context, given, dir string, priority bool) (*redisServer, error) {
	if given != "" {
		version, err := redisVersion(ctx, given)
		if err != nil {
			return nil, fmt.Errorf("no Redis answers at %s (%w); start one there, or leave out -redis", given, err)
		}
		return &redisServer{addr: given, info: redisInfo{Kind: kindGiven, Version: version}, close: func() error { return nil }}, nil
	}
	// Without priority it waits for a processor behind the callers of a storm, who
	// have all come at once. One on a machine of its own does not.
	prefer := func(s *redistest.Server) bool { return priority && s.Prefer() == nil }
	server, err := redistest.StartServer(ctx, dir)
	switch {
	case errors.Is(err, redistest.ErrNoServer):
		return embeddedRedis()
	case err != nil:
		return nil, err
	}
	r := &redisServer{addr: server.Addr, close: func() error { server.Stop(); return nil }}
	r.restart = func(ctx context.Context) error {
		defer prefer(server)
		return server.Restart(ctx)
	}
	version, err := redisVersion(ctx, r.addr)
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	r.info = redisInfo{Kind: kindServer, Version: version, Priority: prefer(server)}
	return r, nil
}

// embeddedRedis starts a Redis in this process.
func embeddedRedis() (*redisServer, error) {
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true) // otherwise nothing ever expires
	if err := m.StartAddr("127.0.0.1:0"); err != nil {
		return nil, fmt.Errorf("cannot start the embedded Redis: %w", err)
	}
	return &redisServer{
		addr: m.Addr(), info: redisInfo{Kind: kindEmbedded, Version: miniredisVersion()},
		close:   func() error { m.Close(); return nil },
		restart: func(context.Context) error { m.FlushAll(); return nil },
	}, nil
}

func miniredisVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == "github.com/alicebob/miniredis/v2" {
				return dep.Version
			}
		}
	}
	return "unknown"
}

// redisVersion asks a Redis what it is. The error is that it does not answer;
// one that answers but will not say is of unknown version.
func redisVersion(ctx context.Context, addr string) (string, error) {
	opt := &redis.Options{Addr: strings.Split(addr, ",")[0]}
	if strings.Contains(addr, "://") {
		var err error
		if opt, err = redis.ParseURL(addr); err != nil {
			return "", err
		}
	}
	opt.MaxRetries, opt.DialerRetries, opt.ContextTimeoutEnabled = -1, 1, true
	client := redis.NewClient(opt)
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if err := client.Ping(ctx).Err(); err != nil {
		return "", err
	}
	text, _ := client.Info(ctx, "server").Result()
	for line := range strings.Lines(text) {
		if version, ok := strings.CutPrefix(strings.TrimSpace(line), "redis_version:"); ok {
			return version, nil
		}
	}
	return "unknown", nil
}
