package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"runtime"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
)

// plain is this library over a client with go-redis' own pool: what costs are
// counted of. (The store works on a copy of a client that does not look at
// deadlines, and such a copy has no hooks to count with.)
var plain = strategy{
	name: "cacheguard, go-redis' pool",
	open: func(e env) (storage, error) {
		client := redis.NewClient(&redis.Options{Addr: e.redis, ContextTimeoutEnabled: true})
		client.AddHook(counter{e.commands})
		// What costs are counted of must not time out, whatever else the machine does.
		return openGuardOn(client, redisstore.Options{Timeout: 5 * time.Second}, e.load, cacheguard.Near{})
	},
}

// capacity is how costs grow, measured, and what follows for sizes that are
// not.
type capacity struct {
	Date, Go, Redis, Load string
	CPUs                  int
	Seconds               float64

	Replicas []cost // of a storm on one key, by processes
	Callers  []cost // the same, by callers of each of four processes
	Times    []cost // the same, by the time of a load

	Keys         int
	KeyBytes     float64 // of memory for each key, with its record
	EntryBytes   float64
	RecordBytes  float64
	RecordLife   time.Duration
	RebuildCPU   float64 // microseconds of Redis for a rebuild that nobody waits for
	RebuildRate  float64 // a second, that this machine did
	ReadCPU      float64 // microseconds of Redis for a hit
	Idle         float64 // commands a second of a process that does nothing
	Connections  float64 // of a process at most
	Publish      []published
	perMessage   float64
	perPublisher float64
}

// cost of one storm.
type cost struct {
	Processes, Callers int
	LoadTime           time.Duration
	Untuned            bool // the leases are those of shorter loads
	Loads              []int
	Sent               float64 // commands that each process sent
	Server             serverStats
	Over               float64 // p99 over the time of the load, ms
}

// published is the cost of a message to some subscribers.
type published struct {
	Subscribers int
	CPU         float64 // microseconds of Redis for one
}

func (st *stage) measureCapacity(ctx context.Context, o options) (c capacity, err error) {
	begin := time.Now()
	c = capacity{Date: begin.Format(time.DateOnly), Go: runtime.Version(), CPUs: runtime.NumCPU(), Load: loadAverage(), Keys: 100_000}
	replicas, subscribers := []int{1, 2, 4, 8, 16, 32, 64}, []int{1, 10, 100, 1000}
	callers, times := []int{1, 10, 100, 1000}, []time.Duration{10 * time.Millisecond, 100 * time.Millisecond, time.Second, 5 * time.Second}
	if o.short {
		replicas, subscribers, callers, times, c.Keys = replicas[:3], subscribers[:2], callers[:2], times[:2], 2000
	}
	if c.Redis, err = redisVersion(ctx, st.redis); err != nil {
		return c, err
	}
	client := redis.NewClient(&redis.Options{Addr: st.redis})
	defer client.Close()

	st.say("messages")
	for _, n := range subscribers {
		p, err := publish(ctx, client, st.redis, n)
		if err != nil {
			return c, fmt.Errorf("%d subscribers: %w", n, err)
		}
		c.Publish = append(c.Publish, p)
	}
	f := &fleet{stage: st, strategy: plain}
	defer func() { f.stop() }()
	grow := func(n int) error {
		for len(f.workers) < n {
			w, err := st.startWorker(ctx, plain)
			if err != nil {
				return err
			}
			f.workers = append(f.workers, w)
		}
		return f.warmUp(ctx)
	}

	if err := grow(4); err != nil {
		return c, err
	}
	st.say("%d keys", c.Keys)
	if err := f.keys(ctx, client, &c); err != nil {
		return c, fmt.Errorf("keys: %w", err)
	}
	for _, n := range callers {
		st.say("%d callers in each of 4 processes", n)
		k, err := f.cost(ctx, client, fmt.Sprintf("callers-%d", n), n, stormLoad, 10)
		if err != nil {
			return c, err
		}
		c.Callers = append(c.Callers, k)
	}
	for _, d := range times {
		st.say("loads of %v", d)
		k, err := f.cost(ctx, client, fmt.Sprintf("first-%v", d), 20, d, 1)
		if err != nil {
			return c, err
		}
		k.Untuned = true
		c.Times = append(c.Times, k)
		if err := f.tune(ctx, d); err != nil {
			return c, err
		}
		if k, err = f.cost(ctx, client, fmt.Sprintf("time-%v", d), 20, d, 2); err != nil {
			return c, err
		}
		c.Times = append(c.Times, k)
	}
	f.stop()
	f = &fleet{stage: st, strategy: plain}
	for _, n := range replicas {
		st.say("%d processes", n)
		if err := grow(n); err != nil {
			return c, err
		}
		k, err := f.cost(ctx, client, fmt.Sprintf("replicas-%d", n), 20, stormLoad, 10)
		if err != nil {
			return c, err
		}
		c.Replicas = append(c.Replicas, k)
	}
	st.say("idle")
	if err := f.idle(ctx, client, &c); err != nil {
		return c, err
	}
	c.Seconds = time.Since(begin).Seconds()
	return c, nil
}

