package cacheguard_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
)

// slowReads makes each read of a tap take a millisecond.
func slowReads(s *tap) {
	s.on(func(op, _ string) error {
		if op == "load" {
			time.Sleep(time.Millisecond)
		}
		return nil
	}, nil)
}

// Callers of one hot key share reads, with contexts that can end and with ones
// that cannot: one is under way at a time, and who comes meanwhile shares the
// next.
func TestHotKeyIsReadByOneCallerAtATime(t *testing.T) {
	for name, ctx := range map[string]func(*testing.T) context.Context{
		"contexts that can end": func(t *testing.T) context.Context { return t.Context() },
		"contexts that can not": func(*testing.T) context.Context { return context.Background() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := &origin{}
				s := newTap(memstore.New(memstore.Options{}))
				g := newGuard(t, s, options{})
				mustGet(t, g, o, "k@0")
				slowReads(s)
				reads := s.count("load")
				var running, most atomic.Int64
				var wg sync.WaitGroup
				for i := range 500 {
					wg.Go(func() {
						time.Sleep(time.Duration(i) * 20 * time.Microsecond) // 10 ms in all
						begin := time.Now()
						n := running.Add(1)
						defer running.Add(-1)
						most.Store(max(most.Load(), n))
						if v, err := g.Get(ctx(t), "k", o.load); err != nil || v != "k@0" {
							t.Errorf("Get = %q, %v", v, err)
						}
						if took := time.Since(begin); took > 2*time.Millisecond {
							t.Errorf("a hit took %v: more than what was left of one read, and the next", took)
						}
					})
				}
				wg.Wait()
				if n := s.count("load") - reads; n < 9 || n > 13 {
					t.Errorf("%d reads of 1 ms for 10 ms of callers", n)
				}
			})
		})
	}
}

// A caller who leaves while its read is under way, or before it was sent, takes
// nothing from those who share it.
func TestCallerWhoLeavesDoesNotTakeTheReadAlong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &origin{}
		s := newTap(memstore.New(memstore.Options{}))
		g := newGuard(t, s, options{})
		mustGet(t, g, o, "k@0")
		slowReads(s)
		leaving, leave := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range 2 { // the first of a read under way, the first of the next
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 100 * time.Microsecond)
				if _, err := g.Get(leaving, "k", o.load); !errors.Is(err, context.Canceled) {
					t.Errorf("Get of the caller who left = %v", err)
				}
			})
		}
		for range 10 {
			wg.Go(func() {
				time.Sleep(200 * time.Microsecond)
				if v, err := g.Get(t.Context(), "k", o.load); err != nil || v != "k@0" {
					t.Errorf("Get = %q, %v", v, err)
				}
			})
		}
		time.Sleep(300 * time.Microsecond)
		begin := time.Now()
		leave()
		synctest.Wait()
		if took := time.Since(begin); took != 0 {
			t.Errorf("leaving took %v", took)
		}
		wg.Wait()
	})
}

// What is missing is not read again for those who share the next read.
func TestMissIsToldToThoseWhoShareTheNextRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &origin{takes: 10 * time.Millisecond}
		s := newTap(memstore.New(memstore.Options{}))
		g := newGuard(t, s, options{})
		slowReads(s)
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 100 * time.Microsecond)
				if v, err := g.Get(t.Context(), "k", o.load); err != nil || v != "k@0" {
					t.Errorf("Get = %q, %v", v, err)
				}
			})
		}
		wg.Wait()
		if n, calls := s.reset(); n != 3 || o.loads.Load() != 1 {
			t.Errorf("%d loads and calls %v; want a read, a claim, a fill", o.loads.Load(), calls)
		}
	})
}

// A first caller who leaves on a miss does not leave the key marked as about to
// be loaded.
func TestMissOfACallerWhoLeftIsReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &origin{}
		mem := memstore.New(memstore.Options{})
		s := newTap(mem)
		g, other := newGuard(t, s, options{}), newGuard(t, mem, options{})
		slowReads(s)
		leaving, leave := context.WithTimeout(t.Context(), 500*time.Microsecond)
		defer leave()
		_, _ = g.Get(leaving, "k", o.load)
		time.Sleep(time.Millisecond)
		mustGet(t, other, o, "k@0")
		before := s.count("claim")
		mustGet(t, g, o, "k@0")
		if s.count("claim") != before {
			t.Error("a stored value was claimed: the process took the key for missing")
		}
	})
}

// goexitCodec ends the goroutine that decodes.
type goexitCodec struct{ cacheguard.Codec[string] }

func (goexitCodec) Decode([]byte) (string, error) { runtime.Goexit(); return "", nil }

// runtime.Goexit in a codec ends a goroutine and nothing else: those who share
// the read are answered, and Close does not wait for it.
func TestGoexitInACodecLeavesNobodyWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &origin{}
		s := newTap(memstore.New(memstore.Options{}))
		mustGet(t, newGuard(t, s, options{}), o, "k@0")
		slowReads(s)
		g := newGuard(t, s, options{Codec: goexitCodec{cacheguard.JSON[string]()}})
		var answered atomic.Int64
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				defer answered.Add(1)
				_, _ = g.Get(t.Context(), "k", o.load)
			})
		}
		wg.Go(func() { _, _ = g.Get(context.Background(), "k", o.load) })
		wg.Wait()
		if n := answered.Load(); n != 5 {
			t.Errorf("%d of 5 callers were answered", n)
		}
	})
}
