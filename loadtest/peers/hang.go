package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

// hang is how long the slowest of some calls took while Redis was stopped.
type hang struct {
	What    string
	Callers int
	Slowest float64 // ms
	Over    bool    // it was not over when we gave up
}

// hangCase is a client and its callers.
type hangCase struct {
	what     string
	callers  int
	deadline time.Duration // of each call; 0: none
	long     bool          // it takes minutes: not with -short
	deaf     bool          // it is not Redis that hangs, but the dial to it
	open     func(addr string) (call func(ctx context.Context, caller int) error, end func() error, err error)
}

// hangLimit is when a case is given up.
const hangLimit = 2 * time.Minute

const (
	crowdOfCallers = 200
	smallPool      = 20
	fewMillis      = 200 * time.Millisecond
)

// hangCases are measured all at once: a call that hangs needs nothing.
var hangCases = []hangCase{
	{what: "go-redis' defaults, no deadline", callers: 1, long: true, open: openClient(redis.Options{})},
	{what: "go-redis' defaults, a deadline of 200 ms", callers: 1, long: true, deadline: fewMillis, open: openClient(redis.Options{})},
	{what: "go-redis' defaults, no deadline, the dial hangs", callers: 1, long: true, deaf: true, open: openClient(redis.Options{})},
	{what: "a pool of 20 with ReadTimeout 100 ms, no retries", callers: crowdOfCallers,
		open: openClient(redis.Options{PoolSize: smallPool, ReadTimeout: callLimit, MaxRetries: -1})},
	{what: "the same, every limit set: ContextTimeoutEnabled, DialTimeout and ReadTimeout 100 ms, DialerRetries 1, PoolTimeout 50 ms", callers: crowdOfCallers,
		open: openClient(redis.Options{PoolSize: smallPool, ReadTimeout: callLimit, WriteTimeout: callLimit, DialTimeout: callLimit,
			PoolTimeout: callLimit / 2, MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true})},
	{what: "go-redis' AutoPipeline (experimental), a deadline of 200 ms", callers: 1, long: true, deadline: fewMillis, open: openHangingAuto},
	{what: "rueidis' defaults, a deadline of 200 ms", callers: 1, deadline: fewMillis, open: openHangingRueidis},
	{what: "cacheguard's store over go-redis' defaults, no deadline", callers: crowdOfCallers, open: openHangingStore},
	{what: "cacheguard over go-redis' defaults, no deadline: a Get answered by the origin", callers: crowdOfCallers, open: openHangingGuard},
}

func runHang(ctx context.Context, r *run) error {
	r.progress.step("calls that hang, beside all else")
	return withServer(ctx, func(server *redistest.Server) error {
		deaf, err := listenDeaf()
		if err != nil {
			return err
		}
		defer deaf.Close()
		var cases []hangCase
		for _, c := range hangCases {
			if !c.long || !r.short {
				cases = append(cases, c)
			}
		}
		calls := make([]func(context.Context, int) error, len(cases))
		for i, c := range cases {
			addr := server.Addr
			if c.deaf {
				addr = deaf.addr
			}
			call, end, err := c.open(addr)
			if err != nil {
				return fmt.Errorf("%s: %w", c.what, err)
			}
			defer end() // what it says of a server that hangs does not matter
			calls[i] = call
			if c.deaf {
				continue
			}
			if err := call(ctx, 0); err != nil { // opens a connection
				return fmt.Errorf("%s: %w", c.what, err)
			}
		}
		if err := server.Pause(); err != nil {
			return err
		}
		defer server.Resume() // whatever happens
		out := make([]hang, len(cases))
		var all sync.WaitGroup
		for i, c := range cases {
			all.Go(func() { out[i] = c.measure(ctx, calls[i]) })
		}
		all.Wait()
		r.report.Hangs = out
		return ctx.Err()
	})
}

