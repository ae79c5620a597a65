package cacheguard

import (
	"errors"
	"fmt"
	"time"

	"github.com/cacheguard-go/cacheguard/internal/tuning"
)

// Lifetime is how long an entry lives: fresh for TTL, then stale for Grace
// (additive, as in Varnish), then gone. A stale entry is served while one
// holder in the fleet rebuilds it.
//
// The zero Lifetime means: do not store.
type Lifetime struct{ TTL, Grace time.Duration }

// LeaseTuning shapes the length of leases:
//
//	length = clamp(Headroom × Quantile of the measured load times, Min, Max)
//
// raised, for one key, by the cost that its stored entry was measured with.
// Before anything is measured it is Initial. The watchdog renews a lease whose
// load outlives most of it, so a short lease costs a message, not a second
// load.
type LeaseTuning struct {
	Initial  time.Duration // before any measurement; 0: 3s, or Max if that is less
	Min      time.Duration // floor: pauses (GC, scheduling) must fit; 0: 250ms, or Max if that is less
	Max      time.Duration // ceiling: what a crash may cost; at most LoadLimit; 0: LoadLimit
	Quantile float64       // of the load times, above 0, at most 1; 0: 0.99
	Headroom float64       // at least 1; 0: 2
}

// Options shape a [Guard]. The zero value works; every field says what its
// zero means.
type Options[V any] struct {
	// Namespace is the prefix of every key in the store, the name of the
	// guard's notification channel, and what metrics call the guard. Guards
	// that share a store and hold different things must have different
	// namespaces. At most 64 bytes. "": "cacheguard".
	Namespace string

	// Lifetime of what is loaded and set. Zero: TTL one minute, grace one
	// minute. To store nothing, use LifetimeFunc.
	Lifetime Lifetime

	// LifetimeFunc, if set, gives each value its own lifetime; the zero
	// Lifetime stores nothing, but still hands the value over to those in the
	// fleet who waited for it. Negative parts count as zero. It may be called
	// concurrently.
	LifetimeFunc func(key string, v V) Lifetime

	// NegativeTTL is how long it is remembered that the origin has no such
	// thing (the loader returned ErrNotFound). Zero: absence is not cached.
	NegativeTTL time.Duration

	// EarlyRefresh is the beta of XFetch: a fresh entry is rebuilt, by one
	// lease holder and in the background, with a probability that grows towards
	// its end and with its measured cost. 0: 1. Negative: off.
	//
	// Vattani, Chierichetti, Lowenstein: Optimal Probabilistic Cache Stampede
	// Prevention, VLDB 2015.
	EarlyRefresh float64

	// Jitter is the share of the TTL, below 1, that is taken off at random, so
	// that what was stored together does not expire together. 0: 0.1.
	// Negative: off.
	Jitter float64

	// Lease shapes the length of leases.
	Lease LeaseTuning

	// LoadLimit bounds one load, and with it how long one holder can keep a
	// key: when it ends, the loader's context is cancelled and another may
	// load. 0: 30s.
	LoadLimit time.Duration

	// WaitLimit bounds how long a flight follows another process's holder
	// before its callers get ErrWaitLimit. A caller that joins a flight which
	// follows already waits for the next one, too: twice as long at most.
	// 0: LoadLimit + Lease.Max.
	WaitLimit time.Duration

	// Cooldown is how long a process leaves a key alone after its load failed,
	// and the whole fleet after a second process failed too. 0: 1s.
	// Negative: off.
	Cooldown time.Duration

	// HoldOff is for loaders that read from a copy of the origin (a replica of
	// the database) that may lag behind its writes, and is the longest that it
	// does. For that long after a Set, Update, Invalidate or Expire of a key,
	// made here or heard of from another process, what is loaded of the key is
	// served and handed over to those in the fleet who waited for it, and not
	// stored: one load at a time in the fleet instead of one for a TTL. What
	// would be loaded in the background is left for later.
	//
	// A process that does not hear of a write, since its subscription is down,
	// does not hold off. At most 24h. 0: off.
	HoldOff time.Duration

	// Outage is what callers get while the store is out of reach. Zero: Local.
	Outage Outage

	// OutageLoads bounds the loads that run at once without a lease while the
	// store is out of reach, over all keys of this guard: a dead store must not
	// become a storm on the origin. Further ones wait, for WaitLimit at most.
	// 0: 64.
	OutageLoads int

	// Near shapes the near cache. Zero: off.
	Near Near

	// Clone, if set, copies a value before a caller gets it. nil: callers of
	// this process share the value and must not change it.
	Clone func(V) V

	// Codec turns values into bytes and back. nil: JSON.
	Codec Codec[V]

	// Hooks are told what happens. The zero value tells nobody.
	Hooks Hooks
}

