// Package store holds the words that a cacheguard backend and its users share,
// and the contract that every backend keeps.
//
// A store keeps two things for each [Key]: an [Entry] (what was loaded) and a
// lease record (who may load, and the fence below which nothing may be
// written). The contract is written in MUSTs on [Store] and [Leases];
// package storetest checks each of them against any backend.
//
// Two backends ship with cacheguard: redisstore, which a whole fleet shares,
// and memstore, which lives in one process. Neither knows the guard, and the
// guard knows neither.
package store

import (
	"context"
	"strings"
	"time"
)

// Token is a fencing token: per key it grows strictly with every claim, begin,
// set, invalidate and expire. Zero means none. It fits a SQL bigint and, being
// below 2^53, a JavaScript or Lua number.
//
// A resource that is written under a lease keeps the highest token it has seen
// and refuses a lower one: that is what makes a late or paused holder harmless.
type Token int64

// Key names one guarded thing: an ID inside a Space. Both are opaque to the
// store. An ID may hold any bytes and may be empty; different keys MUST never
// meet, whatever they contain.
type Key struct {
	Space string // the namespace of a guard or locker
	ID    string
}

// Holder says who claims: the id of a process, a slash, and the id of one
// attempt of it. One attempt is one load: two loads of one process MUST have
// different holders, or each would pass for the other.
type Holder string

// NewHolder joins a process id and an attempt id. The process id may itself
// hold slashes; the attempt id must not.
func NewHolder(process, attempt string) Holder { return Holder(process + "/" + attempt) }

// Process is the part of h before its last slash: whom a cooldown binds.
func (h Holder) Process() string {
	if i := strings.LastIndexByte(string(h), '/'); i >= 0 {
		return string(h[:i])
	}
	return string(h)
}

// Kind says what an entry is.
type Kind uint8

const (
	None   Kind = iota // nothing is there, or nothing that could be read
	Value              // a payload
	Absent             // the origin said that there is no such thing
	Pass               // do not collapse this key for a while: load without a lease
)

// String returns the kind's name in lower case.
func (k Kind) String() string {
	switch k {
	case None:
		return "none"
	case Value:
		return "value"
	case Absent:
		return "absent"
	case Pass:
		return "pass"
	}
	return "unknown"
}

// Entry is what a Load found. Its durations are measured by the store's clock,
// as of At.
type Entry struct {
	Kind Kind

	// At is one instant of this process' clock, with its monotonic reading:
	// after the Load was called, and not after the store was asked. What the
	// entry says was so at At or later, so it may be counted from there. A Load
	// without an error MUST set it, also when nothing is there.
	//
	// It is the only look at the clock that a hit needs; in exchange the reply's
	// way back does not count: an entry may have become stale, or have aged, by
	// as much as the Load took.
	At time.Time

	// HandOver marks a Value or Absent that is kept only for those who waited
	// for it: whoever was not there before it was written must treat it as
	// None (but pass its Token as Claim.Seen).
	HandOver bool

	// Token is what the entry was written under. It is set whenever the bytes
	// under the key name one, even if the rest cannot be read (Kind None).
	Token Token

	// Payload is the stored value when Kind is Value. It belongs to the reader
	// unless the backend documents otherwise; it must not be changed.
	Payload []byte

	Age   time.Duration // since the question was sent (the claim, or the Set)
	Fresh time.Duration // how much longer it is fresh; zero or less: stale
	Left  time.Duration // how much longer it is kept; more than zero
	TTL   time.Duration // the fresh life that it was written with
	Cost  time.Duration // how long its load took

	// Fault tells why bytes that are there could not be read: corrupt, foreign,
	// of another key, of a newer format. Kind is then None: it is a miss, and
	// the fault is to be reported.
	Fault error
}

// Content is what a Fill or a Set writes.
type Content struct {
	Kind    Kind   // Value, Absent or Pass
	Payload []byte // for Value; the store MUST NOT keep or change it after the call

	// TTL and Grace are the fresh and the stale part of the entry's life. They
	// count from the grant's time for a Fill, from now for a Set. Neither may
	// be negative.
	TTL, Grace time.Duration

	// HandOver is how long a filled entry is kept if TTL + Grace is zero or is
	// already spent when the fill arrives: it is then written as a hand-over.
	// A Fill MUST have it above zero. Unused by Set.
	HandOver time.Duration

	Cost time.Duration // how long the load took
}

// Grant is a lease that was given: the right to load one key for a time, and
// the proof of it that a fill, renewal or release must bring.
type Grant struct {
	Key    Key
	Holder Holder
	Token  Token         // greater than any token of this key before
	Birth  string        // mark of the record that gave it; opaque
	Time   int64         // the store's clock at the claim, in its own unit; opaque
	Length time.Duration // what was granted, from the store's clock at the claim

	// Takeover: an earlier lease ran out without a fill or a release (its
	// holder crashed, hangs, or is paused).
	Takeover bool

	// SecondOpinion: another process failed to load this key and its cooldown
	// is running, but does not bind this one.
	SecondOpinion bool
}

