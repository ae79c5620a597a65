// Package watchdog keeps granted leases alive while their holders work.
//
// One goroutine and one timer serve all leases of a Watchdog, and renewals that
// are due at about the same time travel together. A lease that is dropped
// before 0.6 of its length has passed, as those of tuned loads are, costs two
// operations on a heap and not one command to the store.
package watchdog

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

const (
	// renewAfter is the part of a lease's length after which it is renewed. Not
	// a half: with headroom 2 over the P99 of the load times, half a lease is
	// that P99, and one steady load in a hundred would renew for nothing. What
	// remains is time for several attempts.
	renewAfter = 0.6

	// maxBatch bounds the renewals in one call to the store, maxCalls the calls
	// under way at once. More than one, so that a call that hangs does not
	// hold up the leases that were not in it.
	maxBatch = 256
	maxCalls = 4

	// gather is how much before its time a renewal may go along with another
	// one, but never more than a sixteenth of its length.
	gather = 10 * time.Millisecond

	// The first attempt may take half of what is left of the shortest lease in
	// its call, so that another can follow it; a later one may take all that is
	// left, since ever shorter attempts would be ever more hopeless where the
	// store is slow and each needs a new connection. Within these bounds; the
	// store's own holds besides.
	minAttempt = 20 * time.Millisecond
	maxAttempt = time.Second

	// Attempts that fail are repeated after 1/64, 1/32, 1/16, 1/16, ... of the
	// lease's length, within these bounds.
	minBackoff = 5 * time.Millisecond
	maxBackoff = time.Second
)

// Hooks tell what a watchdog does. Each may be nil, must be quick, may be called
// from several goroutines at once, and must not call the Watchdog.
type Hooks struct {
	// Renewed is told the outcome of each renewal that was sent: nil,
	// store.ErrLost or a fault; and the length that was asked for.
	Renewed func(g store.Grant, length time.Duration, err error)

	// Woken is told, each time that something was due, how late the watchdog
	// came to it. On a machine with processor time to spare it is about a
	// millisecond. As it nears 0.4 of the leases' length, they lapse.
	Woken func(late time.Duration)
}

// Watchdog renews leases until they are dropped or end. All methods are safe
// for concurrent use.
type Watchdog struct {
	leases store.Leases
	hooks  Hooks

	ctx    context.Context // of all renewals; ends with Close
	cancel context.CancelFunc
	tasks  sync.WaitGroup // the loop and the calls under way
	kicked chan struct{}  // holds one: the queue's first is not what the timer is set to

	mu      sync.Mutex
	queue   queue   // everything held, by due; protected by mu
	ready   []*Held // due for renewal, waiting for a call; protected by mu
	calls   int     // under way; protected by mu
	running bool    // the loop was started; protected by mu
	closed  bool    // protected by mu
}

// New returns a watchdog over leases. It starts a goroutine when the first
// lease is held; Close ends it.
func New(leases store.Leases, hooks Hooks) *Watchdog {
	ctx, cancel := context.WithCancel(context.Background())
	return &Watchdog{leases: leases, hooks: hooks, ctx: ctx, cancel: cancel, kicked: make(chan struct{}, 1)}
}

// Hold keeps l alive until it is dropped or ends by itself; then ended is called,
// once, with the reason. It must not block: it runs on the goroutine that serves
// all leases. On a closed watchdog Hold calls ended(Closed) before it returns.
func (w *Watchdog) Hold(l Lease, ended func(Reason)) *Held {
	if l.Length == nil {
		l.Length = func() time.Duration { return l.Grant.Length }
	}
	h := &Held{dog: w, lease: l, ended: ended}
	h.extend(l.Sent, l.Grant.Length)
	h.schedule()
	if !w.admit(h) {
		ended(Closed)
	}
	return h
}

func (w *Watchdog) admit(h *Held) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		h.over = true
		return false
	}
	if !w.running {
		w.running = true
		w.tasks.Go(w.run)
	}
	w.queue.add(h)
	if w.queue.first() == h {
		w.kick()
	}
	return true
}

// Close stops all renewals, calls ended(Closed) for what is still held, and
// waits until nothing of the watchdog runs. It releases no lease. It may be
// called twice, and must not be called from ended or a hook.
func (w *Watchdog) Close() {
	w.mu.Lock()
	w.closed = true
	left := make([]*Held, 0, len(w.queue))
	for h := w.queue.first(); h != nil; h = w.queue.first() {
		h.finish()
		left = append(left, h)
	}
	w.mu.Unlock()
	w.cancel()
	w.tasks.Wait()
	for _, h := range left {
		h.ended(Closed)
	}
}

// kick makes the loop look at the queue again.
func (w *Watchdog) kick() {
	select {
	case w.kicked <- struct{}{}:
	default:
	}
}

// run is the loop: do what is due, sleep until something is. With nothing held
// it sleeps without a timer.
func (w *Watchdog) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		next := w.turn(time.Now())
		if next.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(time.Until(next))
		}
		select {
		case <-w.ctx.Done():
			return
		case <-w.kicked:
		case <-timer.C:
		}
		// Whichever it was: where both were ready, the timer may not be the one.
		if late := time.Since(next); w.hooks.Woken != nil && !next.IsZero() && late >= 0 {
			w.hooks.Woken(late)
		}
	}
}

