package redisstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// A runner makes every call return in time, whatever the client does. A
// go-redis client with default options looks at no deadline while it reads a
// reply (5 s), and can spend 100 s in dialing; so the command runs in a
// goroutine of the runner, and the caller waits for it only as long as it may.
// A command whose caller has gone is told so by its context and is let run out;
// it counts until then.
type runner struct {
	timeout time.Duration
	max     int64

	work chan *call // to idle workers; unbuffered, so that no call waits in it
	idle atomic.Int64
	busy atomic.Int64 // workers alive

	mu     sync.Mutex // guards closed, and workers.Add against Wait
	closed bool
	quit   chan struct{}
	all    sync.WaitGroup
}

// idleWorkers is how many workers wait for the next call instead of ending: a
// worker that has run a command has a stack that is grown already.
const idleWorkers = 64

func newRunner(timeout time.Duration, maxCalls int) *runner {
	return &runner{timeout: timeout, max: int64(maxCalls), work: make(chan *call), quit: make(chan struct{})}
}

// A call is one command on its way. Its fields but done belong to the worker
// until done has been sent to, and to the caller after that. A caller that does
// not wait for it must not look at them again.
type call struct {
	run   func(context.Context) error
	ctx   *callContext
	err   error
	done  chan struct{} // one send for every call
	gone  chan struct{} // closed when the caller has gone
	timer *time.Timer
}

// calls are reused, but for those whose caller has gone.
var calls = sync.Pool{New: func() any {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	return &call{done: make(chan struct{}, 1), gone: make(chan struct{}), timer: timer}
}}

// do runs one command. An error of run, or one of its own: errTimeout,
// errTooMany, ErrClosed, or the cause of ctx. After one of these run may still
// be running: what it writes to must not be read.
func (r *runner) do(ctx context.Context, began time.Time, run func(context.Context) error) (err error, abandoned bool) {
	if err := context.Cause(ctx); err != nil {
		return canceled(err), true
	}
	c := calls.Get().(*call)
	c.run, c.ctx = run, &callContext{parent: ctx, deadline: began.Add(r.timeout), gone: c.gone}
	if err := r.start(c); err != nil {
		c.recycle()
		return err, true
	}
	c.timer.Reset(r.timeout)
	select {
	case <-c.done:
	case <-c.timer.C:
		err = errTimeout
	case <-ctx.Done():
		err = canceled(context.Cause(ctx))
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

func (c *call) recycle() {
	c.run, c.ctx, c.err = nil, nil, nil
	calls.Put(c)
}

// start hands c to an idle worker or a new one.
func (r *runner) start(c *call) error {
	select {
	case r.work <- c:
		return nil
	default:
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return ErrClosed
	}
	if r.busy.Add(1) > r.max {
		r.busy.Add(-1)
		return errTooMany
	}
	r.all.Go(func() { r.worker(c) })
	return nil
}

func (r *runner) worker(c *call) {
	defer r.busy.Add(-1)
	for {
		c.err = protect(c)
		c.done <- struct{}{}
		if r.idle.Add(1) > idleWorkers {
			r.idle.Add(-1)
			return
		}
		select {
		case c = <-r.work:
			r.idle.Add(-1)
		case <-r.quit:
			r.idle.Add(-1)
			return
		}
	}
}

// protect makes a panic out of the client or one of its hooks an error: the
// goroutine is ours, and a panic here would end the process.
func protect(c *call) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic in the Redis client: %v", v)
		}
	}()
	return c.run(c.ctx)
}

// close ends the runner: no call begins after it, and those under way are
// waited for, for at most wait.
func (r *runner) close(wait time.Duration) error {
	r.mu.Lock()
	if !r.closed {
		r.closed = true
		close(r.quit)
	}
	r.mu.Unlock()
	return waitFor(&r.all, wait)
}

// waitFor waits for a group, for at most d.
func waitFor(g *sync.WaitGroup, d time.Duration) error {
	ended := make(chan struct{})
	go func() { g.Wait(); close(ended) }()
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

func canceled(cause error) error { return &canceledError{cause} }

func (e *canceledError) Error() string { return "the caller has gone: " + e.cause.Error() }
func (e *canceledError) Unwrap() error { return e.cause }

// callContext is what a command runs under: the caller's values, and an end
// when the caller has gone for whatever reason. It has a deadline for clients
// that look at it.
type callContext struct {
	parent   context.Context
	deadline time.Time
	gone     chan struct{}
}

func (c *callContext) Deadline() (time.Time, bool) {
	if d, ok := c.parent.Deadline(); ok && d.Before(c.deadline) {
		return d, true
	}
	return c.deadline, true
}

func (c *callContext) Done() <-chan struct{} { return c.gone }
func (c *callContext) Value(key any) any     { return c.parent.Value(key) }

func (c *callContext) Err() error {
	select {
	case <-c.gone:
		return context.Canceled
	default:
		return nil
	}
}
