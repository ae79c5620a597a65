package faulttest

import (
	"runtime"
	"testing"
	"time"
)

// footprintOf measures once the goroutines that are about to end have ended.
func footprintOf(t *testing.T) footprint {
	t.Helper()
	least := runtime.NumGoroutine()
	for range 100 {
		time.Sleep(10 * time.Millisecond)
		least = min(least, runtime.NumGoroutine())
	}
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return footprint{goroutines: least, heap: m.HeapAlloc}
}
