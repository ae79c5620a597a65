package cacheguard

import (
	"context"
	"errors"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// turns lets no more calls at the store at once than it can carry. Without them
// the others would wait inside the store, for a connection, and what a call
// waits there counts against its time-out: a thousand keys that miss at once
// would look like a store that is away, and be loaded by every process.
//
// A third of the turns is for calls that end something, so that these do not
// queue behind those that begin something: a fill that waits for a turn has a
// lease that runs.
//
// The zero turns let everybody through.
type turns struct {
	begins chan struct{} // load, claim, begin
	ends   chan struct{} // fill, release, set, invalidate, expire
}

// parallel is a store that knows how many calls it can carry at once; zero: it
// does not know.
type parallel interface{ Parallel() int }

func turnsOf(s store.Store) turns {
	p, ok := s.(parallel)
	if !ok || p.Parallel() <= 0 {
		return turns{}
	}
	n := p.Parallel()
	ends := max(n/3, 1)
	return turns{begins: make(chan struct{}, max(n-ends, 1)), ends: make(chan struct{}, ends)}
}

// of are the turns that a call takes one of.
func (t turns) of(op string) turn {
	switch op {
	case "load", "claim", "begin":
		return t.begins
	}
	return t.ends
}

// turn is one of several that are taken and given back; a nil one is free.
type turn chan struct{}

// turnLimit bounds the wait for a turn. A store that answers a call in a
// millisecond has served thousands by then; of one that has stopped the breaker
// knows long before.
const turnLimit = time.Second

var errNoTurn = errors.New("as many calls as the store can carry are under way, and none has ended for this one")

// take waits for its turn.
func (t turn) take(ctx context.Context, op string) error {
	if t == nil {
		return nil
	}
	select {
	case t <- struct{}{}:
		return nil
	default:
	}
	timer := time.NewTimer(turnLimit)
	defer timer.Stop()
	select {
	case t <- struct{}{}:
		return nil
	case <-timer.C:
		return &store.Fault{Op: op, Class: store.ClassPool, Err: errNoTurn}
	case <-ctx.Done():
		return &store.Fault{Op: op, Class: store.ClassCanceled, Err: context.Cause(ctx)}
	}
}

func (t turn) leave() {
	if t != nil {
		<-t
	}
}
