package cacheguard

import (
	"context"
	"errors"
)

// errAbandoned is the fault of a read whose goroutine was ended by the user's
// code.
var errAbandoned = errors.New("cacheguard: runtime.Goexit in a codec or hook ended a read")

// reading is one read of the store and the callers of this process that share
// it: those who were there before it was sent. Who comes while it is under way
// shares the next one, which is sent as soon as this one is answered (S5). So a
// hot key is read by one caller at a time, whatever their number.
type reading[V any] struct {
	ctx  context.Context // of the caller who began it; for spans
	done chan struct{}   // closed when l is there; nil if nobody waits for it
	l    look[V]

	next *reading[V] // for those who come while this one is under way; guarded by the shard's mu
	gone bool        // the caller who began it has left; guarded by the shard's mu
}

// look reads the store for a caller. If the read was made for this caller it is
// returned as well, and the caller must give it to sought in the end. The error
// is ctx's, or ErrClosed.
//
// A key that a flight of this process has found missing is not read: the caller
// can only join that. What it gets from there has rules of its own (see
// outcome.upTo) that do not depend on a look. Nor does a miss, whoever is told:
// the claim looks again.
func (g *Guard[V]) look(ctx context.Context, sh *shard[V], key string, arrival uint64) (l look[V], mine *reading[V], err error) {
	r, role := g.joinRead(ctx, sh, key, arrival)
	switch role {
	case readRefused:
		return l, nil, ErrClosed
	case readNeedless:
		return l, nil, nil
	case readFirst:
		mine = r
		if ctx.Done() == nil {
			// This caller cannot leave, so it can as well do the reading.
			g.readHere(sh, key, r)
			return r.l, mine, nil
		}
		r.done = make(chan struct{})
		go g.readAll(sh, key, r)
	case readNext:
		mine = r
	}
	select {
	case <-r.done:
		return r.l, mine, nil
	case <-ctx.Done():
		return l, mine, ctx.Err()
	}
}

// readRole is what a caller is to the reading that it joins.
type readRole uint8

const (
	readRefused  readRole = iota // the guard is closed
	readNeedless                 // the key is known to be missing
	readFirst                    // it has to be started, by this caller
	readNext                     // it is started when the one under way is answered; this caller was its first
	readShared                   // as readNext, of another caller
)

// joinRead begins a read of key, or joins the next one if one is under way.
func (g *Guard[V]) joinRead(ctx context.Context, sh *shard[V], key string, arrival uint64) (*reading[V], readRole) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.missing(key, arrival) {
		return nil, readNeedless
	}
	switch running := sh.reads[key]; {
	case running == nil:
		if !g.tasks.enter() {
			return nil, readRefused
		}
		r := &reading[V]{ctx: ctx}
		sh.reads[key] = r
		return r, readFirst
	case running.next == nil:
		running.next = &reading[V]{ctx: ctx, done: make(chan struct{})}
		return running.next, readNext
	default:
		return running.next, readShared
	}
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
	if next = g.readOne(sh, key, r); next != nil {
		go g.readAll(sh, key, next)
	}
}

// readAll makes one read after the other, for as long as there is somebody to
// share the next.
func (g *Guard[V]) readAll(sh *shard[V], key string, r *reading[V]) {
	defer g.tasks.leave()
	for r != nil {
		r = g.readOne(sh, key, r)
	}
}

// readOne makes a read, hands out what it has brought, and returns the next one
// to be made.
func (g *Guard[V]) readOne(sh *shard[V], key string, r *reading[V]) *reading[V] {
	returned := false
	defer func() {
		if !returned {
			sh.abandonReads(key, r) // runtime.Goexit in a codec or hook
		}
	}()
	_, spanned := g.tells.begin(r.ctx, SpanInfo{Span: SpanLookup, Key: key})
	r.l = g.lookNow(sh, key)
	if spanned != nil {
		spanned(SpanEnd{Err: r.l.err, State: r.l.entry.State, Token: r.l.entry.Token})
	}
	returned = true
	return sh.answered(key, r)
}

// answered hands out what a read has brought, and returns the next one to be
// sent.
//
// What is not there is not read again for those who share the next read: like
// everybody who is told of a miss they are to join the key's flight, which looks
// again. (Nor is a store that does not answer asked once more.) That flight is
// about to be begun, but on a busy machine it can take a while until it is
// registered; so whoever comes until then finds the seeker.
func (s *shard[V]) answered(key string, r *reading[V]) *reading[V] {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := r.next
	if r.done != nil {
		defer close(r.done)
	}
	if r.l.found == hit || r.l.found == pass {
		if next == nil {
			delete(s.reads, key)
		} else {
			s.reads[key] = next
		}
		return next
	}
	delete(s.reads, key)
	s.seek(key, r)
	if next != nil {
		next.l = r.l
		next.l.upTo = 0 // it was sent before they came
		s.seek(key, next)
		close(next.done)
	}
	return nil
}

// seek notes that the caller who began r is about to begin the key's flight. mu
// is held.
func (s *shard[V]) seek(key string, r *reading[V]) {
	if !r.gone && s.seekers[key] == nil {
		s.seekers[key] = r
	}
}

// sought says that the caller who began r has begun the flight, or has left.
func (s *shard[V]) sought(key string, r *reading[V]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.gone = true
	if s.seekers[key] == r {
		delete(s.seekers, key)
	}
}

// abandonReads ends a read that will bring nothing.
func (s *shard[V]) abandonReads(key string, r *reading[V]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.reads, key)
	for ; r != nil; r = r.next {
		r.l = look[V]{found: outage, err: errAbandoned}
		if r.done != nil {
			close(r.done)
		}
	}
}