// measure calls with all callers at once, each for a key of its own.
func (c hangCase) measure(ctx context.Context, call func(context.Context, int) error) hang {
	out := hang{What: c.what, Callers: c.callers}
	begin := time.Now()
	ended := make(chan time.Duration, c.callers)
	for i := range c.callers {
		go func() { // until its client gives up, or is closed
			ctx := context.Background() // not ours: what a call does without a deadline is the question
			if c.deadline > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, c.deadline)
				defer cancel()
			}
			_ = call(ctx, i+1) // that it fails is all it can
			ended <- time.Since(begin)
		}()
	}
	limit := time.After(hangLimit)
	for range c.callers {
		select {
		case took := <-ended:
			out.Slowest = max(out.Slowest, ms(took))
			continue
		case <-limit:
		case <-ctx.Done():
		}
		out.Slowest, out.Over = ms(time.Since(begin)), true
		break
	}
	return out
}

func openClient(opts redis.Options) func(string) (func(context.Context, int) error, func() error, error) {
	return func(addr string) (func(context.Context, int) error, func() error, error) {
		opts.Addr = addr
		client := redis.NewClient(&opts)
		return func(ctx context.Context, _ int) error { return client.Ping(ctx).Err() }, client.Close, nil
	}
}

func openHangingAuto(addr string) (func(context.Context, int) error, func() error, error) {
	client := redis.NewClient(&redis.Options{Addr: addr})
	auto, err := client.AutoPipeline()
	if err != nil {
		return nil, nil, errors.Join(err, client.Close())
	}
	return func(ctx context.Context, _ int) error { return auto.Set(ctx, "hang", "", life).Err() }, client.Close, nil
}

func openHangingRueidis(addr string) (func(context.Context, int) error, func() error, error) {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}})
	if err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context, _ int) error { return client.Do(ctx, client.B().Ping().Build()).Error() },
		func() error { client.Close(); return nil }, nil
}

func openHangingStore(addr string) (func(context.Context, int) error, func() error, error) {
	client := redis.NewClient(&redis.Options{Addr: addr})
	s, err := redisstore.New(client, redisstore.Options{})
	if err != nil {
		return nil, nil, errors.Join(err, client.Close())
	}
	return func(ctx context.Context, caller int) error {
		_, err := s.Load(ctx, store.Key{Space: "hang", ID: strconv.Itoa(caller)})
		return err
	}, func() error { return errors.Join(s.Close(), client.Close()) }, nil
}

func openHangingGuard(addr string) (func(context.Context, int) error, func() error, error) {
	s, err := openGuardOn(redis.NewClient(&redis.Options{Addr: addr}), redisstore.Options{},
		func(_ context.Context, key string) ([]byte, error) { return valueOf(key, 1), nil }, cacheguard.Near{})
	if err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context, caller int) error {
		_, err := s.Get(ctx, strconv.Itoa(caller))
		return err
	}, s.Close, nil
}

// deaf is an address that connections hang to: its queue is full, and nobody
// takes from it.
type deaf struct {
	addr  string
	fd    int
	queue []net.Conn
}

func listenDeaf() (d *deaf, err error) {
	d = &deaf{}
	if d.fd, err = syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			d.Close()
		}
	}()
	syscall.CloseOnExec(d.fd)
	if err = syscall.Bind(d.fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return nil, err
	}
	if err = syscall.Listen(d.fd, 0); err != nil {
		return nil, err
	}
	name, err := syscall.Getsockname(d.fd)
	if err != nil {
		return nil, err
	}
	d.addr = fmt.Sprintf("127.0.0.1:%d", name.(*syscall.SockaddrInet4).Port)
	const longestQueue = 64
	for range longestQueue {
		conn, err := net.DialTimeout("tcp", d.addr, fewMillis)
		if err != nil {
			return d, nil // full
		}
		d.queue = append(d.queue, conn)
	}
	err = errors.New("a listener that takes nobody took all")
	return nil, err
}

// Close ends it and what waits in its queue.
func (d *deaf) Close() error {
	for _, c := range d.queue {
		c.Close()
	}
	return syscall.Close(d.fd)
}
