package cacheguard_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
)

// While the store hangs in the read of one key, all others are answered, hits
// and misses, those of its shard as well: no lock is held while the store is
// asked.
func TestAReadThatHangsHoldsUpNoOtherKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tap := newTap(memstore.New(memstore.Options{}))
		g, o := newGuard(t, tap, options{}), &origin{}
		hung := make(chan struct{})
		tap.on(func(op, id string) error {
			if op == "load" && id == "hung" {
				<-hung
			}
			return nil
		}, nil)
		var waits sync.WaitGroup
		for range 2 { // one reads, and one waits to share the next read
			waits.Go(func() {
				if _, err := g.Get(context.Background(), "hung", o.load); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		for range 2 { // a miss, then a hit
			for i := range 1000 {
				if _, err := g.Get(context.Background(), fmt.Sprint(i), o.load); err != nil {
					t.Fatal(err)
				}
			}
		}
		if n := o.loads.Load(); n != 1000 {
			t.Errorf("%d loads of 1000 keys", n)
		}
		close(hung)
		waits.Wait()
	})
}
