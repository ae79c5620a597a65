package store

import (
	"errors"
	"fmt"
	"time"
)

var (
	// ErrHeld: another holder's lease is running. See [HeldError].
	ErrHeld = errors.New("cacheguard: lease is held by another")

	// ErrLost: the lease is not, or no longer, the holder's.
	ErrLost = errors.New("cacheguard: lease lost")

	// ErrFenced: something newer was written or invalidated since the token
	// was taken, or the record that gave it is gone.
	ErrFenced = errors.New("cacheguard: write refused by the fence")
)

// HeldError says who holds a lease and for how long yet. It is an [ErrHeld].
type HeldError struct {
	Holder Holder
	Left   time.Duration
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("cacheguard: lease is held by %s for another %v", e.Holder.Process(), e.Left.Round(time.Millisecond))
}

// Is makes errors.Is(err, ErrHeld) true.
func (e *HeldError) Is(target error) bool { return target == ErrHeld }

// Class sorts the faults of a store by what an operator does about them. The
// set is fixed: it is fit for a metric label.
type Class string

const (
	ClassTimeout    Class = "timeout"    // no answer within the store's bound
	ClassConnection Class = "connection" // refused, reset, closed
	ClassPool       Class = "pool"       // no free connection, or too many calls under way
	ClassReadOnly   Class = "readonly"   // a replica was asked to write
	ClassFull       Class = "full"       // out of memory, or a value above the limit
	ClassLoading    Class = "loading"    // the server reads its data set
	ClassCluster    Class = "cluster"    // slots not served, or redirections without end
	ClassDenied     Class = "denied"     // authentication or permission
	ClassData       Class = "data"       // bytes that are not ours, or a reply that makes no sense
	ClassCanceled   Class = "canceled"   // the caller's context ended first
	ClassOther      Class = "other"
)

// Fault is an error of the store itself: it was not reached, did not answer,
// or answered nonsense. Whether a write took effect is unknown.
type Fault struct {
	Op    string // the method: "load", "claim", ...
	Class Class
	Err   error
}

func (e *Fault) Error() string {
	return fmt.Sprintf("cacheguard: store %s: %s: %v", e.Op, e.Class, e.Err)
}

// Unwrap returns the cause.
func (e *Fault) Unwrap() error { return e.Err }

// ClassOf returns the class of a fault in err's chain, or ClassOther.
func ClassOf(err error) Class {
	var f *Fault
	if errors.As(err, &f) {
		return f.Class
	}
	return ClassOther
}
