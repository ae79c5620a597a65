package cacheguard

import "errors"

// Sharer is an error of a loader that knows whether it is one: with NotShared
// true, the load has gone well, and what it brought is for its own caller alone.
// Unlike with a [PassError], nothing is known of the next load. Hooks count it
// as "not shared" and log nothing.
type Sharer interface {
	error
	NotShared() bool
}

// NotShared tells whether the error of a load, or of a caller who waited for
// one, says that what was loaded is for its own caller alone, rather than that
// something is wrong.
func NotShared(err error) bool {
	if _, ok := errors.AsType[*PassError](err); ok {
		return true
	}
	s, ok := errors.AsType[Sharer](err)
	return ok && s.NotShared()
}
