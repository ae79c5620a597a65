package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"net"
	"strconv"
	"sync"

	"github.com/redis/rueidis"
	"golang.org/x/sync/singleflight"
)

// placeholder is the way of rueidisaside, written out: who loads puts its mark
// under the key, and the others are told by Redis' client tracking when the mark
// gives way to the value. (That module is not on the Go proxy. The mechanism is;
// its own code may do better.)
var placeholder = strategy{
	name: "rueidis + placeholder", how: "the way of rueidisaside over rueidis: DoCache, SET NX GET of a mark that is alive for " + renewed.String() +
		" after its process is gone (there 10s by default), a script puts the value in its place",
	module: "github.com/redis/rueidis", memory: true,
	open: func(e env) (storage, error) {
		m := &marked{load: e.load, mark: markPrefix + rand.Text()}
		m.ctx, m.cancel = context.WithCancel(context.Background())
		var err error
		m.client, err = rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{e.redis}, Dialer: net.Dialer{Timeout: callLimit},
			DialCtxFn: countedDial(e), OnInvalidations: m.changes.invalidated})
		if err != nil {
			m.cancel()
			return nil, err
		}
		m.alive.Go(m.stayAlive)
		return m, nil
	},
}

const markPrefix = "peers-mark:"

type marked struct {
	client  rueidis.Client
	load    loader
	mark    string // a key, there while this process lives, and what stands under the keys that it loads
	changes changes
	flights singleflight.Group

	ctx    context.Context // of the process' mark
	cancel context.CancelFunc
	alive  sync.WaitGroup
}

var (
	putInPlace = rueidis.NewLuaScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) end return 0`)
	takeAway   = rueidis.NewLuaScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`)
)

// stayAlive keeps the mark of this process until ctx ends.
func (m *marked) stayAlive() {
	for {
		// What fails is tried again: the mark outlives two tries.
		_ = m.client.Do(m.ctx, m.client.B().Set().Key(m.mark).Value("").Px(renewed).Build()).Error()
		if pause(m.ctx, renewed/3) != nil {
			return
		}
	}
}

func (m *marked) Get(ctx context.Context, key string) ([]byte, error) {
	if v, err := m.look(ctx, key); err == nil && !isMark(v) {
		return v, nil // a hit need not listen for changes
	}
	for {
		changed := m.changes.of(key) // before the look, so that nothing falls between
		v, err := m.look(ctx, key)
		if rueidis.IsRedisNil(err) {
			v, err = share(&m.flights, key, func() ([]byte, error) { return m.take(ctx, key) })
		} else if err != nil {
			return share(&m.flights, key, func() ([]byte, error) { return m.load(ctx, key) })
		}
		if err != nil || !isMark(v) {
			return v, err
		}
		if err := m.follow(ctx, key, string(v), changed); err != nil {
			return nil, err
		}
	}
}

func isMark(v []byte) bool { return bytes.HasPrefix(v, []byte(markPrefix)) }

func (m *marked) look(ctx context.Context, key string) ([]byte, error) {
	return m.client.DoCache(ctx, m.client.B().Get().Key(key).Cache(), life).AsBytes()
}

// take loads, if nobody else does: then it returns their mark.
func (m *marked) take(ctx context.Context, key string) ([]byte, error) {
	found, err := m.client.Do(ctx, m.client.B().Set().Key(key).Value(m.mark).Nx().Get().Px(life).Build()).AsBytes()
	if !rueidis.IsRedisNil(err) {
		return found, err
	}
	v, err := m.load(ctx, key)
	if err != nil {
		_ = takeAway.Exec(context.WithoutCancel(ctx), m.client, []string{key}, []string{m.mark}).Error()
		return nil, err
	}
	_ = putInPlace.Exec(ctx, m.client, []string{key}, []string{m.mark, rueidis.BinaryString(v), strconv.FormatInt(life.Milliseconds(), 10)}).Error()
	return v, nil
}

// follow waits until the mark of another process gives way, or that process is
// gone.
func (m *marked) follow(ctx context.Context, key, mark string, changed <-chan struct{}) error {
	gone := m.changes.of(mark)
	_, err := m.look(ctx, mark)
	switch {
	case rueidis.IsRedisNil(err):
		return takeAway.Exec(ctx, m.client, []string{key}, []string{mark}).Error()
	case err != nil:
		return err
	}
	select {
	case <-changed:
	case <-gone:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

func (m *marked) Delete(ctx context.Context, key string) error {
	return m.client.Do(ctx, m.client.B().Del().Key(key).Build()).Error()
}

func (m *marked) Close() error {
	m.cancel()
	m.alive.Wait()
	m.client.Close()
	return nil
}

// changes tells who waits that Redis has said that a key changed. The zero
// value is ready.
type changes struct {
	mu  sync.Mutex
	all map[string]chan struct{} // closed at the next change; guarded by mu
}

// of is closed when key changes after now.
func (c *changes) of(key string) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil {
		c.all = map[string]chan struct{}{}
	}
	if c.all[key] == nil {
		c.all[key] = make(chan struct{})
	}
	return c.all[key]
}

// invalidated is what rueidis calls; nil: anything may have changed.
func (c *changes) invalidated(messages []rueidis.RedisMessage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if messages == nil {
		for key, ch := range c.all {
			close(ch)
			delete(c.all, key)
		}
	}
	for _, m := range messages {
		key, _ := m.ToString()
		if ch := c.all[key]; ch != nil {
			close(ch)
			delete(c.all, key)
		}
	}
}
