package cacheguard

import (
	"context"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// Hooks are told what a guard does, as in net/http/httptrace: each field is
// optional, and one that is nil costs nothing. Metrics, traces and logs are
// built on them (promguard, otelguard, slogguard); [JoinHooks] lets several
// listen to one guard.
//
// A hook runs on the goroutine that did the work, with no lock of the guard
// held: one that is slow delays its own caller, flight or, for Renew and Woken,
// the renewals, but nobody who waits for a lock. It must be quick, safe for
// concurrent use, and must not call the guard. A hook that panics is recovered,
// reported to Panic, and not called again by that guard.
//
// Keys and values must not become metric labels: there are too many, and they
// may be private.
type Hooks struct {
	// Opened runs once, when the guard has been made, with its settings and a
	// way to ask for its present numbers. What it returns, if it is not nil,
	// runs when the guard has been closed.
	Opened func(GuardInfo) (closed func())

	// Answer runs once for each Get, GetEntry, Refresh and Do, and for each key
	// of a GetMany that has an answer, before it returns.
	Answer func(AnswerInfo)

	// Claim runs when a claim has been answered.
	Claim func(ClaimInfo)

	// Load runs when a load has ended.
	Load func(LoadInfo)

	// Fill runs when what was loaded has been offered to the store.
	Fill func(FillInfo)

	// Follow runs when a flight stops waiting for another process's holder.
	Follow func(FollowInfo)

	// Flight runs when a flight has ended, however it did.
	Flight func(FlightInfo)

	// Renew runs when the watchdog has asked for more time for one lease, and
	// when a lease has run out because no renewal got through in time.
	Renew func(RenewInfo)

	// Woken runs when the watchdog's timer has fired, with how much later than
	// due that was: a measure of pauses and starved CPUs. When it nears 0.4 of
	// the leases' length, leases lapse under their holders.
	Woken func(late time.Duration)

	// Call runs when a call of the store has come back. While it is set, each
	// call is timed.
	Call func(CallInfo)

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

	// Start runs when a piece of work begins that takes time, with the context
	// of the caller that it is done for (a flight's: of the one that began it,
	// who may be gone when it ends). What is done runs under the context that
	// it returns: a load's is what the loader gets. The function that it
	// returns runs when the work has ended. Either may be nil.
	//
	// It is not called for answers from the near cache.
	Start func(context.Context, SpanInfo) (context.Context, func(SpanEnd))
}

// GuardInfo introduces a guard.
type GuardInfo struct {
	Namespace string
	Settings  Settings

	// Stats returns the guard's present numbers. It is cheap, asks nobody else,
	// may be called at any time, and goes on working after Close.
	Stats func() Stats
}

// Stats are a guard's present numbers.
type Stats struct {
	NearEntries int           // copies in the near cache, about
	NearBytes   int64         // their size; zero unless Near.MaxBytes bounds it
	Flights     int           // rebuilds under way
	Pending     int           // writes that could not reach the store yet
	BreakerOpen bool          // the store is not asked
	Listening   bool          // messages of other processes arrive
	Lease       time.Duration // what a lease would be asked for now, of a key of unknown cost
}

// AnswerInfo tells what a caller got.
type AnswerInfo struct {
	Key       string
	State     State // zero if Err is neither nil nor ErrNotFound, but for a Do that gives an entry along with its error
	Via       Via
	Stale     StaleReason // if State is Stale
	Coalesced bool
	Waited    time.Duration // for flights, in all; zero: none was joined
	Left      bool          // Err is of the caller's own context: it has left
	Err       error
}

// Via says what answered a caller.
type Via uint8

const (
	ViaNear   Via = iota + 1 // the near cache
	ViaStore                 // what was stored
	ViaFlight                // a rebuild, its own or one that it joined
	ViaPass                  // a load of its own, since the key is not to be shared
)

// String returns the name in lower case; the zero Via, of a call that was
// refused or whose context ended, is "none".
func (v Via) String() string {
	switch v {
	case ViaNear:
		return "near"
	case ViaStore:
		return "store"
	case ViaFlight:
		return "flight"
	case ViaPass:
		return "pass"
	}
	return "none"
}

// StaleReason says why an answer was stale.
type StaleReason uint8

const (
	StaleGrace  StaleReason = iota + 1 // its grace runs: somebody rebuilds it
	StaleOutage                        // the store is out of reach
	StaleError                         // a fallback: it came along with an error
)

// String returns the reason in lower case.
func (r StaleReason) String() string {
	switch r {
	case StaleGrace:
		return "grace"
	case StaleOutage:
		return "outage"
	case StaleError:
		return "error"
	}
	return "none"
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

// LoadInfo tells about one load of the origin. Among its errors, ErrNotFound is
// an answer, one that is [NotShared] no failure, and store.ErrLost says that the load was
// cancelled because another process had brought a newer value.
type LoadInfo struct {
	Key        string
	Took       time.Duration
	Err        error         // nil, or why there is no value
	Length     time.Duration // of the lease it was granted; zero: loaded without one
	Background bool          // a refresh that began with no caller waiting
	Early      bool          // began while the entry was still fresh
}

// FillInfo tells what became of a loaded value.
type FillInfo struct {
	Key  string
	Size int   // of the encoded value, in bytes
	Err  error // nil: landed; store.ErrFenced: something newer was there; else unknown

	// Overtaken: this process wrote the key, or heard that another did, while
	// it was loaded. A fill that is fenced without that was most likely one of
	// two loads at once, or its lease record was lost.
	Overtaken bool
}

// FollowInfo tells about waiting for another process.
type FollowInfo struct {
	Key     string
	Waited  time.Duration
	Granted bool  // the lease fell to this process, which loads now
	Err     error // nil: a value came, or the lease; ErrWaitLimit, ErrCooldown, ...
}

// FlightInfo tells how a rebuild ended.
type FlightInfo struct {
	Key        string
	End        FlightEnd
	Background bool
	Err        error // what it had for its callers instead of a value
}

// FlightEnd says how a flight came by what it has brought.
type FlightEnd uint8

const (
	FlightLed      FlightEnd = iota + 1 // it was granted the lease, and loaded
	FlightAlone                         // it loaded without a lease
	FlightFollowed                      // another process's load brought the answer
	FlightYielded                       // in the background: another process rebuilds the key, or has
	FlightCooling                       // a cooldown binds the key
	FlightFailed                        // it ended before anybody had loaded: WaitLimit, Close, no store
)

// String returns the end in lower case.
func (e FlightEnd) String() string {
	switch e {
	case FlightLed:
		return "led"
	case FlightAlone:
		return "alone"
	case FlightFollowed:
		return "followed"
	case FlightYielded:
		return "yielded"
	case FlightCooling:
		return "cooling"
	case FlightFailed:
		return "failed"
	}
	return "unknown"
}

// RenewInfo tells about one renewal of one lease.
type RenewInfo struct {
	Key       string
	Length    time.Duration // asked for
	Err       error         // nil: extended; store.ErrLost; else not reached, or run out
	Lapsed    bool          // it has run out while its load goes on: no renewal got through, or this process was paused
	Overtaken bool          // lost, and this process knows of a write that ended the lease
}

// CallInfo tells about a call of the store.
type CallInfo struct {
	Op   string // the method: "load", "claim", "fill", ...
	Keys int    // how many it was about
	Took time.Duration
	Err  error // of several keys: any of them
}

// FaultInfo tells about a fault of the store.
type FaultInfo struct {
	Key     string // empty if it concerns no single key
	Op      string // "load", "claim", "fill", ...; "decode", "retry"
	Class   store.Class
	Refused bool // the breaker is open: the store was not asked
	Err     error
}

// PanicInfo tells about a panic that was recovered.
type PanicInfo struct {
	Where string // "loader", or the name of the hook: "Hooks.Answer"
	Hook  bool   // it was a hook, which is not called again
	Value any
	Stack []byte
}

// Span says what work it is that [Hooks.Start] is told of.
type Span uint8

const (
	SpanLookup Span = iota + 1 // a read of the store
	SpanWait                   // a caller waits for a flight, its own or one that it joined
	SpanLoad                   // the loader runs
	SpanFill                   // what was loaded is offered to the store
)

// String returns the span's name in lower case.
func (s Span) String() string {
	switch s {
	case SpanLookup:
		return "lookup"
	case SpanWait:
		return "wait"
	case SpanLoad:
		return "load"
	case SpanFill:
		return "fill"
	}
	return "unknown"
}

// SpanInfo tells what begins.
type SpanInfo struct {
	Span       Span
	Key        string      // empty if it is about several
	Keys       int         // how many, if several: a GetMany
	Token      store.Token // of a load or fill under a lease
	Background bool        // the context's caller does not wait for it
}

// SpanEnd tells how it ended.
type SpanEnd struct {
	Err       error
	State     State       // of the answer of a lookup or wait; zero: a miss
	Token     store.Token // of that answer. It names a load of any process: its SpanInfo has the same
	Coalesced bool        // of a wait: for a flight that another caller began

	// Load is, for a wait that was ended by a load of this process, the context
	// that Start returned for that load; else nil.
	Load context.Context
}
