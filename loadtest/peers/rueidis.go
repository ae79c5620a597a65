package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
	"golang.org/x/sync/singleflight"
)

var rueidisLock = strategy{
	name: "rueidis + rueidislock", how: "DoCache (client-side caching), singleflight, a lock that is renewed (KeyValidity " + renewed.String() +
		", NoLoopTracking, TryNextAfter " + rueidisTry.String() + ": its default is 20ms), look again, load, SET",
	module: "github.com/redis/rueidis", memory: true,
	open: func(e env) (storage, error) {
		opts := rueidis.ClientOption{InitAddress: []string{e.redis}, Dialer: net.Dialer{Timeout: callLimit}, DialCtxFn: countedDial(e)}
		client, err := rueidis.NewClient(opts)
		if err != nil {
			return nil, err
		}
		locker, err := rueidislock.NewLocker(rueidislock.LockerOption{ClientOption: opts, KeyMajority: 1, KeyValidity: renewed, NoLoopTracking: true, TryNextAfter: rueidisTry})
		if err != nil {
			client.Close()
			return nil, err
		}
		return &tracked{client: client, locker: locker, load: e.load}, nil
	},
}

// rueidisTry is how long a try to get the lock may take. With the default, a
// try that a busy machine delays fails without the server's word on it, and its
// caller then waits for a notice that nobody owes it, until its deadline.
const rueidisTry = time.Second

func countedDial(e env) func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
	return func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
		conn, err := d.DialContext(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		return &countedConn{Conn: conn, command: func(name string) {
			if !upkeep(name) {
				e.commands.Add(1)
			}
		}}, nil
	}
}

// tracked is the recipe of locked over rueidis, whose memory Redis keeps
// current.
type tracked struct {
	client  rueidis.Client
	locker  rueidislock.Locker
	load    loader
	flights singleflight.Group
}

func (t *tracked) Get(ctx context.Context, key string) ([]byte, error) {
	v, err := t.client.DoCache(ctx, t.client.B().Get().Key(key).Cache(), life).AsBytes()
	if err == nil {
		return v, nil
	}
	return share(&t.flights, key, func() ([]byte, error) {
		if !rueidis.IsRedisNil(err) {
			return t.load(ctx, key)
		}
		return t.rebuild(ctx, key)
	})
}

func (t *tracked) rebuild(ctx context.Context, key string) ([]byte, error) {
	held, unlock, err := t.locker.WithContext(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("no lock: %w", err)
	}
	defer unlock()
	// Not from memory: it may hold the miss.
	if v, err := t.client.Do(ctx, t.client.B().Get().Key(key).Build()).AsBytes(); err == nil {
		return v, nil
	}
	// held ends with the lock, as documented: a holder that has lost it does not
	// go on.
	v, err := t.load(held, key)
	if err != nil {
		return nil, err
	}
	_ = t.client.Do(held, t.client.B().Set().Key(key).Value(rueidis.BinaryString(v)).Px(life).Build()).Error()
	return v, nil
}

func (t *tracked) Delete(ctx context.Context, key string) error {
	return t.client.Do(ctx, t.client.B().Del().Key(key).Build()).Error()
}

func (t *tracked) Close() error {
	t.locker.Close()
	t.client.Close()
	return nil
}
