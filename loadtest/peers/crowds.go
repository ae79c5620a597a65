package main

import (
	"context"
	"fmt"
)

// What is about seconds runs for all strategies at one time: their callers are
// few, and mostly sleep.
const (
	crowd        = 4 // processes of each strategy
	crowdCallers = 5 // of each process
)

// crowds are fleets of all strategies.
type crowds []*fleet

// together runs measure with a fleet of each strategy.
func (st *stage) together(ctx context.Context, all []strategy, processes int, measure func(crowds) error) error {
	var c crowds
	defer func() { c.stop() }()
	for _, s := range all {
		f, err := st.start(ctx, s, processes)
		if err != nil {
			return err
		}
		c = append(c, f)
	}
	return measure(c)
}

func (c crowds) stop() {
	for _, f := range c {
		f.stop()
	}
}

// create makes a key for each fleet.
func (c crowds) create(what string, i item) (keys []string) {
	for _, f := range c {
		key := what + "-" + f.strategy.name
		f.create(key, i.service, i.failing)
		keys = append(keys, key)
	}
	return keys
}

// ends waits for calls of each fleet.
func ends[Reply any](ctx context.Context, c crowds, calls []*waiting[Reply], each func(f *fleet, replies []Reply) error) error {
	for i, f := range c {
		replies, err := calls[i].end(ctx)
		if err == nil {
			err = each(f, replies)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", f.strategy.name, err)
		}
	}
	return nil
}
