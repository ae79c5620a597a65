package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// A stage is one run of the load test.
type stage struct {
	scenarios         string
	replicas, clients int
	load              string
	rounds            int // 0: the flag's
}

// stormResult is what the load test's -json says of one scenario, as far as it
// is needed here.
type stormResult struct {
	Scenario     string          `json:"scenario"`
	Replicas     int             `json:"replicas"`
	OriginLoads  []float64       `json:"origin_loads"`
	OverFloorMS  []float64       `json:"over_floor_ms"`
	StaleValues  *float64        `json:"stale_values"`
	CommandsSent []float64       `json:"commands_sent"`
	RecoveryMS   []float64       `json:"recovery_ms"`
	Promises     map[string]bool `json:"promises"`
}

// stormResults are by stage and scenario.
type stormResults map[stage]map[string]stormResult

// storm runs the load test, stage by stage. That it finds a promise broken is a
// result like any other.
func storm(ctx context.Context, o options, all []stage, log io.Writer) (stormResults, error) {
	if len(all) == 0 {
		return nil, nil
	}
	dir, err := os.MkdirTemp("", "cacheguard-reach-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	results := stormResults{}
	for i, s := range all {
		fmt.Fprintf(log, "%d of %d: load test, %s, %d×%d, load of %s\n", i+1, len(all), s.scenarios, s.replicas, s.clients, s.load)
		rounds := s.rounds
		if rounds == 0 {
			rounds = o.rounds
		}
		file := filepath.Join(dir, fmt.Sprint(i))
		cmd := exec.CommandContext(ctx, "go", "run", "./loadtest", "-mode", "guard", "-scenario", s.scenarios, "-json", file,
			"-replicas", fmt.Sprint(s.replicas), "-clients", fmt.Sprint(s.clients), "-load", s.load, "-rounds", fmt.Sprint(rounds))
		cmd.Dir = o.root
		out, failed := cmd.CombinedOutput()
		if results[s], err = readStorms(file); err != nil {
			return nil, fmt.Errorf("%w: %w\n%s", err, failed, out)
		}
	}
	return results, nil
}

func readStorms(file string) (map[string]stormResult, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var report struct{ Results []stormResult }
	if err := json.Unmarshal(text, &report); err != nil {
		return nil, err
	}
	if len(report.Results) == 0 {
		return nil, errors.New("the load test has no result")
	}
	byName := map[string]stormResult{}
	for _, r := range report.Results {
		byName[r.Scenario] = r
	}
	return byName, nil
}

// overFloor is how much later the slowest 1 % are than at the floor: the median
// of the storms.
type overFloor struct{ stage stage }

func (f overFloor) stages() []stage { return []stage{f.stage} }

func (f overFloor) of(m measured) (reading, bool) {
	r := summary(m.storms[f.stage]["cold"].OverFloorMS)
	r.unit = "p99-ms"
	return r, len(m.storms[f.stage]["cold"].OverFloorMS) > 0
}

// mostLoads is the largest number of loads in any storm.
type mostLoads []stage

func (f mostLoads) stages() []stage { return f }

func (f mostLoads) of(m measured) (reading, bool) {
	return greatest(f, m, "", func(r stormResult) []float64 { return r.OriginLoads })
}

// mostCommands is the largest number of commands in any storm, for each process.
type mostCommands []stage

func (f mostCommands) stages() []stage { return f }

func (f mostCommands) of(m measured) (reading, bool) {
	return greatest(f, m, "", func(r stormResult) (each []float64) {
		for _, n := range r.CommandsSent {
			each = append(each, n/float64(r.Replicas))
		}
		return each
	})
}

func greatest(all []stage, m measured, unit string, of func(stormResult) []float64) (r reading, ok bool) {
	for _, s := range all {
		values := of(m.storms[s]["cold"])
		if len(values) == 0 {
			return r, false
		}
		r.value = max(r.value, slices.Max(values))
	}
	r.lo, r.hi, r.unit = r.value, r.value, unit
	return r, true
}

// slowestRecovery is the longest time from a holder's end to the last answer.
type slowestRecovery struct{ stage stage }

func (f slowestRecovery) stages() []stage { return []stage{f.stage} }

func (f slowestRecovery) of(m measured) (r reading, ok bool) {
	all := m.storms[f.stage]["crash"].RecoveryMS
	if len(all) == 0 {
		return r, false
	}
	v := slices.Max(all)
	return reading{value: v, lo: v, hi: v, unit: "ms"}, true
}

// staleValues are the answers that were older than they may be.
type staleValues struct {
	stage    stage
	scenario string
}

func (f staleValues) stages() []stage { return []stage{f.stage} }

func (f staleValues) of(m measured) (r reading, ok bool) {
	n := m.storms[f.stage][f.scenario].StaleValues
	if n == nil {
		return r, false
	}
	return reading{value: *n, lo: *n, hi: *n}, true
}

// kept is a promise that the load test judges: 1 if it was kept.
type kept struct {
	stage             stage
	scenario, promise string
}

func (f kept) stages() []stage { return []stage{f.stage} }

func (f kept) of(m measured) (r reading, ok bool) {
	held, judged := m.storms[f.stage][f.scenario].Promises[f.promise]
	if !judged {
		return r, false
	}
	r.unit = "kept"
	if held {
		r.value, r.lo, r.hi = 1, 1, 1
	}
	return r, true
}
