package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
)

// way is a waker with the name that the table has for it.
type way struct {
	name string
	open func(env) (waker, error)
}

// ways are all that are compared. But for the last they only wake: nobody is
// elected, nothing is fenced.
var ways = []way{
	{"GET every 10 ms", func(e env) (waker, error) { return &polling{redisFor(e), 10 * time.Millisecond}, nil }},
	{"GET every 50 ms", func(e env) (waker, error) { return &polling{redisFor(e), 50 * time.Millisecond}, nil }},
	{"PUBLISH on one channel", func(e env) (waker, error) { return openHub(e, &hub{}) }},
	{"PUBLISH on one channel with the value", func(e env) (waker, error) { return openHub(e, &hub{value: true}) }},
	{"PUBLISH on a channel for each key", func(e env) (waker, error) { return openHub(e, &hub{each: true}) }},
	{"SPUBLISH on one channel", func(e env) (waker, error) { return openHub(e, &hub{shard: true}) }},
	{"client tracking (rueidis)", openTracking},
	{wakeOurs, openFollowing},
}

const wakeOurs = "cacheguard"

// redisFor is a client with room for all that ask at once.
func redisFor(e env) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: e.redis, ContextTimeoutEnabled: true, PoolSize: 64, MinIdleConns: 8})
}

// polling looks again and again.
type polling struct {
	*redis.Client
	every time.Duration
}

func (p *polling) hold(context.Context, string) error { return nil }

func (p *polling) wait(_ context.Context, key string) (func(context.Context) error, error) {
	return func(ctx context.Context) error {
		for {
			if err := pause(ctx, p.every); err != nil {
				return err
			}
			if err := p.Get(ctx, key).Err(); !errors.Is(err, redis.Nil) {
				return err
			}
		}
	}, nil
}

func (p *polling) fill(ctx context.Context, key string, value []byte) error {
	return p.Set(ctx, key, value, life).Err()
}

// hub listens to messages and passes them on to who waits for their key.
type hub struct {
	client *redis.Client
	sub    *redis.PubSub
	value  bool // it is in the message
	each   bool // key has a channel
	shard  bool // channels

	mu    sync.Mutex
	waits map[string]chan string   // of each key, for the message; guarded by mu
	ready map[string]chan struct{} // closed when a channel is subscribed; guarded by mu
	done  chan struct{}
}

const hubChannel = "peers-wake"

// openHub opens p, of which value, each and shard are set.
func openHub(e env, p *hub) (waker, error) {
	p.client, p.done = redisFor(e), make(chan struct{})
	p.waits, p.ready = map[string]chan string{}, map[string]chan struct{}{}
	ctx, cancel := context.WithTimeout(context.Background(), wakeLimit)
	defer cancel()
	p.sub = p.client.Subscribe(ctx)
	go p.listen(p.sub.ChannelWithSubscriptions(redis.WithChannelSize(4096)))
	return p, p.subscribe(ctx, hubChannel)
}

func (p *hub) listen(messages <-chan any) {
	defer close(p.done)
	for m := range messages {
		p.mu.Lock()
		switch m := m.(type) {
		case *redis.Subscription:
			if ch := p.ready[m.Channel]; ch != nil {
				close(ch)
				delete(p.ready, m.Channel)
			}
		case *redis.Message:
			key, value, _ := strings.Cut(m.Payload, "\n")
			if ch := p.waits[key]; ch != nil {
				ch <- value // it has room for one
				delete(p.waits, key)
			}
		}
		p.mu.Unlock()
	}
}

// subscribe returns when channel is heard.
func (p *hub) subscribe(ctx context.Context, channel string) error {
	ready := make(chan struct{})
	p.mu.Lock()
	p.ready[channel] = ready
	p.mu.Unlock()
	subscribe := p.sub.Subscribe
	if p.shard {
		subscribe = p.sub.SSubscribe
	}
	if err := subscribe(ctx, channel); err != nil {
		return err
	}
	select {
	case <-ready:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *hub) channel(key string) string {
	if p.each {
		return hubChannel + ":" + key
	}
	return hubChannel
}

func (p *hub) hold(context.Context, string) error { return nil }

func (p *hub) wait(ctx context.Context, key string) (func(context.Context) error, error) {
	message := make(chan string, 1)
	p.mu.Lock()
	p.waits[key] = message
	p.mu.Unlock()
	if p.each {
		if err := p.subscribe(ctx, p.channel(key)); err != nil {
			return nil, err
		}
	}
	return func(ctx context.Context) error {
		select {
		case value := <-message:
			if p.value {
				return wantValue(key, []byte(value))
			}
			v, err := p.client.Get(ctx, key).Bytes()
			return errors.Join(err, wantValue(key, v))
		case <-ctx.Done():
			return fmt.Errorf("no message: %w", ctx.Err())
		}
	}, nil
}

func wantValue(key string, v []byte) error {
	if versionOf(key, v) != 1 {
		return fmt.Errorf("woken for %s, and there is %.40q", key, v)
	}
	return nil
}

func (p *hub) fill(ctx context.Context, key string, value []byte) error {
	message := key
	if p.value {
		message += "\n" + string(value)
	}
	_, err := p.client.TxPipelined(ctx, func(tx redis.Pipeliner) error {
		tx.Set(ctx, key, value, life)
		if p.shard {
			tx.SPublish(ctx, p.channel(key), message)
		} else {
			tx.Publish(ctx, p.channel(key), message)
		}
		return nil
	})
	return err
}

func (p *hub) Close() error {
	err := p.sub.Close()
	<-p.done
	return errors.Join(err, p.client.Close())
}

// tracking lets Redis tell which keys changed that were read.
type tracking struct {
	client  rueidis.Client
	changes changes
}

func openTracking(e env) (waker, error) {
	t := &tracking{}
	var err error
	t.client, err = rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{e.redis}, Dialer: net.Dialer{Timeout: callLimit}, OnInvalidations: t.changes.invalidated})
	return t, err
}