// Claim asks for the lease on a key.
type Claim struct {
	Key    Key
	Seen   Token         // of the entry that the claimer looked at; 0: none was there
	Holder Holder        // new for every attempt; the same when a lost reply is asked again
	Length time.Duration // of the lease; above zero, at most Keep
	Keep   time.Duration // how long the record outlives its last use (LoadLimit); above zero

	// Wait marks a running lease of another as waited for, so that its end
	// wakes the listeners. Without it the claimer only asks.
	Wait bool
}

// Outcome says how a claim was answered.
type Outcome uint8

const (
	Granted Outcome = iota + 1 // Verdict.Grant holds the lease
	Changed                    // another entry than Seen is there: load again
	Held                       // another holder's lease is running
	Cooling                    // a cooldown binds the claimer
)

// String returns the outcome's name in lower case.
func (o Outcome) String() string {
	switch o {
	case Granted:
		return "granted"
	case Changed:
		return "changed"
	case Held:
		return "held"
	case Cooling:
		return "cooling"
	}
	return "unknown"
}

// Verdict is the answer to a claim.
type Verdict struct {
	Outcome Outcome
	Grant   Grant         // for Granted
	Left    time.Duration // for Held and Cooling: how much longer
	Holder  Holder        // for Held: who holds it; for Cooling: who failed last
	Token   Token         // for Held: of the running lease
	Reason  string        // for Cooling: of the last failure; untrusted text

	// Same, for Granted and Held: the entry that the claimer looked at is there,
	// with the same token, and so the same but for its times.
	Same bool
}

// Renewal extends the lease of a grant to Length from now.
type Renewal struct {
	Grant  Grant
	Length time.Duration // above zero, at most the Keep of the claim
}

// Failure says why a load gave nothing, and for how long its key is left alone.
type Failure struct {
	Reason   string        // short; kept in the record for a human and for followers
	Cooldown time.Duration // zero: the failure is counted, nothing is bound
}

// Filling is one of the fills of a FillMany.
type Filling struct {
	Grant   Grant
	Content Content
}

// Begun is the token that was taken before the origin was written (Begin), to
// be carried by the Set that follows.
type Begun struct {
	Token Token
	Birth string
}

// Write is what Set writes.
type Write struct {
	Key     Key
	Content Content
	Begun   *Begun // nil: write unconditionally
}

// EventKind says what happened to a key.
type EventKind uint8

const (
	Up          EventKind = iota + 1 // the listener hears everything from now on
	Down                             // the listener may miss events until the next Up
	Filled                           // a fill landed that somebody waited for
	Released                         // a lease that somebody waited for ended without a value
	Written                          // Set
	Invalidated                      // Invalidate, and a begun Set that became one
	Expired                          // Expire
)

// String returns the event kind's name in lower case.
func (k EventKind) String() string {
	switch k {
	case Up:
		return "up"
	case Down:
		return "down"
	case Filled:
		return "filled"
	case Released:
		return "released"
	case Written:
		return "written"
	case Invalidated:
		return "invalidated"
	case Expired:
		return "expired"
	}
	return "unknown"
}

// Event tells a listener that something happened to a key of its space. It is
// a hint: it may be lost, late or doubled.
type Event struct {
	Kind  EventKind
	ID    string // of the key; empty for Up and Down
	Token Token  // the new token or the fill's; zero for Released, Up and Down

	// Entry is what a fill has left, if the backend sends it along: those who
	// waited need not load it then. Only with Filled, and never a hand-over or
	// a pass. Token is its token. It MUST be what a Load would have found at
	// some time after the fill landed and before the event came; its At is not
	// after that.
	Entry *Entry
}

