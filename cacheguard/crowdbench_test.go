package cacheguard_test

import (
	"context"
	"fmt"
	"runtime"
	"runtime/metrics"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/internal/weigh"
)

// forgetful is a store that grants every claim and keeps nothing: what a guard
// costs on it is the guard's own.
type forgetful struct {
	store.Store // nil: nothing else is called
	granted     atomic.Int64
}

func (*forgetful) Load(context.Context, store.Key) (store.Entry, error) { return store.Entry{}, nil }

func (s *forgetful) Claim(_ context.Context, c store.Claim) (store.Verdict, error) {
	g := store.Grant{Key: c.Key, Holder: c.Holder, Token: store.Token(s.granted.Add(1)), Birth: "b", Length: c.Length}
	return store.Verdict{Outcome: store.Granted, Grant: g}, nil
}

func (*forgetful) Fill(context.Context, store.Grant, store.Content) error { return nil }

func (*forgetful) Renew(_ context.Context, r []store.Renewal) []error { return make([]error, len(r)) }

func (*forgetful) Listen(string, func(store.Event)) (stop func()) { return func() {} }

func newCrowdGuard(b *testing.B, opts cacheguard.Options[[]byte]) *cacheguard.Guard[[]byte] {
	b.Helper()
	opts.Codec = cacheguard.Bytes()
	g, err := cacheguard.New(&forgetful{}, opts)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := g.Close(); err != nil {
			b.Error(err)
		}
	})
	return g
}

// BenchmarkCrowd: what one caller of many costs, beside one of few in the same
// run: were there a lock that all queue for, or a list that is walked, it would
// grow with their number. callers is how many ask for one key at once; its load
// ends when all have asked. The same crowd in front of a plain singleflight
// shows how much of the growth is the machine's: so many goroutines do not fit
// its caches. keys is how many keys are asked for at once, each by one caller.
// An operation is one call.
func BenchmarkCrowd(b *testing.B) {
	b.Run("callers=10000", func(b *testing.B) {
		g := newCrowdGuard(b, cacheguard.Options[[]byte]{})
		byGuard := func(round int, asked *sync.WaitGroup) error {
			_, err := g.Get(context.Background(), fmt.Sprint(round), func(context.Context, string) ([]byte, error) {
				asked.Wait()
				return nil, nil
			})
			return err
		}
		var flights singleflight.Group
		bySingleflight := func(round int, asked *sync.WaitGroup) error {
			_, err, _ := flights.Do(fmt.Sprint(round), func() (any, error) { asked.Wait(); return nil, nil })
			return err
		}
		const few, many = 100, 10_000
		var ours, floor growth
		for done := 0; done < b.N; done += many {
			ours.add(crowd(b, few, many/few, byGuard), crowd(b, many, 1, byGuard))
			floor.add(crowd(b, few, many/few, bySingleflight), crowd(b, many, 1, bySingleflight))
		}
		ours.report(b)
		b.ReportMetric(floor.ratio(), "floor-x-of-small")
		b.ReportMetric(ours.ratio()/floor.ratio(), "x-of-floor")
	})
	b.Run("keys=100000", func(b *testing.B) {
		g := newCrowdGuard(b, cacheguard.Options[[]byte]{})
		var last atomic.Int64
		load := func(context.Context, string) ([]byte, error) { return nil, nil }
		ask := func(int, *sync.WaitGroup) error {
			_, err := g.Get(context.Background(), fmt.Sprint(last.Add(1)), load)
			return err
		}
		const few, many = 1_000, 100_000
		var ours growth
		for done := 0; done < b.N; done += many {
			ours.add(crowd(b, few, many/few, ask), crowd(b, many, 1, ask))
		}
		ours.report(b)
	})
}

// growth is what a call costs in a small and in a large crowd.
type growth struct {
	small, large cost
	ratios       []float64 // of the time
}

// cost is what a call has cost, in nanoseconds. Processor time tells a crowd that
// gives the machine more to do from one whose callers stand in each other's way.
type cost struct{ took, cpu, mutexes float64 }

func (c *cost) add(o cost) {
	c.took += o.took
	c.cpu += o.cpu
	c.mutexes += o.mutexes
}

func (g *growth) add(small, large cost) {
	g.small.add(small)
	g.large.add(large)
	g.ratios = append(g.ratios, large.took/small.took)
}

// ratio is how much more a call costs in the large crowd: the median.
func (g *growth) ratio() float64 {
	slices.Sort(g.ratios)
	return g.ratios[len(g.ratios)/2]
}

