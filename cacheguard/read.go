package cacheguard

import (
	"context"
	"errors"
	"runtime"
	"time"
)

// errAbandoned is the fault of a read whose goroutine was ended by the user's
// code.
var errAbandoned = errors.New("cacheguard: runtime.Goexit in a codec or hook ended a read")

// reading is one read of the store and the callers of this process that share
// it: those who were there before it was sent. Who comes later shares the next
// one, which is sent when this one is answered (S5). So a hot key is read by one
// caller at a time, whatever their number.
type reading[V any] struct {
	first waiter[V] // the caller who began it; its context is for spans
	line  line[V]   // those who wait for it; guarded by the shard's mu
	l     look[V]

	sent bool        // who comes from now on shares the next one; guarded by the shard's mu
	next *reading[V] // for those; guarded by the shard's mu
}

// look reads the store for a caller, who is then told what was found, or, if
// that was nothing and it stays, what the key's flight has brought. The error is
// ctx's, or ErrClosed.
//
// A key that a flight of this process has found missing is not read: the caller
// can only join that, and does so here, if it stays; else nil is returned. What
// it gets from there has rules of its own (see outcome.upTo) that do not depend
// on a look. Nor does a miss, whoever is told: the claim looks again.
func (g *Guard[V]) look(ctx context.Context, sh *shard[V], key string, q *question[V]) (*waiter[V], error) {
	// The flight asks nothing of it: neither a loader nor a place in a chain of
	// loads nor a span.
	var stays Loader[V]
	if !q.asks && !q.anew && !g.tells.start.on() && !isPartOfLoad(ctx) {
		stays = q.load
	}
	r, w, err := g.joinRead(ctx, sh, key, q.arrival, stays)
	switch {
	case w == nil:
		return nil, err
	case r == nil:
	case w.told == nil:
		g.readHere(sh, key, r)
		return w, nil
	default:
		go g.readAll(sh, key, r)
	}
	return w, sh.await(ctx, w)
}

// joinRead begins a read of key, or joins the next one if one is under way. It
// returns the reading if it has to be made, and the waiter that the caller is;
// nil if it needs no read and has not joined the key's flight. The error is
// ErrClosed.
func (g *Guard[V]) joinRead(ctx context.Context, sh *shard[V], key string, arrival uint64, stays Loader[V]) (*reading[V], *waiter[V], error) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.missing(key, arrival) {
		j := sh.joiners[key]
		if _, paused := sh.pauses[key]; paused || stays == nil || j == nil {
			return nil, nil, nil
		}
		w := new(waiter[V])
		j.joins(w, g.now())
		return nil, w, nil
	}
	running := sh.reads[key]
	if running == nil {
		if !g.tasks.enter() {
			return nil, nil, ErrClosed
		}
		r := new(reading[V])
		sh.reads[key] = r
		if ctx.Done() == nil { // this caller cannot leave, and can as well do the reading
			r.first.ctx, r.sent = ctx, true
			return r, &r.first, nil
		}
		return r, r.share(ctx, stays), nil
	}
	if running.sent {
		if running.next == nil {
			running.next = new(reading[V])
		}
		running = running.next
	}
	return nil, running.share(ctx, stays), nil
}

// share lets a caller wait for a read that has not been sent. mu is held.
func (r *reading[V]) share(ctx context.Context, stays Loader[V]) *waiter[V] {
	w := &r.first
	if w.ctx != nil {
		w = new(waiter[V])
	}
	w.ctx, w.stays = ctx, stays
	r.line.push(w.comes())
	return w
}

// readHere makes one read on the caller's goroutine, and leaves those that have
// to follow to another one.
func (g *Guard[V]) readHere(sh *shard[V], key string, r *reading[V]) {
	var next *reading[V]
	defer func() {
		if next == nil { // also if readOne does not return
			g.tasks.leave()
		}
	}()
	if next, _ = g.readOne(sh, key, r); next != nil {
		go g.readAll(sh, key, next)
	}
}

// readAll makes one read after the other, for as long as there is somebody to
// share the next.
func (g *Guard[V]) readAll(sh *shard[V], key string, r *reading[V]) {
	defer g.tasks.leave()
	for r != nil && sh.send(key, r) {
		next, f := g.readOne(sh, key, r)
		if f != nil {
			next = f.here(next)
		}
		if r = next; r != nil {
			// Those who were told just now may come again at once. If they are
			// let do so first, all share one read, else they are two groups
			// for ever, of which each waits for the other's.
			runtime.Gosched()
		}
	}
}

