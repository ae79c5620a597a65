package memstore_test

import (
	"errors"
	"testing"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/storetest"
)

func TestContract(t *testing.T) {
	storetest.RunInBubble(t, open)
}

// The same in real time, where goroutines do meet.
func TestContractInRealTime(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		t.Parallel()
		return open(t)
	})
}

func open(*testing.T) storetest.Harness { return harness{memstore.New(memstore.Options{})} }

// harness is a memstore and the powers over it.
type harness struct{ s *memstore.Store }

func (h harness) Store() store.Store              { return h.s }
func (h harness) Peer() store.Store               { return h.s }
func (h harness) Space() string                   { return "space" }
func (h harness) Unit() time.Duration             { return 20 * time.Millisecond }
func (h harness) Wait(d time.Duration)            { time.Sleep(d) }
func (h harness) LoseRecord(key store.Key)        { h.s.DropRecord(key) }
func (h harness) LoseEntry(key store.Key)         { h.s.DropEntry(key) }
func (h harness) LoseAll()                        { h.s.DropSpace(h.Space()) }
func (h harness) Endless() []string               { return nil } // every item is in a heap of ends
func (h harness) StepClock(d time.Duration) error { h.s.StepClock(d); return nil }

func (h harness) RecordLeft(key store.Key) (time.Duration, bool) { return h.s.RecordLeft(key) }
func (h harness) EntryLeft(key store.Key) (time.Duration, bool)  { return h.s.EntryLeft(key) }

// Plant marks an entry as one that cannot be read. Memory holds no bytes of
// another type or length, but what is done with them is the same code.
func (h harness) Plant(key store.Key, what storetest.Foreign) (store.Token, error) {
	var token store.Token
	switch what {
	case storetest.Newer, storetest.OtherKey:
		token = h.s.NextToken()
	case storetest.Random:
	default:
		return 0, errors.ErrUnsupported
	}
	fault := &store.Fault{Op: "load", Class: store.ClassData, Err: errors.New(string(what))}
	h.s.Plant(key, token, fault, time.Hour)
	return token, nil
}
