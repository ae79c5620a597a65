package cacheguard

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/maypok86/otter/v2"
)

// Near shapes the near cache: copies in this process, in front of the store, of
// the values that are read most. The zero Near is off.
//
// A copy is served for TTL at most, counted from before the request that
// brought it was sent, and never past its own freshness. Set, Invalidate and
// Expire remove it at once in their own process, and in the others as soon as
// the message comes; when the subscription is lost all copies are forgotten. So
// another process's write is seen here after TTL at the latest.
//
// While the store is out of reach, copies are served as stale for as long as
// the store would have kept them, and what is loaded without it is kept for TTL.
type Near struct {
	MaxEntries int           // how many copies at most; or
	MaxBytes   int64         // how many bytes at most, of encoded values and keys
	TTL        time.Duration // 0: one second
}

func (n Near) on() bool { return n != Near{} }

func (n Near) withDefaults() (Near, error) {
	switch {
	case !n.on():
		return n, nil
	case n.MaxEntries < 0 || n.MaxBytes < 0:
		return n, fmt.Errorf("cacheguard: Options.Near{MaxEntries: %d, MaxBytes: %d} is negative; use bounds above zero", n.MaxEntries, n.MaxBytes)
	case n.MaxEntries > 0 && n.MaxBytes > 0:
		return n, fmt.Errorf("cacheguard: Options.Near has both MaxEntries and MaxBytes; use one of them")
	case n.MaxEntries == 0 && n.MaxBytes == 0:
		return n, fmt.Errorf("cacheguard: Options.Near has a TTL and no bound; set MaxEntries or MaxBytes")
	case n.TTL < 0 || n.TTL > maxLimit:
		return n, fmt.Errorf("cacheguard: Options.Near.TTL is %v; use a duration above zero and at most %v, or 0 for 1s", n.TTL, maxLimit)
	case n.TTL == 0:
		n.TTL = time.Second
	}
	return n, nil
}

// near holds the copies. Its instants are durations since the guard began.
type near[V any] struct {
	ttl   time.Duration
	cache *otter.Cache[string, *copied[V]]
}

// copied is a copy of an answer. It does not change once it is in the cache.
type copied[V any] struct {
	entry Entry[V]
	asked time.Duration // when its question was sent to the origin
	until time.Duration // served without asking the store
	fresh time.Duration // end of its freshness
	gone  time.Duration // end of its life in the store
	size  int
}

func newNear[V any](n Near) (*near[V], error) {
	if !n.on() {
		return nil, nil
	}
	opts := &otter.Options[string, *copied[V]]{MaximumSize: n.MaxEntries}
	if n.MaxBytes > 0 {
		opts.MaximumWeight = uint64(n.MaxBytes)
		opts.Weigher = func(key string, c *copied[V]) uint32 {
			return uint32(min(len(key)+c.size+copyOverhead, math.MaxUint32))
		}
	}
	cache, err := otter.New(opts)
	if err != nil {
		return nil, fmt.Errorf("cacheguard: near cache: %w", err)
	}
	return &near[V]{ttl: n.TTL, cache: cache}, nil
}

// copyOverhead is about what a copy takes besides key and value, in bytes.
const copyOverhead = 200

// served returns the copy of key that may be served without asking the store.
// Where there is none, the clock is not read.
func (n *near[V]) served(key string, now func() time.Duration) (Entry[V], bool) {
	c, ok := n.cache.GetIfPresent(key)
	if !ok {
		return Entry[V]{}, false
	}
	at := now()
	if at >= c.until {
		return Entry[V]{}, false
	}
	return c.at(at), true
}

// known returns the copy of key for when the store cannot be asked.
func (n *near[V]) known(key string, now time.Duration) (Entry[V], bool) {
	c, ok := n.cache.GetIfPresent(key)
	if !ok || now >= c.gone {
		return Entry[V]{}, false
	}
	e := c.at(now)
	if e.State == Fresh {
		e.State = Stale // nobody knows whether it was written since
	}
	return e, true
}

// at is the copy as an answer.
func (c *copied[V]) at(now time.Duration) Entry[V] {
	e := c.entry
	e.Age = now - c.asked
	e.Left = max(c.fresh-now, 0)
	e.Keep = max(c.gone-now, 0)
	e.Coalesced = false
	return e
}

// put takes a copy of what a request that was sent at sent has brought: e, with
// its Age and Left as of then or later, kept by the store for another kept.
func (n *near[V]) put(key string, e Entry[V], sent, kept time.Duration, size int) {
	if e.State != Absent {
		e.State = Fresh // a stale one is not served before an outage
	}
	fresh := sent + e.Left
	n.cache.Set(key, &copied[V]{
		entry: e,
		asked: sent - e.Age,
		until: min(sent+n.ttl, fresh),
		fresh: fresh,
		gone:  sent + kept,
		size:  size,
	})
}

// size is about what the near cache holds.
func (n *near[V]) size(weighed bool) (entries int, bytes int64) {
	if weighed {
		bytes = int64(n.cache.WeightedSize())
	}
	return n.cache.EstimatedSize(), bytes
}

func (n *near[V]) drop(key string) { n.cache.Invalidate(key) }
func (n *near[V]) forget()         { n.cache.InvalidateAll() }

// Near answers from the near cache alone, if it has a copy of key that Get would
// return and that accept takes. Otherwise ok is false, and nothing has happened:
// neither the store was asked nor a hook called. It is the short way of a caller
// for whom [Guard.Do] needs much to be prepared that a near hit has no use for,
// and who falls back on Do. accept runs on the caller's goroutine, at most once.
func (g *Guard[V]) Near(ctx context.Context, key string, accept func(Entry[V]) bool) (e Entry[V], ok bool) {
	if g.near == nil || g.ctx.Err() != nil || ctx.Err() != nil {
		return Entry[V]{}, false
	}
	e, ok = g.near.served(key, g.now)
	if !ok || e.isAbsent() || !accept(e) {
		return Entry[V]{}, false
	}
	e, _ = g.answered(key, how{via: ViaNear}, e, nil)
	return e, true
}

// nearKnown returns the copy of key for when the store cannot be asked.
func (g *Guard[V]) nearKnown(key string) (Entry[V], bool) {
	if g.near == nil {
		return Entry[V]{}, false
	}
	return g.near.known(key, g.now())
}

func (g *Guard[V]) forgetNear() {
	if g.near != nil {
		g.near.forget()
	}
}
