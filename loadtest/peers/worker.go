package main

import (
	"context"
	"fmt"
	"net"
	"net/rpc"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A worker is this program again, with the role that its environment gives it:
// one process of a fleet, with one strategy. It does what Worker's methods say,
// and ends with the process that started it.

// The environment of a worker.
const (
	envStrategy = "CACHEGUARD_PEERS_STRATEGY"
	envControl  = "CACHEGUARD_PEERS_CONTROL" // host and port of who started it
	envRedis    = "CACHEGUARD_PEERS_REDIS"
)

// Worker is what a worker can be asked to do.
type Worker struct {
	env     env
	storage storage

	waker waker // once OpenWay was called
	woken sync.WaitGroup
	times ArrivedReply // valid when woken is done
}

// work is the life of a worker.
func work(name string) error {
	s, err := strategyNamed(name)
	if err != nil {
		return err
	}
	conn, err := net.DialTimeout("tcp", os.Getenv(envControl), 5*time.Second)
	if err != nil {
		return err
	}
	control := rpc.NewClient(conn)
	e := env{redis: os.Getenv(envRedis), commands: new(atomic.Int64), load: ask(control, os.Getpid())}
	storage, err := s.open(e)
	if err != nil {
		return err
	}
	server := rpc.NewServer()
	if err := server.Register(&Worker{env: e, storage: storage}); err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	if err := control.Call("Control.Hello", Hello{os.Getpid(), l.Addr().String()}, &struct{}{}); err != nil {
		return err
	}
	asked, err := l.Accept()
	if err != nil {
		return err
	}
	l.Close()
	server.ServeConn(asked) // until who started it hangs up
	return nil
}

// StormArgs: Callers ask for Key at one instant.
type StormArgs struct {
	Key     string
	Callers int
	At      int64         // the instant, in Unix nanoseconds
	Floor   time.Duration // sleep so long instead of asking; 0: ask
}

// StormReply is what they got.
type StormReply struct {
	Latencies []time.Duration // of each caller, from the instant on
	Versions  map[int]int     // how many got which
	Errors    int
	Error     string // one of them
}

// Storm runs one.
func (w *Worker) Storm(args StormArgs, reply *StormReply) error {
	runtime.GC() // now rather than in the middle
	reply.Latencies = make([]time.Duration, args.Callers)
	reply.Versions = map[int]int{}
	at := time.Unix(0, args.At)
	values, errs := make([][]byte, args.Callers), make([]error, args.Callers)
	var all sync.WaitGroup
	for i := range args.Callers {
		all.Go(func() {
			ctx, cancel := context.WithDeadline(context.Background(), at.Add(stormLimit))
			defer cancel()
			time.Sleep(time.Until(at))
			if args.Floor > 0 {
				time.Sleep(args.Floor)
				reply.Latencies[i] = time.Since(at)
				return
			}
			values[i], errs[i] = w.storage.Get(ctx, args.Key)
			reply.Latencies[i] = time.Since(at)
		})
	}
	all.Wait()
	if args.Floor > 0 {
		return nil
	}
	// Not while others still wait for a processor, as those at the floor do not.
	for i, v := range values {
		if err := errs[i]; err != nil {
			reply.Errors, reply.Error = reply.Errors+1, err.Error()
			continue
		}
		reply.Versions[versionOf(args.Key, v)]++
	}
	return nil
}

// stormLimit is the deadline of a caller in a storm.
const stormLimit = 20 * time.Second

// KeysArgs name keys.
type KeysArgs struct{ Keys []string }

// ReadReply is the version that is under each key.
type ReadReply struct{ Versions []int }

// Read asks for some keys at once.
func (w *Worker) Read(args KeysArgs, reply *ReadReply) error {
	reply.Versions = make([]int, len(args.Keys))
	return each(args.Keys, func(ctx context.Context, i int, key string) error {
		v, err := w.storage.Get(ctx, key)
		reply.Versions[i] = versionOf(key, v)
		return err
	})
}

// Delete tells the strategy that keys were written.
func (w *Worker) Delete(args KeysArgs, _ *struct{}) error {
	return each(args.Keys, func(ctx context.Context, _ int, key string) error { return w.storage.Delete(ctx, key) })
}

func each(keys []string, do func(ctx context.Context, i int, key string) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), stormLimit)
	defer cancel()
	errs := make([]error, len(keys))
	var all sync.WaitGroup
	for i, key := range keys {
		all.Go(func() { errs[i] = do(ctx, i, key) })
	}
	all.Wait()
	return firstOf(errs)
}

