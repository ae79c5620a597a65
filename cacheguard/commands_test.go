package cacheguard_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

// A storm on a missing key costs each process at most three commands, whatever
// the number of its callers and however long the load: the read, the claim, and
// the fill or, for a follower, the read after the message.
func TestStormSendsAtMostThreeCommandsPerProcess(t *testing.T) {
	onReadPaths(t, stormSendsAtMostThreeCommandsPerProcess)
}

func stormSendsAtMostThreeCommandsPerProcess(t *testing.T, opts redisstore.Options) {
	server := redistest.Start(t)
	for _, takes := range []time.Duration{10 * time.Millisecond, 100 * time.Millisecond, time.Second} {
		t.Run(takes.String(), func(t *testing.T) {
			const processes, callers = 4, 50
			o := &origin{takes: takes}
			var gs []*guard
			var taps []*tap
			for range processes {
				client := redis.NewClient(&redis.Options{Addr: server.Addr})
				s, err := redisstore.New(client, opts)
				if err != nil {
					t.Fatal(err)
				}
				tap := newTap(s)
				gs, taps = append(gs, newGuard(t, tap, options{})), append(taps, tap)
				t.Cleanup(func() { _ = s.Close(); _ = client.Close() })
			}
			for i, g := range gs { // the connections, and the subscription
				if _, err := g.Get(t.Context(), "warm", o.load); err != nil {
					t.Fatal(i, err)
				}
			}
			begin := make(chan struct{})
			var wg sync.WaitGroup
			key := fmt.Sprint("cold ", takes)
			for _, tap := range taps {
				tap.reset()
			}
			loads := o.loads.Load()
			for _, g := range gs {
				for range callers {
					wg.Go(func() {
						<-begin
						if _, err := g.Get(context.Background(), key, o.load); err != nil {
							t.Error(err)
						}
					})
				}
			}
			close(begin)
			wg.Wait()
			if n := o.loads.Load() - loads; n != 1 {
				t.Errorf("%d loads", n)
			}
			for i := range taps {
				if n, calls := taps[i].reset(); n > 3 {
					t.Errorf("process %d sent %d commands, want at most 3: %v", i, n, calls)
				}
			}
		})
	}
}
