package lease

import (
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

// BenchmarkHold holds 10,000 leases of 3 s on a real server for three seconds
// per iteration: 5,600 renewals a second. Its figure is the processor time that
// this process takes for it, in core-percent for each 1,000 leases.
func BenchmarkHold(b *testing.B) {
	const leases, claimers = 10_000, 16
	l, _, closeAll, err := connect(redistest.Start(b).Addr)
	if err != nil {
		b.Fatal(err)
	}
	defer closeAll()
	l.opts.Length = 3 * time.Second
	var all sync.WaitGroup
	for c := range claimers {
		all.Go(func() {
			for i := c; i < leases; i += claimers {
				if _, err := l.TryAcquire(b.Context(), strconv.Itoa(i)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	before, start := processorTime(b), time.Now()
	for b.Loop() {
		time.Sleep(3 * time.Second)
	}
	used, held := processorTime(b)-before, time.Since(start)
	b.ReportMetric(100*used.Seconds()/held.Seconds()/(leases/1000), "core-%/1000-leases")
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.held); n != leases {
		b.Errorf("%d of %d leases are held in the end", n, leases)
	}
}

// BenchmarkDo is a lease taken and given back.
func BenchmarkDo(b *testing.B) {
	l, _, closeAll, err := connect(redistest.Start(b).Addr)
	if err != nil {
		b.Fatal(err)
	}
	defer closeAll()
	b.ReportAllocs()
	for b.Loop() {
		h, err := l.Acquire(b.Context(), "job")
		if err != nil {
			b.Fatal(err)
		}
		if err := h.Release(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

// processorTime is what this process has used so far.
func processorTime(tb testing.TB) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
