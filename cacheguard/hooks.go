package cacheguard

import (
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// Hooks are told what a guard does, as in net/http/httptrace: each field is
// optional, and one that is nil costs nothing. A hook runs on the goroutine
// that did the work, with none of the guard's locks held; it must be quick,
// safe for concurrent use, and must not call the guard. A hook that panics is
// recovered and reported to Panic.
//
// Keys and values must not become metric labels: there are too many, and they
// may be private.
type Hooks struct {
	// Answer runs once for each Get, GetEntry and Refresh, before it returns.
	Answer func(AnswerInfo)

	// Claim runs when a claim has been answered.
	Claim func(ClaimInfo)

	// Load runs when a load has ended.
	Load func(LoadInfo)

	// Fill runs when what was loaded has been offered to the store.
	Fill func(FillInfo)

	// Follow runs when a flight stops waiting for another process's holder.
	Follow func(FollowInfo)

	// Renew runs when the watchdog has asked for more time for one lease.
	Renew func(RenewInfo)

	// Woken runs when the watchdog's timer has fired, with how much later than
	// due that was: a measure of pauses and starved CPUs. When it nears 0.4 of
	// the leases' length, leases lapse under their holders.
	Woken func(late time.Duration)

	// Breaker runs when the store has failed so often that it is not asked any
	// more (open), and when it is back.
	Breaker func(open bool)

	// Pending runs when writes that could not reach the store are added to, or
	// taken from, those that are retried in the background, with their number.
	Pending func(n int)

	// Fault runs when the store failed, or held bytes that are not ours.
	Fault func(FaultInfo)

	// Panic runs when a loader or a hook panicked.
	Panic func(PanicInfo)
}

// AnswerInfo tells what a caller got.
type AnswerInfo struct {
	Key       string
	State     State // zero if Err is neither nil nor ErrNotFound
	Coalesced bool
	Err       error
}

// ClaimInfo tells how a claim was answered.
type ClaimInfo struct {
	Key           string
	Outcome       store.Outcome
	Length        time.Duration // of the lease that was asked for
	Background    bool          // of a refresh that no caller waits for
	Takeover      bool          // an earlier lease had run out without a fill or release
	SecondOpinion bool          // another process failed, this one may try
}

// LoadInfo tells about one load of the origin.
type LoadInfo struct {
	Key        string
	Took       time.Duration
	Err        error         // nil, or why there is no value; ErrNotFound is an answer
	Length     time.Duration // of the lease it was granted; zero: loaded without one
	Background bool          // a refresh that began with no caller waiting
	Early      bool          // began while the entry was still fresh
}

// FillInfo tells what became of a loaded value.
type FillInfo struct {
	Key  string
	Size int   // of the encoded value, in bytes
	Err  error // nil: landed; store.ErrFenced: something newer was there; else unknown
}

// FollowInfo tells about waiting for another process.
type FollowInfo struct {
	Key    string
	Waited time.Duration
	Err    error // nil: a value came, or the lease fell to this process; ErrWaitLimit, ErrCooldown, ...
}

// RenewInfo tells about one renewal of one lease.
type RenewInfo struct {
	Key    string
	Length time.Duration // asked for
	Err    error         // nil: extended; store.ErrLost; else not reached
}

// FaultInfo tells about a fault of the store.
type FaultInfo struct {
	Key   string // empty if it concerns no single key
	Op    string // "load", "claim", "fill", ...
	Class store.Class
	Err   error
}

// PanicInfo tells about a panic that was recovered.
type PanicInfo struct {
	Where string // "loader", or the name of the hook
	Value any
	Stack []byte
}
