package cacheguard

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/internal/tokenctx"
)

// loading is a loader that runs, on a goroutine of its own: it may panic, call
// runtime.Goexit, or not heed its context.
type loading[V any] struct {
	loaded <-chan result[V] // of capacity 1: a loader that comes too late ends all the same
	ctx    context.Context  // the loader's; ends with LoadLimit, Close and cancel
	cancel context.CancelCauseFunc
	began  time.Time
	free   []func() // what end gives back
}

// result is what a loader brought.
type result[V any] struct {
	value V
	err   error
	took  time.Duration
}

// startLoad runs load with the values of ctx, until LoadLimit past since at
// most. The caller has entered g.tasks, and calls end when it has what it
// wanted.
func (g *Guard[V]) startLoad(ctx context.Context, since time.Time, load func(context.Context) (V, error)) *loading[V] {
	limit := g.opts.LoadLimit
	ctx, cancel := context.WithCancelCause(ctx)
	ctx, expire := context.WithDeadlineCause(ctx, since.Add(limit),
		fmt.Errorf("cacheguard: load cut at LoadLimit (%v): %w", limit, context.DeadlineExceeded))
	unhook := context.AfterFunc(g.ctx, func() { cancel(ErrClosed) })
	loaded := make(chan result[V], 1)
	g.tasks.another()
	go func() {
		defer g.tasks.leave()
		returned := false
		defer func() {
			if !returned {
				loaded <- result[V]{err: g.loaderPanicked(recover())}
			}
		}()
		v, err := load(ctx)
		probe(err)
		returned = true
		loaded <- result[V]{value: v, err: err}
	}()
	return &loading[V]{
		loaded: loaded, ctx: ctx, cancel: cancel, began: time.Now(),
		free: []func(){func() { unhook() }, expire, func() { cancel(context.Canceled) }},
	}
}

// probe calls the methods of a loader's error that the guard will call later,
// here where a panic is caught: those of a typed nil would end the process.
func probe(err error) {
	if err == nil {
		return
	}
	_ = err.Error()
	_ = errors.Is(err, ErrNotFound)
	if _, ok := errors.AsType[*PassError](err); ok {
		return
	}
	if c, ok := errors.AsType[Cooler](err); ok {
		_ = c.Cooldown()
	}
}

// startLoad runs the flight's loader. A token of zero means that there is no
// lease.
func (f *flight[V]) startLoad(since time.Time, token store.Token) *loading[V] {
	ctx := f.g.loaderContext(context.WithoutCancel(f.ctx), f.key)
	if token != 0 {
		ctx = tokenctx.WithToken(ctx, token)
	}
	load, prev := f.load, f.prev
	return f.g.startLoad(ctx, since, func(ctx context.Context) (V, error) { return load(ctx, prev) })
}

// loaderContext marks ctx as that of a load of key.
func (g *Guard[V]) loaderContext(ctx context.Context, key string) context.Context {
	return withLink(ctx, &link{id: loadID{guard: g, key: key}, parent: linkFrom(ctx)})
}

// loaderPanicked makes the error of a loader that did not return. recovered is
// nil if it called runtime.Goexit: a nil panic is a *runtime.PanicNilError.
func (g *Guard[V]) loaderPanicked(recovered any) *PanicError {
	if recovered == nil {
		recovered = "runtime.Goexit was called"
	}
	p := &PanicError{Value: recovered, Stack: debug.Stack()}
	g.panicked("loader", p)
	return p
}

// end cancels the loader's context and gives back what it held.
func (l *loading[V]) end() {
	for _, free := range l.free {
		free()
	}
}

// finished completes the result of a loader that has returned. If its context
// had ended, that is why it returned what it did, whatever it says itself: above
// all, what it did not find then may exist.
func (l *loading[V]) finished(r result[V]) result[V] {
	r.took = time.Since(l.began)
	cause := context.Cause(l.ctx)
	switch {
	case cause == nil || r.err == nil:
	case errors.Is(r.err, ErrNotFound):
		r.err = fmt.Errorf("%w (%v)", cause, r.err)
	case !errors.Is(r.err, cause):
		r.err = fmt.Errorf("%w (%w)", cause, r.err)
	}
	return r
}

// cut is the result of a loader whose context has ended, and which has not
// returned, unless it has done so just now.
func (l *loading[V]) cut() result[V] {
	select {
	case r := <-l.loaded:
		return l.finished(r)
	default:
		return l.finished(result[V]{err: context.Cause(l.ctx)})
	}
}
