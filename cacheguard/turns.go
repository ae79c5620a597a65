package cacheguard

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// turns lets no more calls at the store at once than it can carry. Without them
// the others would wait inside the store, for a connection, and what a call
// waits there counts against its time-out: a thousand keys that miss at once
// would look like a store that is away, and be loaded by every process.
//
// Calls that end something have turns of their own, so that they do not queue
// behind those that begin something: a fill that waits for a turn has a lease
// that runs. In the store they wait for a connection at most as long as the calls
// under way take.
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
	return turns{begins: make(chan struct{}, p.Parallel()), ends: make(chan struct{}, p.Parallel())}
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

// timers are used again: where there are more readers than connections, each
// read waits for its turn. A stopped timer's channel is empty.
var timers = sync.Pool{New: func() any {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}}

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
	timer := timers.Get().(*time.Timer)
	timer.Reset(turnLimit)
	defer func() {
		timer.Stop()
		timers.Put(timer)
	}()
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
