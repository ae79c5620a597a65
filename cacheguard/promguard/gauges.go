package promguard

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cacheguard-go/cacheguard/cacheguard"
)

// gauge is a number that a guard is asked for. Guards that share a name are
// joined into one.
type gauge struct {
	desc *prometheus.Desc
	of   func(cacheguard.Stats) float64
	join func(a, b float64) float64
}

// setting is an option in force that alerts compare with.
type setting struct {
	name string
	of   func(cacheguard.Settings) time.Duration
}

var settings = []setting{
	{"ttl", func(s cacheguard.Settings) time.Duration { return s.Lifetime.TTL }},
	{"grace", func(s cacheguard.Settings) time.Duration { return s.Lifetime.Grace }},
	{"load_limit", func(s cacheguard.Settings) time.Duration { return s.LoadLimit }},
	{"wait_limit", func(s cacheguard.Settings) time.Duration { return s.WaitLimit }},
	{"cooldown", func(s cacheguard.Settings) time.Duration { return s.Cooldown }},
	{"lease_min", func(s cacheguard.Settings) time.Duration { return s.Lease.Min }},
	{"lease_max", func(s cacheguard.Settings) time.Duration { return s.Lease.Max }},
}

func (c *Collector) newGauges() []gauge {
	sum := func(a, b float64) float64 { return a + b }
	larger := func(a, b float64) float64 { return max(a, b) }
	smaller := func(a, b float64) float64 { return min(a, b) }
	of := func(name, help string, join func(a, b float64) float64, ask func(cacheguard.Stats) float64) gauge {
		return gauge{desc: c.desc(name, help), of: ask, join: join}
	}
	return []gauge{
		of("cacheguard_flights_running", "Rebuilds under way in this process.", sum, func(s cacheguard.Stats) float64 { return float64(s.Flights) }),
		of("cacheguard_near_entries", "Copies in the near cache, about.", sum, func(s cacheguard.Stats) float64 { return float64(s.NearEntries) }),
		of("cacheguard_near_bytes", "Size of the near cache, if a size bounds it.", sum, func(s cacheguard.Stats) float64 { return float64(s.NearBytes) }),
		of("cacheguard_pending_writes", "Writes that could not reach the store and are being retried.", sum, func(s cacheguard.Stats) float64 { return float64(s.Pending) }),
		of("cacheguard_breaker_open", "1 while the store is not asked because it has failed.", larger, func(s cacheguard.Stats) float64 { return number(s.BreakerOpen) }),
		of("cacheguard_listening", "1 while messages of other processes arrive; 0: followers poll.", smaller, func(s cacheguard.Stats) float64 { return number(s.Listening) }),
		of("cacheguard_lease_next_seconds", "Length that a lease would be asked for now, of a key of unknown cost.", larger, func(s cacheguard.Stats) float64 { return s.Lease.Seconds() }),
	}
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// desc makes the description of a gauge and keeps account of it.
func (c *Collector) desc(name, help string, labels ...string) *prometheus.Desc {
	labels = append([]string{"guard"}, labels...)
	c.specs = append(c.specs, spec{name, "gauge", help, labels})
	return prometheus.NewDesc(name, help, labels, c.opts.ConstLabels)
}

// opened takes a guard whose numbers are shown until it is closed.
func (s *series) opened(info cacheguard.GuardInfo) (closed func()) {
	guard := &info
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[guard] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.open, guard)
	}
}

// collect asks the guards of this name for their numbers. One that was closed
// shows none.
func (s *series) collect(ch chan<- prometheus.Metric) {
	s.mu.Lock()
	open := make([]*cacheguard.GuardInfo, 0, len(s.open))
	for guard := range s.open {
		open = append(open, guard)
	}
	s.mu.Unlock()
	if len(open) == 0 {
		return
	}
	stats := make([]cacheguard.Stats, len(open))
	for i, guard := range open {
		stats[i] = guard.Stats()
	}
	for _, g := range s.f.gauges {
		v := g.of(stats[0])
		for _, more := range stats[1:] {
			v = g.join(v, g.of(more))
		}
		ch <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, v, s.guard)
	}
	for _, set := range settings {
		var v time.Duration
		for _, guard := range open {
			v = max(v, set.of(guard.Settings))
		}
		ch <- prometheus.MustNewConstMetric(s.f.settings, prometheus.GaugeValue, v.Seconds(), s.guard, set.name)
	}
}
