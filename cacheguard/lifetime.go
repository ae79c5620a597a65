package cacheguard

import "time"

// bounded returns l with its negative parts at zero and neither part above
// what a store is asked to keep.
func (l Lifetime) bounded() Lifetime {
	clamp := func(d time.Duration) time.Duration { return min(max(d, 0), maxLife/2) }
	return Lifetime{TTL: clamp(l.TTL), Grace: clamp(l.Grace)}
}

// jittered takes a random part, at most share, off a TTL. It never lengthens
// one: the TTL is a promise to the reader.
func jittered(ttl time.Duration, share, draw float64) time.Duration {
	if share <= 0 {
		return ttl
	}
	return ttl - time.Duration(float64(ttl)*share*draw)
}
