package slogguard_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/slogguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
)

// logged returns hooks and what they have written since it was last asked.
func logged(level slog.Level) (cacheguard.Hooks, func() []string) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: level}))
	return slogguard.New(log, slogguard.Options{Every: time.Minute}).Hooks("g"), func() []string {
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		out.Reset()
		if lines[0] == "" {
			return nil
		}
		return lines
	}
}

const secret = "user-4711"

// events are one of each kind that is worth a line, with a secret in every
// place that can hold one.
var events = map[string]func(cacheguard.Hooks){
	"gave up waiting": func(h cacheguard.Hooks) {
		h.Answer(cacheguard.AnswerInfo{Key: secret, Err: fmt.Errorf("%s: %w", secret, cacheguard.ErrWaitLimit)})
	},
	"cut at LoadLimit": func(h cacheguard.Hooks) {
		h.Load(cacheguard.LoadInfo{Key: secret, Err: fmt.Errorf("%s: %w", secret, cacheguard.ErrLoadLimit)})
	},
	"a load failed": func(h cacheguard.Hooks) { h.Load(cacheguard.LoadInfo{Key: secret, Err: errors.New(secret)}) },
	"one too many":  func(h cacheguard.Hooks) { h.Load(cacheguard.LoadInfo{Key: secret, Err: store.ErrLost}) },
	"took over a lease": func(h cacheguard.Hooks) {
		h.Claim(cacheguard.ClaimInfo{Key: secret, Outcome: store.Granted, Takeover: true})
	},
	"fence refused":  func(h cacheguard.Hooks) { h.Fill(cacheguard.FillInfo{Key: secret, Err: store.ErrFenced}) },
	"lease was lost": func(h cacheguard.Hooks) { h.Renew(cacheguard.RenewInfo{Key: secret, Err: store.ErrLost}) },
	"a lease ran out": func(h cacheguard.Hooks) {
		h.Renew(cacheguard.RenewInfo{Key: secret, Err: errors.New(secret), Lapsed: true})
	},
	"could not be renewed": func(h cacheguard.Hooks) { h.Renew(cacheguard.RenewInfo{Key: secret, Err: errors.New(secret)}) },
	"fault of the store": func(h cacheguard.Hooks) {
		h.Fault(cacheguard.FaultInfo{Key: secret, Op: "load", Class: store.ClassData, Err: errors.New(secret)})
	},
	"recovered from a panic": func(h cacheguard.Hooks) {
		h.Panic(cacheguard.PanicInfo{Where: "loader", Value: secret, Stack: []byte("stack")})
	},
}

func TestNoLineAboveDebugHasAKeyOrAValue(t *testing.T) {
	for what, tell := range events {
		hooks, lines := logged(slog.LevelInfo)
		tell(hooks)
		got := lines()
		if len(got) != 1 || !strings.Contains(got[0], what) || !strings.Contains(got[0], "guard=g") {
			t.Errorf("%s: logged %q, want one line that says so", what, got)
		}
		if strings.Contains(strings.Join(got, ""), secret) {
			t.Errorf("%s: the secret is in the log: %q", what, got)
		}
	}
}

func TestDebugLinesHaveKeyAndError(t *testing.T) {
	for what, tell := range events {
		hooks, lines := logged(slog.LevelDebug)
		tell(hooks)
		if got := strings.Join(lines(), "\n"); !strings.Contains(got, "level=DEBUG") || !strings.Contains(got, secret) {
			t.Errorf("%s: logged %q at debug, want the whole event", what, got)
		}
	}
}

func TestLinesOfOneKindAreFewAndSayHowManyWereLeftOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for what, tell := range events {
			hooks, lines := logged(slog.LevelInfo)
			for range 1000 {
				tell(hooks)
			}
			if got := lines(); len(got) != 1 {
				t.Errorf("%s: %d lines of a thousand events, want one", what, len(got))
			}
			time.Sleep(time.Minute)
			tell(hooks)
			if got := lines(); len(got) != 1 || !strings.Contains(got[0], "more=999") {
				t.Errorf("%s: after a minute logged %q, want one line and the 999 left out", what, got)
			}
		}
	})
}

func TestOneKindDoesNotSilenceAnother(t *testing.T) {
	hooks, lines := logged(slog.LevelInfo)
	for _, class := range []store.Class{store.ClassTimeout, store.ClassDenied, "a backend's own"} {
		hooks.Fault(cacheguard.FaultInfo{Op: "load", Class: class, Err: errors.New("x")})
	}
	if got := lines(); len(got) != 3 {
		t.Errorf("logged %q, want a line for each class", got)
	}
}

