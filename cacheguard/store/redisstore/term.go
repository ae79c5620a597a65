package redisstore

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A term is the context of calls that run on their callers' goroutines: it has
// their deadline, and ends with it. The calls that begin within a sixteenth of
// Options.Timeout share one, so that a call costs no context and no timer: it may
// have that much less time, never more.
type term struct {
	began, deadline time.Time
	over            chan struct{} // closed at the deadline
	alarm           *time.Timer   // closes over
}

// termShare is which part of the timeout calls share a term for.
const termShare = 16

func newTerm(began time.Time, timeout time.Duration) *term {
	t := &term{began: began, deadline: began.Add(timeout), over: make(chan struct{})}
	t.alarm = time.AfterFunc(time.Until(t.deadline), func() { close(t.over) })
	return t
}

func (t *term) Deadline() (time.Time, bool) { return t.deadline, true }
func (t *term) Done() <-chan struct{}       { return t.over }
func (t *term) Value(any) any               { return nil }
func (t *term) Err() error                  { return deadlineIf(t.over) }

// withValues is a term for a caller whose context has values.
type withValues struct {
	*term
	parent context.Context
}

func (c withValues) Value(key any) any { return c.parent.Value(key) }

// terms hands them out.
type terms struct {
	timeout time.Duration
	latest  atomic.Pointer[term]

	mu  sync.Mutex
	all []*term // that may not be over; guarded by mu
}

// context is what a call runs under that began at began, for a caller whose
// context cannot end.
func (ts *terms) context(parent context.Context, began time.Time) context.Context {
	t := ts.latest.Load()
	if t == nil || began.Sub(t.began) >= ts.timeout/termShare {
		t = ts.next(began)
	}
	if parent == context.Background() {
		return t
	}
	return withValues{term: t, parent: parent}
}

// next begins a term, unless somebody else has by now.
func (ts *terms) next(began time.Time) *term {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if t := ts.latest.Load(); t != nil && began.Sub(t.began) < ts.timeout/termShare {
		return t
	}
	ts.all = slices.DeleteFunc(ts.all, func(t *term) bool { return began.After(t.deadline) })
	t := newTerm(began, ts.timeout)
	ts.all = append(ts.all, t)
	ts.latest.Store(t)
	return t
}

// stop ends all alarms. No call is under way, or will be.
func (ts *terms) stop() {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for _, t := range ts.all {
		t.alarm.Stop()
	}
}
