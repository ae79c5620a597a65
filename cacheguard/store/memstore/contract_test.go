package memstore

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/storetest"
)

func TestContract(t *testing.T) {
	storetest.RunInBubble(t, func(*testing.T) storetest.Harness { return newHarness() })
}

// The same in real time, where goroutines do meet.
func TestContractInRealTime(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		t.Parallel()
		return newHarness()
	})
}

// Fake time is free: many more random histories than the suite itself plays.
func TestContractInManyRandomHistories(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		storetest.Histories(1, 2000).Run(t, newHarness())
	})
}

// harness is a store and the powers over it.
type harness struct {
	s     *Store
	under store.Store // what is tested; the store itself, or a wrong one around it
}

func newHarness() harness {
	s := New(Options{})
	return harness{s, s}
}

func (h harness) Store() store.Store       { return h.under }
func (h harness) Peer() store.Store        { return h.under }
func (h harness) Space() string            { return "space" }
func (h harness) Unit() time.Duration      { return 20 * time.Millisecond }
func (h harness) Wait(d time.Duration)     { time.Sleep(d) }
func (h harness) LoseRecord(key store.Key) { h.s.DropRecord(key) }
func (h harness) LoseEntry(key store.Key)  { h.s.DropEntry(key) }
func (h harness) Endless() []string        { return nil } // there is no item without an end

func (h harness) LoseAll() {
	for _, key := range h.s.keys() {
		h.s.DropEntry(key)
		h.s.DropRecord(key)
	}
}

func (s *Store) keys() (keys []store.Key) {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		for key := range sh.slots {
			keys = append(keys, key)
		}
		sh.mu.Unlock()
	}
	return keys
}

// Plant marks an entry as one that cannot be read. Memory holds no bytes of
// another type or length, but what is done with them is the same code.
func (h harness) Plant(key store.Key, what storetest.Foreign) (store.Token, error) {
	sh, now := h.s.lock(key)
	defer sh.mu.Unlock()
	var token store.Token
	switch what {
	case storetest.Newer, storetest.OtherKey:
		token = h.s.nextToken(now)
	case storetest.Random:
	default:
		return 0, errors.ErrUnsupported
	}
	e := newEntry(now, token, store.Content{TTL: time.Hour}, nil)
	e.fault = &store.Fault{Op: "load", Class: store.ClassData, Err: errors.New(string(what))}
	sh.write(key, now, e)
	return token, nil
}

func (h harness) StepClock(d time.Duration) error {
	h.s.clock.shown += int64(d) // no call is under way
	return nil
}

func (h harness) RecordLeft(key store.Key) (time.Duration, bool) {
	sh, now := h.s.lock(key)
	defer sh.mu.Unlock()
	if r := sh.record(key, now); r != nil {
		return time.Duration(r.end - now), true
	}
	return 0, false
}

func (h harness) EntryLeft(key store.Key) (time.Duration, bool) {
	sh, now := h.s.lock(key)
	defer sh.mu.Unlock()
	if e := sh.entry(key, now); e != nil {
		return time.Duration(e.end - now), true
	}
	return 0, false
}
