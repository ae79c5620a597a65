package redisstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// A runner makes every call return in time, whatever the client does. A
// go-redis client with default options looks at no deadline while it reads a
// reply (5 s), and can spend 100 s in dialing. A call runs in one of two ways:
//
// Here, on the caller's goroutine, where the client is known to keep the bound
// (see bounded) and the caller's context cannot end. This costs next to
// nothing.
//
// Else in a goroutine of the runner, and the caller waits for it only as long
// as it may. A command whose caller has gone is told so by its context and is
// let run out; it counts until then. This costs two switches of goroutines,
// which on an idle machine wake another thread each.
type runner struct {
	timeout time.Duration
	max     int64
	here    bool  // the client keeps the bound by itself
	terms   terms // for calls that run here

	calls   atomic.Int64  // under way, abandoned ones included; and closedFlag
	closing sync.Once     // adds that
	quit    chan struct{} // closed with it
	ended   chan struct{} // closed when it is there and no call is under way
	ending  sync.Once     // closes it

	work    chan *call // to idle workers; unbuffered, so that no call waits in it
	idle    atomic.Int64
	workers sync.WaitGroup
}

// closedFlag is added to the calls of a runner that takes no more: far above any
// number of them.
const closedFlag = 1 << 40

// idleWorkers is how many workers wait for the next call instead of ending: a
// worker that has run a command has a stack that is grown already.
const idleWorkers = 64

func newRunner(timeout time.Duration, maxCalls int, here bool) *runner {
	return &runner{
		timeout: timeout, max: int64(maxCalls), here: here, terms: terms{timeout: timeout},
		quit: make(chan struct{}), ended: make(chan struct{}), work: make(chan *call),
	}
}

// bounded returns a client over the same connections that keeps the bound by
// itself, if there is such a thing, and client itself otherwise.
//
// A client that looks at deadlines (ContextTimeoutEnabled) is bounded by our
// context: its end ends the wait for a connection and for a dial, which runs in
// the background; its deadline ends the handshake, the write and the read.
//
// Any other *redis.Client can be copied with other timeouts. The copy has
// options of its own, in which we let it look at deadlines. (Should a later
// go-redis not look at them there, the copy's timeouts still bound the write
// and the read.) go-redis makes such copies without the hooks of the client.
//
// A *redis.ClusterClient is not known to keep any bound: it asks for the
// command table (COMMAND) now and then, under a context of its own.
func bounded(client redis.UniversalClient, timeout time.Duration) (_ redis.UniversalClient, ok bool) {
	single, ok := client.(*redis.Client)
	if !ok || single.Options().ContextTimeoutEnabled {
		return client, ok
	}
	single = single.WithTimeout(timeout)
	single.Options().ContextTimeoutEnabled = true
	return single, true
}

// A call is one command on its way in a goroutine of the runner. Its fields but
// done belong to the worker until done has been sent to, and to the caller after
// that. A caller that does not wait for it must not look at them again.
type call struct {
	run   func(context.Context) error
	ctx   *callContext
	err   error
	done  chan struct{} // one send for every call
	gone  chan struct{} // closed when the caller has gone
	timer *time.Timer   // of the caller
}

// calls are reused, but for those whose caller has gone.
var calls = sync.Pool{New: func() any {
	c := &call{done: make(chan struct{}, 1), gone: make(chan struct{})}
	c.timer = time.NewTimer(time.Hour)
	c.timer.Stop()
	return c
}}

// do runs one command that began at began. An error of run, or one of its own:
// errTimeout, errTooMany, ErrClosed, or the cause of ctx. If abandoned, run may
// still be running: what it writes to must not be read.
func (r *runner) do(ctx context.Context, began time.Time, run func(context.Context) error) (err error, abandoned bool) {
	done := ctx.Done()
	if done != nil && ctx.Err() != nil {
		return &canceledError{context.Cause(ctx)}, true
	}
	if err := r.enter(); err != nil {
		return err, true
	}
	if r.here && done == nil {
		return r.runHere(ctx, began, run), false
	}
	c := calls.Get().(*call)
	c.run, c.ctx = run, &callContext{parent: ctx, deadline: began.Add(r.timeout), gone: c.gone}
	r.start(c)
	c.timer.Reset(r.timeout)
	select {
	case <-c.done:
	case <-c.timer.C:
		err = errTimeout
	case <-done:
		err = &canceledError{context.Cause(ctx)}
	}
	c.timer.Stop()
	if err != nil {
		close(c.gone)
		return err, true
	}
	err = c.err
	c.recycle()
	return err, false
}

