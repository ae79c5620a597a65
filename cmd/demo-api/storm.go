package main

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// storm is what many callers met who asked for the hot product at one instant.
type storm struct {
	N       int     `json:"n"` // the how-manieth
	Mode    string  `json:"mode"`
	When    string  `json:"when"`
	Callers int     `json:"callers"`
	Loads   int64   `json:"loads"` // questions to the origin meanwhile
	Errors  int     `json:"errors"`
	Median  float64 `json:"median_ms"`
	Slowest float64 `json:"slowest_ms"`
}

const (
	maxCallers = 1000 // of a storm
	maxRate    = 200  // readers a second that keep asking
	keptStorms = 8

	// maxReaders bounds the steady readers that wait at one time; those beyond
	// it do not ask.
	maxReaders = 2000
)

// When a storm comes.
const (
	stormAsItIs      = "as it is"
	stormExpired     = "just expired"
	stormInvalidated = "just invalidated"
)

var (
	stormTimes = []string{stormExpired, stormInvalidated, stormAsItIs}

	errStorming = errors.New("a storm is under way; wait for its end")
	errEnding   = errors.New("this server is going away")
)

// startStorm lets callers loose on the hot product, and returns when they are
// about to ask.
func (l *live) startStorm(callers int, when string) error {
	if !l.storming.CompareAndSwap(false, true) {
		return errStorming
	}
	prepare := map[string]func(context.Context) error{stormExpired: l.expireHot, stormInvalidated: l.invalidateHot}[when]
	started := l.start(func(ctx context.Context) {
		defer l.storming.Store(false)
		if prepare != nil {
			_ = prepare(ctx) // a store that is away is part of the show
		}
		l.keep(l.rage(ctx, callers, when))
	})
	if !started {
		l.storming.Store(false)
		return errEnding
	}
	return nil
}

// rage is the storm itself.
func (l *live) rage(ctx context.Context, callers int, when string) storm {
	s := storm{Mode: l.mode(), When: when, Callers: callers}
	before := l.catalogue.origin.loads.Load()
	took, failed := make([]time.Duration, callers), make([]bool, callers)
	now := make(chan struct{})
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			<-now
			begin := time.Now()
			failed[i] = l.read(ctx) != nil
			took[i] = time.Since(begin)
		})
	}
	close(now)
	all.Wait()
	if when == stormExpired {
		l.awaitLoad(ctx, before)
	}
	slices.Sort(took)
	for _, f := range failed {
		if f {
			s.Errors++
		}
	}
	s.Loads = l.catalogue.origin.loads.Load() - before
	s.Median, s.Slowest = millis(took[callers/2]), millis(took[callers-1])
	return s
}

// awaitLoad waits for the load that an expired key is to cause: nobody in the
// storm has waited for it, if there was a stale value.
func (l *live) awaitLoad(ctx context.Context, before int64) {
	for range 100 {
		if l.catalogue.origin.loads.Load() > before || sleep(ctx, 5*time.Millisecond) != nil {
			return
		}
	}
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// keep remembers the newest storms, the newest first.
func (l *live) keep(s storm) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.storms++
	s.N = l.storms
	l.kept = slices.Insert(l.kept, 0, s)
	l.kept = l.kept[:min(len(l.kept), keptStorms)]
}

// setRate changes how many steady readers ask each second.
func (l *live) setRate(rate int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopReaders != nil {
		l.stopReaders()
		l.stopReaders = nil
	}
	l.rate = rate
	if rate == 0 {
		return nil
	}
	ctx, stop := context.WithCancel(context.Background())
	if !l.start(func(ending context.Context) { l.readers(ctx, ending, rate) }) {
		stop()
		return errEnding
	}
	l.stopReaders = stop
	return nil
}

// readers ask for the hot product, evenly, until stopped or ending.
func (l *live) readers(stopped, ending context.Context, rate int) {
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	for {
		select {
		case <-stopped.Done():
			return
		case <-ending.Done():
			return
		case <-tick.C:
			if l.reading.Load() < maxReaders {
				l.start(func(ctx context.Context) { _ = l.read(ctx) })
			}
		}
	}
}
