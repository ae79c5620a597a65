package bench_test

import (
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// turns measures ours beside bare, the same thing done by what it stands on.
// They take turns in slices of some milliseconds, so that whatever else the
// machine does meets both: the ratio of a slice to its neighbour says something
// where two times that were measured one after the other do not.
type turns struct {
	goroutines int // 0: one, and it is the benchmark's
	bare, ours way

	size int // of every slice, and of one before that is not counted; 0: as many calls as take sliceTime

	// server, if there is one, is asked for the processor time that it has
	// used, which no other process of the machine can change.
	server *redis.Client
}

// way is one way to do a thing.
type way struct {
	call    func(i int) error // i is below the size of the slice
	prepare func(n int) error // what n calls need; is not measured. nil: nothing
}

// calling is a way that needs nothing.
func calling(call func(i int) error) way { return way{call: call} }

// slice is what some calls in a row have cost.
type slice struct {
	took   time.Duration
	allocs uint64
	bytes  uint64
	server time.Duration
}

func (s *slice) add(o slice) {
	s.took += o.took
	s.allocs += o.allocs
	s.bytes += o.bytes
	s.server += o.server
}

// sliceTime is about how long a slice takes: much longer than it takes to start
// goroutines and to read the clock, and shorter than most disturbances.
const sliceTime = 20 * time.Millisecond

// run makes b.N calls of either way and reports ours as the benchmark's own
// figures, beside them
//
//	bare-ns/op, bare-allocs/op   of the other way
//	x-of-bare                    how much faster ours is: the median of all slices
//	more-allocs/op               ours less bare
//	redis-ns/op, bare-redis-ns/op, redis-x-of-bare
//	                             the same of the server's processor time; here
//	                             more is worse
func (t turns) run(b *testing.B) {
	b.ReportAllocs() // or the reported allocations are not shown
	size := max(t.size, 1)
	if t.size > 0 {
		t.slice(b, t.bare, size)
		t.slice(b, t.ours, size)
	}
	var bare, ours slice
	var faster []float64
	for done := 0; done < b.N; {
		n := min(size, b.N-done)
		var first, second slice
		if len(faster)%2 == 0 { // who comes second finds what the first has left in the caches
			first, second = t.slice(b, t.bare, n), t.slice(b, t.ours, n)
		} else {
			second, first = t.slice(b, t.ours, n), t.slice(b, t.bare, n)
		}
		done += n
		bare.add(first)
		ours.add(second)
		faster = append(faster, float64(first.took)/float64(max(second.took, 1)))
		if t.size > 0 {
			continue
		}
		size = max(t.goroutines, 1, min(4*size, int(float64(n)*float64(sliceTime)/float64(max(second.took, 1)))))
	}
	n := float64(b.N)
	b.ReportMetric(float64(ours.took)/n, "ns/op")
	b.ReportMetric(float64(ours.allocs)/n, "allocs/op")
	b.ReportMetric(float64(ours.bytes)/n, "B/op")
	b.ReportMetric(float64(bare.took)/n, "bare-ns/op")
	b.ReportMetric(float64(bare.allocs)/n, "bare-allocs/op")
	b.ReportMetric(float64(ours.allocs)/n-float64(bare.allocs)/n, "more-allocs/op")
	b.ReportMetric(median(faster), "x-of-bare")
	if t.server != nil {
		b.ReportMetric(float64(ours.server)/n, "redis-ns/op")
		b.ReportMetric(float64(bare.server)/n, "bare-redis-ns/op")
		b.ReportMetric(float64(ours.server)/float64(max(bare.server, 1)), "redis-x-of-bare")
	}
}

// slice makes n calls.
func (t turns) slice(b *testing.B, w way, n int) (s slice) {
	b.Helper()
	if w.prepare != nil {
		if err := w.prepare(n); err != nil {
			b.Fatal(err)
		}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	server := t.serverTime(b)
	began := time.Now()
	err := spread(n, t.goroutines, w.call)
	s.took = time.Since(began)
	s.server = t.serverTime(b) - server
	runtime.ReadMemStats(&after)
	if err != nil {
		b.Fatal(err)
	}
	s.allocs, s.bytes = after.Mallocs-before.Mallocs, after.TotalAlloc-before.TotalAlloc
	return s
}

// spread makes n calls on so many goroutines, or on its own.
func spread(n, goroutines int, call func(i int) error) error {
	if goroutines == 0 {
		for i := range n {
			if err := call(i); err != nil {
				return err
			}
		}
		return nil
	}
	var wg sync.WaitGroup
	errs := make([]error, goroutines)
	for w := range goroutines {
		wg.Go(func() {
			for i := w; i < n && errs[w] == nil; i += goroutines {
				errs[w] = call(i)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// serverTime is how much processor the server has used.
func (t turns) serverTime(b *testing.B) (used time.Duration) {
	b.Helper()
	if t.server == nil {
		return 0
	}
	info, err := t.server.Info(b.Context(), "cpu").Result()
	if err != nil {
		b.Fatal(err)
	}
	found := 0
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name != "used_cpu_sys" && name != "used_cpu_user" {
			continue
		}
		d, err := time.ParseDuration(value + "s")
		if err != nil {
			b.Fatal(err)
		}
		used += d
		found++
	}
	if found != 2 {
		b.Fatalf("INFO cpu does not tell: %q", info)
	}
	return used
}

func median(all []float64) float64 {
	slices.Sort(all)
	if n := len(all); n%2 == 0 {
		return (all[n/2-1] + all[n/2]) / 2
	}
	return all[len(all)/2]
}
