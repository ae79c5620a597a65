package memstore

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// entry is what is kept under a key.
type entry struct {
	item
	token    store.Token
	kind     store.Kind
	handOver bool
	payload  []byte // never changed once it is here: readers share it

	born       int64 // when the question was sent
	freshUntil int64
	ttl, grace time.Duration
	cost       time.Duration

	fault error // set by tests alone: memory does not turn into something else
}

// Load implements [store.Store]. The payload is shared by all its readers and
// the store, and must not be changed; to append to it is safe.
func (s *Store) Load(ctx context.Context, key store.Key) (store.Entry, error) {
	if err := ended(ctx, "load"); err != nil {
		return store.Entry{}, err
	}
	sh, now := s.lock(key)
	defer sh.mu.Unlock()
	e := sh.entry(key, now)
	if e == nil {
		return store.Entry{At: s.clock.instant(now)}, nil
	}
	sh.touch(&e.item, now)
	return e.seen(now, s.clock.instant(now)), nil
}

// seen is the entry as a reader sees it now; at is that instant.
func (e *entry) seen(now int64, at time.Time) store.Entry {
	if e.fault != nil {
		return store.Entry{At: at, Token: e.token, Fault: e.fault}
	}
	return store.Entry{
		At:       at,
		Kind:     e.kind,
		HandOver: e.handOver,
		Token:    e.token,
		Payload:  e.payload[:len(e.payload):len(e.payload)],
		Age:      time.Duration(max(0, now-e.born)),
		Fresh:    min(time.Duration(e.freshUntil-now), e.ttl),
		Left:     time.Duration(e.end - now),
		TTL:      e.ttl,
		Cost:     e.cost,
	}
}

// Fill implements [store.Store].
func (s *Store) Fill(ctx context.Context, g store.Grant, c store.Content) error {
	if c.HandOver <= 0 {
		return misuse("fill", "a fill needs a hand-over above zero")
	}
	payload, err := s.accept(ctx, "fill", g.Key, c)
	if err != nil {
		return err
	}
	sh, now := s.lock(g.Key)
	events, err := sh.fill(now, g, c, payload)
	sh.mu.Unlock()
	s.makeRoom(sh)
	s.hub.publish(g.Key.Space, events...)
	return err
}

func (sh *shard) fill(now int64, g store.Grant, c store.Content, payload []byte) (events []store.Event, err error) {
	r := sh.record(g.Key, now)
	if r == nil || r.birth != g.Birth {
		// The record was lost, and the mark of being waited for with it.
		return []store.Event{{Kind: store.Released, ID: g.Key.ID}}, store.ErrFenced
	}
	if r.fence > g.Token {
		return nil, store.ErrFenced
	}
	if r.fence == g.Token {
		return nil, nil // only this grant's own fill moved the fence here: its reply was lost
	}
	r.fence = g.Token
	r.failures, r.cooldown = nil, span{}
	waited := r.waiting
	if r.holder == g.Holder {
		r.endLease()
	}
	r.waiting = false
	sh.use(r, now, 0)
	e := filled(now, g, c, payload)
	sh.write(g.Key, now, e)
	if waited {
		events = []store.Event{{Kind: store.Filled, ID: g.Key.ID, Token: g.Token, Entry: e.carried(now, sh.clock.instant(now))}}
	}
	return events, nil
}

// carried is the entry as an event brings it: for those who were not there
// before there is nothing in a hand-over, and a pass is no answer.
func (e *entry) carried(now int64, at time.Time) *store.Entry {
	if e.handOver || e.kind == store.Pass {
		return nil
	}
	seen := e.seen(now, at)
	return &seen
}

// filled is the entry of a fill. Its life counts from the claim, since a value
// is never younger than its question. If nothing of it is left, what was loaded
// is kept for a moment for those who waited.
func filled(now int64, g store.Grant, c store.Content, payload []byte) *entry {
	e := newEntry(min(g.Time, now), g.Token, c, payload)
	if e.end <= now {
		e.end = later(now, c.HandOver)
		e.handOver = e.kind != store.Pass // a pass is for everybody while it lasts
	}
	return e
}

// Set implements [store.Store].
func (s *Store) Set(ctx context.Context, w store.Write) error {
	payload, err := s.accept(ctx, "set", w.Key, w.Content)
	if err != nil {
		return err
	}
	sh, now := s.lock(w.Key)
	event, err := s.set(sh, now, w, payload)
	sh.mu.Unlock()
	s.makeRoom(sh)
	s.hub.publish(w.Key.Space, event)
	return err
}

