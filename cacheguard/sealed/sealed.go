// Package sealed makes a store believe only the entries of those who have a key:
//
//	s, err := sealed.New(redis, sealed.Options{Keys: [][]byte{key}})
//	guard, err := cacheguard.New[Product](s, cacheguard.Options[Product]{})
//
// Each entry carries an HMAC-SHA-256 of what it is (a value, or the word that
// there is none), of its bytes, and of the key it is under, with its space. What
// somebody else has put into the store, changed there, or copied from another
// key is a miss, and is reported as a fault of class "data".
//
// It does not hide anything: values can be read in the store as before. Nor does
// it prove that an entry is the newest of its key, or how long it is to live:
// whoever can write to the store can put back an older entry of the same key,
// make it live longer, and delete it, and can take leases. But nothing is ever
// served that nobody with a key has made for that key.
//
// Entries from before it was switched on are misses, and a process without it
// takes a sealed entry for a value of its own format. Switch it on together with
// a namespace of its own, so that a deploy mixes nothing.
package sealed

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// Options shape a [Store].
type Options struct {
	// Keys are the secrets, at least 32 random bytes each, at most 8 of them.
	// The first signs; what any of them has signed is believed. To change the
	// key, add the new one last, everywhere; then put it first, everywhere;
	// and after the longest life of an entry drop the old one.
	Keys [][]byte
}

const (
	minKey  = 32
	maxKeys = 8
)

// Store is a [store.Store] that seals what is written to another one, and
// believes only what is sealed. It is safe for concurrent use.
type Store struct {
	store.Store
	keys [][]byte
}

// New returns a store around s. It fails if an option is out of range, and says
// what to write instead. There is nothing to close; s stays its owner's.
func New(s store.Store, opts Options) (*Store, error) {
	if s == nil {
		return nil, errors.New("sealed: the store is nil; use redisstore.New")
	}
	if len(opts.Keys) < 1 || len(opts.Keys) > maxKeys {
		return nil, fmt.Errorf("sealed: Options.Keys has %d keys; use 1 to %d", len(opts.Keys), maxKeys)
	}
	keys := make([][]byte, len(opts.Keys))
	for i, key := range opts.Keys {
		if len(key) < minKey {
			return nil, fmt.Errorf("sealed: Options.Keys[%d] is %d bytes long; use at least %d random ones", i, len(key), minKey)
		}
		keys[i] = slices.Clone(key)
	}
	return &Store{Store: s, keys: keys}, nil
}

// A sealed payload is a version, the kind of the entry, the HMAC, and the
// payload. To the store underneath an Absent is a value too, for that is what
// has a payload; it does the same with both.
//
// A pass is left as it is. There is nothing in it to believe: it says to load
// without waiting, which whoever can write to the store also brings about by
// taking the entry away.
const (
	version  = 0xc5
	atKind   = 1
	atSum    = 2
	headSize = atSum + sha256.Size
)

var errSeal = errors.New("sealed: entry was not written by a holder of a key")

// sum is the HMAC of an entry. Every part before the last is of known length.
func sum(key []byte, k store.Key, kind store.Kind, payload []byte) []byte {
	mac := hmac.New(sha256.New, key)
	b := make([]byte, 0, 64+len(k.Space)+len(k.ID))
	b = append(append(b, "cacheguard/sealed"...), version, byte(kind))
	for _, part := range []string{k.Space, k.ID} {
		b = binary.BigEndian.AppendUint64(b, uint64(len(part)))
		b = append(b, part...)
	}
	mac.Write(b)
	mac.Write(payload)
	return mac.Sum(nil)
}

// seal is c as the store underneath keeps it. What can be no entry is left for
// that to refuse.
func (s *Store) seal(k store.Key, c store.Content) store.Content {
	switch c.Kind {
	case store.Absent:
		c.Payload = nil
	case store.Value:
	default:
		return c
	}
	b := make([]byte, 0, headSize+len(c.Payload))
	b = append(b, version, byte(c.Kind))
	b = append(b, sum(s.keys[0], k, c.Kind, c.Payload)...)
	c.Kind, c.Payload = store.Value, append(b, c.Payload...)
	return c
}

// open is what e says to those who believe only what is sealed.
func (s *Store) open(k store.Key, e store.Entry) store.Entry {
	if e.Kind == store.None || e.Kind == store.Pass {
		return e
	}
	if e.Kind != store.Value || !s.signed(k, e.Payload) {
		return store.Entry{At: e.At, Token: e.Token, Fault: &store.Fault{Op: "load", Class: store.ClassData, Err: errSeal}}
	}
	e.Kind, e.Payload = store.Kind(e.Payload[atKind]), e.Payload[headSize:]
	if e.Kind != store.Value {
		e.Payload = nil
	}
	return e
}

// signed tells whether a payload is sealed, with any of the keys.
func (s *Store) signed(k store.Key, payload []byte) bool {
	if len(payload) < headSize || payload[0] != version {
		return false
	}
	kind := store.Kind(payload[atKind])
	if kind != store.Value && kind != store.Absent {
		return false
	}
	return slices.ContainsFunc(s.keys, func(key []byte) bool {
		return hmac.Equal(payload[atSum:headSize], sum(key, k, kind, payload[headSize:]))
	})
}

// Load implements [store.Store].
func (s *Store) Load(ctx context.Context, key store.Key) (store.Entry, error) {
	e, err := s.Store.Load(ctx, key)
	return s.open(key, e), err
}

// LoadMany implements [store.Store].
func (s *Store) LoadMany(ctx context.Context, keys []store.Key) ([]store.Entry, []error) {
	entries, errs := s.Store.LoadMany(ctx, keys)
	for i := range entries {
		entries[i] = s.open(keys[i], entries[i])
	}
	return entries, errs
}

// Parallel implements [store.Parallel]: it is that of the store underneath.
func (s *Store) Parallel() (calls, reads int) { return store.ParallelOf(s.Store) }

// Listen implements [store.Leases]. What a message brings along is believed like
// what is read: the channel may be anybody's, too.
func (s *Store) Listen(space string, fn func(store.Event)) (stop func()) {
	return s.Store.Listen(space, func(ev store.Event) {
		if ev.Entry != nil {
			e := s.open(store.Key{Space: space, ID: ev.ID}, *ev.Entry)
			if ev.Entry = &e; e.Fault != nil {
				ev.Entry = nil // whoever is told of it will read, and report it
			}
		}
		fn(ev)
	})
}

// Fill implements [store.Store].
func (s *Store) Fill(ctx context.Context, g store.Grant, c store.Content) error {
	return s.Store.Fill(ctx, g, s.seal(g.Key, c))
}

// FillMany implements [store.Store].
func (s *Store) FillMany(ctx context.Context, fills []store.Filling) []error {
	fills = slices.Clone(fills)
	for i := range fills {
		fills[i].Content = s.seal(fills[i].Grant.Key, fills[i].Content)
	}
	return s.Store.FillMany(ctx, fills)
}

// Set implements [store.Store].
func (s *Store) Set(ctx context.Context, w store.Write) error {
	w.Content = s.seal(w.Key, w.Content)
	return s.Store.Set(ctx, w)
}
