package watchdog

import (
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// Lease is a grant to be kept alive.
type Lease struct {
	Grant store.Grant

	// Sent is an instant before the claim was sent. The local deadline counts
	// from it: the store's lease began later, so it also ends later.
	Sent time.Time

	// Length tells how long a renewal asks for; nil: as long as the grant. It
	// is called for each renewal and must be quick.
	Length func() time.Duration

	// Cap is when the hold ends whatever happens: no renewal reaches beyond it.
	Cap time.Time

	// Margin is how long before the local deadline the hold ends, for a holder
	// that must have stopped by then. Zero: at the deadline. It must leave time
	// for a renewal: less than 0.4 of the length.
	Margin time.Duration
}

// Reason says why a lease is no longer kept alive.
type Reason uint8

const (
	Lost   Reason = iota + 1 // the store said that it is not, or no longer, the holder's
	Lapsed                   // its local deadline came and no renewal had got through
	Capped                   // its Cap came
	Closed                   // the watchdog was closed
)

// String returns the reason's name in lower case.
func (r Reason) String() string {
	switch r {
	case Lost:
		return "lost"
	case Lapsed:
		return "lapsed"
	case Capped:
		return "capped"
	case Closed:
		return "closed"
	}
	return "unknown"
}

// Held is a lease that is being kept alive until it is dropped or ends.
type Held struct {
	dog   *Watchdog
	lease Lease
	ended func(Reason)

	// All of these are protected by dog.mu.
	deadline time.Time     // local end of the lease, never later than the store's
	length   time.Duration // that the deadline was reached with
	renewAt  time.Time     // when to renew; unused while a renewal is queued or under way
	due      time.Time     // what comes first: renewAt or lapse
	place    int           // in dog.queue
	failures int           // of renewals since the last that got through
	busy     bool          // a renewal is queued or under way
	over     bool          // dropped or ended: not in dog.queue
	lost     bool          // the store said so
}

// Deadline returns the local end of the lease: until then it is the holder's,
// as far as a monotonic clock can tell. It moves with each renewal.
func (h *Held) Deadline() time.Time {
	h.dog.mu.Lock()
	defer h.dog.mu.Unlock()
	return h.deadline
}

// Starved reports that the lease has run out without an attempt to renew it
// since its last beginning: from before the time for that to after its end this
// process was stopped, or got no processor. What was measured meanwhile includes
// that sleep.
func (h *Held) Starved() bool {
	h.dog.mu.Lock()
	defer h.dog.mu.Unlock()
	tried := h.busy || h.failures > 0 || h.lost
	return !tried && h.deadline.Before(h.lease.Cap) && !time.Now().Before(h.deadline)
}

// Drop stops keeping the lease alive; it does not release it. True means that
// ended was not and will not be called; false that it was or is being called,
// or that Drop had been called before. Drop does not wait, and may be called
// from ended.
func (h *Held) Drop() bool {
	h.dog.mu.Lock()
	defer h.dog.mu.Unlock()
	return h.finish()
}

// finish takes h out of the queue. It reports whether h was still in it: who
// gets true has the last word about h.
func (h *Held) finish() bool {
	if h.over {
		return false
	}
	h.over = true
	h.dog.queue.remove(h)
	return true
}

// extend moves the deadline to length past sent, an instant before what gave
// the lease was sent.
func (h *Held) extend(sent time.Time, length time.Duration) {
	h.length, h.failures = length, 0
	h.deadline = earlier(sent.Add(length), h.lease.Cap)
	h.renewAt = sent.Add(time.Duration(renewAfter * float64(length)))
}

// schedule sets due to the first thing that will have to be done.
func (h *Held) schedule() {
	h.due = h.lapse()
	// A lease that reaches to its cap has nothing to gain from a renewal.
	if !h.busy && h.deadline.Before(h.lease.Cap) {
		h.due = earlier(h.due, h.renewAt)
	}
}

// lapse is when the hold ends unless a renewal gets through.
func (h *Held) lapse() time.Time { return h.deadline.Add(-h.lease.Margin) }

// expired says why the hold is to end at now, or 0 if it is not.
func (h *Held) expired(now time.Time) Reason {
	switch {
	case now.Before(h.lapse()):
		return 0
	case h.deadline.Before(h.lease.Cap):
		return Lapsed
	}
	return Capped
}

// renewable reports whether h is to be renewed at now, alone or along with
// others. After a failure it waits for its time: the pause may be shorter than
// the slack, and would be none.
func (h *Held) renewable(now time.Time) bool {
	slack := min(gather, h.length/16)
	if h.failures > 0 {
		slack = 0
	}
	return !h.busy && h.deadline.Before(h.lease.Cap) && !now.Before(h.renewAt.Add(-slack))
}

// ask is the length to renew with at now: never less than what is left, which
// would shorten a lease that is being relied on, and never past the cap.
func (h *Held) ask(wanted time.Duration, now time.Time) time.Duration {
	return min(max(wanted, h.deadline.Sub(now)), h.lease.Cap.Sub(now))
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// backoff is the pause after a renewal that failed; jitter, in [0, 1), spreads
// the processes of a fleet whose store went away for all at once.
func (h *Held) backoff(jitter float64) time.Duration {
	pause := h.length / 64 << min(h.failures-1, 2)
	pause = min(max(pause, minBackoff), maxBackoff)
	return time.Duration((0.5 + jitter/2) * float64(pause))
}
