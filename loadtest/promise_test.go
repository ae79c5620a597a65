package main

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestBinomialTailIsThatOfAFairCoin(t *testing.T) {
	for _, c := range []struct {
		n, k int
		want float64
	}{
		{5, 5, 1.0 / 32}, {5, 0, 1}, {5, 6, 0}, {1, 1, 0.5},
		{20, 15, 0.020694732666015625}, {20, 14, 0.05765914916992188},
	} {
		if got := binomialTail(c.n, c.k); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("binomialTail(%d, %d) = %v, want %v", c.n, c.k, got, c.want)
		}
	}
}

func TestALimitIsBrokenOnlyWhenChanceCannotExplainIt(t *testing.T) {
	for _, c := range []struct {
		name         string
		differences  []float64
		judged, kept bool
	}{
		{"too few rounds", []float64{9, 9, 9, 9}, false, false},
		{"within", []float64{1, 1.2, 0.3, -4, 1.4}, true, true},
		{"one bad round does not break it", []float64{0.1, 90, 0.2, 0.3, 0.1}, true, true},
		{"above in each of five", []float64{1.6, 1.7, 2, 3, 1.9}, true, false},
		{"above in four of five may be chance", []float64{1.6, 1.7, 2, 3, 0}, false, false},
		{"above in fifteen of twenty", append(slices.Repeat([]float64{2}, 15), slices.Repeat([]float64{0}, 5)...), true, false},
		{"above in fourteen of twenty may be chance", append(slices.Repeat([]float64{2}, 14), slices.Repeat([]float64{0}, 6)...), false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if v := judgeOver(c.differences, 1.5); v.Judged != c.judged || v.Kept != c.kept {
				t.Errorf("judgeOver = %+v, want judged %v, kept %v", v, c.judged, c.kept)
			}
		})
	}
}

// aTally has two good rounds, for tests to spoil.
func aTally() tally {
	good := func(key string) round {
		return round{
			key: key, loads: 1, commands: []int64{3, 2}, found: []int64{0, 0}, takeovers: 1,
			answers: []answer{{status: 200, state: "rebuilt", product: productOf(key, 1)}, {status: 200, state: "followed", product: productOf(key, 1)}},
		}
	}
	return tally{scenario: cold, mode: "guard", rounds: []round{good("a"), good("b")}}
}

func TestEachPromiseCanBeBroken(t *testing.T) {
	for _, c := range []struct {
		promise promise
		spoil   func(*round)
	}{
		{oneLoad, func(r *round) { r.loads = 2 }},
		{oneLoad, func(r *round) { r.loads = 0 }},
		{noOldValue, func(r *round) { r.stale = 1 }},
		{noOldFill, func(r *round) { r.stale = 1 }},
		{oneTakesOver, func(r *round) { r.takeovers = 0 }},
		{oneTakesOver, func(r *round) { r.takeovers = 2 }},
		{nobodyWaits, func(r *round) { r.waited = 1 }},
		{fewCommands, func(r *round) { r.commands[1] = 4 }},
		{fewCommands, func(r *round) { r.commands = nil }},
		{rightAnswers, func(r *round) { r.errors = 1 }},
		{rightAnswers, func(r *round) { r.wrong = 1 }},
		{rightAnswers, func(r *round) { r.stale = 1 }},
	} {
		good := aTally()
		if v := c.promise.judge(good); !v.Judged || !v.Kept {
			t.Errorf("%s: good rounds are judged %+v", c.promise.name, v)
		}
		bad := aTally()
		c.spoil(&bad.rounds[1])
		if v := c.promise.judge(bad); !v.Judged || v.Kept {
			t.Errorf("%s: a bad round is judged %+v", c.promise.name, v)
		}
	}
}

