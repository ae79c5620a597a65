package cacheguard

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// found says what a look at the store means to a caller.
type found uint8

const (
	miss     found = iota // nothing for it: somebody has to load
	hit                   // an answer, fresh, stale or absent
	pass                  // do not collapse: each caller loads for itself
	handOver              // an answer for those who have waited for it, to others a miss
	outage                // the store did not answer, or is not to be believed
)

// look is one read of the store, shared by the callers of this process that
// were there before it was sent.
type look[V any] struct {
	found found

	// untrusted: the store was not asked, since a write of this process has not
	// reached it yet.
	untrusted bool

	// refreshed: one of those who share the look has seen to the refresh of what it
	// found. The others need not: that may have ended before they come to it. To be
	// read and written atomically once they have been told.
	refreshed uint32

	entry Entry[V]      // for hit and handOver
	token store.Token   // of what was there, readable or not
	cost  time.Duration // of the load that brought it
	upTo  uint64        // the last caller that was there before
	at    time.Duration // when the store was asked, on the guard's clock
	asOf  time.Duration // when entry was as it says; later than at if a message has brought it
	err   error         // for outage: the fault
}

// refreshes tells a caller whether it is the one to see to a refresh.
func (l *look[V]) refreshes() bool { return atomic.CompareAndSwapUint32(&l.refreshed, 0, 1) }

// written is when a hand-over was, on the guard's clock and at the earliest: what it
// has lived since is judged by the store's, as a duration.
func (l *look[V]) written() time.Duration { return l.at - max(handOverLife-l.entry.Keep, 0) }

// replaceable is the entry that a load may build upon. A hand-over is none: it
// was for others.
func (l *look[V]) replaceable() Entry[V] {
	if l.found != hit {
		return Entry[V]{}
	}
	return l.entry
}

// lookNow reads the store once.
func (g *Guard[V]) lookNow(sh *shard[V], key string) (l look[V]) {
	l.upTo = sh.sofar()
	if g.pending.has(key) {
		l.found, l.untrusted = outage, true // what is stored is what a write of ours could not remove
		return l
	}
	events := sh.events.Load()
	// The store bounds the call, and a context that cannot end is cheaper for it.
	e, err := g.store.Load(context.Background(), g.key(key))
	g.seen(sh, key, &l, e, err, g.instant(e.At), events)
	return l
}

// instant is at on the guard's clock. What a store has read at no time, which no
// store may, is older than all callers.
func (g *Guard[V]) instant(at time.Time) time.Duration { return max(at.Sub(g.epoch), 0) }

// seen completes a look with what the store has answered to a question that was
// sent at sent or later, when so many events had happened in the shard. The near
// cache and hand-overs count from sent.
func (g *Guard[V]) seen(sh *shard[V], key string, l *look[V], e store.Entry, err error, sent time.Duration, events uint64) {
	if err != nil {
		g.fault(key, err)
		l.found, l.err = outage, err
		return
	}
	l.token, l.at, l.asOf = e.Token, sent, g.instant(e.At)
	if e.Fault != nil {
		g.fault(key, e.Fault)
	}
	g.judge(l, key, e)
	if l.found == hit && g.near != nil {
		sh.copyNear(g, key, func() bool { return sh.events.Load() == events }, l.entry, sent, e.Left, len(e.Payload))
	}
}

// judge turns what is in the store into what it means.
func (g *Guard[V]) judge(l *look[V], key string, e store.Entry) {
	switch e.Kind {
	case store.Value:
		v, err := g.decode(key, e.Payload)
		if err != nil {
			return // a miss; the fault has been told
		}
		l.entry.Value = v
		l.entry.State = Fresh
		if e.Fresh <= 0 {
			l.entry.State = Stale
		}
	case store.Absent:
		l.entry.State = Absent
	case store.Pass:
		l.found = pass
		l.entry.Left = e.Left
		return
	default:
		return
	}
	l.found = hit
	if e.HandOver {
		l.found = handOver
	}
	l.entry.Age = max(e.Age, 0)
	l.entry.Left = max(e.Fresh, 0)
	l.entry.Keep = max(e.Left, 0)
	l.entry.Token = e.Token
	l.entry.TTL = e.TTL
	l.cost = e.Cost
}

// drawsEarly decides whether a fresh hit is rebuilt while it is served. It is
// asked once per look, not once per caller: the callers that share a look are
// one reader to XFetch.
func (g *Guard[V]) drawsEarly(l *look[V]) bool {
	return early(g.opts.EarlyRefresh, l.cost, l.entry.Left, rand.Float64())
}

func (g *Guard[V]) decode(key string, data []byte) (v V, err error) {
	if p := g.protect("Codec.Decode", func() { v, err = g.opts.Codec.Decode(data) }); p != nil {
		err = p
	}
	if err != nil {
		g.fault(key, &store.Fault{Op: "decode", Class: store.ClassData, Err: err})
	}
	return v, err
}

// later is the look as it would have been at a later instant on the guard's clock,
// if nothing has changed.
func (l look[V]) later(at time.Duration) look[V] {
	l.entry = l.entry.later(at - l.asOf)
	l.at, l.asOf = max(l.at, at), max(l.asOf, at)
	return l
}
