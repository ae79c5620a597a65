package main

import "time"

// timeline is what came of requests over the time in which they were due, in a
// size that does not grow with their number.
type timeline struct {
	span    time.Duration
	slowest []*float64       // latency in ms, of each part of the time; nil: nothing was due
	states  map[string][]int // how many were answered from where, in each part
	order   []string         // of the states, as they came
}

// timelineParts is how fine it is.
const timelineParts = 120

func newTimeline(span time.Duration) *timeline {
	return &timeline{span: span, slowest: make([]*float64, timelineParts), states: map[string][]int{}}
}

// add notes a request that was due at some time since the begin.
func (l *timeline) add(due, latency time.Duration, state string) {
	i := min(int(due*timelineParts/l.span), timelineParts-1)
	if took := hundredth(milliseconds(latency)); l.slowest[i] == nil || *l.slowest[i] < took {
		l.slowest[i] = &took
	}
	if l.states[state] == nil {
		l.states[state] = make([]int, timelineParts)
		l.order = append(l.order, state)
	}
	l.states[state][i]++
}

// seconds are the middles of the parts.
func (l *timeline) seconds() []float64 {
	at := make([]float64, timelineParts)
	for i := range at {
		at[i] = hundredth(l.span.Seconds() * (float64(i) + 0.5) / timelineParts)
	}
	return at
}

// perSecond are the requests of a state in each part, as a rate.
func (l *timeline) perSecond(state string) []*float64 {
	rates := make([]*float64, timelineParts)
	for i, n := range l.states[state] {
		rate := hundredth(float64(n) * timelineParts / l.span.Seconds())
		rates[i] = &rate
	}
	return rates
}
