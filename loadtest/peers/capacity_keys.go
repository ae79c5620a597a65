package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

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
