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

	// unanswered are calls that Redis did not answer in time.
	unanswered int64
}

const (
	commandsMetric = "demo_redis_commands_sent_total" // with the label "command"
	faultsMetric   = "demo_store_faults_total"        // with the label "class"
	aliveMetric    = "demo_origin_loads_total"        // is on every page
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
	commands, err := readCounter(page, commandsMetric)
	if err != nil {
		return c, err
	}
	for command, n := range commands {
		if !slices.Contains(upkeep, command) {
			c.commands += n
		}
	}
	faults, err := readCounter(page, faultsMetric)
	for class, n := range faults {
		if slices.Contains(noAnswer, class) {
			c.unanswered += n
		}
	}
	return c, err
}

// readCounter reads a counter with one label from a page of metrics, by label.
// One that nothing was added to yet is not on the page.
func readCounter(page []byte, metric string) (map[string]int64, error) {
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(page))
	if err != nil {
		return nil, err
	}
	if families[aliveMetric] == nil {
		return nil, fmt.Errorf("the page does not show %s: it is not demo-api's", aliveMetric)
	}
	found := map[string]int64{}
	for _, m := range families[metric].GetMetric() {
		for _, label := range m.GetLabel() {
			found[label.GetValue()] += int64(m.GetCounter().GetValue())
		}
	}
	return found, nil
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
