package cacheguard

import "context"

// A call of the store about many keys is made in pieces, one after the other.
// The store bounds the time of each call, and what a call takes grows with what
// it is about: ten thousand claims at once would look like a store that is
// away.
const (
	pieceKeys  = 256     // of one call, at most
	pieceBytes = 1 << 20 // of payloads in one call, about
)

// inPieces makes a call about n things as several, of the things from one place
// to another each. A piece that fails as a whole because the store is ill is the
// last: another would cost one more time-out and bring nothing. The rest has its
// error.
//
// size is what a thing brings along, in bytes; nil: nothing worth counting.
func (b *breaker) inPieces(ctx context.Context, op string, n int, size func(i int) int, do func(from, to int) []error) []error {
	var all []error
	for from := 0; from < n; {
		to := pieceEnd(from, n, size)
		errs := b.callMany(ctx, op, to-from, func() []error { return do(from, to) })
		if errs != nil {
			if all == nil {
				all = make([]error, n)
			}
			copy(all[from:to], errs)
		}
		if allBlame(errs) {
			for i := to; i < n; i++ {
				all[i] = errs[0]
			}
			break
		}
		from = to
	}
	return all
}

// pieceEnd is where a piece ends that begins at from.
func pieceEnd(from, n int, size func(i int) int) int {
	end := min(from+pieceKeys, n)
	if size == nil {
		return end
	}
	bytes := 0
	for i := from; i < end; i++ {
		if bytes += size(i); bytes > pieceBytes && i > from {
			return i
		}
	}
	return end
}

// allBlame tells whether each of several things failed because of the store as a
// whole.
func allBlame(errs []error) bool {
	for _, err := range errs {
		if err == nil || !blames(err) {
			return false
		}
	}
	return len(errs) > 0
}
