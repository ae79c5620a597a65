package main

import (
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/promguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/slogguard"
)

// metrics are what /metrics shows, in a registry of their own.
type metrics struct {
	registry *prometheus.Registry
	answers  *prometheus.CounterVec
	faults   *prometheus.CounterVec
	commands *prometheus.CounterVec
	guards   *promguard.Collector
	logs     *slogguard.Logger
}

func newMetrics() *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		guards:   promguard.New(promguard.Options{}),
		logs:     slogguard.New(slog.Default(), slogguard.Options{}),
		answers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "demo_answers_total",
			Help: "Answers to readers, by where they came from: fresh, stale, rebuilt, followed, absent, not_shared (for this reader alone), or error.",
		}, []string{"state"}),
		faults: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "demo_store_faults_total",
			Help: "Faults of the store, by class: it was not reached, did not answer, or held bytes that are not ours.",
		}, []string{"class"}),
		commands: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "demo_redis_commands_sent_total",
			Help: "Commands that left this process for Redis, counted at the socket. What a script does inside Redis is not sent.",
		}, []string{"command"}),
	}
	m.registry.MustRegister(m.answers, m.faults, m.commands, m.guards, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// watchOrigin adds the counters of the origin's pool.
func (m *metrics) watchOrigin(p *pool) {
	counter := func(name, help string, n func() float64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, n)
	}
	m.registry.MustRegister(
		counter("demo_origin_loads_total", "Products that this process asked the origin for.",
			func() float64 { return float64(p.loads.Load()) }),
		counter("demo_origin_load_seconds_total", "Time that these loads took, without the time that they queued for a connection.",
			func() float64 { return time.Duration(p.loading.Load()).Seconds() }),
		counter("demo_origin_load_failures_total", "Loads that ended in an error other than not found.",
			func() float64 { return float64(p.failures.Load()) }),
		counter("demo_origin_pool_waits_total", "Questions to the origin that found no connection free and had to queue.",
			func() float64 { return float64(p.waits.Load()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "demo_origin_connections_in_use", Help: "Connections to the origin that are in use."},
			func() float64 { return float64(len(p.slots)) }),
	)
}

// hooks count and log what the cache of that name does.
func (m *metrics) hooks(name string) cacheguard.Hooks {
	return cacheguard.JoinHooks(m.guards.Hooks(name), m.logs.Hooks(name), cacheguard.Hooks{
		Answer: func(a cacheguard.AnswerInfo) {
			state := a.State.String()
			switch {
			case a.Err == nil, errors.Is(a.Err, cacheguard.ErrNotFound):
			case cacheguard.NotShared(a.Err):
				state = "not_shared"
			default:
				state = "error"
			}
			m.answers.WithLabelValues(state).Inc()
		},
		Fault: func(f cacheguard.FaultInfo) { m.faults.WithLabelValues(string(f.Class)).Inc() },
	})
}

// commandSent counts one command. Its name comes from our own client: there
// are not many.
func (m *metrics) commandSent(name string) { m.commands.WithLabelValues(name).Inc() }

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}