func TestRecoveryIsAsShortAsATunedLease(t *testing.T) {
	for _, c := range []struct {
		load, recovery, after time.Duration // after: of the last two rounds
		unanswered            int64         // of the last two rounds
		judged, kept          bool
	}{
		{300 * time.Millisecond, 900 * time.Millisecond, 900 * time.Millisecond, 0, true, true},
		{300 * time.Millisecond, 901 * time.Millisecond, 901 * time.Millisecond, 0, true, false},
		{300 * time.Millisecond, 750 * time.Millisecond, 3300 * time.Millisecond, 0, true, true}, // two bad rounds of seven may be chance
		{300 * time.Millisecond, 3300 * time.Millisecond, 750 * time.Millisecond, 0, false, false},
		{50 * time.Millisecond, 300 * time.Millisecond, 300 * time.Millisecond, 0, true, true}, // the floor
		{50 * time.Millisecond, 301 * time.Millisecond, 301 * time.Millisecond, 0, true, false},
		{50 * time.Millisecond, 300 * time.Millisecond, time.Minute, 1, true, true},
	} {
		tl := tally{scenario: crash, mode: "guard", opts: options{load: c.load}}
		for range 5 {
			tl.rounds = append(tl.rounds, round{recovery: c.recovery})
		}
		for range 2 {
			tl.rounds = append(tl.rounds, round{recovery: c.after, unanswered: c.unanswered})
		}
		if v := shortRecovery.judge(tl); v.Judged != c.judged || v.Kept != c.kept {
			t.Errorf("%+v: %+v", c, v)
		}
	}
}

func TestARoundWithoutRedisSaysNothingAboutLoads(t *testing.T) {
	tl := aTally()
	tl.rounds[0].loads, tl.rounds[0].unanswered = 2, 1
	if v := oneLoad.judge(tl); !v.Judged || !v.Kept || !strings.Contains(v.Why, "in 1 Redis left calls unanswered") {
		t.Errorf("one round without Redis: %+v", v)
	}
	tl.rounds[1].loads = 2
	if v := oneLoad.judge(tl); !v.Judged || v.Kept {
		t.Errorf("and a bad one with it: %+v", v)
	}
	tl.rounds[1].unanswered = 1
	if v := oneLoad.judge(tl); v.Judged {
		t.Errorf("no round with Redis: %+v", v)
	}
}

func TestACallerWhoComesLateMayReadOnceMore(t *testing.T) {
	tl := aTally()
	tl.rounds[0].commands[1], tl.rounds[0].found[1] = 4, 1
	if v := fewCommands.judge(tl); !v.Judged || !v.Kept {
		t.Errorf("one late caller and one command more: %+v", v)
	}
	tl.rounds[0].commands[1] = 5
	if v := fewCommands.judge(tl); !v.Judged || v.Kept {
		t.Errorf("one late caller and two commands more: %+v", v)
	}
}

func TestAnswersAreJudgedByTheirContent(t *testing.T) {
	mixed := productOf("k", 2)
	mixed.Price = productOf("k", 1).Price
	for _, c := range []struct {
		name                 string
		answer               answer
		errors, wrong, stale int64
	}{
		{"right", answer{status: 200, product: productOf("k", 2)}, 0, 0, 0},
		{"older than allowed", answer{status: 200, product: productOf("k", 1)}, 0, 0, 1},
		{"newer than there is", answer{status: 200, product: productOf("k", 4)}, 0, 1, 0},
		{"another product", answer{status: 200, product: productOf("j", 2)}, 0, 1, 0},
		{"two versions in one", answer{status: 200, product: mixed}, 0, 1, 0},
		{"empty", answer{status: 200, body: []byte("{}")}, 0, 1, 0},
		{"no JSON", answer{status: 200, body: []byte("")}, 1, 0, 0},
		{"not found", answer{status: 404, body: []byte("no")}, 1, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.answer.body != nil || c.answer.status != 200 {
				c.answer.decode()
			}
			r := round{key: "k", answers: []answer{c.answer}}
			r.judge(2, 3)
			if r.errors != c.errors || r.wrong != c.wrong || r.stale != c.stale {
				t.Errorf("errors %d, wrong %d, stale %d; want %d, %d, %d", r.errors, r.wrong, r.stale, c.errors, c.wrong, c.stale)
			}
		})
	}
}
