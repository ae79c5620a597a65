package middleware

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// waitState is the context under which a request waits for its answer: the
// request's own, which can also be ended for a cause of ours. A hit waits for
// nothing, so nothing is made before somebody asks for Done.
type waitState struct {
	parent context.Context
	mu     sync.Mutex // protects the making of inner, and its cause
	inner  atomic.Pointer[waiting]
	cause  error // why it ended before inner was made
}

type waiting struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
}

// made returns the context that can be ended.
func (w *waitState) made() *waiting {
	if in := w.inner.Load(); in != nil {
		return in
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if in := w.inner.Load(); in != nil {
		return in
	}
	in := new(waiting)
	in.ctx, in.cancel = context.WithCancelCause(w.parent)
	if w.cause != nil {
		in.cancel(w.cause)
	}
	w.inner.Store(in)
	return in
}

// end ends the wait for a cause.
func (w *waitState) end(cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cause = cause
	if in := w.inner.Load(); in != nil {
		in.cancel(cause)
	}
}

func (w *waitState) now() context.Context {
	if in := w.inner.Load(); in != nil {
		return in.ctx
	}
	return w.parent
}

// Done implements context.Context.
func (w *waitState) Done() <-chan struct{} { return w.made().ctx.Done() }

// Err implements context.Context.
func (w *waitState) Err() error { return w.now().Err() }

// Value implements context.Context.
func (w *waitState) Value(key any) any { return w.now().Value(key) }

// Deadline implements context.Context.
func (w *waitState) Deadline() (time.Time, bool) { return w.parent.Deadline() }
