package cacheguard

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// turns lets no more calls at the store at once than it can carry. Without them
// the others would wait inside the store, for a connection, and what a call
// waits there counts against its time-out: a thousand keys that miss at once
// would look like a store that is away, and be loaded by every process.
//
// A call that ends something goes before those that begin something: a fill that
// waits has a lease that runs. So that many of them do not keep the others out,
// at most a third of the calls under way end something.
//
// The zero turns let everybody through.
type turns struct {
	calls *turn
	ends  *turn // of the calls, those that end something
	reads *turn // loads of one key that need no connection each; nil: they are among the calls
}

// errand is what a call is for, as far as its turn is concerned.
type errand uint8

const (
	readsOne errand = iota // load of one key
	begins                 // load of many, claim, begin
	ends                   // fill, release, set, invalidate, expire
)

func errandOf(op string) errand {
	switch op {
	case "load", "claim", "begin":
		return begins
	}
	return ends
}

func turnsOf(s store.Store) (t turns) {
	calls, reads := store.ParallelOf(s)
	if calls <= 0 {
		return t
	}
	t.calls, t.ends = newTurn(calls), newTurn(max(calls/3, 1))
	if reads > 0 {
		t.reads = newTurn(reads)
	}
	return t
}

// take waits for the turn of a call. It is to be given back by leave.
func (t *turns) take(ctx context.Context, op string, e errand) error {
	switch {
	case e == readsOne && t.reads != nil:
		return t.reads.take(ctx, op, false)
	case e != ends:
		return t.calls.take(ctx, op, false)
	}
	if err := t.ends.take(ctx, op, false); err != nil {
		return err
	}
	err := t.calls.take(ctx, op, true)
	if err != nil {
		t.ends.leave()
	}
	return err
}

func (t *turns) leave(e errand) {
	if e == readsOne && t.reads != nil {
		t.reads.leave()
		return
	}
	t.calls.leave()
	if e == ends {
		t.ends.leave()
	}
}

// turn is one of several that are taken and given back; a nil one is free.
//
// While there are enough, taking one and giving it back are an addition each.
// Whoever takes one that is not there is counted, and waits for somebody who
// gives his back to hand it on.
type turn struct {
	left        atomic.Int64 // below zero: so many wait
	first, next chan struct{}

	// timers are used again: where there are more readers than connections,
	// each read waits for its turn. A stopped timer's channel is empty. (Those of
	// another guard may belong to another synctest bubble.)
	timers sync.Pool
}

func newTurn(calls int) *turn {
	t := &turn{first: make(chan struct{}), next: make(chan struct{}), timers: sync.Pool{New: func() any {
		t := time.NewTimer(time.Hour)
		t.Stop()
		return t
	}}}
	t.left.Store(int64(calls))
	return t
}

// turnLimit bounds the wait for a turn. A store that answers a call in a
// millisecond has served thousands by then; of one that has stopped the breaker
// knows long before.
const turnLimit = time.Second

var errNoTurn = errors.New("as many calls as the store can carry are under way, and none has ended for this one")

// take waits for a turn; first: before those who are not.
func (t *turn) take(ctx context.Context, op string, first bool) error {
	if t == nil || t.left.Add(-1) >= 0 {
		return nil
	}
	queue := t.next
	if first {
		queue = t.first
	}
	timer := t.timers.Get().(*time.Timer)
	timer.Reset(turnLimit)
	defer func() {
		timer.Stop()
		t.timers.Put(timer)
	}()
	var err error
	select {
	case <-queue:
		return nil
	case <-timer.C:
		err = &store.Fault{Op: op, Class: store.ClassPool, Err: errNoTurn}
	case <-ctx.Done():
		err = &store.Fault{Op: op, Class: store.ClassCanceled, Err: context.Cause(ctx)}
	}
	if t.giveUp() {
		return err
	}
	<-queue
	return nil
}

// giveUp takes one who waits out of the count. It cannot if a turn is on its way
// to each of them: he has to take his, or who hands it on would wait for ever.
func (t *turn) giveUp() bool {
	for {
		n := t.left.Load()
		if n >= 0 {
			return false
		}
		if t.left.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// leave gives a turn back. Somebody who is counted waits already, or is about to.
func (t *turn) leave() {
	if t == nil || t.left.Add(1) > 0 {
		return
	}
	select {
	case t.first <- struct{}{}:
		return
	default:
	}
	select {
	case t.first <- struct{}{}:
	case t.next <- struct{}{}:
	}
}
