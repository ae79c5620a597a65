package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/internal/child"
)

// redisServer is the Redis of the fleet.
type redisServer struct {
	addr  string // as for demo-api's -redis
	info  redisInfo
	close func() error
}

// Close ends it, unless it was given.
func (r *redisServer) Close() error { return r.close() }

const (
	kindServer   = "redis-server"
	kindEmbedded = "embedded"
	kindGiven    = "given"
)

// openRedis uses the Redis at given; if that is empty it starts a redis-server
// from PATH, and if there is none an embedded one.
func openRedis(ctx context.Context, given, dir string) (*redisServer, error) {
	if given != "" {
		version, err := redisVersion(ctx, given)
		if err != nil {
			return nil, fmt.Errorf("no Redis answers at %s (%w); start one there, or leave out -redis", given, err)
		}
		return &redisServer{addr: given, info: redisInfo{kindGiven, version}, close: func() error { return nil }}, nil
	}
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return embeddedRedis()
	}
	return startRedis(ctx, path, dir)
}

// startRedis starts a redis-server that keeps nothing.
func startRedis(ctx context.Context, path, dir string) (*redisServer, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	log := new(tail)
	cmd := exec.Command(path, "--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--save", "", "--appendonly", "no", "--dir", dir)
	cmd.Stdout, cmd.Stderr = log, log
	c, err := child.Start(cmd)
	if err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", path, err)
	}
	r := &redisServer{addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), close: func() error { return c.Stop(5 * time.Second) }}
	for {
		version, err := redisVersion(ctx, r.addr)
		if err == nil {
			r.info = redisInfo{kindServer, version}
			return r, nil
		}
		select {
		case <-c.Done():
			return nil, fmt.Errorf("%s ended at once: %s", path, log)
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), r.Close())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// freePort returns a port that was free a moment ago. Redis takes a number
// only: it cannot choose one and say which.
func freePort() (int, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("no port is free for Redis: %w", err)
	}
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).Port, nil
}

// embeddedRedis starts a Redis in this process.
func embeddedRedis() (*redisServer, error) {
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true) // otherwise nothing ever expires
	if err := m.StartAddr("127.0.0.1:0"); err != nil {
		return nil, fmt.Errorf("cannot start the embedded Redis: %w", err)
	}
	return &redisServer{addr: m.Addr(), info: redisInfo{kindEmbedded, miniredisVersion()}, close: func() error { m.Close(); return nil }}, nil
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

// silence keeps go-redis from writing to the terminal that the first look at a
// server came before the server.
type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

// redisVersion asks a Redis what it is.
func redisVersion(ctx context.Context, addr string) (string, error) {
	opt := &redis.Options{Addr: strings.Split(addr, ",")[0]}
	if strings.Contains(addr, "://") {
		var err error
		if opt, err = redis.ParseURL(addr); err != nil {
			return "", err
		}
	}
	opt.MaxRetries, opt.DialerRetries, opt.ContextTimeoutEnabled = -1, 1, true
	redis.SetLogger(silence{})
	client := redis.NewClient(opt)
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	text, err := client.Info(ctx, "server").Result()
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(text) {
		if version, ok := strings.CutPrefix(strings.TrimSpace(line), "redis_version:"); ok {
			return version, nil
		}
	}
	return "unknown", nil
}
