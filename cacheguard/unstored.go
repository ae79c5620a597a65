package cacheguard

import (
	"strings"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// A store may grant leases and refuse what is loaded under them: the value is
// larger than it takes, it is full but for the few bytes of a record, it may not
// be written by this user, or the value takes longer on its way than a call may.
// Then nobody can be served by another's load, and whoever waits for one waits
// for nothing: with a plain release all processes would load one after the
// other, the last after as many loads as there are processes.
//
// So such a load is counted as a failure of a kind of its own. As after any
// failure one other process may try (it may be this process's way to the store),
// and when that one is refused too, all know: until the cooldown ends each
// process loads for itself, at once, one load at a time, as without a store.
// Then one of them tries again.
const (
	unstoredMark = "not stored: "
	unstoredFor  = time.Second
)

// unstored ends, in the background, the lease of a load whose fill has failed.
func (g *Guard[V]) unstored(grant store.Grant, err error) {
	failure := &store.Failure{Reason: reason(unstoredError{err}), Cooldown: unstoredFor}
	g.tasks.another()
	go func() {
		defer g.tasks.leave()
		g.release(grant.Key.ID, grant, failure)
	}()
}

// unstoredError is why nothing was stored, as the lease record has it.
type unstoredError struct{ why error }

func (e unstoredError) Error() string {
	return unstoredMark + string(store.ClassOf(e.why)) + ": " + e.why.Error()
}

// isUnstored tells whether a cooldown is one of loads that could not be stored.
func isUnstored(v store.Verdict) bool {
	return v.Outcome == store.Cooling && strings.HasPrefix(v.Reason, unstoredMark)
}
