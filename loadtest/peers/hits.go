package main

import (
	"context"
	"fmt"
	"time"

	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

// goroutines that read one hot key, in one process.
var goroutines = []int{1, 32, 256}

// hit is what reads cost at a number of goroutines.
type hit struct {
	Goroutines int
	NanosEach  float64 // of the clock, all goroutines together
	Allocs     float64 // of each read
}

// runHits lets one process of each strategy alone have the machine.
func runHits(ctx context.Context, r *run) error {
	return withStage(ctx, r.progress, func(st *stage, _ *redistest.Server) (err error) {
		for _, s := range r.only {
			st.step("hits: %s", s.name)
			if r.report.of(s).Hits, err = st.hits(ctx, s, r.hits); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
		st.step("hits: what they are made of")
		r.report.Reads, err = readings(ctx, st.redis, r.hits)
		return err
	})
}

func (st *stage) hits(ctx context.Context, s strategy, d time.Duration) (out []hit, err error) {
	f, err := st.start(ctx, s, 1)
	if err != nil {
		return nil, err
	}
	defer f.stop()
	key := "hit-" + s.name
	st.create(key, time.Millisecond, false)
	for _, n := range goroutines {
		replies, err := on[HitsArgs, HitsReply](ctx, f.workers, "Hits", HitsArgs{Key: key, Goroutines: n, For: d})
		if err != nil {
			return nil, err
		}
		r := replies[0]
		out = append(out, hit{n, float64(r.Took) / float64(r.Reads), float64(r.Allocs) / float64(r.Reads)})
	}
	return out, nil
}
