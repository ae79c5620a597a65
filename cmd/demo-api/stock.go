package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"sync"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/lease"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// The stock of a product is read, computed and written: two that do so at once
// would sell one lamp twice. So it is changed only under the product's lease,
// and only under the lease's token, which the origin compares. The lease saves
// the others from work in vain. The token is what keeps the stock right when a
// holder was stopped past its lease and then writes what it had computed:
//
//	A: acquire, token 41; read stock 10 ... (stopped) ................ write 9: refused
//	B: .................................. acquire, token 42; read 10; write 7

// newStockLeases returns the leases that stock is changed under.
func newStockLeases(s store.Leases) *lease.Locker {
	return lease.New(s, lease.Options{Namespace: "demo-stock", Length: stockLease})
}

const (
	// stockLease is how long a process that crashes in the middle of a change
	// keeps the product's next change waiting.
	stockLease = 2 * time.Second

	// stockLimit bounds one change, with the wait for the others' changes.
	stockLimit = 15 * time.Second
)

// errOutOfStock says that there is less than what was asked for.
var errOutOfStock = errors.New("there is not that much in stock")

// errInDoubt says that a change may or may not have been written.
var errInDoubt = errors.New("it is not known whether the stock was changed")

// errTooMuchStock says that the sum is beyond what can be counted.
var errTooMuchStock = fmt.Errorf("there would be more than %d in stock", maxStock)

// maxStock keeps sums far from an overflow.
const maxStock = math.MaxInt32

// fencedError says that a change of stock was refused, for one with a later
// token was there before it. Nothing was written. It is a store.ErrFenced.
type fencedError struct {
	Token store.Token // of the change that was refused
	Last  store.Token // of the last that was accepted; 0: the origin did not say
}

func (e *fencedError) Error() string {
	if e.Last == 0 {
		return fmt.Sprintf("%v: token %d came too late", store.ErrFenced, e.Token)
	}
	return fmt.Sprintf("%v: token %d came after %d", store.ErrFenced, e.Token, e.Last)
}

// Is makes errors.Is(err, store.ErrFenced) true.
func (e *fencedError) Is(target error) bool { return target == store.ErrFenced }

// fences are those of products whose origin does not compare tokens itself, by
// the product's id. The zero value works.
type fences struct {
	mu sync.Mutex
	of map[string]*lease.Fence // guarded by mu; only of products that exist, so it is bounded
}

// admit runs write unless there was a higher token for the product before; then
// the error is a *fencedError. That the product exists must be known.
func (f *fences) admit(token store.Token, id string, write func() error) error {
	err := f.fence(id).Admit(token, write)
	if fenced := (*fencedError)(nil); errors.Is(err, store.ErrFenced) && !errors.As(err, &fenced) {
		return &fencedError{Token: token}
	}
	return err
}

func (f *fences) fence(id string) *lease.Fence {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.of == nil {
		f.of = map[string]*lease.Fence{}
	}
	fence := f.of[id]
	if fence == nil {
		fence = new(lease.Fence)
		f.of[id] = fence
	}
	return fence
}

// ChangeStock adds delta, which may be negative, to what is there of a product,
// and returns the product as it is committed. A *fencedError says that nothing
// was changed, since another's change came between.
//
// The stock is read from the origin, not from the cache: an answer that may be
// old is good for a reader, not for what is computed from it.
func (c *catalogue) ChangeStock(ctx context.Context, id string, delta int64) (product, error) {
	limited, cancel := context.WithTimeout(ctx, stockLimit)
	defer cancel()
	var changed product
	tried, done := false, false
	err := c.leases.Do(limited, id, func(ctx context.Context, token store.Token) error {
		p, err := c.origin.Read(ctx, id)
		if err != nil {
			return err
		}
		stock, err := sum(p.Stock, delta)
		if err != nil {
			return err
		}
		tried = true
		changed, err = c.origin.SetStock(ctx, token, id, stock)
		done = err == nil
		return err
	})
	if done {
		// The origin accepted the token: that the lease was lost a moment later
		// takes nothing back.
		err = nil
	}
	if !tried || errors.Is(err, cacheguard.ErrNotFound) || errors.Is(err, store.ErrFenced) {
		return product{}, err // nothing was written
	}
	if err != nil {
		err = fmt.Errorf("%w: %w", errInDoubt, err)
	}
	return c.written(ctx, id, changed, err)
}

// sum is what is there after a change.
func sum(stock, delta int64) (int64, error) {
	switch {
	case delta > maxStock || stock+delta > maxStock:
		return 0, errTooMuchStock
	case delta < -maxStock || stock+delta < 0:
		return 0, errOutOfStock
	}
	return stock + delta, nil
}

// postStock answers when the change is committed and the cache was told.
func (s *server) postStock(w http.ResponseWriter, r *http.Request) {
	delta, err := readDelta(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	changed, err := s.catalogue.ChangeStock(r.Context(), r.PathValue("id"), delta)
	if err != nil {
		failStock(w, r, err)
		return
	}
	answer(w, changed)
}

// failStock answers an error of a change. A client that asks again makes
// another change: it is told to only where nothing was changed.
func failStock(w http.ResponseWriter, r *http.Request, err error) {
	fault := (*store.Fault)(nil)
	switch {
	case errors.Is(err, errOutOfStock), errors.Is(err, errTooMuchStock):
		http.Error(w, err.Error(), http.StatusConflict)
		return
	case errors.Is(err, store.ErrFenced):
		http.Error(w, "nothing was changed: another change of this stock came between; ask again", http.StatusConflict)
	case errors.Is(err, errInDoubt):
		http.Error(w, errInDoubt.Error()+"; look before you ask again", http.StatusBadGateway)
	case errors.Is(err, errNotInvalidated):
		http.Error(w, "changed, but the cache could not be told yet; do not ask again", http.StatusBadGateway)
	case errors.Is(err, store.ErrHeld):
		retryLater(w, stockLease, "nothing was changed: others are changing this stock")
	case errors.Is(err, store.ErrLost), errors.Is(err, lease.ErrClosed), errors.As(err, &fault):
		retryLater(w, stockLease, "nothing was changed: there is no lease to be had")
	default:
		fail(w, r, err)
		return
	}
	slog.Warn("stock was not changed in order", "error", err)
}

// readDelta reads what a POST adds to a stock.
func readDelta(body io.Reader) (int64, error) {
	const example = `send {"delta": -1}`
	var in struct {
		Delta *int64 `json:"delta"`
	}
	dec := json.NewDecoder(body)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&in); err != nil {
		return 0, fmt.Errorf("the body is not a change of stock (%w); %s", err, example)
	}
	if _, err := dec.Token(); err != io.EOF {
		return 0, errors.New("something follows the change; send one JSON object")
	}
	if in.Delta == nil || *in.Delta == 0 {
		return 0, errors.New("delta is missing or 0; " + example)
	}
	return *in.Delta, nil
}
