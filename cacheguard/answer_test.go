package cacheguard_test

import (
	"testing"
	"testing/synctest"

	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
)

// unanswered expects that a caller still waits.
func (a asking) unanswered(t *testing.T, who string) {
	t.Helper()
	synctest.Wait()
	select {
	case r := <-a:
		t.Errorf("%s got %q, %v; want that it waits", who, r.Value, r.err)
	default:
	}
}

// Who was there before the load began may have its value whatever becomes of the
// fill, and does not wait for a store that is slow to take it. Who came later has
// to: only the store can tell that nothing was invalidated since. And so does the
// caller that began the flight: what it asks for next is stored.
func TestWhoWasThereBeforeTheLoadDoesNotWaitForTheFill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tapped := newTap(memstore.New(memstore.Options{}))
		g := newGuard(t, tapped, options{})
		claiming, filling, loading, o := newGate(), newGate(), newGate(), &origin{}
		tapped.on(func(op, id string) error {
			switch op {
			case "claim":
				claiming.stop()
			case "fill":
				filling.stop()
			}
			return nil
		}, nil)
		first := ask(t.Context(), g, "k", o.gated(loading))
		claiming.holds(t, 1)
		before := ask(t.Context(), g, "k", o.load)
		synctest.Wait()
		claiming.open()
		loading.holds(t, 1)
		after := ask(t.Context(), g, "k", o.load)
		synctest.Wait()
		loading.open()
		filling.holds(t, 1)
		if r := before.got(t, "k@0"); !r.Coalesced {
			t.Error("its answer does not say that it was another's load")
		}
		after.unanswered(t, "who came after the load began")
		first.unanswered(t, "who began the flight")
		filling.open()
		first.got(t, "k@0")
		after.got(t, "k@0")
		o.loaded(t, 1)
	})
}
