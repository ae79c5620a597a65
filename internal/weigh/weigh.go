// Package weigh measures the memory of things that wait, for benchmarks.
package weigh

import (
	"runtime"
	"runtime/metrics"
	"sync"
	"testing"
	"time"
)

// Growth reports, in bytes, what begin adds to heap and stacks until it returns,
// for each of n. end lets it go again. What is pooled, or grown by a first
// crowd, is there before: one is let through that is not weighed.
func Growth(b *testing.B, n int, begin func() (end func())) {
	begin()()
	var total float64
	for b.Loop() {
		before := inUse()
		end := begin()
		total += float64(inUse()) - float64(before)
		end()
	}
	b.ReportMetric(total/float64(b.N)/float64(n), "bytes")
}

// inUse is the live heap, and the stacks.
func inUse() uint64 {
	runtime.GC()
	runtime.GC() // what finalizers and sync.Pools have kept
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

// Parked starts n goroutines and returns when nothing moves any more. end opens
// what they wait for, and waits for them.
func Parked(n int, run func(i int), open func()) (end func()) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { run(i) })
	}
	settle()
	return func() {
		open()
		all.Wait()
	}
}

// settle returns when no other goroutine has run or wanted to for a while.
func settle() {
	s := []metrics.Sample{{Name: "/sched/goroutines/runnable:goroutines"}, {Name: "/sched/goroutines/running:goroutines"}}
	for still := 0; still < 20; {
		time.Sleep(time.Millisecond)
		metrics.Read(s)
		if still++; s[0].Value.Uint64() > 0 || s[1].Value.Uint64() > 1 {
			still = 0
		}
	}
}
