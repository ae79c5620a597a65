package cacheguard

import (
	"context"
	"runtime/debug"
	"sync/atomic"
)

// hook is one of the user's hooks with its switch: the first panic turns it
// off.
type hook[I any] struct {
	name string
	fn   func(I) // nil: not set
	off  atomic.Bool
}

// on tells whether it is to be called. Where that is false, nothing else is to
// be done for it.
func (h *hook[I]) on() bool { return h.fn != nil && !h.off.Load() }

// tell calls the hook, if it is on. No lock may be held.
func (h *hook[I]) tell(r *panics, info I) {
	if h.on() {
		h.call(r, info)
	}
}

func (h *hook[I]) call(r *panics, info I) {
	defer func() {
		if v := recover(); v != nil {
			h.off.Store(true)
			r.hook(h.name, v)
		}
	}()
	h.fn(info)
}

// panics is where panics are reported.
type panics struct {
	tell func(PanicInfo) // nil: nowhere
}

// hook reports a panic of a hook, from the deferred function that recovered it.
func (r *panics) hook(name string, value any) {
	r.report(PanicInfo{Where: name, Hook: true, Value: value, Stack: debug.Stack()})
}

// report is the end of the line: should the hook for panics panic itself, that
// is dropped.
func (r *panics) report(info PanicInfo) {
	if r.tell == nil {
		return
	}
	defer func() { _ = recover() }()
	r.tell(info)
}

// opened calls a hook for new guards, and returns what is to be called when the
// guard has been closed.
func (r *panics) opened(fn func(GuardInfo) func(), info GuardInfo) (closed func()) {
	nothing := func() {}
	if fn == nil {
		return nothing
	}
	defer func() {
		if v := recover(); v != nil {
			closed = nothing
			r.hook("Hooks.Opened", v)
		}
	}()
	end := fn(info)
	if end == nil {
		return nothing
	}
	return func() {
		defer func() {
			if v := recover(); v != nil {
				r.hook("Hooks.Opened", v)
			}
		}()
		end()
	}
}

// startHook is Hooks.Start with its switch.
type startHook struct {
	fn  func(context.Context, SpanInfo) (context.Context, func(SpanEnd))
	off atomic.Bool
}

// on tells whether it is to be called.
func (h *startHook) on() bool { return h.fn != nil && !h.off.Load() }

// begin calls the hook, if it is on. The context it returns is never nil; the
// function is nil if nobody wants to hear of the end.
func (h *startHook) begin(r *panics, ctx context.Context, info SpanInfo) (context.Context, func(SpanEnd)) {
	if !h.on() {
		return ctx, nil
	}
	return h.call(r, ctx, info)
}

func (h *startHook) call(r *panics, ctx context.Context, info SpanInfo) (out context.Context, end func(SpanEnd)) {
	failed := func() {
		if v := recover(); v != nil {
			h.off.Store(true)
			r.hook("Hooks.Start", v)
		}
	}
	out = ctx // also after a panic
	defer failed()
	inner, ended := h.fn(ctx, info)
	if inner != nil {
		out = inner
	}
	if ended == nil {
		return out, nil
	}
	return out, func(e SpanEnd) {
		defer failed()
		ended(e)
	}
}