// runHere runs a call that has entered on this goroutine. Its context ends at the
// deadline, for the waits that look at it alone.
func (r *runner) runHere(ctx context.Context, began time.Time, run func(context.Context) error) error {
	defer r.leave()
	return protect(r.terms.context(ctx, began), run)
}

// enter counts a call in; leave counts it out.
func (r *runner) enter() error {
	n := r.calls.Add(1)
	switch {
	case n >= closedFlag:
		r.leave()
		return ErrClosed
	case n > r.max:
		r.leave()
		return errTooMany
	}
	return nil
}

func (r *runner) leave() {
	if r.calls.Add(-1) == closedFlag {
		r.ending.Do(func() { close(r.ended) })
	}
}

func (c *call) recycle() {
	c.run, c.ctx, c.err = nil, nil, nil
	calls.Put(c)
}

// start hands c to an idle worker or a new one.
func (r *runner) start(c *call) {
	select {
	case r.work <- c:
	default:
		r.workers.Go(func() { r.worker(c) }) // c has not left, so nobody waits for them yet
	}
}

func (r *runner) worker(c *call) {
	for {
		c.err = protect(c.ctx, c.run)
		r.leave()
		c.done <- struct{}{}
		if r.idle.Add(1) > idleWorkers {
			r.idle.Add(-1)
			return
		}
		select {
		case c = <-r.work:
			r.idle.Add(-1)
		case <-r.quit:
			return
		}
	}
}

// protect makes a panic out of the client or one of its hooks an error: the
// goroutine is ours, and a panic here would end the process.
func protect(ctx context.Context, run func(context.Context) error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic in the Redis client: %v", v)
		}
	}()
	return run(ctx)
}

// close ends the runner: no call begins after it, and those under way are
// waited for, for at most wait.
func (r *runner) close(wait time.Duration) error {
	r.closing.Do(func() {
		close(r.quit)
		r.calls.Add(closedFlag + 1)
		r.leave() // it may have been the last
	})
	return waitFor(func() {
		<-r.ended
		r.workers.Wait()
		r.terms.stop()
	}, wait)
}

// waitFor waits for what ends by itself, for at most d.
func waitFor(end func(), d time.Duration) error {
	ended := make(chan struct{})
	go func() { end(); close(ended) }()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ended:
		return nil
	case <-timer.C:
		return errors.New("redisstore: commands of the client are still under way")
	}
}

// canceledError is the cause of a caller that has gone: of class canceled, also
// if it was its deadline.
type canceledError struct{ cause error }

func (e *canceledError) Error() string { return "the caller has gone: " + e.cause.Error() }
func (e *canceledError) Unwrap() error { return e.cause }

// callContext is what a command runs under: the caller's values, the bound as
// its deadline, and an end when the caller has gone. The caller's own deadline
// is not passed on: who leaves early must not cost a connection, whose reply
// may come in time.
type callContext struct {
	parent   context.Context
	deadline time.Time
	gone     chan struct{}
}

func (c *callContext) Deadline() (time.Time, bool) { return c.deadline, true }

func (c *callContext) Done() <-chan struct{} { return c.gone }
func (c *callContext) Value(key any) any     { return c.parent.Value(key) }

// Err is the deadline's also when the caller has left: then nobody reads it.
func (c *callContext) Err() error { return deadlineIf(c.gone) }

// deadlineIf is the error of a context that ends with its deadline, once over is
// closed.
func deadlineIf(over <-chan struct{}) error {
	select {
	case <-over:
		return context.DeadlineExceeded
	default:
		return nil
	}
}
