package cacheguard

import (
	"strconv"
	"time"
)

// Outage is what callers get while the store is out of reach.
type Outage uint8

const (
	// Local answers from the near cache, stale values included, else by a load
	// of this process, without a lease: one at a time per key, and
	// Options.OutageLoads over all keys. Nothing is stored.
	Local Outage = iota

	// FailFast answers from the near cache, else with the *store.Fault.
	FailFast
)

// probeStore runs while the breaker is open: it asks the store now and then
// whether it is back.
func (g *Guard[V]) probeStore() {
	if !g.tasks.enter() {
		return
	}
	go func() {
		defer g.tasks.leave()
		ticker := time.NewTicker(breakerProbes)
		defer ticker.Stop()
		for n := 0; ; n++ {
			select {
			case <-ticker.C:
				// Another key each time: in a cluster, one that is on a server that
				// stays away must not keep the breaker open for all the others.
				if g.breaker.probe(g.ctx, g.key(strconv.Itoa(n))) {
					return
				}
			case <-g.ctx.Done():
				return
			}
		}
	}()
}
