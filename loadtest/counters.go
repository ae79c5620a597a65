package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// counters are what a process has counted since it began.
type counters struct {
	// commands that it sent to Redis, counted at its sockets. The server's own
	// counters cannot tell: they add what scripts call to what clients send.
	commands int64

	// evals are those among them that carry a whole script. The store sends one
	// with a read when what it knows of the server's clock is some seconds old.
	evals int64

	// unanswered are calls that Redis did not answer in time.
	unanswered int64

	loads   int64         // of the origin
	loading time.Duration // that they took
}

const (
	commandsMetric = "demo_redis_commands_sent_total" // with the label "command"
	faultsMetric   = "demo_store_faults_total"        // with the label "class"
	loadsMetric    = "demo_origin_loads_total"        // is on every page
	loadingMetric  = "demo_origin_load_seconds_total"
)

// upkeep are commands that open and keep connections. They come and go with
// time, not with storms.
var upkeep = []string{"hello", "auth", "client", "select", "ping", "subscribe", "ssubscribe", "unsubscribe", "readonly", "cluster"}

// noAnswer are the classes of faults that say that Redis was not there in time:
// store.ClassTimeout and its like. What it answered wrongly is not among them.
var noAnswer = []string{"timeout", "connection", "pool", "loading"}

// counters returns those of each process.
func (f *fleet) counters(ctx context.Context) ([]counters, error) {
	all := make([]counters, len(f.replicas))
	for i, r := range f.replicas {
		page, err := f.fetch(ctx, r, "/metrics")
		if err == nil {
			all[i], err = readCounters(page)
		}
		if err != nil {
			return nil, fmt.Errorf("reading the counters of a process: %w", err)
		}
	}
	return all, nil
}

func readCounters(page []byte) (c counters, err error) {
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(page))
	if err != nil {
		return c, err
	}
	if families[loadsMetric] == nil {
		return c, fmt.Errorf("the page does not show %s: it is not demo-api's", loadsMetric)
	}
	// A counter with a label that nothing was added to yet is not on the page.
	each := func(metric string, count func(label string, value float64)) {
		for _, m := range families[metric].GetMetric() {
			label := ""
			for _, l := range m.GetLabel() {
				label = l.GetValue()
			}
			count(label, m.GetCounter().GetValue())
		}
	}
	each(commandsMetric, func(command string, n float64) {
		if !slices.Contains(upkeep, command) {
			c.commands += int64(n)
		}
		if command == "eval" {
			c.evals += int64(n)
		}
	})
	each(faultsMetric, func(class string, n float64) {
		if slices.Contains(noAnswer, class) {
			c.unanswered += int64(n)
		}
	})
	each(loadsMetric, func(_ string, n float64) { c.loads += int64(n) })
	each(loadingMetric, func(_ string, seconds float64) { c.loading += time.Duration(seconds * float64(time.Second)) })
	return c, nil
}

// settledCounters returns the counters once the origin is idle and no process
// sends anything any more: what is done in the background after the last
// answer belongs to the storm.
func (f *fleet) settledCounters(ctx context.Context, o *origin) ([]counters, error) {
	if err := o.settle(ctx); err != nil {
		return nil, err
	}
	last, err := f.counters(ctx)
	for range 100 {
		if err != nil {
			return nil, err
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return nil, err
		}
		var now []counters
		if now, err = f.counters(ctx); err == nil && slices.Equal(now, last) {
			return now, nil
		}
		last = now
	}
	return nil, errors.New("the fleet still sends commands to Redis 2s after the storm")
}
