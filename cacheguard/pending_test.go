package cacheguard_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
)

// outOfReach fails the given operations of a tap before they reach the store.
func outOfReach(t *tap, ops ...string) {
	t.on(func(op, _ string) error {
		for _, o := range ops {
			if o == op {
				return lost(op, store.ClassTimeout)
			}
		}
		return nil
	}, nil)
}

// S31, P15: until a failed invalidation has landed, its process loads the key
// and does not believe the store; afterwards all is as usual.
func TestKeyIsNotServedFromTheStoreUntilItsInvalidationHasLanded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &origin{takes: 10 * time.Millisecond}
		mem := memstore.New(memstore.Options{})
		down := newTap(mem)
		var pending atomic.Int64
		writer := newGuard(t, down, options{Hooks: cacheguard.Hooks{Pending: func(n int) { pending.Store(int64(n)) }}})
		reader := newGuard(t, mem, options{})
		mustGet(t, reader, o, "k@0")

		outOfReach(down, "invalidate", "expire", "set")
		o.version.Store(1)
		var fault *store.Fault
		if err := writer.Invalidate(t.Context(), "k"); !errors.As(err, &fault) {
			t.Fatalf("Invalidate = %v, want a *store.Fault", err)
		}
		if n := pending.Load(); n != 1 {
			t.Errorf("%d writes pending, want 1", n)
		}
		mustGet(t, writer, o, "k@1")
		time.Sleep(5 * time.Second)
		mustGet(t, writer, o, "k@1")
		if n := down.count("invalidate"); n < 3 || n > 20 {
			t.Errorf("%d tries in 5 s, want a few, at a growing distance", n)
		}

		down.on(nil, nil)
		time.Sleep(2 * time.Second)
		if n := pending.Load(); n != 0 {
			t.Errorf("%d writes pending after the store came back", n)
		}
		mustGet(t, reader, o, "k@1")
		before := o.loads.Load()
		mustGet(t, writer, o, "k@1")
		if n := o.loads.Load() - before; n != 0 {
			t.Errorf("the writer still loads although its invalidation has landed")
		}
	})
}

// S2: a Set that failed is retried as an Invalidate. Retried as a Set it would
// bring back what a later write has replaced.
func TestFailedSetIsRetriedAsInvalidate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &origin{takes: time.Millisecond}
		mem := memstore.New(memstore.Options{})
		down := newTap(mem)
		a, b := newGuard(t, down, options{}), newGuard(t, mem, options{})

		outOfReach(down, "set", "invalidate")
		if err := a.Set(t.Context(), "k", "k@1"); err == nil {
			t.Fatal("Set returned nil although the store was out of reach")
		}
		o.version.Store(2)
		if err := b.Invalidate(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		down.on(nil, nil)
		time.Sleep(3 * time.Second)
		mustGet(t, b, o, "k@2")
		mustGet(t, a, o, "k@2")
		if n := down.count("set"); n != 1 {
			t.Errorf("the Set was sent %d times", n)
		}
	})
}

// P15: retries end when nothing that the write could remove is left.
func TestRetriesOfAWriteEndWithTheLifeOfWhatItWasToRemove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &origin{takes: time.Millisecond}
		down := newTap(memstore.New(memstore.Options{}))
		g := newGuard(t, down, options{Lifetime: cacheguard.Lifetime{TTL: 5 * time.Second, Grace: 5 * time.Second}})
		outOfReach(down, "expire")
		if err := g.Expire(t.Context(), "k"); err == nil {
			t.Fatal("Expire returned nil although the store was out of reach")
		}
		time.Sleep(15 * time.Second)
		tries := down.count("expire")
		time.Sleep(time.Minute)
		if n := down.count("expire"); n != tries {
			t.Errorf("still retried after TTL + grace: %d tries, then %d", tries, n)
		}
		mustGet(t, g, o, "k@0")
		before := o.loads.Load()
		mustGet(t, g, o, "k@0")
		if o.loads.Load() != before {
			t.Error("the key is still loaded each time")
		}
	})
}

// P15: Close does not lose a write that it could still bring to the store.
func TestCloseTriesPendingWritesOnceMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &origin{takes: time.Millisecond}
		mem := memstore.New(memstore.Options{})
		down := newTap(mem)
		writer, reader := newGuard(t, down, options{}), newGuard(t, mem, options{})
		mustGet(t, reader, o, "k@0")
		outOfReach(down, "invalidate")
		o.version.Store(1)
		_ = writer.Invalidate(t.Context(), "k")
		down.on(nil, nil)
		if err := writer.Close(); err != nil {
			t.Fatal(err)
		}
		mustGet(t, reader, o, "k@1")
	})
}

