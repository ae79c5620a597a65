package main

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/cacheguard-go/cacheguard/internal/faultproxy"
)

// start starts one process of the fleet, with a proxy between it and Redis if
// the fleet is to have that.
func (f *fleet) start(ctx context.Context) (*replica, error) {
	args := f.args
	var proxy *faultproxy.Proxy
	if args.proxied {
		target, through, err := redisThrough(args.redis)
		if err != nil {
			return nil, err
		}
		if proxy, err = faultproxy.Start(target); err != nil {
			return nil, err
		}
		args.redis = through(proxy.Addr)
	}
	r, err := startReplica(ctx, f.binary, args)
	if err != nil {
		if proxy != nil {
			proxy.Close()
		}
		return nil, err
	}
	r.proxy = proxy
	return r, nil
}

// redisThrough returns the address of a Redis, and what to write for it when it
// is reached at another.
func redisThrough(where string) (target string, through func(addr string) string, err error) {
	if strings.Contains(where, ",") || strings.HasPrefix(where, "rediss:") || strings.HasPrefix(where, "unix:") {
		return "", nil, fmt.Errorf("the Redis at %s cannot be cut off from a process; use one server without TLS, or leave out -redis", where)
	}
	if !strings.Contains(where, "://") {
		return where, func(addr string) string { return addr }, nil
	}
	u, err := url.Parse(where)
	if err != nil {
		return "", nil, fmt.Errorf("-redis: %w", err)
	}
	port := u.Port()
	if port == "" {
		port = "6379"
	}
	return net.JoinHostPort(u.Hostname(), port), func(addr string) string {
		there := *u
		there.Host = addr
		return there.String()
	}, nil
}

// network does something to the way of all processes to Redis.
func (f *fleet) network(faults faultproxy.Faults) {
	for _, r := range f.replicas {
		r.proxy.Set(faults)
		if faults.Refuse {
			r.proxy.Reset()
		}
	}
}
