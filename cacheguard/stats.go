package cacheguard

import "time"

// Settings are a guard's options as they are in force, every zero filled in.
type Settings struct {
	Lifetime     Lifetime
	Chosen       bool // LifetimeFunc is set: Lifetime is not used for what is loaded
	NegativeTTL  time.Duration
	EarlyRefresh float64
	Jitter       float64
	Lease        LeaseTuning
	LoadLimit    time.Duration
	WaitLimit    time.Duration
	Cooldown     time.Duration
	HoldOff      time.Duration
	Outage       Outage
	OutageLoads  int
	Near         Near
}

// settings of complete options.
func (o *Options[V]) settings() Settings {
	return Settings{
		Lifetime: o.Lifetime, Chosen: o.LifetimeFunc != nil, NegativeTTL: o.NegativeTTL,
		EarlyRefresh: o.EarlyRefresh, Jitter: o.Jitter, Lease: o.Lease,
		LoadLimit: o.LoadLimit, WaitLimit: o.WaitLimit, Cooldown: o.Cooldown, HoldOff: o.HoldOff,
		Outage: o.Outage, OutageLoads: o.OutageLoads, Near: o.Near,
	}
}

// stats are the guard's present numbers.
func (g *Guard[V]) stats() Stats {
	s := Stats{
		Flights:     g.shards.running(),
		Pending:     int(g.pending.n.Load()),
		BreakerOpen: g.breaker.state.Load() == open,
		Listening:   g.hearing.Load(),
		Lease:       g.tuner.Length(0),
	}
	if g.near != nil {
		s.NearEntries, s.NearBytes = g.near.size(g.opts.Near.MaxBytes > 0)
	}
	return s
}
