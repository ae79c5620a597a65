package faulttest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
)

type options = cacheguard.Options[string]

// fleet is a number of guards, each with a client and a store of its own, as in
// as many processes.
type fleet struct {
	t       *testing.T
	origin  *origin
	members []*member
}

type member struct {
	*fleet
	id     int
	guard  *cacheguard.Guard[string]
	store  *redisstore.Store
	client redis.UniversalClient
	load   cacheguard.Loader[string]

	mu      sync.Mutex
	classes map[store.Class]int // faults; guarded by mu
	opened  int                 // times that the breaker did; guarded by mu
	isOpen  bool                // guarded by mu
}

// storeTimeout is the bound of one call to the store that these tests use:
// longer than the default, so that a busy machine is not an outage.
const storeTimeout = 200 * time.Millisecond

// startFleet starts n members. Their clients have the options that go-redis
// gives by default where connect does not say otherwise: that is the hard case.
func startFleet(t *testing.T, o *origin, n int, connect func() redis.UniversalClient, opts options, storeOpts redisstore.Options) *fleet {
	t.Helper()
	f := &fleet{t: t, origin: o}
	if storeOpts.Timeout == 0 {
		storeOpts.Timeout = storeTimeout
	}
	for id := range n {
		m := &member{fleet: f, id: id, client: connect(), load: o.loader(id), classes: make(map[store.Class]int)}
		t.Cleanup(func() { m.client.Close() })
		var err error
		if m.store, err = redisstore.New(m.client, storeOpts); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.store.Close() }) // that commands are still under way in a dead server is no fault here
		opts := opts
		opts.Hooks = cacheguard.Hooks{Fault: m.fault, Breaker: m.breaker}
		if m.guard, err = cacheguard.New(m.store, opts); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := m.guard.Close(); err != nil {
				t.Error("Close:", err)
			}
		})
		f.members = append(f.members, m)
	}
	return f
}

func (m *member) fault(f cacheguard.FaultInfo) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.classes[f.Class]++
}

func (m *member) breaker(open bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.isOpen = open; open {
		m.opened++
	}
}

func (m *member) breakerIsOpen() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.isOpen
}

// faults are those of the whole fleet, by class.
func (f *fleet) faults() map[store.Class]int {
	all := make(map[store.Class]int)
	for _, m := range f.members {
		m.mu.Lock()
		for class, n := range m.classes {
			all[class] += n
		}
		m.mu.Unlock()
	}
	return all
}

// wantFault checks that the fleet has been told of a fault of one of the
// classes: without that the test has broken nothing.
func (f *fleet) wantFault(classes ...store.Class) {
	f.t.Helper()
	all := f.faults()
	for _, class := range classes {
		if all[class] > 0 {
			return
		}
	}
	f.t.Errorf("no fault of class %v was told of; faults: %v", classes, all)
}

// read gets a key and judges the answer. It returns how long that took.
func (m *member) read(ctx context.Context, key string) (time.Duration, error) {
	floor := m.origin.floor(m.id, key)
	begin := time.Now()
	value, err := m.guard.Get(ctx, key, m.load)
	took := time.Since(begin)
	if err != nil {
		return took, err
	}
	v, err := m.origin.versionOf(key, value)
	switch newest := m.origin.newest(key); {
	case err != nil:
		m.t.Error(err)
	case v < floor:
		m.t.Errorf("process %d: %s is at version %d, but the store was told of %d before the read began", m.id, key, v, floor)
	case v > newest:
		m.t.Errorf("process %d: %s is at version %d, of %d", m.id, key, v, newest)
	}
	return took, nil
}

// mustRead reads where nothing is broken.
func (m *member) mustRead(key string) {
	m.t.Helper()
	if _, err := m.read(m.t.Context(), key); err != nil {
		m.t.Fatalf("process %d: Get(%s): %v", m.id, key, err)
	}
}

// write commits a version and invalidates the key.
func (m *member) write(key string) error {
	v := m.origin.commit(key)
	err := m.guard.Invalidate(context.WithoutCancel(m.t.Context()), key)
	m.origin.told(m.id, key, v, err)
	return err
}

// connected waits until every member hears the others' messages.
func (f *fleet) connected() {
	f.t.Helper()
	for _, m := range f.members {
		up := make(chan struct{}, 1)
		stop := m.store.Listen("connected", func(e store.Event) {
			if e.Kind == store.Up {
				select {
				case up <- struct{}{}:
				default:
				}
			}
		})
		select {
		case <-up:
		case <-time.After(10 * time.Second):
			f.t.Fatal("a subscription does not come up")
		}
		stop()
	}
}