// firstOf is one of errs, with how many there are: hundreds say no more.
func firstOf(errs []error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	switch len(errs) {
	case 0:
		return nil
	case 1:
		return errs[0]
	}
	return fmt.Errorf("%w (and %d more)", errs[0], len(errs)-1)
}

// Commands is how many it has sent to Redis.
func (w *Worker) Commands(_ struct{}, reply *int64) error {
	*reply = w.env.commands.Load()
	return nil
}

// LoopArgs: Callers go on asking for Key, each with a deadline.
type LoopArgs struct {
	Key      string
	Callers  int
	Pause    time.Duration // after each answer
	Deadline time.Duration // of each call
	For      time.Duration
}

// Sample is one call of a loop.
type Sample struct {
	At     int64 // its beginning, in Unix nanoseconds
	Took   time.Duration
	Failed bool
}

// LoopReply is all of them.
type LoopReply struct{ Samples []Sample }

// Loop runs one. It ends at the latest one deadline after its time: a call that
// is then still under way, whatever its deadline said, is one that failed.
func (w *Worker) Loop(args LoopArgs, reply *LoopReply) error {
	end := time.Now().Add(args.For)
	samples := make(chan Sample)
	enough := make(chan struct{})
	defer close(enough)
	begun := make([]atomic.Int64, args.Callers) // of the call that is under way, in Unix nanoseconds; 0: none
	for i := range args.Callers {
		go func() { // for as long as its last call takes
			time.Sleep(args.Pause * time.Duration(i) / time.Duration(args.Callers)) // not in step
			for time.Now().Before(end) {
				begun[i].Store(time.Now().UnixNano())
				s := w.sample(args)
				begun[i].Store(0)
				select {
				case samples <- s:
				case <-enough:
					return
				}
				time.Sleep(args.Pause)
			}
			select {
			case samples <- Sample{}: // it is done
			case <-enough:
			}
		}()
	}
	last := time.After(time.Until(end.Add(args.Deadline + time.Second)))
	for under := args.Callers; under > 0; {
		select {
		case s := <-samples:
			if s.At == 0 {
				under--
				continue
			}
			reply.Samples = append(reply.Samples, s)
		case <-last:
			for i := range begun {
				if at := begun[i].Load(); at != 0 {
					reply.Samples = append(reply.Samples, Sample{at, time.Since(time.Unix(0, at)), true})
				}
			}
			return nil
		}
	}
	return nil
}

func (w *Worker) sample(args LoopArgs) Sample {
	ctx, cancel := context.WithTimeout(context.Background(), args.Deadline)
	defer cancel()
	begin := time.Now()
	v, err := w.storage.Get(ctx, args.Key)
	return Sample{begin.UnixNano(), time.Since(begin), err != nil || versionOf(args.Key, v) == 0}
}

// HitsArgs: so many goroutines read Key as fast as they can.
type HitsArgs struct {
	Key        string
	Goroutines int
	For        time.Duration
}

// HitsReply is what a read costs.
type HitsReply struct {
	Reads  int64
	Took   time.Duration
	Allocs uint64
}

// Hits runs them.
func (w *Worker) Hits(args HitsArgs, reply *HitsReply) error {
	ctx := context.Background()
	v, err := w.storage.Get(ctx, args.Key)
	if err != nil {
		return err
	}
	if versionOf(args.Key, v) == 0 {
		return fmt.Errorf("not a value of %s: %.40q", args.Key, v)
	}
	var stop atomic.Bool
	var reads atomic.Int64
	var failed atomic.Pointer[error]
	var all sync.WaitGroup
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	begin := time.Now()
	for range args.Goroutines {
		all.Go(func() {
			n := int64(0)
			for ; !stop.Load(); n++ {
				if v, err := w.storage.Get(ctx, args.Key); err != nil || len(v) != 1024 {
					failed.CompareAndSwap(nil, &err)
					break
				}
			}
			reads.Add(n)
		})
	}
	time.Sleep(args.For)
	stop.Store(true)
	all.Wait()
	reply.Took = time.Since(begin)
	runtime.ReadMemStats(&after)
	if err := failed.Load(); err != nil {
		return fmt.Errorf("a hit failed: %w", *err)
	}
	reply.Reads, reply.Allocs = reads.Load(), after.Mallocs-before.Mallocs
	return nil
}
