package faulttest

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// origin is what the loaders of all processes ask. It knows what is true: the
// version of each key, which of them the store was told of, and who loads what.
type origin struct {
	t     *testing.T
	takes time.Duration // a load
	size  int           // of a value in bytes, at least

	mu     sync.Mutex
	keys   map[string]*item
	loads  []load
	active int
	most   int // loads under way at once, of all keys and processes
}

type item struct {
	version int64
	floor   int64         // what a read that begins now must not be older than (P2)
	own     map[int]int64 // the same by process, with its writes that failed (P15)
	running map[int]int   // loads, by process
	all     int           // loads, of all processes
	most    int           // loads of all processes at once
}

// load is one question to the origin.
type load struct {
	key     string
	process int
	at      time.Time
}

func newOrigin(t *testing.T, takes time.Duration) *origin {
	return &origin{t: t, takes: takes, keys: make(map[string]*item)}
}

// item returns a key's; mu is held.
func (o *origin) item(key string) *item {
	it := o.keys[key]
	if it == nil {
		it = &item{version: 1, own: make(map[int]int64), running: make(map[int]int)}
		o.keys[key] = it
	}
	return it
}

// loader is the loader of one process. It sees the version that was there when
// it began, and checks that its process does not load the key already.
func (o *origin) loader(process int) func(context.Context, string) (string, error) {
	return func(ctx context.Context, key string) (string, error) {
		version := o.begin(process, key)
		defer o.end(process, key)
		select {
		case <-time.After(o.takes):
			return o.value(key, version), nil
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}

func (o *origin) begin(process int, key string) int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	it := o.item(key)
	it.running[process]++
	it.all++
	o.active++
	o.most = max(o.most, o.active)
	o.loads = append(o.loads, load{key, process, time.Now()})
	running := 0
	for _, n := range it.running {
		running += n
	}
	it.most = max(it.most, running)
	if n := it.running[process]; n > 1 {
		o.t.Errorf("process %d runs %d loads of %s at once", process, n, key)
	}
	return it.version
}

func (o *origin) end(process int, key string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.item(key).running[process]--
	o.active--
}

// value is what version v of a key looks like: no part of it fits another.
func (o *origin) value(key string, v int64) string {
	s := fmt.Sprintf("%s@%d", key, v)
	return s + strings.Repeat("."+s, max(0, o.size-1)/(len(s)+1))
}

// versionOf is the version that a value shows, or an error if it is none of the
// key's.
func (o *origin) versionOf(key, value string) (int64, error) {
	digits, _, _ := strings.Cut(strings.TrimPrefix(value, key+"@"), ".")
	v, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || value != o.value(key, v) {
		return 0, fmt.Errorf("%s has a value that never was: %.60q", key, value)
	}
	return v, nil
}

// commit writes the next version.
func (o *origin) commit(key string) int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	it := o.item(key)
	it.version++
	return it.version
}

// told notes that a process has told the store of a version, or has failed to.
func (o *origin) told(process int, key string, v int64, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	it := o.item(key)
	it.own[process] = max(it.own[process], v)
	if err == nil {
		it.floor = max(it.floor, v)
	}
}

// floor is the oldest version that a read of a process may return that begins
// now.
func (o *origin) floor(process int, key string) int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	it := o.item(key)
	return max(it.floor, it.own[process])
}

func (o *origin) newest(key string) int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.item(key).version
}

// loadsSince are the loads that began after an instant, by key.
func (o *origin) loadsSince(at time.Time) map[string]int {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := make(map[string]int)
	for _, l := range o.loads {
		if l.at.After(at) {
			n[l.key]++
		}
	}
	return n
}

// forget starts all counts anew.
func (o *origin) forget() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.most, o.loads = o.active, nil
	for _, it := range o.keys {
		it.most = 0
	}
}

func (o *origin) mostAtOnce() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.most
}

// most is the greatest value of a map, and its key.
func most(m map[string]int) (key string, n int) {
	for k, v := range m {
		if v > n {
			key, n = k, v
		}
	}
	return key, n
}

func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

func sorted(d []time.Duration) []time.Duration {
	slices.Sort(d)
	return d
}
