package lease

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if addr := os.Getenv(holderEnv); addr != "" {
		if err := holderMain(addr); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

var errAway = &store.Fault{Op: "any", Class: store.ClassConnection, Err: errors.New("refused")}

// wire stands between a locker and the store and does to the calls what the
// network might. Each func, if set, is called instead of the store's method and
// may call it. They may be changed between calls, by cut and mend.
type wire struct {
	store.Leases

	mu      sync.Mutex
	claim   func(ctx context.Context, c store.Claim) (store.Verdict, error)
	renew   func(ctx context.Context, rs []store.Renewal) []error
	release func(ctx context.Context, g store.Grant) error
	deaf    bool // no message gets through
	claims  []store.Claim
}

func (w *wire) Claim(ctx context.Context, c store.Claim) (store.Verdict, error) {
	w.mu.Lock()
	w.claims = append(w.claims, c)
	do := w.claim
	w.mu.Unlock()
	if do == nil {
		return w.Leases.Claim(ctx, c)
	}
	return do(ctx, c)
}

func (w *wire) Renew(ctx context.Context, rs []store.Renewal) []error {
	w.mu.Lock()
	do := w.renew
	w.mu.Unlock()
	if do == nil {
		return w.Leases.Renew(ctx, rs)
	}
	return do(ctx, rs)
}

func (w *wire) Release(ctx context.Context, g store.Grant, f *store.Failure) error {
	w.mu.Lock()
	do := w.release
	w.mu.Unlock()
	if do == nil {
		return w.Leases.Release(ctx, g, f)
	}
	return do(ctx, g)
}

func (w *wire) Listen(space string, fn func(store.Event)) (stop func()) {
	if w.deaf {
		return func() {}
	}
	return w.Leases.Listen(space, fn)
}

// cut lets nothing through.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.claim = func(context.Context, store.Claim) (store.Verdict, error) { return store.Verdict{}, errAway }
	w.release = func(context.Context, store.Grant) error { return errAway }
	w.cutRenewals()
}

func (w *wire) cutRenewals() {
	w.renew = func(_ context.Context, rs []store.Renewal) []error {
		errs := make([]error, len(rs))
		for i := range errs {
			errs[i] = errAway
		}
		return errs
	}
}

// mend lets everything through again.
func (w *wire) mend() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.claim, w.renew, w.release = nil, nil, nil
}

func (w *wire) claimed() []store.Claim {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]store.Claim(nil), w.claims...)
}

// world is one store and the lockers of a fleet over it.
type world struct {
	*testing.T
	store *memstore.Store
	start time.Time
}

// inBubble runs test with the bubble's clock.
func inBubble(t *testing.T, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		test(&world{T: t, store: memstore.New(memstore.Options{}), start: time.Now()})
	})
}

// locker returns the locker of another process, on a wire of its own.
func (w *world) locker(opts Options) (*Locker, *wire) {
	line := &wire{Leases: w.store}
	l := New(line, opts)
	w.Cleanup(func() { l.Close() })
	return l, line
}

func (w *world) acquire(l *Locker, name string) *Lease {
	w.Helper()
	h, err := l.Acquire(w.Context(), name)
	if err != nil {
		w.Fatalf("Acquire(%q): %v", name, err)
	}
	return h
}

// at fails unless so much time has passed since the start.
func (w *world) at(want time.Duration, what string) {
	w.Helper()
	if got := time.Since(w.start); got != want {
		w.Errorf("%s at %v, want %v", what, got, want)
	}
}

// between is at with some play.
func (w *world) between(low, high time.Duration, what string) {
	w.Helper()
	if got := time.Since(w.start); got < low || got > high {
		w.Errorf("%s at %v, want %v to %v", what, got, low, high)
	}
}

// free fails unless nobody holds name.
func (w *world) free(name string) {
	w.Helper()
	l := New(w.store, Options{})
	defer l.Close()
	h, err := l.TryAcquire(context.Background(), name)
	if err != nil {
		w.Errorf("%q is not free: %v", name, err)
		return
	}
	h.Release(context.Background())
}

// taken fails unless somebody holds name.
func (w *world) taken(name string) {
	w.Helper()
	l := New(w.store, Options{})
	defer l.Close()
	if _, err := l.TryAcquire(context.Background(), name); !errors.Is(err, store.ErrHeld) {
		w.Errorf("TryAcquire(%q) = %v, want ErrHeld", name, err)
	}
}
