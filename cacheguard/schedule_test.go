package cacheguard_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// What the tests of schedules are written with. A test drives its processes to
// the point that it is about (gates in loaders and at store calls), checks that
// they are there, and lets them go on in the order that once broke a draft.

// gate stops whoever comes to it until it is opened.
type gate struct {
	came atomic.Int64
	way  chan struct{}
}

func newGate() *gate { return &gate{way: make(chan struct{})} }

func (g *gate) stop() {
	g.came.Add(1)
	<-g.way
}

func (g *gate) open() { close(g.way) }

// holds waits until nothing moves, and fails the test unless n have come to the
// gate: the schedule was not driven to where it was to be.
func (g *gate) holds(t *testing.T, n int64) {
	t.Helper()
	synctest.Wait()
	if came := g.came.Load(); came != n {
		t.Fatalf("%d came to the gate, want %d: this is not the schedule", came, n)
	}
}

// at does something at the calls of one kind.
func at(op string, do func() error) func(string, string) error {
	return func(got, _ string) error {
		if got != op {
			return nil
		}
		return do()
	}
}

// stopAt stops calls of one kind at a gate.
func stopAt(op string, g *gate) func(string, string) error {
	return at(op, func() error { g.stop(); return nil })
}

// once does something at the first call only.
func once(do func() error) func() error {
	var done atomic.Bool
	return func() error {
		if done.Swap(true) {
			return nil
		}
		return do()
	}
}

// down fails every call: the process is cut off from the store.
func down(op, _ string) error { return lost(op, store.ClassTimeout) }

// gated reads the version and then stops at a gate before it returns.
func (o *origin) gated(g *gate) cacheguard.Loader[string] {
	return func(_ context.Context, key string) (string, error) {
		o.loads.Add(1)
		v := o.version.Load()
		g.stop()
		return fmt.Sprintf("%s@%d", key, v), nil
	}
}

// write commits the next version to the origin.
func (o *origin) write() { o.version.Add(1) }

// answer is what a caller got, and when.
type answer struct {
	cacheguard.Entry[string]
	err  error
	took time.Duration
}

// asking is a GetEntry under way.
type asking <-chan answer

func ask(ctx context.Context, g *guard, key string, load cacheguard.Loader[string]) asking {
	ch := make(chan answer, 1)
	begin := time.Now()
	go func() {
		e, err := g.GetEntry(ctx, key, load)
		ch <- answer{e, err, time.Since(begin)}
	}()
	return ch
}

// got waits for the answer, which must be value.
func (a asking) got(t *testing.T, value string) answer {
	t.Helper()
	r := <-a
	if r.err != nil || r.Value != value {
		t.Errorf("got %q (%v), %v; want %q", r.Value, r.State, r.err, value)
	}
	return r
}

func get(t *testing.T, g *guard, load cacheguard.Loader[string], want string) {
	t.Helper()
	ask(t.Context(), g, "k", load).got(t, want)
}

func invalidate(t *testing.T, g *guard) {
	t.Helper()
	if err := g.Invalidate(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
}

func (o *origin) loaded(t *testing.T, want int64) {
	t.Helper()
	if n := o.loads.Load(); n != want {
		t.Errorf("%d loads, want %d", n, want)
	}
}

// key is what the guards of these tests call "k" in the store.
var key = store.Key{Space: "cacheguard", ID: "k"}

// lasting is a lease of a fixed length.
func lasting(d time.Duration) cacheguard.LeaseTuning {
	return cacheguard.LeaseTuning{Initial: d, Min: d, Max: d}
}
