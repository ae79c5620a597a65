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
type loading[T any] struct {
	loaded <-chan result[T] // of capacity 1: a loader that comes too late ends all the same
	ctx    context.Context  // the loader's; ends with LoadLimit, Close and cancel
	cancel context.CancelCauseFunc
	began  time.Time
	free   []func() // what end gives back

	span  func(SpanEnd)   // to be told of its end; nil: nobody, or it has been
	under context.Context // of that span
}

// result is what a loader brought.
type result[T any] struct {
	value T
	err   error
	took  time.Duration
}

// startLoad runs load with the values of ctx, a loaderContext, until LoadLimit
// past since at most. The caller has entered g.tasks, and calls end when it has
// what it wanted. span introduces the load to the hooks.
func startLoad[T, V any](g *Guard[V], ctx context.Context, since time.Time, span SpanInfo, load func(context.Context) (T, error)) *loading[T] {
	limit := g.opts.LoadLimit
	self := linkFrom(ctx)
	under, spanned := g.tells.begin(ctx, span)
	ctx, cancel := context.WithCancelCause(under)
	ctx, expire := context.WithDeadlineCause(ctx, since.Add(limit),
		fmt.Errorf("%w (%v): %w", ErrLoadLimit, limit, context.DeadlineExceeded))
	unhook := context.AfterFunc(g.ctx, func() { cancel(ErrClosed) })
	loaded := make(chan result[T], 1)
	g.tasks.another()
	loadersRunning.Add(1)
	go func() {
		defer g.tasks.leave()
		defer func() {
			self.over.Store(true)
			loadersRunning.Add(-1)
		}()
		returned := false
		defer func() {
			if !returned {
				loaded <- result[T]{err: g.loaderPanicked(recover())}
			}
		}()
		v, err := load(ctx)
		probe(err)
		returned = true
		loaded <- result[T]{value: v, err: err}
	}()
	return &loading[T]{
		loaded: loaded, ctx: ctx, cancel: cancel, began: time.Now(),
		free: []func(){func() { unhook() }, expire, func() { cancel(context.Canceled) }},
		span: spanned, under: under,
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
	ctx := tokenctx.WithToken(f.g.loaderContext(context.WithoutCancel(f.ctx), f.key), token)
	load, prev := f.load, f.prev
	span := SpanInfo{Span: SpanLoad, Key: f.key, Token: token, Background: f.background}
	if f.batch != nil {
		span = SpanInfo{} // the batch's load is told of, once
	}
	run := startLoad(f.g, ctx, since, span, func(ctx context.Context) (V, error) { return load(ctx, prev) })
	if run.span != nil {
		f.under = run.under
	}
	return run
}

// loaderContext marks ctx as that of a load of keys. The token of a load that
// this one is part of is not its own.
func (g *Guard[V]) loaderContext(ctx context.Context, keys ...string) context.Context {
	ids := make([]loadID, len(keys))
	for i, key := range keys {
		ids[i] = loadID{guard: g, key: key}
	}
	ctx = tokenctx.WithToken(ctx, 0)
	return withLink(ctx, &link{ids: ids, parent: linkFrom(ctx)})
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
func (l *loading[T]) end() {
	l.tell(context.Cause(l.ctx)) // it was not waited for
	for _, free := range l.free {
		free()
	}
}

// finished completes the result of a loader that has returned. If its context
// had ended, that is why it returned what it did, whatever it says itself: above
// all, what it did not find then may exist.
func (l *loading[T]) finished(r result[T]) result[T] {
	r.took = time.Since(l.began)
	cause := context.Cause(l.ctx)
	switch {
	case cause == nil || r.err == nil:
	case errors.Is(r.err, ErrNotFound):
		r.err = fmt.Errorf("%w (%v)", cause, r.err)
	case !errors.Is(r.err, cause):
		r.err = fmt.Errorf("%w (%w)", cause, r.err)
	}
	l.tell(r.err)
	return r
}

// tell ends the load's span, once.
func (l *loading[T]) tell(err error) {
	if l.span != nil {
		l.span(SpanEnd{Err: err})
		l.span = nil
	}
}

// cut is the result of a loader whose context has ended, and which has not
// returned, unless it has done so just now.
func (l *loading[T]) cut() result[T] {
	select {
	case r := <-l.loaded:
		return l.finished(r)
	default:
		return l.finished(result[T]{err: context.Cause(l.ctx)})
	}
}
