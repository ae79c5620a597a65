package main

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
)

// plain is this library over a client with go-redis' own pool: what costs are
// counted of. (The store works on a copy of a client that does not look at
// deadlines, and such a copy has no hooks to count with.)
var plain = strategy{
	name: "cacheguard + go-redis pool",
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
	RebuildCPU   float64       // microseconds of Redis for a rebuild that nobody waits for
	RebuildRate  float64       // a second, that this machine did
	ReadCPU      float64       // microseconds of Redis for a hit
	Idle         float64       // commands a second of a process that does nothing
	Connections  float64       // of a process at most
	LoadLimit    time.Duration // of a guard that was given none
	Publish      []published
	Cluster      clustered
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

// capacitySizes are what is measured.
type capacitySizes struct {
	keys                           int
	replicas, callers, subscribers []int
	times                          []time.Duration
	storms                         int // of each number of replicas and callers
}

func sizesFor(o options) capacitySizes {
	s := capacitySizes{
		keys:     100_000,
		replicas: []int{1, 2, 4, 8, 16, 32, 64}, callers: []int{1, 10, 100, 1000}, subscribers: []int{1, 10, 100, 1000},
		times:  []time.Duration{10 * time.Millisecond, 100 * time.Millisecond, time.Second, 5 * time.Second},
		storms: 8,
	}
	if o.short {
		s = capacitySizes{2000, s.replicas[:3], s.callers[:2], s.subscribers[:2], s.times[:2], 3}
	}
	return s
}

// capacitySteps is how many steps measureCapacity announces.
func capacitySteps(o options) int {
	s := sizesFor(o)
	return 4 + len(s.callers) + len(s.times) + len(s.replicas)
}

// fewProcesses measure what does not depend on their number.
const fewProcesses = 4

func (st *stage) measureCapacity(ctx context.Context, o options) (c capacity, err error) {
	begin, sizes := time.Now(), sizesFor(o)
	c = capacity{Date: begin.Format(time.DateOnly), Go: runtime.Version(), CPUs: runtime.NumCPU(), Load: loadAverage(), Keys: sizes.keys}
	if c.Redis, err = redisVersion(ctx, st.redis); err != nil {
		return c, err
	}
	if c.LoadLimit, err = defaultLoadLimit(); err != nil {
		return c, err
	}
	client := redis.NewClient(&redis.Options{Addr: st.redis})
	defer client.Close()
	st.step("messages")
	for _, n := range sizes.subscribers {
		p, err := publish(ctx, client, st.redis, n)
		if err != nil {
			return c, fmt.Errorf("%d subscribers: %w", n, err)
		}
		c.Publish = append(c.Publish, p)
	}
	if err := st.fewProcesses(ctx, client, sizes, &c); err != nil {
		return c, err
	}
	if err := st.manyProcesses(ctx, client, sizes, &c); err != nil {
		return c, err
	}
	st.step("a cluster")
	if c.Cluster, err = measureCluster(ctx); err != nil {
		return c, fmt.Errorf("a cluster: %w", err)
	}
	c.Seconds = time.Since(begin).Seconds()
	return c, nil
}

// defaultLoadLimit is the LoadLimit of a guard that was given none.
func defaultLoadLimit() (limit time.Duration, err error) {
	g, err := cacheguard.New(memstore.New(memstore.Options{}), cacheguard.Options[[]byte]{Hooks: cacheguard.Hooks{Opened: func(i cacheguard.GuardInfo) func() {
		limit = i.Settings.LoadLimit
		return nil
	}}})
	if err != nil {
		return 0, err
	}
	return limit, g.Close()
}

// fewProcesses measures keys, callers and the time of a load.
func (st *stage) fewProcesses(ctx context.Context, client *redis.Client, sizes capacitySizes, c *capacity) error {
	f, err := st.start(ctx, plain, fewProcesses)
	if err != nil {
		return err
	}
	defer f.stop()
	if err := f.warmUp(ctx); err != nil {
		return err
	}
	q, err := f.listen(ctx, client)
	if err != nil {
		return err
	}
	st.step("%d keys", c.Keys)
	if err := f.keys(ctx, client, c); err != nil {
		return fmt.Errorf("keys: %w", err)
	}
	for _, n := range sizes.callers {
		st.step("%d callers in each of %d processes", n, fewProcesses)
		k, err := f.cost(ctx, client, q, fmt.Sprintf("callers-%d", n), n, stormLoad, sizes.storms)
		if err != nil {
			return err
		}
		c.Callers = append(c.Callers, k)
	}
	for _, d := range sizes.times {
		st.step("loads of %v", d)
		if err := f.loadTime(ctx, client, q, d, c); err != nil {
			return err
		}
	}
	return nil
}

// loadTime measures loads of one length, with leases of shorter ones and with
// leases of their own.
func (f *fleet) loadTime(ctx context.Context, client *redis.Client, q quiet, d time.Duration, c *capacity) error {
	first, err := f.cost(ctx, client, q, fmt.Sprintf("first-%v", d), 20, d, 1)
	if err != nil {
		return err
	}
	first.Untuned = true
	if err := f.tune(ctx, d); err != nil {
		return err
	}
	n := 2
	if d > time.Second {
		n = 1
	}
	tuned, err := f.cost(ctx, client, q, fmt.Sprintf("time-%v", d), 20, d, n)
	c.Times = append(c.Times, first, tuned)
	return err
}

// manyProcesses measures a storm in more and more of them, and what they cost
// when nobody asks for anything.
func (st *stage) manyProcesses(ctx context.Context, client *redis.Client, sizes capacitySizes, c *capacity) error {
	f := &fleet{stage: st, strategy: plain}
	defer f.stop()
	for _, n := range sizes.replicas {
		st.step("%d processes", n)
		for len(f.workers) < n {
			w, err := st.startWorker(ctx, plain)
			if err != nil {
				return err
			}
			f.workers = append(f.workers, w)
		}
		if err := f.warmUp(ctx); err != nil {
			return err
		}
		q, err := f.listen(ctx, client)
		if err != nil {
			return err
		}
		k, err := f.cost(ctx, client, q, fmt.Sprintf("replicas-%d", n), 20, stormLoad, sizes.storms)
		if err != nil {
			return err
		}
		c.Replicas = append(c.Replicas, k)
	}
	st.step("idle")
	return f.idle(ctx, client, c)
}
