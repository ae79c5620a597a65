package middleware

import "github.com/cacheguard-go/cacheguard/cacheguard"

// near answers a request from the near cache, if there is an answer that it may
// have as it is. Such a request waits for nothing, so nothing is made for it that
// only a wait needs. It reports false if somebody else has to be asked.
func (x *exchange) near(a *admission, key string) bool {
	var above *response // the entry above, for a variant
	for range maxDepth + 1 {
		var other *response // what is there, if it is another variant
		e, ok := x.c.guard.Near(x.r.Context(), key, func(e cacheguard.Entry[*response]) bool {
			if !x.c.keys.selects(x.r, e.Value.selecting) {
				other = e.Value
				return false
			}
			s := standingOf(e)
			s.fresh = s.fresh && (above == nil || e.Value.parentEpoch == above.epoch)
			return x.tagsStand(e, &s) && x.c.opts.decide(a, e.Value, s) == useTake
		})
		switch {
		case ok:
			p, age := e.Value, e.Value.age(e.Age)
			x.replay(p, age, cacheStatus{hit: true, ttl: p.lifetime - age, hasTTL: true})
			return true
		case other == nil:
			return false
		}
		above = other
		var err error
		if key, err = x.c.keys.variant(key, x.r, above); err != nil {
			return false
		}
	}
	return false
}