func (g *growth) report(b *testing.B) {
	n := float64(len(g.ratios))
	b.ReportMetric(g.large.took/n, "ns/op")
	b.ReportMetric(g.small.took/n, "small-ns/op")
	b.ReportMetric(g.large.mutexes/n, "mutex-wait-ns/op")
	b.ReportMetric(g.ratio(), "x-of-small")
	b.ReportMetric(g.large.cpu/n, "cpu-ns/op")
	b.ReportMetric(g.large.cpu/g.small.cpu, "cpu-x-of-small")
}

// crowd lets n goroutines call at once, so many times, and returns what a call
// has cost. They stand ready, with stacks that a first call has grown. asked is
// done by each of them before it calls.
func crowd(b *testing.B, n, rounds int, call func(round int, asked *sync.WaitGroup) error) (c cost) {
	gates, asked, answered := make([]chan struct{}, rounds+1), make([]sync.WaitGroup, rounds+1), make([]sync.WaitGroup, rounds+1)
	for r := range gates {
		gates[r] = make(chan struct{})
		asked[r].Add(n)
		answered[r].Add(n)
	}
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			for r := range gates {
				<-gates[r]
				asked[r].Done()
				if err := call(r, &asked[r]); err != nil {
					b.Error(err)
				}
				answered[r].Done()
			}
		})
	}
	for r := range gates {
		before, began := cost{cpu: cpuTime(), mutexes: mutexWait()}, time.Now()
		close(gates[r])
		answered[r].Wait()
		if r > 0 { // the first grows the stacks
			c.add(cost{took: float64(time.Since(began)), cpu: cpuTime() - before.cpu, mutexes: mutexWait() - before.mutexes})
		}
	}
	all.Wait()
	calls := float64(n * rounds)
	return cost{c.took / calls, c.cpu / calls, c.mutexes / calls}
}

// cpuTime is the processor time of this process, in nanoseconds.
func cpuTime() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return float64(u.Utime.Nano() + u.Stime.Nano())
}

// mutexWait is for how many nanoseconds goroutines have waited for mutexes, all
// together, since the program began.
func mutexWait() float64 {
	s := []metrics.Sample{{Name: "/sync/mutex/wait/total:seconds"}}
	metrics.Read(s)
	return s[0].Value.Float64() * 1e9
}

// BenchmarkMemory: what waits, and what is there, in bytes of heap and stacks.
// Each line is the growth by a crowd, divided by its number; the time says
// nothing.
func BenchmarkMemory(b *testing.B) {
	const waiters = 10_000
	background := func(int) context.Context { return context.Background() }
	b.Run("goroutine", func(b *testing.B) {
		weigh.Growth(b, waiters, func() (end func()) {
			gate := make(chan struct{})
			return weigh.Parked(waiters, func(int) { <-gate }, func() { close(gate) })
		})
	})
	waiting := func(ctx func(i int) context.Context, key func(i int) string) func(*testing.B) {
		return func(b *testing.B) {
			g := newCrowdGuard(b, cacheguard.Options[[]byte]{})
			round := 0
			weigh.Growth(b, waiters, func() (end func()) {
				round++
				gate := make(chan struct{})
				load := func(context.Context, string) ([]byte, error) { <-gate; return nil, nil }
				prefix := fmt.Sprint(round, " ")
				return weigh.Parked(waiters, func(i int) {
					if _, err := g.Get(ctx(i), prefix+key(i), load); err != nil {
						b.Error(err)
					}
				}, func() { close(gate) })
			})
		}
	}
	same := func(int) string { return "key" }
	b.Run("caller", waiting(background, same))
	b.Run("cancellable", func(b *testing.B) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		waiting(func(int) context.Context { return ctx }, same)(b)
	})
	b.Run("flight", waiting(background, func(i int) string { return fmt.Sprint(i) }))
	b.Run("idle", func(b *testing.B) {
		g := newCrowdGuard(b, cacheguard.Options[[]byte]{})
		weigh.Growth(b, waiters, func() (end func()) {
			getEach(b, g, waiters, nil)
			return func() {}
		})
	})
	b.Run("near", func(b *testing.B) {
		weigh.Growth(b, waiters, func() (end func()) {
			g := newCrowdGuard(b, cacheguard.Options[[]byte]{Near: cacheguard.Near{MaxEntries: 2 * waiters, TTL: time.Hour}, Lifetime: cacheguard.Lifetime{TTL: time.Hour}})
			getEach(b, g, waiters, func() []byte { return make([]byte, 1<<10) })
			return func() { runtime.KeepAlive(g) }
		})
	})
}

// getEach loads n keys one after the other; value makes what is loaded.
func getEach(b *testing.B, g *cacheguard.Guard[[]byte], n int, value func() []byte) {
	load := func(context.Context, string) (v []byte, err error) {
		if value != nil {
			v = value()
		}
		return v, nil
	}
	for i := range n {
		if _, err := g.Get(context.Background(), fmt.Sprint(i), load); err != nil {
			b.Fatal(err)
		}
	}
}
