package tuning

import (
	"errors"
	"fmt"
	"time"
)

// What a zero field of Config means. Max has no constant: it is the limit.
const (
	DefaultInitial  = 3 * time.Second
	DefaultMin      = 250 * time.Millisecond
	DefaultQuantile = 0.99
	DefaultHeadroom = 2.0
)

// Config says how lease lengths follow load times. Its zero value works.
type Config struct {
	Initial  time.Duration // length before any load was measured; 0: 3 s, or Max if that is less
	Min      time.Duration // floor; 0: 250 ms, or Max if that is less
	Max      time.Duration // ceiling; 0: the limit (one load's, one hold's)
	Quantile float64       // of the load times, above 0 and at most 1; 0: 0.99
	Headroom float64       // length over that quantile, at least 1; 0: 2
}

// Resolve fills in what is zero and checks the rest. limit is the longest that
// a lease may be kept alive in all (LoadLimit, HoldLimit): no length may exceed
// it, since a record outlives its last use by no more than that.
func (c Config) Resolve(limit time.Duration) (Config, error) {
	if c.Max == 0 {
		c.Max = limit
	}
	if c.Min == 0 {
		c.Min = min(DefaultMin, c.Max)
	}
	if c.Initial == 0 {
		c.Initial = min(max(DefaultInitial, c.Min), c.Max)
	}
	if c.Quantile == 0 {
		c.Quantile = DefaultQuantile
	}
	if c.Headroom == 0 {
		c.Headroom = DefaultHeadroom
	}
	return c, c.check(limit)
}

// check returns every fault of a resolved configuration, each with what to
// write instead.
func (c Config) check(limit time.Duration) error {
	var faults []error
	bad := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if c.Max < 0 || c.Max > limit {
		bad("lease Max is %v: must be above 0 and at most the limit of one load or hold, %v", c.Max, limit)
	}
	if c.Min < 0 || c.Min > c.Max {
		bad("lease Min is %v: must be above 0 and at most Max, %v", c.Min, c.Max)
	}
	if c.Initial < c.Min || c.Initial > c.Max {
		bad("lease Initial is %v: must lie between Min, %v, and Max, %v", c.Initial, c.Min, c.Max)
	}
	// Written so that NaN is refused too.
	if !(c.Quantile > 0 && c.Quantile <= 1) {
		bad("lease Quantile is %v: must be above 0 and at most 1, such as 0.99", c.Quantile)
	}
	if !(c.Headroom >= 1 && c.Headroom <= maxHeadroom) {
		bad("lease Headroom is %v: must lie between 1 and %d, such as 2", c.Headroom, maxHeadroom)
	}
	return errors.Join(faults...)
}

// maxHeadroom keeps a slip of the pen (200 for "200 percent") from turning
// every lease into the ceiling.
const maxHeadroom = 100
