package main

import (
	"math"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// latencies is a histogram of how long callers waited, from a microsecond to
// callLimit, to three digits.
type latencies struct{ h *hdrhistogram.Histogram }

func newLatencies() latencies {
	return latencies{hdrhistogram.New(1, (2 * callLimit).Microseconds(), 3)}
}

func (l latencies) add(d time.Duration) {
	// Out of range cannot be: a call ends with callLimit.
	_ = l.h.RecordValue(max(1, d.Microseconds()))
}

// quantile returns the latency in milliseconds that a share of callers did not
// exceed, to a hundredth.
func (l latencies) quantile(share float64) float64 {
	return hundredth(float64(l.h.ValueAtQuantile(100*share)) / 1000)
}

func (l latencies) max() float64 { return hundredth(float64(l.h.Max()) / 1000) }

func (l latencies) quantiles() *quantiles {
	return &quantiles{P50: l.quantile(0.5), P90: l.quantile(0.9), P99: l.quantile(0.99), Max: l.max()}
}

func hundredth(v float64) float64 { return math.Round(100*v) / 100 }

// latencies of the answers of one round.
func (r round) latencies() latencies {
	l := newLatencies()
	for _, a := range r.answers {
		if !a.failed() { // how long an error took is another question
			l.add(a.latency)
		}
	}
	return l
}

func (r round) floorLatencies() latencies {
	l := newLatencies()
	for _, d := range r.floor {
		l.add(d)
	}
	return l
}

// overFloor returns, for each round that measured its floor, how much later its
// 99th percentile was, in milliseconds; each counted from the end of what was
// waited for, the load there, the sleep here. (A load takes longer than the
// origin does: its process asks over HTTP.)
func (t tally) overFloor() []float64 {
	var over []float64
	for _, r := range t.rounds {
		if len(r.floor) > 0 {
			over = append(over, hundredth(
				(r.latencies().quantile(0.99)-milliseconds(r.took))-(r.floorLatencies().quantile(0.99)-milliseconds(r.slept))))
		}
	}
	return over
}
