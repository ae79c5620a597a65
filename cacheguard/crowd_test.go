package cacheguard_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
)

// Those who come to a stale key while a read of it is under way are answered by the
// claim of the refresh, if that says that what was read is still there.

// staleKey is a process whose "k" is stale, and whose reads and claims each take
// callTakes, half of it on the way there and half on the way back.
type staleKey struct {
	*guard
	tap   *tap
	o     *origin
	other *guard // a process of the same fleet
	began time.Time
}

const callTakes = 10 * time.Millisecond

func newStaleKey(t *testing.T, opts options) *staleKey {
	t.Helper()
	mem := memstore.New(memstore.Options{})
	s := &staleKey{tap: newTap(mem), o: &origin{takes: 50 * time.Millisecond}}
	opts.Lifetime = cacheguard.Lifetime{TTL: time.Second, Grace: time.Hour}
	s.other = newGuard(t, mem, options{Lifetime: opts.Lifetime})
	s.guard = newGuard(t, s.tap, opts)
	get(t, s.other, s.o.load, "k@0")
	time.Sleep(2 * time.Second)
	s.o.version.Store(1)
	s.slow(nil)
	s.began = time.Now()
	return s
}

// slow lets calls take their time; meanwhile runs when a claim has been answered,
// and is on its way back.
func (s *staleKey) slow(meanwhile func()) {
	half := func(op, _ string) error {
		if op == "load" || op == "claim" {
			time.Sleep(callTakes / 2)
		}
		return nil
	}
	s.tap.on(half, func(op, id string) error {
		if op == "claim" && meanwhile != nil {
			meanwhile()
		}
		return half(op, id)
	})
}

// at asks at an instant, counted from when the key was stale.
func (s *staleKey) at(t *testing.T, ms int) asking {
	t.Helper()
	time.Sleep(time.Until(s.began.Add(time.Duration(ms) * time.Millisecond)))
	a := ask(t.Context(), s.guard, "k", s.o.load)
	synctest.Wait()
	return a
}

// sent wants so many reads and claims.
func (s *staleKey) sent(t *testing.T, reads, claims int) {
	t.Helper()
	if r, c := s.tap.count("load"), s.tap.count("claim"); r != reads || c != claims {
		t.Errorf("%d reads and %d claims were sent, want %d and %d", r, c, reads, claims)
	}
}

func TestClaimOfARefreshAnswersThoseWhoCameDuringTheRead(t *testing.T) {
	for name, leased := range map[string]bool{"granted": false, "held": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStaleKey(t, options{})
				want := int64(2)
				if leased {
					s.o.takes = time.Minute
					ask(t.Context(), s.other, "k", s.o.load).got(t, "k@0") // and refreshes
					synctest.Wait()
				}
				a, b, c := s.at(t, 0), s.at(t, 1), s.at(t, 9)
				first := a.got(t, "k@0")
				for i, r := range []answer{b.got(t, "k@0"), c.got(t, "k@0")} {
					if r.State != cacheguard.Stale || !r.Coalesced {
						t.Errorf("got %+v, want a stale value that was read for others", r.Entry)
					}
					if took := []time.Duration{19, 11}[i] * time.Millisecond; r.took != took {
						t.Errorf("took %v, want %v", r.took, took)
					}
					// The read was answered when it had reached the store; the claim says
					// what holds since it was sent.
					if older := r.Age - first.Age; older != callTakes/2 {
						t.Errorf("is %v older than what the first got, want %v", older, callTakes/2)
					}
					if shorter := first.Keep - r.Keep; shorter != callTakes/2 {
						t.Errorf("is kept %v shorter than what the first got, want %v", shorter, callTakes/2)
					}
				}
				s.sent(t, 1, 1)
				time.Sleep(time.Second)
				s.o.loaded(t, want)
			})
		})
	}
}

// P2:
//
//	A: reads
//	the key is invalidated; B: waits for the next read
//	A's read finds stale; the refresh claims, and is granted
func TestWhatIsGoneWhenTheRefreshClaimsIsNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStaleKey(t, options{})
		a := s.at(t, 0)
		time.Sleep(7 * time.Millisecond) // the read is on its way back
		invalidate(t, s.other)
		b := s.at(t, 8)
		a.got(t, "k@0")
		b.got(t, "k@1")
		s.sent(t, 2, 1)
		s.o.loaded(t, 2)
	})
}