// send closes the circle of those who share a read, which is about to be sent.
// It reports false if there are none.
func (s *shard[V]) send(key string, r *reading[V]) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.sent = true
	if r.first.ctx == nil {
		delete(s.reads, key)
		return false
	}
	return true
}

// readOne makes a read, tells what it has brought, and returns the next one to
// be made, and a flight that has been started and is to be run; nil: one of those
// who were told begins it, if that is needed.
func (g *Guard[V]) readOne(sh *shard[V], key string, r *reading[V]) (next *reading[V], f *flight[V]) {
	returned := false
	var told released[V]
	defer func() {
		if !returned {
			told = sh.abandonReads(key, r) // runtime.Goexit in a codec or hook
		}
		told.tell()
	}()
	_, spanned := g.tells.begin(r.first.ctx, SpanInfo{Span: SpanLookup, Key: key})
	r.l = g.lookNow(sh, key)
	if spanned != nil {
		spanned(SpanEnd{Err: r.l.err, State: r.l.entry.State, Token: r.l.entry.Token})
	}
	returned = true
	var lead *waiter[V]
	if r.l.found == hit || r.l.found == pass {
		if next, told, lead = sh.answered(key, r); lead != nil {
			f = g.refreshFor(sh, key, lead)
		}
	} else {
		if told, lead = sh.nothing(key, r, g.now()); lead != nil {
			f = g.rebuild(sh, key, lead)
		}
	}
	return next, f
}

// answered ends a read that has brought an answer, and returns the next one to
// be made, those who are to be told, and if what they get is stale one of them who
// wants it to be refreshed.
func (s *shard[V]) answered(key string, r *reading[V]) (next *reading[V], told released[V], lead *waiter[V]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if next = r.next; next == nil && r.line.head != r.line.tail {
		next = new(reading[V]) // for those who come again
	}
	if next == nil {
		delete(s.reads, key)
	} else {
		s.reads[key] = next
	}
	r.release(&told)
	if r.l.found == hit && r.l.entry.State == Stale {
		lead = told.stayer()
	}
	return next, told, lead
}

// release takes all who share a read out of its line. mu is held.
func (r *reading[V]) release(told *released[V]) {
	r.first.look, r.first.first = &r.l, true // also if it does not wait
	for w := r.line.pop(); w != nil; w = r.line.pop() {
		w.look = &r.l
		told.add(w)
	}
}

// nothing ends a read that has brought nothing for those who share it, or whose
// store did not answer, and returns those who are to be told.
//
// What is not there is not read again for those who share the next read: they
// are to join the key's flight, which looks again. (Nor is a store that does not
// answer asked once more.) Who stays is told when that has landed. It is begun for
// the first of those, who is returned, by whoever has read; if nobody stays, one of
// them is told first, to begin it. On a busy machine it can take a while until the
// flight is registered; whoever comes until then finds those who wait for it.
func (s *shard[V]) nothing(key string, r *reading[V], now time.Duration) (told released[V], lead *waiter[V]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.reads, key)
	j := s.joinersOf(key, true)
	r.first.look = &r.l
	if r.first.told == nil { // it does not wait
		j.ledBy(&r.first)
	}
	take := func(w *waiter[V]) {
		if j.take(w, now, &told); w.joined && w.leads != nil {
			lead = w
		}
	}
	for w := r.line.pop(); w != nil; w = r.line.pop() {
		w.look = &r.l
		take(w)
	}
	if next := r.next; next != nil {
		next.l = r.l
		next.l.upTo = 0 // it was sent before they came
		for w := next.line.pop(); w != nil; w = next.line.pop() {
			w.look = &next.l
			take(w)
		}
	}
	if !j.led && !j.begun {
		delete(s.joiners, key) // all have left
	}
	return told, lead
}

// abandonReads ends a read that will bring nothing, and the one that was to
// follow.
func (s *shard[V]) abandonReads(key string, r *reading[V]) (told released[V]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.reads, key)
	for ; r != nil; r = r.next {
		r.l = look[V]{found: outage, err: errAbandoned}
		r.release(&told)
	}
	return told
}
