package store

// Parallel is what a [Store] may be besides: one that knows how many calls it
// can carry at once, where one more would wait inside it, on its own time. A
// guard begins no more than that. reads is how many loads of one key there can
// be besides; zero: they are among the calls. Zero calls: it does not know.
//
// A store that wraps another one has to pass this on; see [ParallelOf].
type Parallel interface {
	Parallel() (calls, reads int)
}

// ParallelOf is what s says of itself, or zero.
func ParallelOf(s Store) (calls, reads int) {
	if p, ok := s.(Parallel); ok {
		return p.Parallel()
	}
	return 0, 0
}
