package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/rpc"
	"strconv"
	"sync"
	"time"
)

// origin is what all strategies protect. It lives in the process that measures,
// so it knows what is true: who asked for what, when, and which version there
// is. Workers reach it by RPC over the loopback.
type origin struct {
	mu   sync.Mutex
	keys map[string]*item // guarded by mu
	busy int              // loads under way; guarded by mu
}

type item struct {
	version int
	service time.Duration // that a load takes
	failing bool
	loads   []load
}

// load is one question to the origin.
type load struct {
	pid int
	at  time.Time
}

// LoadArgs is what a worker asks.
type LoadArgs struct {
	Key string
	PID int
}

// LoadReply is what it gets: the version that there was when the question came,
// like a query that sees the rows of its beginning.
type LoadReply struct {
	Version int
	Failed  bool
}

// Load is called by workers.
func (o *origin) Load(args LoadArgs, reply *LoadReply) error {
	o.mu.Lock()
	it := o.keys[args.Key]
	if it == nil {
		o.mu.Unlock()
		return fmt.Errorf("there is no %q", args.Key)
	}
	it.loads = append(it.loads, load{args.PID, time.Now()})
	*reply = LoadReply{it.version, it.failing}
	service := it.service
	o.busy++
	o.mu.Unlock()
	time.Sleep(service)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.busy--
	return nil
}

// create makes a key, in version 1.
func (o *origin) create(key string, service time.Duration, failing bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.keys[key] = &item{version: 1, service: service, failing: failing}
}

// write commits the next version. No cache is told.
func (o *origin) write(key string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.keys[key].version++
}

func (o *origin) loads(key string) []load {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]load(nil), o.keys[key].loads...)
}

// awaitLoads waits until each of keys has been asked for.
func (o *origin) awaitLoads(ctx context.Context, keys []string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for _, key := range keys {
		for len(o.loads(key)) == 0 {
			if err := pause(ctx, time.Millisecond); err != nil {
				return fmt.Errorf("nobody asked the origin for %s: %w", key, err)
			}
		}
	}
	return nil
}

// settle waits until the origin has been idle for a while.
func (o *origin) settle(ctx context.Context) error {
	const step, steps = 5 * time.Millisecond, 8
	for quiet, n := 0, 0; quiet < steps; n++ {
		if n > 4000 {
			return errors.New("the origin does not become idle")
		}
		if err := pause(ctx, step); err != nil {
			return err
		}
		o.mu.Lock()
		quiet++
		if o.busy > 0 {
			quiet = 0
		}
		o.mu.Unlock()
	}
	return nil
}

// errOrigin is what a load ends with that fails.
var errOrigin = errors.New("the origin failed")

// ask returns a loader that asks the origin over a connection.
func ask(control *rpc.Client, pid int) loader {
	return func(ctx context.Context, key string) ([]byte, error) {
		var reply LoadReply
		call := control.Go("Control.Load", LoadArgs{key, pid}, &reply, make(chan *rpc.Call, 1))
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-call.Done:
		}
		switch {
		case call.Error != nil:
			return nil, call.Error
		case reply.Failed:
			return nil, errOrigin
		}
		return valueOf(key, reply.Version), nil
	}
}

// valueOf is what version v of key looks like: 1 KiB that tells both.
func valueOf(key string, v int) []byte {
	b := make([]byte, 0, 1024)
	b = fmt.Appendf(b, "%s|%d|", key, v)
	return b[:cap(b)]
}

// versionOf is the version that a value of key tells; 0: it is none.
func versionOf(key string, value []byte) int {
	rest, ok := bytes.CutPrefix(value, []byte(key+"|"))
	number, _, cut := bytes.Cut(rest, []byte("|"))
	v, err := strconv.Atoi(string(number))
	if !ok || !cut || err != nil || len(value) != 1024 {
		return 0
	}
	return v
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
