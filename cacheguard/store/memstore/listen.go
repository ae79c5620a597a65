package memstore

import (
	"slices"
	"sync"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// hub knows who listens to which space.
type hub struct {
	mu        sync.RWMutex
	listeners map[string][]*listener // guarded by mu; the slices are replaced, never changed
}

// listener is one call of Listen. Calls of fn are counted rather than made
// under a mutex, so that fn may itself call the store.
type listener struct {
	fn func(store.Event)

	mu      sync.Mutex
	idle    sync.Cond // signalled when running falls to zero; its L is mu
	running int       // calls of fn under way; guarded by mu
	stopped bool      // no call may begin; guarded by mu
}

// Listen implements [store.Leases]. The listener is called synchronously, by
// the goroutine whose write is told of, before that write returns. Up is sent
// before Listen returns, and Down never.
func (s *Store) Listen(space string, fn func(store.Event)) (stop func()) {
	l := &listener{fn: fn}
	l.idle.L = &l.mu
	s.hub.add(space, l)
	l.call(store.Event{Kind: store.Up})
	return func() {
		s.hub.remove(space, l)
		l.stop()
	}
}

// publish tells the listeners of a space. It is called without any shard's
// mutex, after the effect of the event can be seen.
func (h *hub) publish(space string, events ...store.Event) {
	if len(events) == 0 {
		return
	}
	h.mu.RLock()
	listeners := h.listeners[space]
	h.mu.RUnlock()
	for _, l := range listeners {
		for _, e := range events {
			l.call(e)
		}
	}
}

func (h *hub) add(space string, l *listener) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.listeners == nil {
		h.listeners = make(map[string][]*listener)
	}
	h.listeners[space] = append(slices.Clone(h.listeners[space]), l)
}

func (h *hub) remove(space string, l *listener) {
	h.mu.Lock()
	defer h.mu.Unlock()
	rest := slices.DeleteFunc(slices.Clone(h.listeners[space]), func(other *listener) bool { return other == l })
	if len(rest) == 0 {
		delete(h.listeners, space)
		return
	}
	h.listeners[space] = rest
}

// call calls fn unless the listener has been stopped.
func (l *listener) call(e store.Event) {
	l.mu.Lock()
	if l.stopped {
		l.mu.Unlock()
		return
	}
	l.running++
	l.mu.Unlock()

	defer l.done() // also if fn panics: stop must not hang then
	l.fn(e)
}

func (l *listener) done() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running--
	if l.running == 0 {
		l.idle.Broadcast()
	}
}

// stop waits until no call is running; none begins after it.
func (l *listener) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
	for l.running > 0 {
		l.idle.Wait()
	}
}
