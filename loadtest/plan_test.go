package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestEveryScenarioSaysHowLongItTakes(t *testing.T) {
	o, err := parseFlags([]string{"-scenario", "all"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	slow := o
	slow.load, slow.rounds = 10*o.load, 2*o.rounds
	for _, sc := range scenarios {
		if needsOf[sc.name] == nil {
			t.Errorf("%s does not", sc.name)
			continue
		}
		if takes := sc.takes(o); takes < time.Second || sc.takes(slow) < takes {
			t.Errorf("%s: %v, and %v with longer loads and more rounds", sc.name, takes, sc.takes(slow))
		}
	}
	if len(needsOf) != len(scenarios) {
		t.Errorf("%d times for %d scenarios", len(needsOf), len(scenarios))
	}
}

func TestWithoutFlagsARunIsUnderAMinute(t *testing.T) {
	o, err := parseFlags(nil, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if left := newPlan(o).left(time.Now()); left > 50*time.Second {
		t.Errorf("it is to take %v, and demo-api is to be built", left)
	}
}

// A machine that took twice as long for what is done will for what is left.
func TestWhatIsLeftFollowsThePaceOfWhatIsDone(t *testing.T) {
	zero := time.Now()
	p := &plan{began: zero, steps: []time.Duration{10 * time.Second, 20 * time.Second, 30 * time.Second}}
	if left := p.left(zero.Add(4 * time.Second)); left != 56*time.Second {
		t.Errorf("%v left of 60s after 4s", left)
	}
	p.done(zero.Add(20 * time.Second))
	if left := p.left(zero.Add(30 * time.Second)); left != 90*time.Second {
		t.Errorf("%v left, want twice 50s less the 10s since", left)
	}
	if left := p.left(zero.Add(time.Hour)); left != 60*time.Second {
		t.Errorf("%v left when a step takes far too long, want what the next takes", left)
	}
}

func TestAStepThatTakesTooLongIsGivenUpAndSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		err := within(t.Context(), 3*time.Minute, hang)
		if err == nil || !strings.Contains(err.Error(), "given up after 3m0s") {
			t.Errorf("within = %v", err)
		}
		if err := within(t.Context(), time.Minute, func(context.Context) error { return io.EOF }); err != io.EOF {
			t.Errorf("within = %v, want the step's own error", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := within(ctx, time.Minute, hang); !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "given up") {
			t.Errorf("within = %v for a run that was interrupted", err)
		}
	})
}

func TestATerminalShowsRateLoadsAndWhatIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		p := newProgress(&log)
		p.terminal = true
		p.say("cold, mode guard")
		p.watch(&plan{began: time.Now(), steps: []time.Duration{50 * time.Second}}, func() int64 { return 7 })
		p.answered.Add(100)
		time.Sleep(lookGap + time.Millisecond)
		synctest.Wait()
		p.mu.Lock()
		text := log.String()
		p.mu.Unlock()
		if want := "cold, mode guard  200 answers/s  7 loads  50s left"; !strings.Contains(text, want) {
			t.Errorf("the line is %q, want %q in it", text, want)
		}
		p.say(strings.Repeat("long ", 30))
		p.mu.Lock()
		last := log.String()[strings.LastIndexByte(log.String(), '\r')+1:]
		p.mu.Unlock()
		if len(strings.TrimRight(last, " ")) != lineWidth || !strings.HasSuffix(last, "50s left") {
			t.Errorf("the line %q is not cut to %d", last, lineWidth)
		}
		p.end()
		if strings.Contains(text, "\n") || !strings.HasSuffix(log.String(), " \r") {
			t.Errorf("the line is not one, or not cleared: %q", log.String())
		}
	})
}

func TestElsewhereThereIsALineForEachStepAndNoneForEachRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		p := newProgress(&log)
		p.watch(&plan{}, func() int64 { return 0 })
		p.say("one")
		p.round("cold", "guard", 1, 2)
		time.Sleep(10 * lookGap)
		p.say("two")
		p.end()
		if got, want := log.String(), "  0.0s  one\n  5.0s  two\n"; got != want {
			t.Errorf("the log is %q, want %q", got, want)
		}
	})
}

func TestTimesAreSaidRoughly(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 4400 * time.Millisecond: "4s", 43 * time.Second: "45s", 130 * time.Second: "2 min", 9 * time.Minute: "9 min", 26 * time.Hour: "26 h",
	} {
		if got := roughly(d); got != want {
			t.Errorf("roughly(%v) = %q, want %q", d, got, want)
		}
	}
}
