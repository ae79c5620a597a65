package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
)

// backend is the store, and what has to be closed with it.
type backend struct {
	store store.Store
	name  string // for a human
	close []func() error
	plug  *plug // of the line to it

	// lease tells who holds a key's lease, by the record that the store keeps.
	// nil: the store is in memory, and only this process can.
	lease func(context.Context, store.Key) (leaseState, error)

	// advice is what the log is to say about the server and the client.
	advice []string
}

// Close closes the store before the client that it uses.
func (b *backend) Close() error {
	var first error
	for _, c := range b.close {
		if err := c(); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// openBackend returns the store at a Redis, or one in memory if where is
// empty. Every command that leaves for Redis is told to sent.
func openBackend(ctx context.Context, where string, sent func(command string)) (*backend, error) {
	if where == "" {
		line := new(plug)
		return &backend{store: pluggable{memstore.New(memstore.Options{}), line}, name: "in memory", plug: line}, nil
	}
	line := new(plug)
	client, name, err := newClient(where, func(d dial) dial { return counting(line.through(d), sent) })
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, reachLimit)
	defer cancel()
	if err := client.Ping(ctx).Err(); err != nil {
		client.Close()
		return nil, fmt.Errorf("no Redis answers at %s (%w); start one there, or leave out -redis for a store in memory", name, err)
	}
	s, err := redisstore.New(client, redisstore.Options{})
	if err != nil {
		client.Close()
		return nil, err
	}
	b := &backend{store: s, name: "Redis at " + name, close: []func() error{s.Close, client.Close}, plug: line, lease: leaseRecord(client)}
	if b.advice, err = s.Advice(ctx, productSpace, listSpace, pageSpace); err != nil {
		b.advice = append(b.advice, "the server could not be asked what it permits: "+string(store.ClassOf(err)))
	}
	return b, nil
}

// reachLimit bounds the look at the start whether Redis is there.
const reachLimit = 3 * time.Second

// newClient understands HOST:PORT, a redis:// or rediss:// or unix:// URL, and
// HOST:PORT,HOST:PORT for a Cluster. The name it returns holds no password.
//
// Every connection is opened through what wrap makes of the client's dialer.
func newClient(where string, wrap func(dial) dial) (client redis.UniversalClient, name string, err error) {
	if strings.Contains(where, "://") {
		opt, err := redis.ParseURL(where)
		if err != nil {
			var bad *url.Error
			if errors.As(err, &bad) {
				err = bad.Err // without the URL, which may hold a password
			}
			return nil, "", fmt.Errorf("-redis is not a URL of a Redis (%w); use one such as redis://user:password@host:6379/0", err)
		}
		opt.ContextTimeoutEnabled = true
		opt.MaxRetries = noRetries
		opt.DialerRetries = 1
		opt.Dialer = wrap(redis.NewDialer(opt))
		return redis.NewClient(opt), opt.Addr, nil
	}
	addrs := strings.Split(where, ",")
	for i, addr := range addrs {
		addrs[i] = strings.TrimSpace(addr)
		if _, _, err := net.SplitHostPort(addrs[i]); err != nil {
			return nil, "", fmt.Errorf("-redis %s is not an address (%w); use HOST:PORT, a redis:// URL, or HOST:PORT,HOST:PORT for a Cluster", where, err)
		}
	}
	dialer := &net.Dialer{Timeout: dialLimit}
	return redis.NewUniversalClient(&redis.UniversalOptions{
		Addrs:                 slices.Compact(addrs),
		Dialer:                wrap(dialer.DialContext),
		ContextTimeoutEnabled: true,
		MaxRetries:            noRetries,
		DialerRetries:         1,
	}), where, nil
}

// leaseRecord reads the record that redisstore keeps beside an entry, as a human
// would with HGETALL.
func leaseRecord(client redis.UniversalClient) func(context.Context, store.Key) (leaseState, error) {
	return func(ctx context.Context, key store.Key) (leaseState, error) {
		ctx, cancel := context.WithTimeout(ctx, dialLimit)
		defer cancel()
		name := key.Space + ":{" + key.ID + "}:lease"
		var record *redis.SliceCmd
		var clock *redis.TimeCmd
		_, err := client.Pipelined(ctx, func(p redis.Pipeliner) error {
			record, clock = p.HMGet(ctx, name, "holder", "until", "length"), p.Time(ctx)
			return nil
		})
		if err != nil {
			return leaseState{}, err
		}
		return readLease(record.Val(), clock.Val()), nil
	}
}

// readLease makes sense of holder, until and length at a time of the server.
func readLease(fields []any, now time.Time) leaseState {
	var text [3]string
	for i, f := range fields {
		text[i], _ = f.(string)
	}
	until, errU := strconv.ParseInt(text[1], 10, 64)
	length, errL := strconv.ParseInt(text[2], 10, 64)
	left := time.Duration(until-now.UnixMicro()) * time.Microsecond
	if text[0] == "" || errU != nil || errL != nil || left <= 0 {
		return leaseState{Holder: "nobody"}
	}
	held := max(0, time.Duration(length)*time.Microsecond-left) // since the last renewal, at least
	return leaseState{Holder: "another process", Who: store.Holder(text[0]).Process(), Held: millis(held), Left: millis(left)}
}

// quietly keeps go-redis from writing to the terminal whenever it cannot dial:
// the store tells its faults, and the metrics show them.
type quietly struct{}

func (quietly) Printf(ctx context.Context, format string, args ...any) {
	slog.DebugContext(ctx, fmt.Sprintf(format, args...))
}

const (
	// noRetries leaves it to the store to ask again: it knows what a lost
	// reply may mean, the client does not.
	noRetries = -1

	dialLimit = time.Second
)