func (t *tracking) hold(context.Context, string) error { return nil }

func (t *tracking) get(ctx context.Context, key string) ([]byte, error) {
	return t.client.DoCache(ctx, t.client.B().Get().Key(key).Cache(), life).AsBytes()
}

func (t *tracking) wait(ctx context.Context, key string) (func(context.Context) error, error) {
	changed := t.changes.of(key)
	if _, err := t.get(ctx, key); !rueidis.IsRedisNil(err) {
		return nil, fmt.Errorf("%s is there already: %w", key, err)
	}
	return func(ctx context.Context) error {
		select {
		case <-changed:
			v, err := t.get(ctx, key)
			return errors.Join(err, wantValue(key, v))
		case <-ctx.Done():
			return fmt.Errorf("no invalidation: %w", ctx.Err())
		}
	}, nil
}

func (t *tracking) fill(ctx context.Context, key string, value []byte) error {
	return t.client.Do(ctx, t.client.B().Set().Key(key).Value(rueidis.BinaryString(value)).Px(life).Build()).Error()
}

func (t *tracking) Close() error {
	t.client.Close()
	return nil
}

// following is this library: the holder's flights load, the other processes'
// follow.
type following struct {
	client *redis.Client
	store  *redisstore.Store
	guard  *cacheguard.Guard[[]byte]

	mu      sync.Mutex
	held    map[string]chan struct{} // closed when another holds the key; guarded by mu
	loading map[string]*held         // guarded by mu
}

// held is a load that ends when it gets its value.
type held struct {
	begun chan struct{}
	value chan []byte
	done  chan error // of the caller
}

func openFollowing(e env) (waker, error) {
	p := &following{client: redisFor(e), held: map[string]chan struct{}{}, loading: map[string]*held{}}
	var err error
	// The wait for a thousand keys to be held is none of a call that times out.
	if p.store, err = redisstore.New(p.client, redisstore.Options{Timeout: 5 * time.Second, MaxCalls: 4096}); err != nil {
		return nil, errors.Join(err, p.client.Close())
	}
	p.guard, err = cacheguard.New(p.store, cacheguard.Options[[]byte]{Namespace: "peers-wake", Lifetime: cacheguard.Lifetime{TTL: life},
		Codec: cacheguard.Bytes(), Hooks: cacheguard.Hooks{Claim: p.claimed}})
	if err != nil {
		return nil, errors.Join(err, p.store.Close(), p.client.Close())
	}
	return p, nil
}

func (p *following) claimed(info cacheguard.ClaimInfo) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ch := p.held[info.Key]; ch != nil && info.Outcome == store.Held {
		close(ch)
		delete(p.held, info.Key)
	}
}

func (p *following) hold(ctx context.Context, key string) error {
	h := &held{make(chan struct{}), make(chan []byte, 1), make(chan error, 1)}
	p.mu.Lock()
	p.loading[key] = h
	p.mu.Unlock()
	go func() { // until fill
		_, err := p.guard.Get(context.Background(), key, func(ctx context.Context, _ string) ([]byte, error) {
			close(h.begun)
			select {
			case v := <-h.value:
				return v, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		})
		h.done <- err
	}()
	select {
	case <-h.begun:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *following) wait(ctx context.Context, key string) (func(context.Context) error, error) {
	held, got := make(chan struct{}), make(chan error, 1)
	p.mu.Lock()
	p.held[key] = held
	p.mu.Unlock()
	go func() { // for as long as the guard lets a follower wait
		v, err := p.guard.Get(context.Background(), key, func(context.Context, string) ([]byte, error) {
			return nil, errors.New("a follower was let load")
		})
		got <- errors.Join(err, wantValue(key, v))
	}()
	select {
	case <-held:
		return func(ctx context.Context) error {
			select {
			case err := <-got:
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		}, nil
	case err := <-got:
		return nil, fmt.Errorf("%s was not held: %w", key, err)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *following) fill(ctx context.Context, key string, value []byte) error {
	p.mu.Lock()
	h := p.loading[key]
	delete(p.loading, key)
	p.mu.Unlock()
	h.value <- value
	select {
	case err := <-h.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *following) Close() error {
	return errors.Join(p.guard.Close(), p.store.Close(), p.client.Close())
}