// warmUp opens what is opened on first use.
func (f *fleet) warmUp(ctx context.Context) error {
	for n := range 3 {
		key := fmt.Sprintf("warm-%d-%d", len(f.workers), n)
		f.create(key, stormLoad, false)
		if _, err := f.at(ctx, f.workers, StormArgs{Key: key, Callers: 20}); err != nil {
			return err
		}
	}
	return f.settle(ctx)
}

// tune lets each process load something for as long, so that its leases follow.
func (f *fleet) tune(ctx context.Context, d time.Duration) error {
	var calls []*waiting[ReadReply]
	for i, w := range f.workers {
		keys := []string{fmt.Sprintf("tune-%v-%d", d, i)}
		f.create(keys[0], d, false)
		calls = append(calls, begin[KeysArgs, ReadReply]([]*worker{w}, "Read", KeysArgs{keys}))
	}
	for _, c := range calls {
		if _, err := c.end(ctx); err != nil {
			return err
		}
	}
	return f.settle(ctx)
}

// cost runs n storms in all processes.
func (f *fleet) cost(ctx context.Context, client *redis.Client, name string, callers int, service time.Duration, n int) (c cost, err error) {
	c = cost{Processes: len(f.workers), Callers: callers, LoadTime: service}
	look, err := looking(ctx, client)
	if err != nil {
		return c, err
	}
	idle, err := idling(ctx, client, look)
	if err != nil {
		return c, err
	}
	var over []float64
	for i := range n {
		key := fmt.Sprintf("%s-%d", name, i)
		f.create(key, service, false)
		sent, err := on[struct{}, int64](ctx, f.workers, "Commands", struct{}{})
		if err != nil {
			return c, err
		}
		before, err := stats(ctx, client)
		if err != nil {
			return c, err
		}
		begun := time.Now()
		replies, err := f.at(ctx, f.workers, StormArgs{Key: key, Callers: callers})
		if err != nil {
			return c, err
		}
		if err := f.settle(ctx); err != nil {
			return c, err
		}
		after, err := stats(ctx, client)
		if err != nil {
			return c, err
		}
		total, err := on[struct{}, int64](ctx, f.workers, "Commands", struct{}{})
		if err != nil {
			return c, err
		}
		for _, r := range replies {
			if r.Errors > 0 {
				return c, errors.New(r.Error)
			}
		}
		d := after.since(before).since(look).since(idle.times(time.Since(begun).Seconds()))
		c.Sent += float64(sum(total)-sum(sent)) / float64(n*len(f.workers))
		c.Server.CPU += d.CPU / float64(n)
		c.Server.Commands += d.Commands / float64(n)
		c.Server.Sent += d.Sent / float64(n)
		c.Server.Received += d.Received / float64(n)
		c.Server.Clients = math.Max(c.Server.Clients, d.Clients)
		c.Loads = append(c.Loads, len(f.loads(key)))
		over = append(over, p99(replies)-ms(service))
	}
	c.Over = median(over)
	return c, nil
}

