package main

import (
	"context"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// newClient returns a client that gives up in time. With go-redis' defaults a
// call hangs for seconds when Redis does, whatever the caller's deadline; who
// has read its documentation sets these.
func newClient(e env) *redis.Client {
	c := redis.NewClient(&redis.Options{
		Addr:                  e.redis,
		ContextTimeoutEnabled: true,
		MaxRetries:            -1,
		DialerRetries:         1,
		DialTimeout:           callLimit,
		ReadTimeout:           callLimit,
		WriteTimeout:          callLimit,
		PoolTimeout:           callLimit,
		PoolSize:              poolSize,
		MinIdleConns:          8,
	})
	c.AddHook(counter{e.commands})
	return c
}

// poolSize lets the callers of a storm ask at once: with fewer connections the
// strategies that ask for each caller would time out in the queue.
const poolSize = 256

// counter counts the commands that a go-redis client sends for its callers.
type counter struct{ n *atomic.Int64 }

func (c counter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.count(cmd)
		return next(ctx, cmd)
	}
}

func (c counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			c.count(cmd)
		}
		return next(ctx, cmds)
	}
}

// count leaves out what opens a connection: that comes with time, not with
// callers.
func (c counter) count(cmd redis.Cmder) {
	if !upkeep(cmd.Name()) {
		c.n.Add(1)
	}
}

// upkeep are commands that open and keep connections.
func upkeep(name string) bool {
	switch name {
	case "hello", "auth", "select", "ping", "client", "info", "role", "command", "subscribe", "ssubscribe", "unsubscribe", "sunsubscribe":
		return true
	}
	return false
}
