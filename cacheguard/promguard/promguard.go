// Package promguard shows in Prometheus what guards do: whether they save the
// origin, whether leases fit their loads, and what the store is like.
//
//	metrics := promguard.New(promguard.Options{})
//	prometheus.MustRegister(metrics)
//	guard, err := cacheguard.New(store, cacheguard.Options[Product]{
//		Namespace: "products",
//		Hooks:     metrics.Hooks("products"),
//	})
//
// What each metric means, and which alert to hang on it, is in
// docs/observability.md; the alerts and a dashboard are in deploy/.
//
// No key, path or user ever becomes a label: there are as many series for a
// million keys as for one.
package promguard

import (
	"errors"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cacheguard-go/cacheguard/cacheguard"
)

// Options of a [Collector]. The zero value works.
type Options struct {
	// ConstLabels are added to every series. Their values must be few and fixed.
	ConstLabels prometheus.Labels

	// NoNative leaves out the native (exponential) histograms, NoClassic the
	// classic ones, of which Prometheus takes one or the other. Zero: both, so
	// that the server decides. At least one kind is kept.
	NoNative, NoClassic bool
}

// Collector is a prometheus.Collector for any number of guards. It may be
// registered with several registries. All methods are safe for concurrent use.
type Collector struct {
	opts  Options
	specs []spec
	parts []prometheus.Collector
	*families

	mu     sync.Mutex
	guards map[string]*series // by name; guarded by mu
}

var _ prometheus.Collector = (*Collector)(nil)

// New returns a collector without guards.
func New(opts Options) *Collector {
	if opts.NoNative && opts.NoClassic {
		opts.NoNative = false
	}
	c := &Collector{opts: opts, guards: make(map[string]*series)}
	c.families = newFamilies(c)
	return c
}

// Register registers a new collector with reg, or returns the one that reg has
// already: a service that sets itself up anew, in the same process, goes on
// with the same series.
func Register(reg prometheus.Registerer, opts Options) (*Collector, error) {
	c := New(opts)
	err := reg.Register(c)
	if err == nil {
		return c, nil
	}
	var again prometheus.AlreadyRegisteredError
	if errors.As(err, &again) {
		if old, ok := again.ExistingCollector.(*Collector); ok {
			return old, nil
		}
	}
	return nil, err
}

// Hooks returns the hooks of the guard of that name, for
// [cacheguard.Options].Hooks. The name becomes the label "guard": there should
// be few, and the guard's namespace is a good one. Guards that share a name
// share the series: counters add up, and so do sizes; see docs/observability.md.
func (c *Collector) Hooks(guard string) cacheguard.Hooks {
	return c.series(labelValue(guard)).hooks()
}

// series returns what is counted for a guard, made once for each name.
func (c *Collector) series(guard string) *series {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.guards[guard]
	if s == nil {
		s = newSeries(c.families, guard)
		c.guards[guard] = s
	}
	return s
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, p := range c.parts {
		p.Describe(ch)
	}
	for _, g := range c.gauges {
		ch <- g.desc
	}
	ch <- c.settings
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	for _, p := range c.parts {
		p.Collect(ch)
	}
	c.mu.Lock()
	guards := make([]*series, 0, len(c.guards))
	for _, s := range c.guards {
		guards = append(guards, s)
	}
	c.mu.Unlock()
	for _, s := range guards {
		s.collect(ch)
	}
}

// maxLabel bounds the length of a label's value in bytes.
const maxLabel = 64

// labelValue makes a label's value of any name: a registry refuses, for the
// whole scrape, what is not UTF-8.
func labelValue(name string) string {
	name = strings.ToValidUTF8(name, "?")
	if len(name) > maxLabel {
		name = strings.ToValidUTF8(name[:maxLabel], "")
	}
	if name == "" {
		name = "cacheguard"
	}
	return name
}