// P2:
//
//	A: reads, and finds stale
//	the refresh claims, and is granted; the answer is on its way
//	the key is invalidated; B: waits for the next read
func TestClaimOfARefreshIsNoAnswerForThoseWhoCameAfterIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStaleKey(t, options{})
		s.slow(func() { invalidate(t, s.other) })
		a, b, c := s.at(t, 0), s.at(t, 8), s.at(t, 16)
		a.got(t, "k@0")
		b.got(t, "k@0")
		c.got(t, "k@1")
		s.sent(t, 2, 1)
	})
}

// P15: the claim may find what a write of this process could not remove.
func TestClaimOfARefreshIsNoAnswerWhileAWriteHasNotReachedTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStaleKey(t, options{})
		a := s.at(t, 0)
		time.Sleep(7 * time.Millisecond)
		outOfReach(s.tap, "invalidate")
		if err := s.Invalidate(t.Context(), "k"); err == nil {
			t.Fatal("Invalidate has reached a store that is out of reach")
		}
		b := s.at(t, 8)
		a.got(t, "k@0")
		b.got(t, "k@1")
	})
}

// A store that does not answer is asked once.
func TestRefreshThatCannotClaimTellsThoseWhoCameDuringTheRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStaleKey(t, options{Outage: cacheguard.FailFast})
		a := s.at(t, 0)
		time.Sleep(7 * time.Millisecond)
		outOfReach(s.tap, "claim")
		b := s.at(t, 8)
		a.got(t, "k@0")
		var fault *store.Fault
		if r := <-b; !errors.As(r.err, &fault) {
			t.Errorf("got %v, %v; want the fault of the claim", r.Entry, r.err)
		}
		time.Sleep(time.Second)
		if n := s.tap.count("load"); n != 1 {
			t.Errorf("%d reads, want 1", n)
		}
	})
}

// A hook that ends the goroutine of the refresh leaves nobody waiting.
func TestRefreshThatIsAbandonedLeavesNobodyBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStaleKey(t, options{Outage: cacheguard.FailFast, Hooks: cacheguard.Hooks{Call: func(c cacheguard.CallInfo) {
			if c.Op == "claim" {
				runtime.Goexit()
			}
		}}})
		a, b := s.at(t, 0), s.at(t, 8)
		a.got(t, "k@0")
		if r := <-b; r.err == nil {
			t.Errorf("got %+v, want an error", r.Entry)
		}
	})
}

// Close comes between the read and the claim.
func TestThoseWhoCameDuringTheReadOfAGuardThatIsClosedGetAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStaleKey(t, options{})
		a, b := s.at(t, 0), s.at(t, 8)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		a.got(t, "k@0")
		if r := <-b; r.err == nil && r.Value != "k@0" || r.err != nil && !errors.Is(r.err, cacheguard.ErrClosed) {
			t.Errorf("got %q, %v; want the stale value or ErrClosed", r.Value, r.err)
		}
		s.o.loaded(t, 1)
	})
}

// A refresh may be over before those who share the stale value come to run: they do
// not begin another one each.
func TestOneOfThoseWhoShareAStaleValueRefreshesIt(t *testing.T) {
	asks := map[string]func(ctx context.Context, g *guard, load cacheguard.Loader[string]) (cacheguard.Entry[string], error){
		"get": func(ctx context.Context, g *guard, load cacheguard.Loader[string]) (cacheguard.Entry[string], error) {
			return g.GetEntry(ctx, "k", load)
		},
		"do": func(ctx context.Context, g *guard, load cacheguard.Loader[string]) (cacheguard.Entry[string], error) {
			return g.Do(ctx, "k", cacheguard.Ask[string]{Prepare: func() cacheguard.Reloader[string] {
				return func(ctx context.Context, _ cacheguard.Entry[string]) (string, error) { return load(ctx, "k") }
			}})
		},
	}
	for name, ask := range asks {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStaleKey(t, options{})
				s.o.takes = 0
				s.tap.on(func(op, _ string) error {
					if op == "claim" && s.tap.count(op) == 1 {
						time.Sleep(callTakes / 2) // the refresh is over before the shared read is answered
					}
					return nil
				}, func(op, _ string) error {
					if op == "load" {
						time.Sleep(callTakes)
					}
					return nil
				})
				var all sync.WaitGroup
				for range 50 {
					all.Go(func() {
						if e, err := ask(t.Context(), s.guard, s.o.load); err != nil || e.State != cacheguard.Stale {
							t.Errorf("got %+v, %v; want the stale value", e, err)
						}
					})
					synctest.Wait() // the first reads, the others wait
				}
				all.Wait()
				time.Sleep(time.Second)
				if n := s.tap.count("claim"); n > 2 {
					t.Errorf("%d claims; want one for those who shared a read, and one for its first", n)
				}
				s.o.loaded(t, 2)
			})
		})
	}
}
