package main

import (
	"context"
	"fmt"
	"time"
)

// waker is one way in which a process learns that another has filled a key that
// it waits for.
type waker interface {
	// hold lets this process be the one that will fill key.
	hold(ctx context.Context, key string) error

	// wait returns when a fill of key by any process is sure to be noticed from
	// now on. What it returns then waits until this process has the value.
	wait(ctx context.Context, key string) (arrived func(context.Context) error, err error)

	// fill writes what is to be under key, and tells those who wait.
	fill(ctx context.Context, key string, value []byte) error

	Close() error
}

// wakeLimit bounds a wait for a wake-up.
const wakeLimit = 20 * time.Second

// WayArgs names one of ways.
type WayArgs struct{ Name string }

// OpenWay makes this process use it.
func (w *Worker) OpenWay(args WayArgs, _ *struct{}) (err error) {
	for _, way := range ways {
		if way.name == args.Name {
			w.waker, err = way.open(w.env)
			return err
		}
	}
	return fmt.Errorf("there is no way %q", args.Name)
}

// Hold lets this process hold keys.
func (w *Worker) Hold(args KeysArgs, _ *struct{}) error {
	return each(args.Keys, func(ctx context.Context, _ int, key string) error { return w.waker.hold(ctx, key) })
}

// Wait lets this process wait for keys. It returns when it does.
func (w *Worker) Wait(args KeysArgs, _ *struct{}) error {
	w.times = ArrivedReply{At: make([]int64, len(args.Keys)), Errors: make([]string, len(args.Keys))}
	return each(args.Keys, func(ctx context.Context, i int, key string) error {
		arrived, err := w.waker.wait(ctx, key)
		if err != nil {
			return err
		}
		w.woken.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), wakeLimit)
			defer cancel()
			if err := arrived(ctx); err != nil {
				w.times.Errors[i] = err.Error()
			}
			w.times.At[i] = time.Now().UnixNano()
		})
		return nil
	})
}

// FillReply is when each key was about to be written, in Unix nanoseconds. All
// processes have the same clock.
type FillReply struct{ At []int64 }

// Fill writes keys one after another, as fast as that goes.
func (w *Worker) Fill(args KeysArgs, reply *FillReply) error {
	ctx, cancel := context.WithTimeout(context.Background(), wakeLimit)
	defer cancel()
	for _, key := range args.Keys {
		value := valueOf(key, 1)
		reply.At = append(reply.At, time.Now().UnixNano())
		if err := w.waker.fill(ctx, key, value); err != nil {
			return err
		}
	}
	return nil
}

// ArrivedReply is when each key's value was there, in Unix nanoseconds, and what
// went wrong.
type ArrivedReply struct {
	At     []int64
	Errors []string
}

// Arrived waits for all keys of the last Wait.
func (w *Worker) Arrived(_ struct{}, reply *ArrivedReply) error {
	w.woken.Wait()
	*reply = w.times
	return nil
}