const (
	defaultNamespace = "cacheguard"
	maxNamespace     = 64
)

// withDefaults returns o with its zeros filled in, or an error that says, for
// each option out of range, what to write instead.
func (o Options[V]) withDefaults() (Options[V], error) {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("cacheguard: "+format, args...)) }

	if o.Namespace == "" {
		o.Namespace = defaultNamespace
	}
	if len(o.Namespace) > maxNamespace {
		bad("Options.Namespace is %d bytes long; use at most %d", len(o.Namespace), maxNamespace)
	}

	if o.Lifetime.TTL < 0 || o.Lifetime.Grace < 0 {
		bad("Options.Lifetime{%v, %v} is negative; use durations of zero or more", o.Lifetime.TTL, o.Lifetime.Grace)
	}
	if o.Lifetime == (Lifetime{}) {
		o.Lifetime = Lifetime{TTL: time.Minute, Grace: time.Minute}
	}
	if o.Lifetime.Grace > maxLife-o.Lifetime.TTL { // their sum may overflow
		bad("Options.Lifetime{%v, %v} lasts too long; use at most %v in all", o.Lifetime.TTL, o.Lifetime.Grace, maxLife)
	}
	if o.NegativeTTL < 0 || o.NegativeTTL > maxLife {
		bad("Options.NegativeTTL is %v; use 0 (do not cache absence) to %v", o.NegativeTTL, maxLife)
	}

	if o.EarlyRefresh == 0 {
		o.EarlyRefresh = 1
	}
	if !(o.EarlyRefresh <= maxBeta) {
		bad("Options.EarlyRefresh is %v; use a beta of at most %v, or a negative one for off", o.EarlyRefresh, maxBeta)
	}
	if o.Jitter == 0 {
		o.Jitter = 0.1
	}
	if !(o.Jitter < 1) {
		bad("Options.Jitter is %v; use a share below 1, or a negative one for off", o.Jitter)
	}

	switch {
	case o.LoadLimit < 0 || o.LoadLimit > maxLimit:
		bad("Options.LoadLimit is %v; use a duration above zero and at most %v, or 0 for 30s", o.LoadLimit, maxLimit)
	case o.LoadLimit == 0:
		o.LoadLimit = 30 * time.Second
	case o.LoadLimit < time.Millisecond:
		bad("Options.LoadLimit is %v; use at least 1ms", o.LoadLimit)
	}
	lease, err := o.Lease.resolve(o.LoadLimit)
	errs = append(errs, err)
	o.Lease = LeaseTuning(lease)

	switch {
	case o.WaitLimit < 0 || o.WaitLimit > 2*maxLimit:
		bad("Options.WaitLimit is %v; use a duration above zero and at most %v, or 0 for LoadLimit + Lease.Max", o.WaitLimit, 2*maxLimit)
	case o.WaitLimit == 0:
		o.WaitLimit = o.LoadLimit + o.Lease.Max
	}
	switch {
	case o.Cooldown > maxLimit:
		bad("Options.Cooldown is %v; use at most %v, 0 for 1s, or a negative one for off", o.Cooldown, maxLimit)
	case o.Cooldown == 0:
		o.Cooldown = time.Second
	case o.Cooldown < 0:
		o.Cooldown = 0
	}

	if o.HoldOff < 0 || o.HoldOff > maxLimit {
		bad("Options.HoldOff is %v; use a duration above zero and at most %v, or 0 for off", o.HoldOff, maxLimit)
	}

	if o.Outage > FailFast {
		bad("Options.Outage is %d; use Local or FailFast", o.Outage)
	}
	switch {
	case o.OutageLoads < 0:
		bad("Options.OutageLoads is %d; use a number above zero, or 0 for 64", o.OutageLoads)
	case o.OutageLoads == 0:
		o.OutageLoads = 64
	}
	near, err := o.Near.withDefaults()
	errs = append(errs, err)
	o.Near = near

	if o.Codec == nil {
		o.Codec = JSON[V]()
	}
	return o, errors.Join(errs...)
}

// The outer bounds of what a duration may be: wide enough for any use, narrow
// enough that no sum of them overflows or outlives a token's 53 bits.
const (
	maxLife  = 10 * 365 * 24 * time.Hour
	maxLimit = 24 * time.Hour
	maxBeta  = 1000
)

// resolve fills in the tuning's zeros; no lease may outlast loadLimit, after
// which no holder loads.
func (t LeaseTuning) resolve(loadLimit time.Duration) (tuning.Config, error) {
	cfg, err := tuning.Config(t).Resolve(loadLimit)
	if err != nil {
		err = fmt.Errorf("cacheguard: Options.Lease: %w", err)
	}
	return cfg, err
}
