package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

// inside is what something costs Redis.
type inside struct {
	What      string
	Bytes     int     // of the value
	Command   float64 // microseconds in the commands themselves
	Processor float64 // microseconds of its processor in all, with reading and writing the socket
}

// insideSteps are the steps of runInside.
const insideSteps = 4

// The rows that others are measured by.
const (
	plainSet  = "SET PX"
	oursFill  = "cacheguard: a fill"
	oursReads = "cacheguard: a read"
)

func runInside(ctx context.Context, r *run) error {
	err := withStage(ctx, r.progress, func(st *stage, server *redistest.Server) (err error) {
		st.step("inside Redis: small values")
		if r.report.Inside, err = costsOf(ctx, server.Addr, small, 1<<10, r.commands); err != nil {
			return err
		}
		st.step("inside Redis: large values")
		for _, bytes := range []int{1 << 10, 16 << 10, 256 << 10} {
			// So that all of a size are about as long, and fit into memory.
			n := max(50, r.commands/(1+bytes>>12))
			costs, err := costsOf(ctx, server.Addr, writes, bytes, n)
			if err != nil {
				return err
			}
			r.report.Writes = append(r.report.Writes, costs...)
		}
		return nil
	})
	if err != nil {
		return err
	}
	r.progress.step("inside a client: decoding")
	r.report.Decoding = decodings(r.hits / 4)
	r.progress.step("inside a client: many readers")
	return withServer(ctx, func(server *redistest.Server) (err error) {
		r.report.Readers, err = readers(ctx, server.Addr, 5*r.hits/2)
		return err
	})
}

// operation is something to measure. do is called once for each of 0 to n-1;
// prepare, if there is one, before and not measured.
type operation struct {
	what     string
	commands []string // that do sends, and that no script of it calls
	prepare  func(ctx context.Context, i int) error
	do       func(ctx context.Context, i int) error
}

// bench is what operations work with: one connection, and a store on it.
type bench struct {
	client *redis.Client
	store  *redisstore.Store
	value  []byte
	grants []store.Grant
}

func costsOf(ctx context.Context, addr string, operations func(*bench) []operation, bytes, n int) (costs []inside, err error) {
	admin := redis.NewClient(&redis.Options{Addr: addr})
	defer admin.Close()
	b := &bench{client: redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true, PoolSize: 1}),
		value: make([]byte, bytes), grants: make([]store.Grant, n)}
	defer b.client.Close()
	if b.store, err = redisstore.New(b.client, redisstore.Options{Timeout: 5 * time.Second}); err != nil {
		return nil, err
	}
	defer b.store.Close()
	for _, op := range operations(b) {
		cost, err := op.measure(ctx, admin, n)
		if err != nil {
			return nil, fmt.Errorf("%s, %d bytes: %w", op.what, bytes, err)
		}
		cost.Bytes = bytes
		costs = append(costs, cost)
		if err := admin.FlushAll(ctx).Err(); err != nil {
			return nil, err
		}
	}
	return costs, nil
}

func (op operation) measure(ctx context.Context, admin *redis.Client, n int) (inside, error) {
	out := inside{What: op.what}
	for i := range n {
		if op.prepare == nil {
			break
		}
		if err := op.prepare(ctx, i); err != nil {
			return out, err
		}
	}
	if err := admin.ConfigResetStat(ctx).Err(); err != nil {
		return out, err
	}
	before, err := stats(ctx, admin)
	if err != nil {
		return out, err
	}
	for i := range n {
		if err := op.do(ctx, i); err != nil {
			return out, err
		}
	}
	after, err := stats(ctx, admin)
	if err != nil {
		return out, err
	}
	micros, err := commandTime(ctx, admin, op.commands, n)
	out.Command, out.Processor = micros/float64(n), after.since(before).CPU/float64(n)
	return out, err
}

// commandTime is how many microseconds some commands took since the last reset,
// each of which must have been called at least n times.
func commandTime(ctx context.Context, admin *redis.Client, commands []string, n int) (micros float64, err error) {
	text, err := admin.Info(ctx, "commandstats").Result()
	if err != nil {
		return 0, err
	}
	for _, name := range commands {
		calls, usec, err := commandStat(text, name)
		if err != nil {
			return 0, err
		}
		if calls < n {
			return 0, fmt.Errorf("%s was called %d times, not %d", name, calls, n)
		}
		micros += float64(usec)
	}
	return micros, nil
}

// commandStat finds a line like "cmdstat_get:calls=12,usec=34,...".
func commandStat(text, name string) (calls, usec int, err error) {
	_, rest, ok := strings.Cut(text, "cmdstat_"+name+":calls=")
	if !ok {
		return 0, 0, errors.New("the server counts no " + name)
	}
	number, rest, _ := strings.Cut(rest, ",usec=")
	micros, _, _ := strings.Cut(rest, ",")
	if calls, err = strconv.Atoi(number); err != nil {
		return 0, 0, err
	}
	usec, err = strconv.Atoi(micros)
	return calls, usec, err
}

