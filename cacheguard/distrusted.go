package cacheguard

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"
)

// distrustedBits is the size of a distrusted, as a power of two: a MiB, in which
// a million keys leave nine in ten of the others alone.
const distrustedBits = 23

// distrusted is the set of keys that this process does not believe the store
// about and for which it cannot do more than that: their writes did not reach it,
// and there are too many to be retried. Until the last of them has ended by
// itself in the store, they are loaded.
//
// It is as large for ten keys as for ten million, and not there at all without
// any. It may hold a key that was not added: that one is loaded needlessly.
type distrusted struct {
	on atomic.Bool // what a read asks first

	mu    sync.RWMutex
	seed  maphash.Seed // guarded by mu
	bits  []uint64     // guarded by mu
	until time.Time    // guarded by mu
}

// place is where a key's bit is; mu is held.
func (d *distrusted) place(key string) (word int, bit uint64) {
	h := maphash.String(d.seed, key) >> (64 - distrustedBits)
	return int(h / 64), 1 << (h % 64)
}

// add takes a key in, until then. What is in it already stays as long.
func (d *distrusted) add(key string, until time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.bits == nil {
		d.seed, d.bits = maphash.MakeSeed(), make([]uint64, 1<<distrustedBits/64)
		d.on.Store(true)
	}
	word, bit := d.place(key)
	d.bits[word] |= bit
	if until.After(d.until) {
		d.until = until
	}
}

func (d *distrusted) has(key string) bool {
	if !d.on.Load() {
		return false
	}
	d.mu.RLock()
	over := d.until.Before(time.Now())
	word, bit := 0, uint64(0)
	if d.bits != nil {
		word, bit = d.place(key)
	}
	held := d.bits != nil && d.bits[word]&bit != 0
	d.mu.RUnlock()
	if over {
		d.forget()
		return false
	}
	return held
}

// forget empties the set if its time is over.
func (d *distrusted) forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.until.Before(time.Now()) {
		d.bits = nil
		d.on.Store(false)
	}
}