// A write that is repeated while its retry is under way is not taken for
// landed: the retry may have been there before the origin changed again.
func TestRetryUnderWayDoesNotAnswerForALaterWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &origin{takes: time.Millisecond}
		mem := memstore.New(memstore.Options{})
		down := newTap(mem)
		writer, reader := newGuard(t, down, options{}), newGuard(t, mem, options{})

		outOfReach(down, "invalidate")
		_ = writer.Invalidate(t.Context(), "k")
		// The retry gets through, and its reply is a second under way.
		down.on(nil, func(op, _ string) error {
			if op == "invalidate" {
				time.Sleep(time.Second)
			}
			return nil
		})
		time.Sleep(200 * time.Millisecond)
		mustGet(t, reader, o, "k@0") // stored after the retry
		o.version.Store(1)
		outOfReach(down, "invalidate")
		_ = writer.Invalidate(t.Context(), "k")
		time.Sleep(2 * time.Second) // the reply has come
		mustGet(t, writer, o, "k@1")
	})
}

// P15, P9: what is retried is bounded, and a key that there was no room for is
// not served from the store either, as long as what was to be removed can be
// there. Its process loads it.
func TestWritesThatAreTooManyToRetryAreNotForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &origin{}
		mem := memstore.New(memstore.Options{})
		down := newTap(mem)
		var most, refused atomic.Int64
		life := cacheguard.Lifetime{TTL: time.Minute, Grace: time.Minute}
		writer := newGuard(t, down, options{Lifetime: life, Hooks: cacheguard.Hooks{
			Pending: func(n int) { most.Store(max(most.Load(), int64(n))) },
			Fault: func(f cacheguard.FaultInfo) {
				if f.Op == "retry" && f.Class == store.ClassFull {
					refused.Add(1)
				}
			},
		}})
		reader := newGuard(t, mem, options{Lifetime: life})
		keys := keysOf("k", 12_000)
		for _, key := range keys {
			if _, err := reader.Get(t.Context(), key, o.load); err != nil {
				t.Fatal(err)
			}
		}
		outOfReach(down, "invalidate")
		o.version.Store(1)
		if err := writer.Invalidate(t.Context(), keys...); err == nil {
			t.Fatal("Invalidate returned nil although the store was out of reach")
		}
		if most.Load() != 10_000 || refused.Load() != 2000 {
			t.Errorf("%d writes are retried at most, %d were told of as too many; want 10000 and 2000", most.Load(), refused.Load())
		}
		down.on(nil, nil)
		time.Sleep(10 * time.Second)
		for _, key := range keys {
			if v, err := writer.Get(t.Context(), key, o.load); err != nil || v != key+"@1" {
				t.Fatalf("Get = %q, %v; its process has invalidated that", v, err)
			}
		}
		// When nothing old can be left all is as before.
		time.Sleep(3 * time.Minute)
		last := keys[len(keys)-1]
		for range 2 {
			if _, err := writer.Get(t.Context(), last, o.load); err != nil {
				t.Fatal(err)
			}
		}
		if e, err := writer.GetEntry(t.Context(), last, o.load); err != nil || e.State != cacheguard.Fresh {
			t.Errorf("%v, %v after the life of what was to be removed, want what is stored", e.State, err)
		}
	})
}

// P15: Close brings everything to a store that answers, however much there is.
func TestCloseBringsAllPendingWritesToAStoreThatAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &origin{}
		mem := memstore.New(memstore.Options{})
		down := newTap(mem)
		writer, reader := newGuard(t, down, options{}), newGuard(t, mem, options{})
		keys := keysOf("k", 3000)
		for _, key := range keys {
			if _, err := reader.Get(t.Context(), key, o.load); err != nil {
				t.Fatal(err)
			}
		}
		outOfReach(down, "invalidate")
		o.version.Store(1)
		_ = writer.Invalidate(t.Context(), keys...)
		down.on(nil, nil)
		if err := writer.Close(); err != nil {
			t.Fatal(err)
		}
		for _, key := range keys {
			if v, err := reader.Get(t.Context(), key, o.load); err != nil || v != key+"@1" {
				t.Fatalf("Get = %q, %v after Close", v, err)
			}
		}
	})
}

// P15: Close does not wait for a store that stays away.
func TestCloseDoesNotWaitForAStoreThatStaysAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := newTap(memstore.New(memstore.Options{}))
		g := newGuard(t, down, options{})
		hang(down, storeBound)
		_ = g.Invalidate(t.Context(), keysOf("k", 3000)...)
		begin := time.Now()
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took > 3*storeBound {
			t.Errorf("Close took %v, with a store that answers nothing within %v", took, storeBound)
		}
	})
}

func mustGet(t *testing.T, g *guard, o *origin, want string) {
	t.Helper()
	if v, err := g.Get(t.Context(), "k", o.load); err != nil || v != want {
		t.Fatalf("Get = %q, %v; want %q", v, err, want)
	}
}
