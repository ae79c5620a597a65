package cacheguard

import (
	"context"
	"fmt"
	"time"
)

// takePlace waits, for WaitLimit at most, for a place among the loads without a
// lease, of which there are Options.OutageLoads over all keys, and returns what
// gives it back.
//
// A load that another load asks for runs on the place of that one: were each to
// need its own, loads that hold all places could wait for one more. The flights
// of a GetMany share a place: they are one question to the origin.
func (f *flight[V]) takePlace() (leave func(), err error) {
	take, leave := f.g.takePlace, f.g.leavePlace
	switch {
	case linkFrom(f.ctx) != nil:
		return func() {}, nil
	case f.batch != nil:
		return f.batch.place.take(take, leave)
	}
	return leave, take()
}

func (g *Guard[V]) takePlace() error {
	ctx, cancel := context.WithTimeout(g.ctx, g.opts.WaitLimit)
	defer cancel()
	err := g.outages.Acquire(ctx, 1)
	switch {
	case err == nil:
		return nil
	case g.ctx.Err() != nil:
		return ErrClosed
	}
	return fmt.Errorf("%w: OutageLoads (%d) loads are running without a lease", ErrWaitLimit, g.opts.OutageLoads)
}

func (g *Guard[V]) leavePlace() { g.outages.Release(1) }

// sharedPlace is a place that several flights take together: the first of them
// waits for it, the last gives it back.
type sharedPlace struct {
	state chan placeState // holds one; who has taken it out decides
}

type placeState struct {
	users  int
	err    error     // of the last who waited in vain
	failed time.Time // when that was
}

func newSharedPlace() sharedPlace {
	p := sharedPlace{state: make(chan placeState, 1)}
	p.state <- placeState{}
	return p
}

// take waits for the place with take, unless somebody has it already.
func (p sharedPlace) take(take func() error, leave func()) (func(), error) {
	came := time.Now()
	s := <-p.state
	defer func() { p.state <- s }()
	if s.users == 0 {
		if s.err != nil && !came.After(s.failed) {
			return nil, s.err // it has waited along with the one who tried
		}
		if s.err = take(); s.err != nil {
			s.failed = time.Now()
			return nil, s.err
		}
	}
	s.users++
	return func() { p.leave(leave) }, nil
}

func (p sharedPlace) leave(leave func()) {
	s := <-p.state
	if s.users--; s.users == 0 {
		leave()
	}
	p.state <- s
}
