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
// Calls that end something have turns of their own, a third of all, so that they
// do not queue behind those that begin something: a fill that waits for a turn
// has a lease that runs. Most of the time there are few of them; so the others
// may have all but a sixth. Where both are many, a call waits for a connection in
// the store, for a fraction of a call.
//
// The zero turns let everybody through.
type turns struct {
	reads  *turn // load of one key
	begins *turn // load of many, claim, begin; and of one, if that needs a connection
	ends   *turn // fill, release, set, invalidate, expire
}

func turnsOf(s store.Store) (t turns) {
	calls, reads := store.ParallelOf(s)
	if calls <= 0 {
		return t
	}
	t.begins, t.ends = newTurn(calls-calls/6), newTurn(max(calls/3, 1))
	if t.reads = t.begins; reads > 0 {
		t.reads = newTurn(reads)
	}
	return t
}

// of are the turns that a call takes one of.
func (t turns) of(op string) *turn {
	switch op {
	case "load", "claim", "begin":
		return t.begins
	}
	return t.ends
}

// turn is one of several that are taken and given back; a nil one is free.
type turn struct {
	taken chan struct{}

	// timers are used again: where there are more readers than connections,
	// each read waits for its turn. A stopped timer's channel is empty. (Those of
	// another guard may belong to another synctest bubble.)
	timers sync.Pool
}

func newTurn(calls int) *turn {
	return &turn{taken: make(chan struct{}, calls), timers: sync.Pool{New: func() any {
		t := time.NewTimer(time.Hour)
		t.Stop()
		return t
	}}}
}

// turnLimit bounds the wait for a turn. A store that answers a call in a
// millisecond has served thousands by then; of one that has stopped the breaker
// knows long before.
const turnLimit = time.Second

var errNoTurn = errors.New("as many calls as the store can carry are under way, and none has ended for this one")

// take waits for its turn.
func (t *turn) take(ctx context.Context, op string) error {
	if t == nil {
		return nil
	}
	select {
	case t.taken <- struct{}{}:
		return nil
	default:
	}
	timer := t.timers.Get().(*time.Timer)
	timer.Reset(turnLimit)
	defer func() {
		timer.Stop()
		t.timers.Put(timer)
	}()
	select {
	case t.taken <- struct{}{}:
		return nil
	case <-timer.C:
		return &store.Fault{Op: op, Class: store.ClassPool, Err: errNoTurn}
	case <-ctx.Done():
		return &store.Fault{Op: op, Class: store.ClassCanceled, Err: context.Cause(ctx)}
	}
}

func (t *turn) leave() {
	if t != nil {
		<-t.taken
	}
}