// What others do in scripts.
var (
	getOrLease = redis.NewScript(`local v = redis.call('GET', KEYS[1])
if v then return v end
return redis.call('SET', KEYS[2], ARGV[1], 'NX', 'PX', ARGV[2])`)
	commit = redis.NewScript(`if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
redis.call('DEL', KEYS[2])
redis.call('PUBLISH', ARGV[4], KEYS[1])
return 1`)
	compareAndRename = redis.NewScript(`if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
redis.call('RENAME', KEYS[3], KEYS[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('DEL', KEYS[2])
return 1`)
)

// Names of the keys of a script.
func entryName(i int) string { return "{bench" + strconv.Itoa(i) + "}" }
func leaseName(i int) string { return entryName(i) + ":lease" }
func stageName(i int) string { return entryName(i) + ":stage" }

func (b *bench) set(ctx context.Context, i int) error {
	return b.client.Set(ctx, entryName(i), b.value, life).Err()
}

func (b *bench) lease(ctx context.Context, i int) error {
	return b.client.Set(ctx, leaseName(i), "holder", life).Err()
}

func (b *bench) key(i int) store.Key { return store.Key{Space: "bench", ID: strconv.Itoa(i)} }

// claim takes a lease, which fill needs.
func (b *bench) claim(ctx context.Context, i int) error {
	v, err := b.store.Claim(ctx, store.Claim{Key: b.key(i), Holder: store.NewHolder("bench", strconv.Itoa(i)), Length: life, Keep: life})
	b.grants[i] = v.Grant
	if err == nil && v.Outcome != store.Granted {
		err = fmt.Errorf("the claim was answered with %v", v.Outcome)
	}
	return err
}

func (b *bench) fill(ctx context.Context, i int) error {
	return b.store.Fill(ctx, b.grants[i], store.Content{Kind: store.Value, Payload: b.value, TTL: life, HandOver: time.Second})
}

// done is 1 where a script did what it is for.
func done(cmd *redis.Cmd) error {
	n, err := cmd.Int()
	if err == nil && n != 1 {
		err = errors.New("the script did nothing")
	}
	return err
}

// small are what a read, a claim and a fill are made of.
func small(b *bench) []operation {
	return []operation{
		{"GET", []string{"get"}, b.set, func(ctx context.Context, i int) error { return b.client.Get(ctx, entryName(i)).Err() }},
		{"a script that gets or takes a lease, on a hit", []string{"evalsha"}, b.set, func(ctx context.Context, i int) error {
			return getOrLease.Run(ctx, b.client, []string{entryName(i), leaseName(i)}, "holder", 1000).Err()
		}},
		{plainSet, []string{"set"}, nil, b.set},
		{"a script that compares, SETs, DELs and PUBLISHes", []string{"evalsha"}, b.lease, b.commit},
		{oursReads, []string{"get"}, func(ctx context.Context, i int) error {
			return errors.Join(b.claim(ctx, i), b.fill(ctx, i))
		}, func(ctx context.Context, i int) error {
			e, err := b.store.Load(ctx, b.key(i))
			if err == nil && e.Kind != store.Value {
				err = fmt.Errorf("a hit was expected: %v", e.Kind)
			}
			return err
		}},
		{"cacheguard: a claim", []string{"evalsha"}, nil, b.claim},
		{oursFill, []string{"evalsha"}, b.claim, b.fill},
	}
}

func (b *bench) commit(ctx context.Context, i int) error {
	return done(commit.Run(ctx, b.client, []string{entryName(i), leaseName(i)}, "holder", b.value, life.Milliseconds(), "bench"))
}

// writes are the ways in which a value gets under its key.
func writes(b *bench) []operation {
	staged := []string{"set", "evalsha"}
	if len(b.value) <= 8<<10 { // redisstore.Options.StageAbove
		staged = staged[1:]
	}
	return []operation{
		{plainSet, []string{"set"}, nil, b.set},
		{"the value through a script", []string{"evalsha"}, b.lease, b.commit},
		{"SET of a side key, a script that compares and renames", []string{"set", "evalsha"}, b.lease, func(ctx context.Context, i int) error {
			if err := b.client.Set(ctx, stageName(i), b.value, life).Err(); err != nil {
				return err
			}
			return done(compareAndRename.Run(ctx, b.client, []string{entryName(i), leaseName(i), stageName(i)}, "holder", life.Milliseconds()))
		}},
		{oursFill, staged, b.claim, b.fill},
	}
}