// keys fills many and reads them, through all processes.
func (f *fleet) keys(ctx context.Context, client *redis.Client, c *capacity) error {
	const batch = 32 // at once in each process: what a pool of go-redis' size serves in time
	each := func(n int, do func(w *worker, keys []string) error) error {
		errs := make([]error, len(f.workers))
		var all sync.WaitGroup
		for i, w := range f.workers {
			all.Go(func() {
				for at := i * batch; at < n && errs[i] == nil; at += batch * len(f.workers) {
					var keys []string
					for k := at; k < min(n, at+batch); k++ {
						keys = append(keys, fmt.Sprintf("key-%07d", k))
					}
					errs[i] = do(w, keys)
				}
			})
		}
		all.Wait()
		return errors.Join(errs...)
	}
	read := func(w *worker, keys []string) error {
		replies, err := on[KeysArgs, ReadReply](ctx, []*worker{w}, "Read", KeysArgs{keys})
		if err != nil {
			return err
		}
		for i, v := range replies[0].Versions {
			if v != 1 {
				return fmt.Errorf("%s is in version %d", keys[i], v)
			}
		}
		return nil
	}
	for k := range c.Keys {
		f.create(fmt.Sprintf("key-%07d", k), 0, false)
	}
	before, err := stats(ctx, client)
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := each(c.Keys, read); err != nil {
		return err
	}
	took := time.Since(begin)
	filled, err := stats(ctx, client)
	if err != nil {
		return err
	}
	if err := each(c.Keys, read); err != nil {
		return err
	}
	reread, err := stats(ctx, client)
	if err != nil {
		return err
	}
	// Loads without Redis, which was not there in time, would be counted as its.
	again := 0
	for k := range c.Keys {
		again += len(f.loads(fmt.Sprintf("key-%07d", k))) - 1
	}
	if again > c.Keys/1000 {
		return fmt.Errorf("%d of %d keys were loaded again: the machine is too busy to tell", again, c.Keys)
	}
	c.RebuildCPU = filled.since(before).CPU / float64(c.Keys)
	c.RebuildRate = float64(c.Keys) / took.Seconds()
	c.ReadCPU = reread.since(filled).CPU / float64(c.Keys)
	c.KeyBytes = (filled.Memory - before.Memory) / float64(c.Keys)
	c.Connections = (reread.Clients - 1) / float64(len(f.workers))
	return c.sample(ctx, client)
}

// sample looks at the two keys of one key.
func (c *capacity) sample(ctx context.Context, client *redis.Client) error {
	keys, _, err := client.Scan(ctx, 0, "*key-0000001*", int64(4*c.Keys)).Result()
	if err != nil {
		return err
	}
	for _, key := range keys {
		bytes, err := client.MemoryUsage(ctx, key).Result()
		if err != nil {
			return err
		}
		kind, err := client.Type(ctx, key).Result()
		if err != nil {
			return err
		}
		if kind == "string" {
			c.EntryBytes = float64(bytes)
			continue
		}
		c.RecordBytes = float64(bytes)
		if c.RecordLife, err = client.PTTL(ctx, key).Result(); err != nil {
			return err
		}
	}
	if c.EntryBytes == 0 || c.RecordBytes == 0 {
		return fmt.Errorf("an entry and a record were looked for, and %q found", keys)
	}
	return nil
}

// idle counts what processes send that nobody asks for anything.
func (f *fleet) idle(ctx context.Context, client *redis.Client, c *capacity) error {
	const span = 6 * time.Second
	before, err := stats(ctx, client)
	if err != nil {
		return err
	}
	if err := pause(ctx, span); err != nil {
		return err
	}
	after, err := stats(ctx, client)
	c.Idle = (after.since(before).Commands - 1) / span.Seconds() / float64(len(f.workers))
	return err
}

// publish measures what a message of a wake-up's size costs Redis.
func publish(ctx context.Context, client *redis.Client, addr string, subscribers int) (p published, err error) {
	const channel, messages = "peers-capacity", 300
	var all sync.WaitGroup
	defer all.Wait()
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for range subscribers {
		conn, err := net.DialTimeout("tcp", addr, 5*time.Second)
		if err != nil {
			return p, err
		}
		conns = append(conns, conn)
		if _, err := fmt.Fprintf(conn, "SUBSCRIBE %s\r\n", channel); err != nil {
			return p, err
		}
		r := bufio.NewReaderSize(conn, 1<<10)
		if _, err := r.ReadString(':'); err != nil { // the confirmation
			return p, err
		}
		all.Go(func() { _, _ = r.WriteTo(io.Discard) })
	}
	before, err := stats(ctx, client)
	if err != nil {
		return p, err
	}
	for range messages {
		n, err := client.Publish(ctx, channel, make([]byte, 40)).Result()
		if err != nil {
			return p, err
		}
		if n != int64(subscribers) {
			return p, fmt.Errorf("a message reached %d", n)
		}
	}
	after, err := stats(ctx, client)
	return published{subscribers, after.since(before).CPU / messages}, err
}
