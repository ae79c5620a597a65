package promguard

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// spec describes one metric, for the page that documents them all.
type spec struct {
	name, kind, help string
	labels           []string
}

// families are the metrics, each with one series or more for every guard.
type families struct {
	answers, stale, answerErrors      *prometheus.CounterVec
	loadsAvoided, lookupsAvoided      *prometheus.CounterVec
	flights, follows                  *prometheus.CounterVec
	waitTime, followTime              *prometheus.HistogramVec
	loads, unleased, duplicates       *prometheus.CounterVec
	loadTime, loadShare               *prometheus.HistogramVec
	claims, takeovers, secondOpinions *prometheus.CounterVec
	leaseLength, watchdogLate         *prometheus.HistogramVec
	renewals, fills                   *prometheus.CounterVec
	fillBytes                         *prometheus.HistogramVec
	callTime                          *prometheus.HistogramVec
	faults, breakerOpened, panics     *prometheus.CounterVec
	httpAnswers                       *prometheus.CounterVec

	gauges   []gauge // asked of the guards at a scrape
	settings *prometheus.Desc
}

// Bucket bounds, in seconds unless they say otherwise.
var (
	// A load may be a key lookup of a millisecond or a report of half a minute.
	workBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}

	// A call of the store is a round trip, or its time-out.
	callBuckets = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1}

	leaseBuckets = []float64{.1, .25, .5, 1, 2.5, 5, 10, 30, 60}
	lateBuckets  = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5}

	// Load time over lease length. 0.6 is where a lease is renewed; above 1 it
	// would have lapsed without that.
	shareBuckets = []float64{.05, .1, .25, .5, .6, .8, 1, 1.5, 2, 5, 10}

	sizeBuckets = []float64{256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20}
)

func newFamilies(c *Collector) *families {
	counter, histogram := c.counter, c.histogram
	f := &families{
		answers:        counter("cacheguard_answers_total", "Answers to callers, by state and by what gave them; state none is an error.", "state", "via"),
		stale:          counter("cacheguard_stale_answers_total", "Stale answers, by reason: its grace runs, the store is out of reach, or a fallback next to an error.", "reason"),
		answerErrors:   counter("cacheguard_answer_errors_total", "Callers who got an error, by reason; not found is an answer, a caller who left is no fault.", "reason"),
		loadsAvoided:   counter("cacheguard_loads_avoided_total", "Loads that callers would have run without the guard, by who ran one for them: this process, or another of the fleet.", "by"),
		lookupsAvoided: counter("cacheguard_lookups_avoided_total", "Callers who shared another caller's read of the store."),
		waitTime:       histogram("cacheguard_wait_seconds", "How long callers waited for rebuilds, their own or others'.", workBuckets),

		flights:    counter("cacheguard_flights_total", "Rebuilds of this process, by what began them, a caller or a refresh that nobody waits for, and by how they ended.", "begun_by", "end"),
		follows:    counter("cacheguard_follows_total", "Rebuilds that waited for another process, by what came of it.", "outcome"),
		followTime: histogram("cacheguard_follow_seconds", "How long rebuilds waited for another process.", workBuckets),

		loads:      counter("cacheguard_loads_total", "Loads of the origin by this process, by what caused them and how they ended.", "cause", "outcome"),
		unleased:   counter("cacheguard_unleased_loads_total", "Loads without a lease: the store was out of reach, or the key is not to be shared."),
		duplicates: counter("cacheguard_duplicate_loads_total", "Loads that were one too many: another process had brought a newer value, or the fence refused the fill and no write was heard of."),
		loadTime:   histogram("cacheguard_load_seconds", "How long loads took that brought an answer.", workBuckets),
		loadShare:  histogram("cacheguard_load_lease_ratio", "Load time over the length of the lease that was granted for it; above 1 a renewal was needed.", shareBuckets),

		claims:         counter("cacheguard_claims_total", "Claims of a lease, by how the store answered.", "outcome"),
		takeovers:      counter("cacheguard_lease_takeovers_total", "Leases granted after an earlier one had run out without a fill or release: its holder crashed, hung or was paused."),
		secondOpinions: counter("cacheguard_second_opinions_total", "Leases granted to try again what another process had failed to load."),
		leaseLength:    histogram("cacheguard_lease_length_seconds", "Length of the leases that were granted.", leaseBuckets),
		watchdogLate:   histogram("cacheguard_watchdog_late_seconds", "How much too late the watchdog of the leases woke up: pauses and starved processors.", lateBuckets),
		renewals:       counter("cacheguard_lease_renewals_total", "Renewals of leases, by outcome; lost: taken by another process or forgotten by the store, overtaken: ended by a write, lapsed: the lease ran out under its load, since no renewal got through.", "outcome"),

		fills:     counter("cacheguard_fills_total", "Loaded values offered to the store, by outcome; fenced: refused without a write that was heard of, overtaken: refused because of one.", "outcome"),
		fillBytes: histogram("cacheguard_fill_bytes", "Size of loaded values as they are stored.", sizeBuckets),

		callTime:      histogram("cacheguard_store_call_seconds", "How long calls of the store took, failed ones included.", callBuckets, "op"),
		faults:        counter("cacheguard_store_faults_total", "Faults of the store, by class; refused: not asked, because the breaker was open.", "class"),
		breakerOpened: counter("cacheguard_breaker_opened_total", "Times that the store had failed so often that it was not asked any more."),
		panics:        counter("cacheguard_panics_total", "Panics that were recovered, by where: a loader, a hook or other code of the user.", "where"),

		httpAnswers: counter("cacheguard_http_answers_total", "Answers of HTTP caches, by how they came about, why the handler was asked (forwarded), and why the answer was not shared or the request went past the cache (detail).", "result", "forwarded", "detail"),
	}
	f.gauges = c.newGauges()
	f.settings = c.desc("cacheguard_setting_seconds", "Options in force, for alerts to compare with.", "setting")
	return f
}

// counter makes a family and keeps account of it.
func (c *Collector) counter(name, help string, labels ...string) *prometheus.CounterVec {
	labels = append([]string{"guard"}, labels...)
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: c.opts.ConstLabels}, labels)
	c.specs = append(c.specs, spec{name, "counter", help, labels})
	c.parts = append(c.parts, v)
	return v
}

// histogram makes a family that is classic and native at once.
func (c *Collector) histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	labels = append([]string{"guard"}, labels...)
	opts := prometheus.HistogramOpts{Name: name, Help: help, ConstLabels: c.opts.ConstLabels, Buckets: buckets}
	if c.opts.NoClassic {
		opts.Buckets = nil
	}
	if !c.opts.NoNative {
		opts.NativeHistogramBucketFactor = 1.1 // bounds at most a tenth apart
		opts.NativeHistogramMaxBucketNumber = 100
		opts.NativeHistogramMinResetDuration = time.Hour
	}
	v := prometheus.NewHistogramVec(opts, labels)
	c.specs = append(c.specs, spec{name, "histogram", help, labels})
	c.parts = append(c.parts, v)
	return v
}
