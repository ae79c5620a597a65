package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// report is what -json writes. A field that does not apply is absent: a zero
// always means that something was counted and was none.
type report struct {
	Redis   redisInfo `json:"redis"`
	Results []result  `json:"results"`
}

type redisInfo struct {
	Kind    string `json:"kind"` // redis-server, embedded or given
	Version string `json:"version"`

	// Priority: where processors are short it goes before the processes of the
	// fleet. Only a redis-server that was started here can have it.
	Priority bool `json:"priority"`
}

func (i redisInfo) describe() string {
	switch i.Kind {
	case kindEmbedded:
		return "an embedded Redis (miniredis " + i.Version + "), for there is no redis-server on PATH"
	case kindGiven:
		return "the Redis that was given (version " + i.Version + ")"
	}
	if !i.Priority {
		return "redis-server " + i.Version + ", which waits for a processor like the fleet"
	}
	return "redis-server " + i.Version + ", which does not wait for a processor behind the fleet"
}

// result is one scenario in one mode.
type result struct {
	Scenario string  `json:"scenario"`
	Mode     string  `json:"mode"`
	Replicas int     `json:"replicas"`
	Clients  int     `json:"clients"` // of each replica
	LoadMS   float64 `json:"load_ms"`
	Rounds   int     `json:"rounds"`

	OriginLoads  []int64         `json:"origin_loads,omitzero"` // of each round
	LatencyMS    *quantiles      `json:"latency_ms,omitzero"`
	FloorMS      *floorQuantiles `json:"floor_ms,omitzero"`
	OverFloorMS  []float64       `json:"over_floor_ms,omitzero"` // of each round: its p99 over that of its floor
	Errors       *int64          `json:"errors,omitzero"`
	WrongValues  *int64          `json:"wrong_values,omitzero"`
	StaleValues  *int64          `json:"stale_values,omitzero"`
	CommandsSent []int64         `json:"commands_sent,omitzero"` // of each round, by the whole fleet
	RecoveryMS   []float64       `json:"recovery_ms,omitzero"`   // of each round

	// Where requests come at a rate: how many a second were sent, and how many
	// of them more than lateAfter after they were due.
	Rate float64 `json:"rate,omitzero"`
	Late *int    `json:"late,omitzero"`

	Promises map[string]bool `json:"promises,omitzero"` // those that were judged
	Pass     *bool           `json:"pass,omitzero"`

	seen     evidence // what the plots are drawn from
	verdicts []namedVerdict
	perRound int64 // most commands that one process sent in a round
}

type quantiles struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`

	// P999 is there where requests come at a rate.
	P999 float64 `json:"p999,omitzero"`
}

type floorQuantiles struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

type namedVerdict struct {
	promise
	verdict
}

// result sums up the rounds. Promises are judged in mode guard, and only if
// all rounds were run.
func (t tally) result(complete bool) result {
	res := result{
		Scenario: t.scenario.name, Mode: t.mode,
		Replicas: t.opts.replicas, Clients: t.opts.clients, LoadMS: milliseconds(t.opts.load), Rounds: len(t.rounds),
		Errors: new(int64), WrongValues: new(int64),
		OverFloorMS: t.overFloor(),
	}
	latency, floor := newLatencies(), newLatencies()
	for _, r := range t.rounds {
		if r.keys == nil || len(r.keys) > 0 {
			res.OriginLoads = append(res.OriginLoads, r.loads)
		}
		*res.Errors += r.errors
		if r.steady != nil {
			res.Rate, res.Late = r.steady.rate, &r.steady.late
		}
		*res.WrongValues += r.wrong
		latency.h.Merge(r.latencies().h)
		floor.h.Merge(r.floorLatencies().h)
		if len(r.commands) > 0 {
			res.perRound = max(res.perRound, slices.Max(r.commands))
			res.CommandsSent = append(res.CommandsSent, r.sent())
		}
		if r.recovery > 0 {
			res.RecoveryMS = append(res.RecoveryMS, hundredth(milliseconds(r.recovery)))
		}
		if r.staleFor {
			if res.StaleValues == nil {
				res.StaleValues = new(int64)
			}
			*res.StaleValues += r.stale
		} else {
			*res.WrongValues += r.stale
		}
	}
	res.seen = t.evidence(latency, floor)
	if latency.h.TotalCount() > 0 {
		res.LatencyMS = latency.quantiles()
		if res.Late != nil {
			res.LatencyMS.P999 = latency.quantile(0.999)
		}
	}
	if floor.h.TotalCount() > 0 {
		res.FloorMS = &floorQuantiles{P50: floor.quantile(0.5), P99: floor.quantile(0.99)}
	}
	if t.mode == "guard" && complete {
		res.judge(t)
	}
	return res
}

func (res *result) judge(t tally) {
	pass := true
	for _, p := range t.scenario.promises {
		v := p.judge(t)
		res.verdicts = append(res.verdicts, namedVerdict{p, v})
		if !v.Judged {
			continue
		}
		if res.Promises == nil {
			res.Promises = map[string]bool{}
		}
		res.Promises[p.name] = v.Kept
		pass = pass && v.Kept
	}
	res.Pass = &pass
}

// broken is how many promises were not kept, but for the excused ones.
func (r report) broken(excused ...string) (n int) {
	for _, res := range r.Results {
		for name, kept := range res.Promises {
			if !kept && !slices.Contains(excused, name) {
				n++
			}
		}
	}
	return n
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func writeJSON(file string, results any) error {
	data, err := json.MarshalIndent(results, "", "  ")
	if err == nil {
		err = writeWhole(file, append(data, '\n'))
	}
	if err != nil {
		return fmt.Errorf("cannot write the results (%w); use -json with a file that can be written", err)
	}
	return nil
}