// turn does what is due at now and returns when the next thing will be, or zero.
func (w *Watchdog) turn(now time.Time) time.Time {
	type ending struct {
		held   *Held
		reason Reason
	}
	var endings []ending
	var next time.Time
	w.mu.Lock()
	for h := w.queue.first(); h != nil; h = w.queue.first() {
		if reason := h.expired(now); reason != 0 {
			h.finish()
			endings = append(endings, ending{h, reason})
			continue
		}
		if !h.renewable(now) {
			next = h.due
			break
		}
		w.enqueue(h)
	}
	w.dispatch()
	w.mu.Unlock()
	for _, e := range endings {
		e.held.ended(e.reason)
	}
	return next
}

// enqueue puts h among those that wait for a call. It stays in the queue, now
// for its end: a store that hangs must not keep a holder from hearing of it.
func (w *Watchdog) enqueue(h *Held) {
	h.busy = true
	w.ready = append(w.ready, h)
	h.schedule()
	w.queue.moved(h)
}

// dispatch hands those that are ready to as many calls as may be under way.
func (w *Watchdog) dispatch() {
	for w.calls < maxCalls {
		batch := w.batch()
		if batch == nil {
			return
		}
		w.calls++
		w.tasks.Go(func() {
			for batch != nil {
				batch = w.renew(batch)
			}
		})
	}
}

// batch takes the next leases to renew, or nil.
func (w *Watchdog) batch() []*Held {
	n := min(maxBatch, len(w.ready))
	if n == 0 || w.closed {
		return nil
	}
	batch := slices.Clone(w.ready[:n])
	w.ready = slices.Delete(w.ready, 0, n)
	return batch
}

// renew sends one batch, takes in the answers, and returns the next batch, if
// there is one.
func (w *Watchdog) renew(batch []*Held) []*Held {
	batch, renewals, sent, bound := w.prepare(batch)
	var errs []error
	if len(batch) > 0 {
		ctx, cancel := context.WithTimeout(w.ctx, bound)
		errs = w.leases.Renew(ctx, renewals)
		cancel()
	}
	if w.hooks.Renewed != nil {
		for i, r := range renewals {
			w.hooks.Renewed(r.Grant, r.Length, outcome(errs, i, len(batch)))
		}
	}
	return w.settle(batch, renewals, errs, sent)
}

// prepare leaves out what has ended meanwhile and says what to send of the rest,
// as of which instant, and how long the call may take.
func (w *Watchdog) prepare(batch []*Held) (live []*Held, renewals []store.Renewal, sent time.Time, bound time.Duration) {
	wanted := make([]time.Duration, len(batch))
	for i, h := range batch {
		wanted[i] = h.lease.Length() // the holder's code: not under our mutex
	}
	renewals = make([]store.Renewal, 0, len(batch))
	live = batch[:0]
	w.mu.Lock()
	defer w.mu.Unlock()
	// The new deadlines count from here: before the call is sent.
	sent = time.Now()
	bound = maxAttempt
	for i, h := range batch {
		left := h.lapse().Sub(sent)
		if h.over || left <= 0 {
			continue // the loop has told it, or is about to
		}
		live = append(live, h)
		renewals = append(renewals, store.Renewal{Grant: h.lease.Grant, Length: h.ask(wanted[i], sent)})
		if h.failures == 0 {
			left /= 2
		}
		bound = min(bound, max(minAttempt, left))
	}
	return live, renewals, sent, bound
}

// outcome is the error of the i-th of n renewals. What the store did not answer
// is a fault like any other.
func outcome(errs []error, i, n int) error {
	switch {
	case errs == nil:
		return nil
	case len(errs) != n:
		return errUnanswered
	}
	return errs[i]
}

var errUnanswered = &store.Fault{
	Op: "renew", Class: store.ClassData,
	Err: errors.New("another number of answers than of questions"),
}

// settle takes in the answers to a call and returns the batch for the next one;
// if there is none, the call is over.
func (w *Watchdog) settle(batch []*Held, renewals []store.Renewal, errs []error, sent time.Time) []*Held {
	var lost []*Held
	again := rand.Float64() // one draw for all: they go on travelling together
	w.mu.Lock()
	now := time.Now()
	for i, h := range batch {
		if h.over {
			continue
		}
		h.busy = false
		switch err := outcome(errs, i, len(batch)); {
		case err == nil:
			h.extend(sent, renewals[i].Length)
		case errors.Is(err, store.ErrLost):
			h.lost = true
			h.finish()
			lost = append(lost, h)
			continue
		default:
			h.failures++
			h.renewAt = now.Add(h.backoff(again))
		}
		h.schedule()
		w.queue.moved(h)
	}
	next := w.batch()
	if next == nil {
		w.calls--
	}
	w.kick()
	w.mu.Unlock()
	for _, h := range lost {
		h.ended(Lost)
	}
	return next
}
