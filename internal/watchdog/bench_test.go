package watchdog

import (
	"strconv"
	"syscall"
	"testing"
	"time"
)

// BenchmarkHold holds 10,000 leases of the default initial length, 3 s, for three
// seconds per iteration: 5,600 renewals a second. Its figure is the processor
// time that the watchdog takes for that, in core-percent for each 1,000 leases
// (without what a store takes: the one here just says yes).
func BenchmarkHold(b *testing.B) {
	const leases = 10_000
	const length = 3 * time.Second
	w := New(silent{}, Hooks{})
	defer w.Close()
	now := time.Now()
	for i := range leases {
		// As if claimed over the last 1.5 s: the renewals are spread too.
		sent := now.Add(-time.Duration(i) * length / 2 / leases)
		w.Hold(Lease{Grant: grant(strconv.Itoa(i), length), Sent: sent, Cap: now.Add(time.Hour)}, func(Reason) {})
	}
	before, start := processorTime(b), time.Now()
	for b.Loop() {
		time.Sleep(length)
	}
	used, held := processorTime(b)-before, time.Since(start)
	b.ReportMetric(100*used.Seconds()/held.Seconds()/(leases/1000), "core-%/1000-leases")
}

// BenchmarkHoldAndDrop is what a load that is over before its renewal is due
// pays, beside 10,000 others.
func BenchmarkHoldAndDrop(b *testing.B) {
	w := New(silent{}, Hooks{})
	defer w.Close()
	now := time.Now()
	lease := func(name string) Lease {
		return Lease{Grant: grant(name, time.Hour), Sent: now, Cap: now.Add(2 * time.Hour)}
	}
	for i := range 10_000 {
		w.Hold(lease(strconv.Itoa(i)), func(Reason) {})
	}
	l, ended := lease("one more"), func(Reason) {}
	b.ReportAllocs()
	for b.Loop() {
		w.Hold(l, ended).Drop()
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
