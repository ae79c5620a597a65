// Package tuning computes how long a lease is asked for, from how long loads
// were measured to take:
//
//	length = clamp(headroom * quantile(load times), min, max)
//
// over a sliding window that forgets. A key that is known to be slower than
// that gets a longer lease of its own and does not lengthen those of the rest.
package tuning

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

const (
	// The window holds the last sections*perSection taught loads, less the part
	// of one section: 41 to 50. Fewer would be too few for a high quantile;
	// more would be slow to forget: a step down must be followed within 60.
	sections   = 5
	perSection = 10

	// slow is how many times the ordinary (median) load time a key's own cost
	// must exceed for the key to count as a slow one.
	slow = 2

	// rule is how many loads in a row, all repeats of slow keys, make the slow
	// ones the rule: nothing else is loaded, so they are whom to learn from.
	rule = 20

	// unmeasured stands in Tuner.quantile for "no load was measured yet".
	unmeasured = -1
)

// Tuner learns load times and gives lease lengths. All methods are safe for
// concurrent use; Length neither locks nor allocates.
type Tuner struct {
	cfg      Config
	quantile atomic.Int64 // of the window, in nanoseconds; or unmeasured

	mu     sync.Mutex
	window *hdrhistogram.WindowedHistogram // protected by mu; nanoseconds
	median time.Duration                   // of the window; protected by mu
	streak int                             // repeats in a row; protected by mu
}

// New returns a tuner that has measured nothing. cfg must come from
// [Config.Resolve].
func New(cfg Config) *Tuner {
	// A hundredth of the floor is resolution enough for what is then clamped to
	// the floor, and keeps the window small (40 KiB with the defaults).
	resolution := max(1, int64(cfg.Min/100))
	t := &Tuner{
		cfg:    cfg,
		window: hdrhistogram.NewWindowed(sections, resolution, max(2*resolution, int64(cfg.Max)), 2),
	}
	t.quantile.Store(unmeasured)
	return t
}

// Observe teaches the time d that a load took which ended well. (One that
// failed or was cut short says nothing about how long a lease must be.) known
// is the cost that the key's entry carried before that load, 0 if there was none.
//
// A load that says nothing new about other keys is not taught: see repeats.
func (t *Tuner) Observe(d, known time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	d = min(max(d, 0), t.cfg.Max)
	if !t.repeats(d, known) {
		t.streak = 0
	} else if t.streak++; t.streak < rule {
		return
	}
	t.teach(d)
}

// teach adds d to the window and publishes what the window now says.
func (t *Tuner) teach(d time.Duration) {
	if t.window.Current.TotalCount() == perSection {
		t.window.Rotate()
	}
	// In range: d is clamped to what the histogram was made for.
	_ = t.window.Current.RecordValue(int64(d))
	merged := t.window.Merge()
	t.median = atRank(merged, (merged.TotalCount()+1)/2)
	t.quantile.Store(int64(atRank(merged, quantileRank(t.cfg.Quantile, merged.TotalCount()))))
}

// repeats reports that a load took about as long as its slow key is known to
// take. The key's own cost gives it its lease; taught again at each rebuild, it
// would in time fill the window and lengthen the leases of all others, the more
// the more often it is rebuilt. So each key teaches an exceptional load time
// once: when its cost was unknown, or did not explain it (a step). A guard that
// loads nothing else for a while is the exception (rule).
func (t *Tuner) repeats(d, known time.Duration) bool {
	ordinary := slow * t.median
	return t.quantile.Load() != unmeasured &&
		known > ordinary && d > ordinary && d <= t.covered(known)
}

// covered is the time that a lease for a load of the given cost lasts, before
// floor and ceiling.
func (t *Tuner) covered(cost time.Duration) time.Duration {
	return time.Duration(t.cfg.Headroom * float64(cost))
}

// Length returns how long a lease to ask for. cost is what the key's stored
// entry cost to load, 0 if that is unknown: it makes the lease of this key
// longer, never shorter, and where nothing was measured yet (a fresh process)
// it stands in for the measurement.
func (t *Tuner) Length(cost time.Duration) time.Duration {
	// The cost comes from a store: keep it where the product cannot overflow.
	cost = min(cost, t.cfg.Max)
	q := time.Duration(t.quantile.Load())
	if q == unmeasured && cost <= 0 {
		return t.cfg.Initial
	}
	return min(max(t.covered(max(q, cost)), t.cfg.Min), t.cfg.Max)
}

// quantileRank is the rank of the q-quantile among n values, rounded down. With
// the high quantiles that leases want and a window this short, that leaves the
// single slowest load of the window out: one hiccup is not a trend.
func quantileRank(q float64, n int64) int64 { return max(1, int64(q*float64(n))) }

// atRank returns the value of the given rank, 1 being the smallest. The
// histogram rounds to the nearest rank, which is then the one asked for.
func atRank(h *hdrhistogram.Histogram, rank int64) time.Duration {
	return time.Duration(h.ValueAtQuantile(100 * float64(rank) / float64(h.TotalCount())))
}