// traffic is readers and writers that go on until stop.
type traffic struct {
	*fleet
	cancel context.CancelFunc
	all    sync.WaitGroup

	mu     sync.Mutex
	reads  int
	errs   map[string]int
	errAt  []time.Time // of reads
	writes int
	failed int // writes
	took   []time.Duration
}

// load says how much traffic there is.
type pace struct {
	keys     []string
	readers  int // of each member
	think    time.Duration
	writers  int              // of each member; each writes after thinking ten times as long
	limit    time.Duration    // a read that takes longer is an error of the test
	tolerate func(error) bool // of a read; nil: none
}

func (f *fleet) start(p pace) *traffic {
	ctx, cancel := context.WithCancel(f.t.Context())
	tr := &traffic{fleet: f, cancel: cancel, errs: make(map[string]int)}
	for _, m := range f.members {
		for range p.readers {
			tr.all.Go(func() { tr.read(ctx, m, p) })
		}
		for range p.writers {
			tr.all.Go(func() { tr.write(ctx, m, p) })
		}
	}
	return tr
}

func (tr *traffic) read(ctx context.Context, m *member, p pace) {
	for pause(ctx, rand.N(2*p.think)) {
		// One that is under way at the end is waited for: it counts.
		took, err := m.read(context.WithoutCancel(ctx), p.keys[rand.IntN(len(p.keys))])
		tr.mu.Lock()
		tr.reads++
		tr.took = append(tr.took, took)
		if err != nil {
			tr.errs[err.Error()]++
			tr.errAt = append(tr.errAt, time.Now())
		}
		tr.mu.Unlock()
		if err != nil && (p.tolerate == nil || !p.tolerate(err)) {
			tr.t.Errorf("process %d: read: %v", m.id, err)
		}
		if took > p.limit {
			tr.t.Errorf("process %d: a read took %v", m.id, took)
		}
	}
}

func (tr *traffic) write(ctx context.Context, m *member, p pace) {
	for pause(ctx, rand.N(20*p.think)) {
		err := m.write(p.keys[rand.IntN(len(p.keys))])
		tr.mu.Lock()
		tr.writes++
		if err != nil {
			tr.failed++
		}
		tr.mu.Unlock()
	}
}

// stop ends the traffic and says what it was.
func (tr *traffic) stop() {
	tr.t.Helper()
	tr.cancel()
	tr.all.Wait()
	if tr.reads == 0 {
		tr.t.Error("nobody has read anything")
	}
	took := sorted(tr.took)
	tr.t.Logf("%d reads (p50 %v, p99 %v, max %v), errors %v; %d writes, %d could not be told at once; faults %v",
		tr.reads, quantile(took, .5), quantile(took, .99), quantile(took, 1), tr.errs, tr.writes, tr.failed, tr.faults())
}

// pause waits, and tells whether ctx is still there.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// settled waits until the fleet is as it was: no breaker is open, no write is
// pending, and each key is loaded at most once for all members to have its
// newest version, which the store then serves. limit bounds it.
func (f *fleet) settled(keys []string, limit time.Duration) {
	f.t.Helper()
	begin := time.Now()
	f.breakersClose(limit)
	f.eventually(limit, "all processes serve the newest values from the store", func() bool {
		for _, key := range keys {
			for _, m := range f.members {
				e, err := m.guard.GetEntry(f.t.Context(), key, m.load)
				v, _ := f.origin.versionOf(key, e.Value)
				if err != nil || e.State != cacheguard.Fresh || v != f.origin.newest(key) {
					return false
				}
			}
		}
		return true
	})
	f.t.Logf("normal %v later", time.Since(begin).Round(time.Millisecond))
}

func (f *fleet) breakersClose(limit time.Duration) {
	f.t.Helper()
	f.eventually(limit, "the breakers close", func() bool {
		for _, m := range f.members {
			if m.breakerIsOpen() {
				return false
			}
		}
		return true
	})
}

// eventually asks until the answer is yes.
func (f *fleet) eventually(limit time.Duration, what string, yes func() bool) {
	f.t.Helper()
	deadline := time.Now().Add(limit)
	for !yes() {
		if time.Now().After(deadline) {
			f.t.Fatalf("not within %v: %s (faults %v)", limit, what, f.faults())
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// names are n keys.
func names(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("key-%d", i)
	}
	return keys
}

// plain is a client of one server with default options.
func plain(addr string) func() redis.UniversalClient {
	return func() redis.UniversalClient { return redis.NewClient(&redis.Options{Addr: addr}) }
}

// isAny tells whether err is one of several.
func isAny(targets ...error) func(error) bool {
	return func(err error) bool {
		for _, target := range targets {
			if errors.Is(err, target) {
				return true
			}
		}
		return false
	}
}

// admin is a client for the test itself.
func admin(t *testing.T, addr string) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { c.Close() })
	return c
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
