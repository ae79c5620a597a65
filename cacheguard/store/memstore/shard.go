package memstore

import (
	"container/heap"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// shardCount spreads the keys so that readers of different keys seldom wait for
// each other. A read takes its shard's mutex, since it moves what it reads to
// the front of the least-recently-used order.
const shardCount = 32

// shard is a part of the keys. Its methods are called with mu held.
type shard struct {
	mu    sync.Mutex
	slots map[store.Key]*slot // guarded by mu, and so is all that hangs below a slot
	ends  ends                // guarded by mu
	uses  uses                // guarded by mu
	used  *atomic.Int64       // the store's; written with mu held
	clock *clock              // the store's

	_ [64]byte // keeps the mutexes of two shards out of one cache line
}

// slot is what is known of one key. It exists while one of the two does.
type slot struct {
	key    store.Key
	entry  *entry
	record *record
}

// item is what an entry and a record have in common: each lapses, is used and
// is evicted on its own.
type item struct {
	slot *slot
	size int64 // bytes counted for it
	end  int64 // when it lapses
	at   int   // index in ends

	usedAt     int64 // when it was last used
	prev, next *item // neighbours in uses
}

// slot returns the slot of a key, and creates it if need be.
func (sh *shard) slot(key store.Key) *slot {
	sl := sh.slots[key]
	if sl == nil {
		// The key may be cut from a large string that it would keep alive.
		key = store.Key{Space: strings.Clone(key.Space), ID: strings.Clone(key.ID)}
		sl = &slot{key: key}
		sh.slots[key] = sl
	}
	return sl
}

// entry returns the entry of a key, or nil. One that has lapsed is dropped.
func (sh *shard) entry(key store.Key, now int64) *entry {
	sl := sh.slots[key]
	if sl == nil || sl.entry == nil {
		return nil
	}
	if e := sl.entry; e.end > now {
		return e
	}
	sh.drop(&sl.entry.item)
	return nil
}

// record returns the record of a key, or nil. One that has lapsed is dropped.
func (sh *shard) record(key store.Key, now int64) *record {
	sl := sh.slots[key]
	if sl == nil || sl.record == nil {
		return nil
	}
	if r := sl.record; r.end > now {
		return r
	}
	sh.drop(&sl.record.item)
	return nil
}

// sweepLimit bounds what one insertion sweeps. It is more than one insertion
// adds, so lapsed items never pile up where something is written.
const sweepLimit = 8

// add takes an item of a slot in. It uses the chance to drop some that lapsed.
func (sh *shard) add(it *item, now int64) {
	for range sweepLimit {
		if len(sh.ends) == 0 || sh.ends[0].end > now {
			break
		}
		sh.drop(sh.ends[0])
	}
	it.usedAt = now
	sh.uses.pushFront(it)
	heap.Push(&sh.ends, it)
	sh.used.Add(it.size)
}

// drop takes an item out, and its slot with it if nothing else is in there.
func (sh *shard) drop(it *item) {
	sh.uses.remove(it)
	heap.Remove(&sh.ends, it.at)
	sh.used.Add(-it.size)

	sl := it.slot
	if sl.entry != nil && &sl.entry.item == it {
		sl.entry = nil
	} else {
		sl.record = nil
	}
	if sl.entry == nil && sl.record == nil {
		delete(sh.slots, sl.key)
	}
}

// touch marks an item as just used.
func (sh *shard) touch(it *item, now int64) {
	it.usedAt = now
	sh.uses.remove(it)
	sh.uses.pushFront(it)
}

// moveEnd changes when an item lapses.
func (sh *shard) moveEnd(it *item, end int64) {
	it.end = end
	heap.Fix(&sh.ends, it.at)
}

// resize changes what is counted for an item.
func (sh *shard) resize(it *item, size int64) {
	sh.used.Add(size - it.size)
	it.size = size
}

// ends is a heap of items: the first to lapse is on top. It implements
// heap.Interface.
type ends []*item

func (h ends) Len() int           { return len(h) }
func (h ends) Less(i, j int) bool { return h[i].end < h[j].end }
func (h ends) Swap(i, j int)      { h[i], h[j] = h[j], h[i]; h[i].at, h[j].at = i, j }

func (h *ends) Push(x any) {
	it := x.(*item)
	it.at = len(*h)
	*h = append(*h, it)
}

func (h *ends) Pop() any {
	last := len(*h) - 1
	it := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return it
}

// uses lists items from the most to the least recently used. It is linked
// through the items: a read must not allocate.
type uses struct{ first, last *item }

func (u *uses) pushFront(it *item) {
	it.prev, it.next = nil, u.first
	if u.first != nil {
		u.first.prev = it
	} else {
		u.last = it
	}
	u.first = it
}

func (u *uses) remove(it *item) {
	if it.prev != nil {
		it.prev.next = it.next
	} else {
		u.first = it.next
	}
	if it.next != nil {
		it.next.prev = it.prev
	} else {
		u.last = it.prev
	}
	it.prev, it.next = nil, nil
}