func (s *Store) set(sh *shard, now int64, w store.Write, payload []byte) (store.Event, error) {
	r := sh.record(w.Key, now)
	if b := w.Begun; b != nil && (r == nil || r.birth != b.Birth || r.fence > b.Token) {
		return s.invalidate(sh, now, w.Key), store.ErrFenced
	}
	if w.Content.TTL == 0 && w.Content.Grace == 0 {
		return s.invalidate(sh, now, w.Key), nil
	}
	token := s.fence(sh, now, w.Key)
	sh.write(w.Key, now, newEntry(now, token, w.Content, payload))
	return store.Event{Kind: store.Written, ID: w.Key.ID, Token: token}, nil
}

// Invalidate implements [store.Store].
func (s *Store) Invalidate(ctx context.Context, keys []store.Key) []error {
	return s.each(ctx, "invalidate", keys, s.invalidate)
}

func (s *Store) invalidate(sh *shard, now int64, key store.Key) store.Event {
	if e := sh.entry(key, now); e != nil {
		sh.drop(&e.item)
	}
	return store.Event{Kind: store.Invalidated, ID: key.ID, Token: s.fence(sh, now, key)}
}

// Expire implements [store.Store].
func (s *Store) Expire(ctx context.Context, keys []store.Key) []error {
	return s.each(ctx, "expire", keys, s.expire)
}

func (s *Store) expire(sh *shard, now int64, key store.Key) store.Event {
	if e := sh.entry(key, now); e != nil {
		sh.expire(e, now)
	}
	return store.Event{Kind: store.Expired, ID: key.ID, Token: s.fence(sh, now, key)}
}

// expire makes an entry stale: its grace begins now, and its life is not
// lengthened. What has no grace is gone.
func (sh *shard) expire(e *entry, now int64) {
	end := min(e.end, later(now, e.grace))
	if e.handOver || e.fault != nil || e.kind == store.Pass || end <= now {
		sh.drop(&e.item)
		return
	}
	e.freshUntil = min(e.freshUntil, now)
	sh.moveEnd(&e.item, end)
}

// each does one thing to each key in a step of its own, and tells the listeners.
func (s *Store) each(ctx context.Context, op string, keys []store.Key, do func(*shard, int64, store.Key) store.Event) []error {
	return each(ctx, op, keys, func(key store.Key) error {
		sh, now := s.lock(key)
		event := do(sh, now, key)
		sh.mu.Unlock()
		s.hub.publish(key.Space, event)
		return nil
	})
}

// fence takes a new token and, if there is a record, moves the fence to it and
// ends any lease: nothing that was asked before may be written from now on.
// Without a record there is nothing to fence: a fill needs one of its own birth.
func (s *Store) fence(sh *shard, now int64, key store.Key) store.Token {
	token := s.nextToken(now)
	if r := sh.record(key, now); r != nil {
		r.fence = token
		r.endLease()
		sh.use(r, now, 0)
	}
	return token
}

// accept copies the payload of what is to be written, and refuses what cannot
// or must not be.
func (s *Store) accept(ctx context.Context, op string, key store.Key, c store.Content) (payload []byte, err error) {
	if err := ended(ctx, op); err != nil {
		return nil, err
	}
	if c.Kind < store.Value || c.Kind > store.Pass || c.TTL < 0 || c.Grace < 0 {
		return nil, misuse(op, "an entry is a value, absent or pass, with a TTL and grace that are not negative")
	}
	size := entryBytes(key, len(c.Payload))
	if size <= s.max {
		payload = bytes.Clone(c.Payload)
		size = entryBytes(key, cap(payload)) // the allocator rounds up
	}
	if size > s.max {
		err := fmt.Errorf("an entry of %d bytes is above the store's bound of %d", size, s.max)
		return nil, &store.Fault{Op: op, Class: store.ClassFull, Err: err}
	}
	return payload, nil
}

func newEntry(born int64, token store.Token, c store.Content, payload []byte) *entry {
	e := &entry{
		token:      token,
		kind:       c.Kind,
		payload:    payload,
		born:       born,
		freshUntil: later(born, c.TTL),
		ttl:        c.TTL,
		grace:      c.Grace,
		cost:       c.Cost,
	}
	e.end = later(e.freshUntil, c.Grace)
	return e
}

// write puts an entry in the place of the one before it.
func (sh *shard) write(key store.Key, now int64, e *entry) {
	if old := sh.entry(key, now); old != nil {
		sh.drop(&old.item)
	}
	e.slot = sh.slot(key)
	e.size = entryBytes(key, cap(e.payload))
	e.slot.entry = e
	sh.add(&e.item, now)
}

func entryBytes(key store.Key, payload int) int64 {
	return int64(entryOverhead + len(key.Space) + len(key.ID) + payload)
}
