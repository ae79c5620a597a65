package cacheguard

import (
	"context"
	"time"
)

// waiter is a caller that waits: for a read of its key, and if that finds
// nothing for the key's flight. It stands in one line at a time, and is told
// once of what it has waited for.
//
// Callers are told in the order in which they came, one by one. A channel that
// is closed for all of them would wake the last one first.
type waiter[V any] struct {
	told chan struct{} // of capacity 1; nil: a caller that reads by itself

	// stays is the loader of a caller who joins the key's flight if there is
	// nothing in the store for it, and need not be woken in between; nil: it is
	// to be asked. Its context is for the values that a flight of it has.
	stays Loader[V]
	ctx   context.Context

	// What it is told. Written under the shard's mu, before told is sent.
	look  *look[V]      // what a read has brought; nil: it was not needed
	leads *joiners[V]   // those who count on this caller to begin the flight
	out   *outcome[V]   // what the flight has brought
	since time.Duration // when it joined the flight, on the guard's clock
	first bool          // the read was made for this caller

	joined bool // it has joined the flight

	own *flight[V] // that it has begun

	in         *line[V] // where it stands; nil: nowhere. These three are guarded by the shard's mu.
	prev, next *waiter[V]
}

// comes makes it one that waits.
func (w *waiter[V]) comes() *waiter[V] {
	if w.told == nil {
		w.told = make(chan struct{}, 1)
	}
	return w
}

// flew tells whether the flight that has landed was begun by this caller.
func (w *waiter[V]) flew() bool { return w.own != nil && w.own == w.out.by }

// line is where waiters stand. The shard's mu guards it.
type line[V any] struct{ head, tail *waiter[V] }

func (l *line[V]) push(w *waiter[V]) {
	w.in, w.prev, w.next = l, l.tail, nil
	if l.tail == nil {
		l.head = w
	} else {
		l.tail.next = w
	}
	l.tail = w
}

func (l *line[V]) remove(w *waiter[V]) {
	if w.prev == nil {
		l.head = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		l.tail = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.in, w.prev, w.next = nil, nil, nil
}

// pop takes the first one out; nil if there is none.
func (l *line[V]) pop() *waiter[V] {
	w := l.head
	if w != nil {
		l.remove(w)
	}
	return w
}

// released are waiters that have left their line to be told. They cannot leave
// any more.
type released[V any] struct{ head, tail *waiter[V] }

// add takes a waiter that has been taken out of its line. mu is held.
func (r *released[V]) add(w *waiter[V]) {
	if r.tail == nil {
		r.head = w
	} else {
		r.tail.next = w
	}
	r.tail = w
}

// stayer is the first of them who stays; nil: nobody does.
func (r *released[V]) stayer() *waiter[V] {
	for w := r.head; w != nil; w = w.next {
		if w.stays != nil {
			return w
		}
	}
	return nil
}

// tell tells them. No lock is held.
func (r *released[V]) tell() {
	for w := r.head; w != nil; {
		next := w.next
		w.next = nil // once it has been told it may stand in another line
		w.told <- struct{}{}
		w = next
	}
}

// await waits until the waiter is told, or leaves its line. The error is ctx's.
func (s *shard[V]) await(ctx context.Context, w *waiter[V]) error {
	done := ctx.Done()
	if done == nil {
		<-w.told
		return nil
	}
	select {
	case <-w.told:
		return nil
	case <-done:
	}
	if s.left(w) {
		return ctx.Err()
	}
	<-w.told // on its way, and maybe others count on what it says
	return nil
}

// left takes a waiter out of its line, unless it has been released.
func (s *shard[V]) left(w *waiter[V]) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.in == nil {
		return false
	}
	w.in.remove(w)
	return true
}

// joiners are the callers that have joined the flight of a key, which may be
// about to begin. Guarded by the shard's mu.
type joiners[V any] struct {
	line[V]
	led       bool // a caller is on its way to begin the flight
	begun     bool // it has
	missing   bool // there was nothing to serve
	overtaken bool // the key was written or invalidated since
}

// joinersOf returns those who have joined the flight of key. mu is held.
func (s *shard[V]) joinersOf(key string, missing bool) *joiners[V] {
	j := s.joiners[key]
	if j == nil {
		j = &joiners[V]{missing: missing, begun: s.flights[key] != nil}
		s.joiners[key] = j
	}
	return j
}

// ledBy lets a caller begin the flight, unless there is somebody who does.
func (j *joiners[V]) ledBy(w *waiter[V]) {
	if !j.led && !j.begun {
		j.led, w.leads = true, j
	}
}

// joins puts a caller among them.
func (j *joiners[V]) joins(w *waiter[V], now time.Duration) {
	w.joined, w.since = true, now
	j.push(w.comes())
}

// take lets a caller whose read found nothing join, if it stays; else it is told.
// If there is nobody yet to begin the flight, it leads.
func (j *joiners[V]) take(w *waiter[V], now time.Duration, told *released[V]) {
	j.ledBy(w)
	if w.stays != nil && w.look.found != outage {
		j.joins(w, now)
		return
	}
	told.add(w)
}

// joins lets a caller wait for the flight of key, which f is to be if there is
// none; begin tells that f is it, and is to be run. It reports false, and does
// nothing, if there is none and no f.
func (s *shard[V]) joins(key string, w *waiter[V], f *flight[V], now time.Duration) (begin, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.flights[key] == nil {
		if f == nil {
			return false, false
		}
		w.own, begin = f, s.start(f)
	}
	s.joinersOf(key, s.flights[key].missing).joins(w, now)
	return begin, true
}

// begins makes f the flight of key, for a caller who leads and has joined. It
// reports false if that is not needed any more.
func (s *shard[V]) begins(key string, w *waiter[V], f *flight[V]) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.joiners[key] != w.leads || !s.start(f) {
		return false
	}
	w.own = f
	return true
}

// passOn lets another caller begin the flight that this one was to begin, should
// it have left.
func (s *shard[V]) passOn(key string, j *joiners[V]) {
	var told released[V]
	defer told.tell()
	s.mu.Lock()
	defer s.mu.Unlock()
	if j.begun || s.joiners[key] != j {
		return
	}
	j.led = false
	if w := j.pop(); w != nil {
		j.ledBy(w)
		told.add(w)
		return
	}
	delete(s.joiners, key)
}

// landed takes a flight out of the shard, and tells those who have joined it
// what it has brought. Whoever comes from now on begins another one.
func (s *shard[V]) landed(f *flight[V], out *outcome[V]) {
	var told released[V]
	defer told.tell()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.flights[f.key] == f {
		delete(s.flights, f.key)
	}
	s.rebuilds.Forget(f.key)
	s.bring(f.key, out, &told)
}

// spare tells those who wait for a flight that is not begun what they get instead.
func (s *shard[V]) spare(key string, j *joiners[V], out *outcome[V]) {
	var told released[V]
	defer told.tell()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !j.begun && s.joiners[key] == j {
		s.bring(key, out, &told)
	}
}

// bring releases those who have joined the flight of key. mu is held.
func (s *shard[V]) bring(key string, out *outcome[V], told *released[V]) {
	j := s.joiners[key]
	if j == nil {
		return
	}
	delete(s.joiners, key)
	for w := j.pop(); w != nil; w = j.pop() {
		w.out = out
		told.add(w)
	}
}
