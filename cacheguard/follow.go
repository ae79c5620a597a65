package cacheguard

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// wait is what a flight remembers about following other holders.
type wait struct {
	since    time.Time // zero: it has not had to wait
	deadline time.Time
	cut      uint64      // the last caller that was there when it began
	token    store.Token // of the lease that was running then
	round    int
}

func (w *wait) begun() bool { return !w.since.IsZero() }

func (w *wait) begin(limit time.Duration, cut uint64, token store.Token) {
	if !w.begun() {
		w.since, w.cut, w.token = time.Now(), cut, token
		w.deadline = w.since.Add(limit)
	}
}

// upTo says whom an error that ended the wait is for: whoever came later has
// not waited that long yet.
func (w *wait) upTo(err error) uint64 {
	if err == ErrClosed {
		return everybody
	}
	return w.cut
}

// again says what a follower does next.
type again bool

const (
	lookFirst  again = false // a value may be there: read it
	claimAgain again = true  // ask for the lease; the claim looks, too
)

// await waits for the end of another's lease, which has left to go: for a
// message, for the poll timer in case it was lost, and for the lease to run
// out. It holds no connection.
func (f *flight[V]) await(w *wait, left time.Duration) (next again, told store.Event, err error) {
	poll := f.g.pollInterval(w.round)
	w.round++
	// Whoever waits for the same lease claims when it has run out. A little
	// spread lets the first have its reply before the others ask.
	lapse := left + rand.N(leaseSpread)
	timer := time.NewTimer(max(min(poll, lapse, time.Until(w.deadline)), 0))
	defer timer.Stop()
	select {
	case told = <-f.wake:
		if told.Kind == store.Filled || told.Kind == store.Written {
			return lookFirst, told, nil
		}
		return claimAgain, told, nil
	case <-timer.C:
		if !time.Now().Before(w.deadline) {
			return claimAgain, told, fmt.Errorf("%w: no value of key after %v (WaitLimit)", ErrWaitLimit, f.g.opts.WaitLimit)
		}
		return claimAgain, told, nil
	case <-f.g.ctx.Done():
		return claimAgain, told, ErrClosed
	}
}

const leaseSpread = 5 * time.Millisecond

// asked is how things stood in this process when a claim was sent.
type asked struct {
	at      time.Time
	before  uint64 // the last caller that had come
	events  uint64 // what had happened in the shard
	pending bool   // a write of this process to the key had not reached the store
}

func (f *flight[V]) asks() asked {
	a := asked{before: f.sh.sofar(), events: f.sh.events.Load()}
	a.pending = f.g.pending.has(f.key) // after before: none of those callers comes after a write that is not seen here
	a.at = time.Now()
	return a
}

// told is the look that an event is, if it brings what a fill has left after
// the claim that found the lease held, and so after all callers who were there
// before that was sent: of the lease with that token, which was running then, or
// of a later one. Of an earlier one it may be from before an invalidation that
// they have seen return.
//
// A write of this process that was pending when the claim was sent reached the
// store later, if at all: what landed in between is from before it (P15). And
// who came after the claim was sent may have seen an invalidation return that
// came after the fill. Then the flight looks itself.
func (f *flight[V]) told(ev store.Event, held store.Token, a asked) (l look[V], ok bool) {
	if ev.Entry == nil || ev.Token < held || a.pending || f.sh.newest(f) > a.before || f.g.pending.has(f.key) {
		return l, false
	}
	l.upTo = a.before
	f.g.seen(f.sh, f.key, &l, *ev.Entry, nil, a.at.Sub(f.g.epoch), a.events)
	return l, l.found == hit // what cannot be read may be whole in the store
}

// hear takes the store's events. It runs on the store's goroutine and must not
// block.
func (g *Guard[V]) hear(ev store.Event) {
	switch ev.Kind {
	case store.Up, store.Down:
		// Something may have been missed, or may be from now on.
		g.hearing.Store(ev.Kind == store.Up)
		g.forgetNear()
		g.wakeAll()
	case store.Written, store.Invalidated, store.Expired:
		g.overtaken(ev.ID, ev.Kind)
	default:
		sh := g.shards.of(ev.ID)
		sh.resume(ev.ID)
		if f := sh.flight(ev.ID); f != nil {
			f.signal(ev)
		}
	}
}

// overtaken tells this process's flight and near cache that a key was written
// or invalidated.
func (g *Guard[V]) overtaken(key string, by store.EventKind) {
	if f := g.shards.of(key).overtake(g, key); f != nil {
		f.signal(store.Event{Kind: by})
	}
}

// signal wakes the flight. An event that finds another one waiting is dropped:
// the flight looks again in any case, and finds what both told.
func (f *flight[V]) signal(ev store.Event) {
	select {
	case f.wake <- ev:
	default:
	}
}

// wakeAll lets every flight look again.
func (g *Guard[V]) wakeAll() {
	for i := range g.shards.table {
		sh := &g.shards.table[i]
		sh.mu.Lock()
		sh.events.Add(1) // what is being read now may be what was missed
		for _, f := range sh.flights {
			f.signal(store.Event{Kind: store.Up})
		}
		sh.mu.Unlock()
	}
}
