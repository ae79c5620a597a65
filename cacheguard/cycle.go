package cacheguard

import (
	"context"
	"sync"
	"sync/atomic"
)

// loadID names a load in this process: there is one at a time per guard and
// key.
type loadID struct {
	guard any
	key   string
}

// link is what a loader's context carries: the loads that it is part of (one,
// or those that a ManyLoader does together), and those that asked for them.
type link struct {
	ids    []loadID
	parent *link

	// over: the loader has returned. What it has left running is not part of it any
	// more: nobody waits for that.
	over atomic.Bool
}

type linkKey struct{}

func withLink(ctx context.Context, l *link) context.Context {
	return context.WithValue(ctx, linkKey{}, l)
}

// linkFrom returns the innermost load that ctx is part of; nil: of none.
func linkFrom(ctx context.Context) *link {
	l, _ := ctx.Value(linkKey{}).(*link)
	for l != nil && l.over.Load() {
		l = l.parent
	}
	return l
}

// isPartOfLoad tells whether linkFrom finds a load.
func isPartOfLoad(ctx context.Context) bool {
	// To search a context takes as long as all else that a caller does before it
	// waits, and when a storm begins there is mostly no load that it could be of.
	return loadersRunning.Load() > 0 && linkFrom(ctx) != nil
}

// loadersRunning is how many loaders run in this process, of all guards.
var loadersRunning atomic.Int64

// waits are the loads of this process that wait for another load of it, over
// all guards. Only callers that are themselves part of a load touch it.
//
// The chain in the context is not enough. While A's load asks for B, and B's,
// begun by somebody else, asks for A, each joins the other's flight and neither
// finds itself in its own chain.
var waits = waitGraph{edges: make(map[loadID]map[loadID]int)}

type waitGraph struct {
	mu    sync.Mutex
	edges map[loadID]map[loadID]int // waiter -> awaited -> how many of its calls
}

// add notes that the loads at l wait for id. It returns ErrCycle, and notes
// nothing, if id already waits for one of them or one that asked for them.
func (w *waitGraph) add(l *link, id loadID) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for up := l; up != nil; up = up.parent {
		if up.over.Load() {
			continue
		}
		for _, asker := range up.ids {
			if asker == id || w.reaches(id, asker, make(map[loadID]bool)) {
				return ErrCycle
			}
		}
	}
	for _, asker := range l.ids {
		if w.edges[asker] == nil {
			w.edges[asker] = make(map[loadID]int)
		}
		w.edges[asker][id]++
	}
	return nil
}

// done takes back one add.
func (w *waitGraph) done(l *link, id loadID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, asker := range l.ids {
		awaited := w.edges[asker]
		if awaited[id]--; awaited[id] <= 0 {
			delete(awaited, id)
		}
		if len(awaited) == 0 {
			delete(w.edges, asker)
		}
	}
}

func (w *waitGraph) reaches(from, to loadID, seen map[loadID]bool) bool {
	if seen[from] {
		return false
	}
	seen[from] = true
	for next := range w.edges[from] {
		if next == to || w.reaches(next, to, seen) {
			return true
		}
	}
	return false
}

// waitsFor notes that whoever ctx belongs to waits for a load of key; done
// takes it back. The error is ErrCycle.
func (g *Guard[V]) waitsFor(ctx context.Context, key string) (done func(), err error) {
	asker := linkFrom(ctx)
	if asker == nil {
		return func() {}, nil
	}
	id := loadID{guard: g, key: key}
	if err := waits.add(asker, id); err != nil {
		return nil, err
	}
	return func() { waits.done(asker, id) }, nil
}