// unshared is a loader's error that is none.
type unshared struct{ wrong bool }

func (unshared) Error() string     { return "for its own caller" }
func (u unshared) NotShared() bool { return !u.wrong }

func TestALoadThatIsNotToBeSharedHasNotFailed(t *testing.T) {
	for _, err := range []error{&cacheguard.PassError{For: time.Second}, unshared{}, fmt.Errorf("wrapped: %w", unshared{})} {
		hooks, lines := logged(slog.LevelInfo)
		hooks.Load(cacheguard.LoadInfo{Key: secret, Err: err})
		if got := lines(); got != nil {
			t.Errorf("%v: logged %q", err, got)
		}
	}
	hooks, lines := logged(slog.LevelInfo)
	hooks.Load(cacheguard.LoadInfo{Key: secret, Err: unshared{wrong: true}})
	if got := lines(); len(got) != 1 || !strings.Contains(got[0], "a load failed") {
		t.Errorf("not shared because something is wrong: logged %q", got)
	}
}

func TestCallersWhoLeaveAreNoEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hooks, lines := logged(slog.LevelDebug)
		g, err := cacheguard.New(memstore.New(memstore.Options{}), cacheguard.Options[string]{Hooks: hooks})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			_, _ = g.Get(ctx, "k", func(context.Context, string) (string, error) { time.Sleep(time.Second); return "v", nil })
		}()
		synctest.Wait()
		cancel()
		hooks.Fault(cacheguard.FaultInfo{Op: "load", Class: store.ClassCanceled, Err: context.Canceled})
		time.Sleep(2 * time.Second)
		if err := g.Close(); err != nil {
			t.Error(err)
		}
		if got := lines(); len(got) != 0 {
			t.Errorf("logged %q, want nothing", got)
		}
	})
}

func TestOutageIsSaidOnceAndSoIsItsEnd(t *testing.T) {
	hooks, lines := logged(slog.LevelInfo)
	hooks.Breaker(true)
	for range 100 {
		hooks.Fault(cacheguard.FaultInfo{Op: "load", Class: store.ClassConnection, Refused: true, Err: errors.New("x")})
	}
	for n := range 3 {
		hooks.Pending(n + 1)
	}
	hooks.Pending(0)
	hooks.Pending(0)
	hooks.Breaker(false)
	want := []string{"is not asked", "have not reached the store", "all writes have reached", "the store is back"}
	got := lines()
	if len(got) != len(want) {
		t.Fatalf("logged %q, want %q", got, want)
	}
	for i := range want {
		if !strings.Contains(got[i], want[i]) {
			t.Errorf("line %d is %q, want %q", i, got[i], want[i])
		}
	}
}

func TestDoubtfulSettingsAreOneLineEachAtTheStart(t *testing.T) {
	hooks, lines := logged(slog.LevelInfo)
	g, err := cacheguard.New(memstore.New(memstore.Options{}), cacheguard.Options[string]{Cooldown: -1, WaitLimit: time.Second, Hooks: hooks})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	got := lines()
	if len(got) != 2 || !strings.Contains(got[0], "WaitLimit") || !strings.Contains(got[1], "Cooldown") {
		t.Errorf("logged %q, want one line about WaitLimit and one about Cooldown", got)
	}
}

func TestLoadsThatDoNotFitTheSettingsAreSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hooks, lines := logged(slog.LevelInfo)
		g, err := cacheguard.New(memstore.New(memstore.Options{}), cacheguard.Options[string]{
			Lifetime: cacheguard.Lifetime{TTL: time.Second, Grace: time.Minute},
			Lease:    cacheguard.LeaseTuning{Max: 2 * time.Second},
			Hooks:    hooks,
		})
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		for _, takes := range []time.Duration{900 * time.Millisecond, 3 * time.Second} {
			_, err := g.Get(t.Context(), fmt.Sprint(takes), func(context.Context, string) (string, error) { time.Sleep(takes); return "v", nil })
			if err != nil {
				t.Fatal(err)
			}
			got := lines()
			switch {
			case takes < time.Second && len(got) != 0:
				t.Errorf("a load that fits: logged %q", got)
			case takes > time.Second && (len(got) != 2 || !strings.Contains(got[0], "Lifetime.TTL") || !strings.Contains(got[1], "Lease.Max")):
				t.Errorf("a load of %v: logged %q, want lines about TTL and Lease.Max", takes, got)
			}
		}
	})
}
