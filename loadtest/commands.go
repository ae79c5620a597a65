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

// The commands that a storm sends are counted by each process at its sockets,
// and read from its /metrics. The server's own counters cannot do it: they add
// what scripts call to what clients send.

// commandsMetric is the counter's name, with the label "command".
const commandsMetric = "demo_redis_commands_sent_total"

// upkeep are commands that open and keep connections. They come and go with
// time, not with storms.
var upkeep = []string{"hello", "auth", "client", "select", "ping", "subscribe", "ssubscribe", "unsubscribe", "readonly", "cluster"}

// commandsSent returns how many commands each process has sent, ever.
func (f *fleet) commandsSent(ctx context.Context) ([]int64, error) {
	counts := make([]int64, len(f.replicas))
	for i, r := range f.replicas {
		page, err := f.fetch(ctx, r, "/metrics")
		if err != nil {
			return nil, fmt.Errorf("reading the counters of a process: %w", err)
		}
		if counts[i], err = sumCommands(page); err != nil {
			return nil, err
		}
	}
	return counts, nil
}

// sumCommands adds up the commands on a page of metrics.
func sumCommands(page []byte) (int64, error) {
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(page))
	if err != nil {
		return 0, fmt.Errorf("reading the counters of a process: %w", err)
	}
	family := families[commandsMetric]
	if family == nil {
		return 0, fmt.Errorf("a process does not show %s", commandsMetric)
	}
	var sum int64
	for _, m := range family.GetMetric() {
		for _, label := range m.GetLabel() {
			if label.GetName() == "command" && !slices.Contains(upkeep, label.GetValue()) {
				sum += int64(m.GetCounter().GetValue())
			}
		}
	}
	return sum, nil
}

// settledCommands returns the counts once the origin is idle and no process
// sends anything any more: what is done in the background after the last
// answer belongs to the storm.
func (f *fleet) settledCommands(ctx context.Context, o *origin) ([]int64, error) {
	if err := o.settle(ctx); err != nil {
		return nil, err
	}
	last, err := f.commandsSent(ctx)
	for range 100 {
		if err != nil {
			return nil, err
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return nil, err
		}
		now, err := f.commandsSent(ctx)
		if err == nil && slices.Equal(now, last) {
			return now, nil
		}
		last = now
	}
	return nil, errors.New("the fleet still sends commands to Redis 2s after the storm")
}
