package cacheguard

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

const (
	// maxPending bounds the keys whose write is being retried. An outage that
	// sees more writes than that is told about through Hooks.Fault; see
	// distrusted.
	maxPending = 10_000

	// pendingBatch bounds the keys of one try.
	pendingBatch = pieceKeys

	pendingRetryMin = 50 * time.Millisecond
	pendingRetryMax = time.Second
)

// pending holds the writes that did not certainly reach the store, until they
// have (P15). While a key is in it this process believes nothing that the store
// says about the key: it may be what the write was to remove.
//
// A Set is retried as an Invalidate. Its value may be outdated when the store is
// back; to remove one that is not costs a load (S2).
type pending struct {
	n atomic.Int64 // len(writes): what a read asks first

	mu      sync.Mutex
	writes  map[string]pendingWrite // guarded by mu
	seq     uint64                  // guarded by mu
	running bool                    // the retrying task; guarded by mu

	over distrusted // the writes that there was no room for
}

type pendingWrite struct {
	expire bool      // an Expire; else an Invalidate
	until  time.Time // after that nothing older than the write can be stored
	seq    uint64    // changes when the key is written again
}

func (p *pending) has(key string) bool {
	if p.over.has(key) {
		return true
	}
	if p.n.Load() == 0 {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	_, ok := p.writes[key]
	return ok
}

// add takes a write, and tells whether there was room, and whether a task has
// to be started.
func (p *pending) add(key string, w pendingWrite) (added, start bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old, known := p.writes[key]
	if !known && len(p.writes) >= maxPending {
		p.over.add(key, w.until)
		return false, false
	}
	if p.writes == nil {
		p.writes = make(map[string]pendingWrite)
	}
	p.seq++
	w.seq = p.seq
	w.expire = w.expire && (!known || old.expire) // the stronger one
	p.writes[key] = w
	p.n.Store(int64(len(p.writes)))
	start, p.running = !p.running, true
	return true, start
}

// batch returns some keys of one kind, and drops those whose time is over.
func (p *pending) batch() (keys []string, seqs []uint64, expire bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for key, w := range p.writes {
		switch {
		case w.until.Before(now):
			delete(p.writes, key)
		case len(keys) == 0 || w.expire == expire && len(keys) < pendingBatch:
			expire = w.expire
			keys, seqs = append(keys, key), append(seqs, w.seq)
		}
	}
	p.n.Store(int64(len(p.writes)))
	return keys, seqs, expire
}

// landed takes a write out, unless the key was written again since.
func (p *pending) landed(key string, seq uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.writes[key].seq == seq {
		delete(p.writes, key)
		p.n.Store(int64(len(p.writes)))
	}
}

// retryLater takes care of a write that failed: it is retried until it lands,
// or until all that it could remove has ended by itself.
func (g *Guard[V]) retryLater(key string, expire bool) {
	until := time.Now().Add(time.Duration(g.longest.Load()))
	added, start := g.pending.add(key, pendingWrite{expire: expire, until: until})
	if !added {
		g.fault(key, &store.Fault{Op: "retry", Class: store.ClassFull,
			Err: fmt.Errorf("%d writes are being retried already; this one is not, and its key is loaded until all that was stored of it has ended", maxPending)})
	}
	g.toldPending()
	if start {
		g.startRetrying()
	}
}

func (g *Guard[V]) startRetrying() {
	if !g.tasks.enter() {
		return
	}
	go func() {
		defer g.tasks.leave()
		g.retryPending()
	}()
}

// retryPending is the task that brings the pending writes to the store. It ends
// when there are none, and with Close as soon as a try brings none of them there.
func (g *Guard[V]) retryPending() {
	pause := pendingRetryMin
	for {
		timer := time.NewTimer(around(pause))
		last := false
		select {
		case <-timer.C:
		case <-g.ctx.Done():
			timer.Stop()
			last = true
		}
		progress := g.retryBatch()
		for last && progress {
			progress = g.retryBatch()
		}
		if progress {
			pause = pendingRetryMin
		} else {
			pause = min(2*pause, pendingRetryMax)
		}
		g.toldPending()
		if last || g.pending.ended() {
			return
		}
	}
}

// ended tells whether the task has nothing more to do. If so, the next write
// starts another one.
func (p *pending) ended() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running = len(p.writes) > 0
	return !p.running
}

// retryBatch tries some of the writes again, and tells whether one landed.
func (g *Guard[V]) retryBatch() bool {
	keys, seqs, expire := g.pending.batch()
	if len(keys) == 0 {
		return false
	}
	write := g.store.Invalidate
	if expire {
		write = g.store.Expire
	}
	errs := write(context.Background(), g.keys(keys)) // also when closed; the store bounds it
	progress := false
	for i, key := range keys {
		if errs != nil && errs[i] != nil {
			g.fault(key, errs[i])
			continue
		}
		g.pending.landed(key, seqs[i])
		progress = true
	}
	return progress
}

// lived notes how long the entries of this guard can live.
func (g *Guard[V]) lived(life Lifetime) {
	d := int64(life.TTL + life.Grace)
	for {
		longest := g.longest.Load()
		if d <= longest || g.longest.CompareAndSwap(longest, d) {
			return
		}
	}
}
