package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"
)

// uncacheable: pages that are for one user each. Different users ask for one of
// them at one instant; nobody knows yet that waiting is in vain. Then others do,
// and by then it is known.
var uncacheable = scenario{
	name:     "uncacheable",
	about:    fmt.Sprintf("%d users of each process ask at one instant for a page that is another for each of them, for one of %d reasons; then as many others do", uncacheableUsers, len(ownPages)),
	lifetime: longLife,
	prepare:  warmPages,
	round:    uncacheableRound,
	promises: []promise{rightPages, ownRuns, notQueued, firstNotQueued},
}

// uncacheableUsers is how many users each process has: fewer than callers, for
// each costs a run of its own.
const uncacheableUsers = 10

// ownPages are the kinds of pages, with the header that each must have.
var ownPages = map[string]func(who string) map[string]string{
	"private":       func(string) map[string]string { return map[string]string{"Cache-Control": "private, max-age=60"} },
	"no-store":      func(string) map[string]string { return map[string]string{"Cache-Control": "no-store"} },
	"authorization": func(string) map[string]string { return map[string]string{"Cache-Control": "max-age=60"} },
	"set-cookie": func(who string) map[string]string {
		return map[string]string{"Cache-Control": "max-age=60", "Set-Cookie": "session=" + who}
	},
	"vary": func(string) map[string]string {
		return map[string]string{"Cache-Control": "max-age=60", "Vary": "X-User"}
	},
}

func uncacheableRound(ctx context.Context, sh *show, n int) (r round, err error) {
	r = round{key: sh.key(n), keys: []string{}, paged: &paged{first: map[string]float64{}, second: map[string]float64{}}}
	return r, r.countingUnanswered(ctx, sh, func() error { return r.askForAllKinds(ctx, sh) })
}

// askForAllKinds is two storms of each kind of page. The floor is asked for
// before each and after both: a storm is measured by the slower of the two that
// are next to it, so that a machine that was busy for a moment is not taken for a
// cache that queues.
func (r *round) askForAllKinds(ctx context.Context, sh *show) error {
	callers := sh.callers[:min(len(sh.callers), uncacheableUsers*len(sh.fleet.replicas))]
	for _, kind := range slices.Sorted(maps.Keys(ownPages)) {
		key := r.key + "-" + kind
		runs := map[string]bool{}
		first, firstFloor, err := r.askByTheFloor(ctx, sh, callers, kind, key, "first", runs)
		if err != nil {
			return err
		}
		second, secondFloor, err := r.askByTheFloor(ctx, sh, callers, kind, key, "second", runs)
		if err != nil {
			return err
		}
		last, err := floorOf(ctx, sh, callers, key)
		if err != nil {
			return err
		}
		r.paged.first[kind] = hundredth(slowest(first) - 2*max(firstFloor, secondFloor))
		r.paged.second[kind] = hundredth(slowest(second) - max(secondFloor, last))
		r.paged.alone += notAtOnce(callers, second)
	}
	return nil
}

// askByTheFloor is askOwn, right after the floor.
func (r *round) askByTheFloor(ctx context.Context, sh *show, callers []*caller, kind, key, storm string, runs map[string]bool) ([]answer, float64, error) {
	floor, err := floorOf(ctx, sh, callers, key)
	if err != nil {
		return nil, 0, err
	}
	return r.askOwn(ctx, sh, callers, kind, key, storm, runs), floor, nil
}

// askOwn lets each caller, as a user of its own, ask for one page at one instant,
// and judges the answers. A run of the handler that is in runs has made another
// user's page.
func (r *round) askOwn(ctx context.Context, sh *show, callers []*caller, kind, key, storm string, runs map[string]bool) []answer {
	user := func(i int) string { return fmt.Sprintf("user-%d-of-the-%s", i, storm) }
	answers := askAtOnce(ctx, callers, func(i int, at time.Time) []byte {
		path := kindPath(kind, key, sh.opts.load)
		if kind == "authorization" {
			return pageRequest(path, at, "Authorization", "Bearer "+user(i))
		}
		return pageRequest(path, at, "X-User", user(i))
	})
	for i, a := range answers {
		page, err := readKind(a, kind, key, user(i), ownPages[kind](user(i)))
		if err == nil && runs[page.Run] {
			err = fmt.Errorf("run %s made the pages of two users", page.Run)
		}
		runs[page.Run] = true
		r.judgePage(a, err)
	}
	return answers
}

// notAtOnce counts the processes that did not run the handler for all their
// callers at once.
func notAtOnce(callers []*caller, answers []answer) (processes int64) {
	asked, most := map[*replica]int{}, map[*replica]int{}
	for i, c := range callers {
		asked[c.replica]++
		atOnce, _ := strconv.Atoi(answers[i].header.Get("X-Page-At-Once")) // none: 0
		most[c.replica] = max(most[c.replica], atOnce)
	}
	for r, n := range asked {
		if most[r] != n {
			processes++
		}
	}
	return processes
}

var ownRuns = promise{
	name: "parallel", text: "once it is known that a page is not for everybody, every process runs the handler for all who ask at once",
	judge: func(t tally) verdict {
		return judgeRounds(t, "all at once", func(r round) bool { return r.paged.alone == 0 })
	},
}

var notQueued = promise{
	name: "own-second", text: "whoever asks then is answered within 1.05 times the handler's time, as the slowest at the floor sees it",
	judge: func(t tally) verdict {
		return judgeEach(t, 0.05*milliseconds(t.opts.load), func(r round) map[string]float64 { return r.paged.second })
	},
}

var firstNotQueued = promise{
	name: "own-first", text: fmt.Sprintf("whoever asks before that is answered within twice that time, and %.1f ms", overFloor),
	judge: func(t tally) verdict {
		return judgeEach(t, overFloor, func(r round) map[string]float64 { return r.paged.first })
	},
}

// judgeEach judges the differences of each kind of page by themselves, so that
// one kind that is slow cannot hide behind the others. It returns the worst
// verdict.
func judgeEach(t tally, limit float64, of func(round) map[string]float64) verdict {
	worst := verdict{Why: "nothing was measured"}
	for n, kind := range slices.Sorted(maps.Keys(ownPages)) {
		var differences []float64
		for _, r := range t.rounds {
			differences = append(differences, of(r)[kind])
		}
		v := judgeOver(differences, limit)
		if v.Why = kind + ": " + v.Why; n == 0 || badness(v) > badness(worst) {
			worst = v
		}
	}
	return worst
}

// badness orders verdicts: kept, not judged, broken.
func badness(v verdict) int {
	switch {
	case !v.Judged:
		return 1
	case !v.Kept:
		return 2
	}
	return 0
}