// Leases is the part of a store that leases alone need.
//
// Every method MUST be safe for concurrent use, MUST return within a bound of
// the store's own even if ctx has no deadline and the server hangs, and MUST
// send what it has to say once: asking again after a lost reply is the
// caller's decision. All times are judged by the store's clock alone.
//
// Every method's error is a [*Fault] unless the method says otherwise. An error
// other than a sentinel of this package leaves the outcome unknown.
type Leases interface {
	// Claim looks again and takes the lease, in one atomic step, in this order:
	//
	//  1. An entry with another token than Seen is there: Changed. An entry
	//     that is not there is not a change. Bytes whose token cannot be told
	//     count as no entry, for Load as for Claim.
	//  2. Another holder's lease is running: Held; with Wait it is marked as
	//     waited for. A lease of the claimer's own Holder (the reply was
	//     lost) is not another's; it is granted anew, with a new token.
	//  3. Unless the lease is the claimer's own: a cooldown binds it: Cooling.
	//     A cooldown binds every process if the last two failures are of two
	//     different processes, otherwise the process that failed.
	//  4. Granted.
	//
	// Granted and Held MUST tell whether the entry with the token Seen is there
	// (Same); false if Seen is 0.
	//
	// A grant MUST have a token above every token that the record and the
	// entry know of, and not below the store's clock in microseconds; it MUST
	// keep the mark of being waited for. A record is created if there is none,
	// with a Birth that no other creation has, not even one by the same claim
	// sent again.
	//
	// A lease or cooldown whose end lies further ahead than it is long (the
	// store's clock stepped back) MUST count as passed.
	//
	// The record MUST be kept for the longest Keep that it was ever claimed or
	// begun with, past the later of its last use, the end of its lease and
	// the end of its cooldown. No method shortens that.
	Claim(ctx context.Context, c Claim) (Verdict, error)

	// Renew extends each lease whose record still has the grant's birth mark
	// and holder, also one that has lapsed and that nobody has taken. It returns nil if all were extended, else one error for each
	// renewal: nil, [ErrLost], or a fault. It MUST NOT create a record.
	Renew(ctx context.Context, renewals []Renewal) []error

	// Release ends the grant's lease if it is still its holder's, counts the
	// failure, if there is one, once for each Holder even if the lease is
	// gone, starts its cooldown, and wakes those who waited if it ended a
	// lease. Without a record, or with one of another birth, it does nothing
	// and returns nil. A grant of unknown token and birth (the claim's reply
	// was lost) is released by its Key and Holder alone: Birth "".
	Release(ctx context.Context, g Grant, failure *Failure) error

	// Listen calls fn for every event of a space until stop is called. fn MUST
	// NOT block; it may be called from any goroutine, also before Listen
	// returns. Up MUST come once the listener is sure to hear everything that
	// happens from then on, Down when that ends. stop waits until no call of
	// fn is running and none will follow; it may be called twice, and must not
	// be called from fn.
	//
	// An event MUST be sent by Set, Invalidate and Expire always, by a Fill and
	// a Release if the lease's record was marked as waited for, after their
	// effect can be seen by a Load. A Fill whose record is gone, and the mark
	// with it, MUST send Released: nobody else would wake those who waited.
	Listen(space string, fn func(Event)) (stop func())
}

// Store keeps entries and leases. The rules on [Leases] hold for its methods
// too.
type Store interface {
	Leases

	// Load reads the entry, in one round trip and from the primary. That there
	// is none is not an error: Kind is None. An entry that names another key
	// MUST NOT be returned; see Entry.Fault.
	Load(ctx context.Context, key Key) (Entry, error)

	// LoadMany, ClaimMany and FillMany do for many keys, in one round trip (one
	// for each server), what Load, Claim and Fill do for one. Each key has its
	// own result, and its own error, which is nil or as theirs; the slice of
	// errors is nil if there is none. Keys are different from each other.
	LoadMany(ctx context.Context, keys []Key) ([]Entry, []error)
	ClaimMany(ctx context.Context, claims []Claim) ([]Verdict, []error)
	FillMany(ctx context.Context, fills []Filling) []error

	// Fill writes what was loaded under a grant, if the record still has the
	// grant's birth mark and a fence that is not above the grant's token;
	// otherwise it changes nothing and returns [ErrFenced]. It does not ask
	// whether the lease is still running.
	//
	// A fill that lands moves the fence to the grant's token, clears failures
	// and cooldown, ends the lease if it is the grant's holder's, and wakes
	// those who waited. The same fill again is a success and changes nothing.
	// The entry's life counts from the grant's time; see Content.HandOver.
	Fill(ctx context.Context, g Grant, c Content) error

	// Begin takes a new token before the origin is written, and does nothing
	// else to the key. It creates the record if need be; keep is as
	// Claim.Keep.
	Begin(ctx context.Context, key Key, keep time.Duration) (Begun, error)

	// Set takes a new token, moves the fence to it, writes the entry, ends any
	// lease, and wakes everybody. With Begun it does so only if the record has
	// the same birth mark and a fence that is not above Begun.Token; otherwise
	// it acts as Invalidate and returns [ErrFenced]. A Set whose TTL + Grace
	// is zero acts as Invalidate and returns nil. It MUST NOT create a record.
	Set(ctx context.Context, w Write) error

	// Invalidate takes, for each key, a new token, moves the fence to it,
	// deletes the entry, ends any lease, and wakes everybody. It MUST NOT
	// create a record. It returns nil if all keys were invalidated, else one
	// error (or nil) for each key.
	Invalidate(ctx context.Context, keys []Key) []error

	// Expire is like Invalidate, but keeps a Value or Absent and makes it
	// stale: its grace begins now, its life is not lengthened, its bytes and
	// its token stay. A hand-over or pass is deleted.
	Expire(ctx context.Context, keys []Key) []error
}
