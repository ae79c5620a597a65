package main

import (
	"fmt"
	"slices"
	"time"
)

// promise is what mode guard must keep in a scenario. Those with a number have
// it everywhere in the project.
type promise struct {
	name string // key in the JSON
	text string // for a reader who knows nothing
	// judge looks at all rounds.
	judge func(t tally) verdict
}

// verdict says whether a promise was kept.
type verdict struct {
	Kept   bool
	Judged bool   // false: there was too little to tell
	Why    string // what was seen
}

func kept(ok bool, format string, args ...any) verdict {
	return verdict{Kept: ok, Judged: true, Why: fmt.Sprintf(format, args...)}
}

var oneLoad = promise{
	name: "P1", text: "the origin is asked once in each storm, whatever the number of processes and callers",
	judge: func(t tally) verdict {
		return judgeRounds(t, "one load", func(r round) bool { return r.loads == 1 })
	},
}

// judgeRounds judges a promise that presumes that Redis answers. A round in
// which it did not, and which is not good, says nothing.
func judgeRounds(t tally, good string, isGood func(round) bool) verdict {
	yes, void := 0, 0
	for _, r := range t.rounds {
		switch {
		case isGood(r):
			yes++
		case r.unanswered > 0:
			void++
		}
	}
	v := kept(yes+void == len(t.rounds), "%s in %d of %d storms", good, yes, len(t.rounds))
	if void > 0 {
		v.Why += fmt.Sprintf("; in %d Redis left calls unanswered for too long", void)
	}
	v.Judged = yes > 0 || !v.Kept
	return v
}

// ifRedisAnswers is a promise that presumes it in all rounds: whoever can ask
// neither Redis nor the origin has nothing to answer with.
func ifRedisAnswers(p promise) promise {
	judge := p.judge
	p.judge = func(t tally) verdict {
		v := judge(t)
		var unanswered int64
		for _, r := range t.rounds {
			unanswered += r.unanswered
		}
		if !v.Kept && unanswered > 0 {
			v.Judged = false
			v.Why += fmt.Sprintf("; Redis left %d calls unanswered for too long", unanswered)
		}
		return v
	}
	return p
}

var oneTakesOver = promise{
	name: "P4", text: "when the process that loads is gone, one of the others takes over, and only one",
	judge: func(t tally) verdict {
		return judgeRounds(t, "one takes over", func(r round) bool { return r.takeovers == 1 })
	},
}

// A lease that is tuned lasts twice the load that it is for, but not less than
// its floor.
const (
	leaseHeadroom = 2
	leaseFloor    = 250 * time.Millisecond
)

var shortRecovery = promise{
	name: "recovery", text: fmt.Sprintf("its end delays the others, besides the load that they wait for anyway, by no more than a lease that is tuned: %d times the load, at least %v", leaseHeadroom, leaseFloor),
	judge: func(t tally) verdict {
		var delays []float64
		for _, r := range t.rounds {
			if r.unanswered == 0 { // else it may be Redis that delayed them
				delays = append(delays, hundredth(milliseconds(r.recovery-t.opts.load)))
			}
		}
		return judgeOver(delays, milliseconds(max(leaseHeadroom*t.opts.load, leaseFloor)))
	},
}

var noOldFill = promise{
	name: "P3", text: "a process that was stopped past its lease stores nothing old when it goes on",
	judge: func(t tally) verdict {
		bad := 0
		for _, r := range t.rounds {
			if r.stale > 0 {
				bad++
			}
		}
		return kept(bad == 0, "in %d of %d storms the old value was stored in the end", bad, len(t.rounds))
	},
}

var noOldValue = promise{
	name: "P2", text: "a read that starts after a write was answered sees it, in every process",
	judge: func(t tally) verdict {
		var stale, reads int64
		for _, r := range t.rounds {
			stale += r.stale
			reads += int64(len(r.answers))
		}
		return kept(stale == 0, "%d of %d reads saw an old value", stale, reads)
	},
}

var rightAnswers = promise{
	name: "answers", text: "each caller gets the product that it asked for, in a version that exists, and no error",
	judge: func(t tally) verdict {
		var errors, wrong, all int64
		for _, r := range t.rounds {
			errors += r.errors
			wrong += r.wrong
			if !r.staleFor {
				wrong += r.stale // there nothing old can be
			}
			all += int64(len(r.answers))
		}
		return kept(errors+wrong == 0 && all > 0, "%d answers: %d errors, %d wrong", all, errors, wrong)
	},
}

var nobodyWaits = promise{
	name: "no-wait", text: "while a stale value is there, no caller waits for the load",
	judge: func(t tally) verdict {
		var waited int64
		for _, r := range t.rounds {
			waited += r.waited
		}
		return kept(waited == 0, "%d callers waited", waited)
	},
}

// maxCommands is how many commands a process may send for a key that is not
// there: look, claim, and fill or look again. It does not grow with the number
// of callers, nor with the length of the load.
//
// Who comes so late that the value is there already reads it, with one command
// more. (Whoever comes while a read is under way must not share it.)
const maxCommands = 3

var fewCommands = promise{
	name: "commands", text: fmt.Sprintf("no process sends more than %d commands to Redis for one missing key", maxCommands),
	judge: func(t tally) verdict {
		return judgeRounds(t, fmt.Sprintf("at most %d", maxCommands), func(r round) bool {
			for i, n := range r.commands {
				if n > maxCommands+r.found[i] {
					return false
				}
			}
			return len(r.commands) > 0
		})
	},
}

// overFloor is how many milliseconds the slowest callers may be behind the
// floor.
const overFloor = 1.5

var nearFloor = promise{
	name: "floor", text: fmt.Sprintf("the slowest 1%% of callers are at most %.1f ms slower than the floor: the same callers, without a cache, at a handler that sleeps as long", overFloor),
	judge: func(t tally) verdict {
		return judgeOver(t.overFloor(), overFloor)
	},
}

// judgeOver says whether the median difference is within a limit, if that can
// be told. Single rounds vary by more than the limit on a busy machine, in both
// directions; so a median above it counts as broken only if a sign test says, at
// 5 %, that it is not by chance. Between the two nothing is said.
func judgeOver(differences []float64, limit float64) verdict {
	if len(differences) < minRounds {
		return verdict{Why: fmt.Sprintf("at least %d rounds are needed", minRounds)}
	}
	above := 0
	for _, d := range differences {
		if d > limit {
			above++
		}
	}
	middle := median(differences)
	seen := fmt.Sprintf("median %+.1f ms; more than %.1f ms in %d of %d rounds", middle, limit, above, len(differences))
	switch {
	case middle <= limit:
		return verdict{Judged: true, Kept: true, Why: seen}
	case binomialTail(len(differences), above) <= 0.05:
		return verdict{Judged: true, Why: seen}
	}
	return verdict{Why: seen + ": more rounds are needed to tell"}
}

// minRounds is the least with which a sign test can tell anything: 2^-5 < 5 %.
const minRounds = 5

// binomialTail is the chance of k or more heads in n throws of a coin.
func binomialTail(n, k int) float64 {
	// chance is C(n, i) / 2^n, from i = 0 on.
	chance, tail := 1.0, 0.0
	for range n {
		chance /= 2
	}
	for i := 0; i <= n; i++ {
		if i >= k {
			tail += chance
		}
		chance *= float64(n-i) / float64(i+1)
	}
	return tail
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	if n%2 == 1 {
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}
