package main

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/singleflight"
)

// The recipe that lock libraries are used with: one of each process asks, under
// a lock it looks again, and loads if there is still nothing.

var redisLock = strategy{
	name: "redislock recipe", how: "singleflight, Obtain with " + lockRetry.String() + " retry and " + lockLife.String() + " TTL, look again, load, SET, Release",
	module: "github.com/bsm/redislock",
	open: func(e env) (storage, error) {
		client := newClient(e)
		locker := redislock.New(client)
		return &locked{aside: aside{client: client, load: e.load}, lock: func(ctx context.Context, key string) (func(), error) {
			l, err := locker.Obtain(ctx, key, lockLife, &redislock.Options{RetryStrategy: redislock.LinearBackoff(lockRetry)})
			return func() { _ = l.Release(context.WithoutCancel(ctx)) }, err
		}}, nil
	},
}

var redSync = strategy{
	name: "redsync recipe", how: "the same with a Mutex: " + lockRetry.String() + " retry (its default is 50 to 250ms), " + lockLife.String() + " expiry",
	module: "github.com/go-redsync/redsync/v4",
	open: func(e env) (storage, error) {
		client := newClient(e)
		rs := redsync.New(goredis.NewPool(client))
		return &locked{aside: aside{client: client, load: e.load}, lock: func(ctx context.Context, key string) (func(), error) {
			// Its time limit for a call is a share of the expiry, 0.05 by default.
			m := rs.NewMutex(key, redsync.WithExpiry(lockLife), redsync.WithTries(lockTries), redsync.WithRetryDelay(lockRetry))
			return func() { _, _ = m.UnlockContext(context.WithoutCancel(ctx)) }, m.LockContext(ctx)
		}}, nil
	},
}

// lockTries are enough for any wait here: the deadline ends it.
const lockTries = int(30 * time.Second / lockRetry)

type locked struct {
	aside
	lock    func(ctx context.Context, key string) (unlock func(), err error)
	flights singleflight.Group
}

func (l *locked) Get(ctx context.Context, key string) ([]byte, error) {
	return share(&l.flights, key, func() ([]byte, error) {
		v, err := l.read(ctx, key)
		switch {
		case err == nil:
			return v, nil
		case !errors.Is(err, redis.Nil):
			return l.load(ctx, key) // without Redis: one load of each process
		}
		return l.rebuild(ctx, key)
	})
}

func (l *locked) rebuild(ctx context.Context, key string) ([]byte, error) {
	unlock, err := l.lock(ctx, "lock:"+key)
	if err != nil {
		return nil, errors.New("no lock for " + strconv.Quote(key) + ": " + err.Error())
	}
	defer unlock()
	if v, err := l.read(ctx, key); err == nil {
		return v, nil
	}
	v, err := l.load(ctx, key)
	if err != nil {
		return nil, err
	}
	return v, l.write(ctx, key, v)
}
