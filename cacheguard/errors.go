package cacheguard

import (
	"errors"
	"fmt"
	"time"
)

var (
	// ErrNotFound says that the origin has no such thing. A [Loader] returns
	// it (or an error that wraps it), a Get answers it. It is an answer, not a
	// failure: it starts no cooldown and is cached for Options.NegativeTTL.
	ErrNotFound = errors.New("cacheguard: not found")

	// ErrClosed says that the guard was closed.
	ErrClosed = errors.New("cacheguard: guard is closed")

	// ErrWaitLimit says that a caller waited as long as it may
	// (Options.WaitLimit) for a load in another process.
	ErrWaitLimit = errors.New("cacheguard: gave up waiting for another process to load")

	// ErrLoadLimit says that a load was cut at Options.LoadLimit. It comes with
	// context.DeadlineExceeded in its chain, and is the cause of the loader's
	// context then.
	ErrLoadLimit = errors.New("cacheguard: load cut at LoadLimit")

	// ErrCycle says that a load asked, directly or through other loads, for the
	// key that it is loading.
	ErrCycle = errors.New("cacheguard: a load waits for itself")

	// ErrCooldown says that the key is left alone for a while because loading it
	// failed. See [CooldownError].
	ErrCooldown = errors.New("cacheguard: cooling down after a failed load")
)

// CooldownError is an [ErrCooldown] that says for how long and why.
type CooldownError struct {
	Left   time.Duration // how much longer
	Reason string        // of the last failure, as its process told it; may quote the origin
}

func (e *CooldownError) Error() string {
	return fmt.Sprintf("%v (another %v): %s", ErrCooldown, e.Left.Round(time.Millisecond), e.Reason)
}

// Is makes errors.Is(err, ErrCooldown) true.
func (e *CooldownError) Is(target error) bool { return target == ErrCooldown }

// PanicError is what callers get when a loader panicked or called
// runtime.Goexit. The process goes on and the lease ends at once; as after any
// failed load, a cooldown follows.
type PanicError struct {
	Value any    // what was passed to panic; a text that says so for runtime.Goexit
	Stack []byte // of the loader's goroutine
}

func (e *PanicError) Error() string { return fmt.Sprintf("cacheguard: loader panicked: %v", e.Value) }

// Unwrap returns the panic's value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}
