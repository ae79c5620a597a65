package memstore

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

func key(i int) store.Key { return store.Key{Space: "s", ID: strconv.Itoa(i)} }

func content(size int, life time.Duration) store.Content {
	return store.Content{Kind: store.Value, Payload: make([]byte, size), TTL: life, HandOver: time.Minute}
}

// fill claims and fills a key; it leaves an entry and a record.
func fill(t *testing.T, s *Store, k store.Key, size int, life time.Duration) {
	t.Helper()
	v, err := s.Claim(t.Context(), store.Claim{Key: k, Holder: "A/1", Length: time.Minute, Keep: time.Minute})
	if err != nil || v.Outcome != store.Granted {
		t.Fatalf("claim: %v, %v", v, err)
	}
	if err := s.Fill(t.Context(), v.Grant, content(size, life)); err != nil {
		t.Fatalf("fill: %v", err)
	}
}

func set(t *testing.T, s *Store, k store.Key, size int, life time.Duration) {
	t.Helper()
	if err := s.Set(t.Context(), store.Write{Key: k, Content: content(size, life)}); err != nil {
		t.Fatalf("set: %v", err)
	}
}

func has(t *testing.T, s *Store, k store.Key) bool {
	t.Helper()
	e, err := s.Load(t.Context(), k)
	if err != nil {
		t.Fatalf("load: %v", err)
	}
	return e.Kind != store.None
}

// liveBytes returns the bytes of live objects.
func liveBytes() int64 {
	runtime.GC()
	runtime.GC() // what the first one found finalizable
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Random query strings: every request is another key. What is counted must be
// what the heap holds, whatever it is made of.
func TestMemoryIsBoundedUnderKeysWithoutEnd(t *testing.T) {
	const limit = 8 << 20
	payload := content(50_000, time.Hour)
	long := strings.Repeat("q", 2000)
	const keys = 40_000 // many times what fits
	floods := map[string]func(s *Store, i int) error{
		"pages": func(s *Store, i int) error {
			v, err := s.Claim(t.Context(), store.Claim{Key: key(i), Holder: "A/1", Length: time.Minute, Keep: time.Minute})
			return errors.Join(err, s.Fill(t.Context(), v.Grant, payload))
		},
		"small entries": func(s *Store, i int) error {
			return s.Set(t.Context(), store.Write{Key: key(i), Content: store.Content{Kind: store.Absent, TTL: time.Hour}})
		},
		"claims alone": func(s *Store, i int) error {
			_, err := s.Claim(t.Context(), store.Claim{Key: key(i), Holder: "A/1", Length: time.Minute, Keep: time.Minute})
			return err
		},
		"failed loads": func(s *Store, i int) error {
			h := store.NewHolder("process", fmt.Sprintf("attempt %040d", i))
			v, err := s.Claim(t.Context(), store.Claim{Key: key(i), Holder: h, Length: time.Minute, Keep: time.Minute})
			f := store.Failure{Reason: strings.Repeat("r", 10_000), Cooldown: time.Minute}
			return errors.Join(err, s.Release(t.Context(), v.Grant, &f))
		},
		"long keys": func(s *Store, i int) error {
			k := store.Key{Space: "s", ID: long + strconv.Itoa(i)}
			return s.Set(t.Context(), store.Write{Key: k, Content: store.Content{Kind: store.Absent, TTL: time.Hour}})
		},
		"keys cut from long texts": func(s *Store, i int) error {
			k := store.Key{Space: "s", ID: (strconv.Itoa(i) + long)[:8]}
			return s.Set(t.Context(), store.Write{Key: k, Content: store.Content{Kind: store.Absent, TTL: time.Hour}})
		},
		"begun writes": func(s *Store, i int) error { _, err := s.Begin(t.Context(), key(i), time.Minute); return err },
		"invalidations": func(s *Store, i int) error {
			return errors.Join(s.Invalidate(t.Context(), []store.Key{key(i)})...)
		},
	}
	for name, flood := range floods {
		t.Run(name, func(t *testing.T) {
			before := liveBytes()
			s := New(Options{MaxBytes: limit})
			for i := range keys {
				if err := flood(s, i); err != nil {
					t.Fatal(err)
				}
			}
			used, grown := s.used.Load(), liveBytes()-before
			if used > limit {
				t.Errorf("%d bytes are counted, want at most %d", used, limit)
			}
			if grown > limit+limit/8 {
				t.Errorf("the heap has grown by %d bytes, want at most the limit of %d and a little", grown, limit)
			}
			if name != "invalidations" && grown < limit/3 {
				t.Errorf("the heap has grown by %d bytes alone: the limit of %d is not put to use", grown, limit)
			}
			runtime.KeepAlive(s)
		})
	}
}

func TestWhatHasLapsedGoesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{MaxBytes: 1 << 20})
		for i := range 40 { // old, but with a long life
			set(t, s, key(i), 10_000, time.Hour)
			time.Sleep(time.Millisecond)
		}
		for i := range 40 { // used later, but lapsed
			set(t, s, key(100+i), 10_000, time.Second)
		}
		time.Sleep(2 * time.Second)
		for i := range 40 {
			set(t, s, key(200+i), 10_000, time.Hour)
		}
		for i := range 40 {
			if !has(t, s, key(i)) || !has(t, s, key(200+i)) {
				t.Fatalf("entry %d was evicted while there were lapsed ones", i)
			}
		}
	})
}

func TestLeastRecentlyUsedGoesNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{MaxBytes: 1 << 20})
		for i := range 80 {
			set(t, s, key(i), 10_000, time.Hour)
			time.Sleep(time.Millisecond)
		}
		for i := range 40 { // a read is a use
			if !has(t, s, key(i)) {
				t.Fatalf("entry %d is missing before the store is full", i)
			}
			time.Sleep(time.Millisecond)
		}
		for i := range 40 {
			set(t, s, key(100+i), 10_000, time.Hour)
			time.Sleep(time.Millisecond)
		}
		for i := range 40 {
			if !has(t, s, key(i)) || !has(t, s, key(100+i)) {
				t.Errorf("entry %d was evicted before less recently used ones", i)
			}
		}
	})
}

// In a bubble many things are used at the same time.
func TestAWriteDoesNotDropWhatItWrote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{MaxBytes: 1 << 20})
		for i := range 1000 {
			fill(t, s, key(i), 10_000, time.Hour)
			if !has(t, s, key(i)) {
				t.Fatalf("entry %d was evicted by its own write", i)
			}
		}
	})
}

// A lease that is renewed is in use: a flood of other keys does not take it.
func TestRenewedLeaseOutlivesAFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{MaxBytes: 1 << 20})
		v, err := s.Claim(t.Context(), store.Claim{Key: key(-1), Holder: "A/1", Length: time.Second, Keep: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 1000 {
			fill(t, s, key(i), 10_000, time.Hour)
			if time.Sleep(10 * time.Millisecond); i%50 == 0 {
				if errs := s.Renew(t.Context(), []store.Renewal{{Grant: v.Grant, Length: time.Second}}); errs != nil {
					t.Fatalf("after %d other keys: %v", i, errs)
				}
			}
		}
		if err := s.Fill(t.Context(), v.Grant, content(10, time.Hour)); err != nil {
			t.Errorf("fill: %v", err)
		}
	})
}

func TestLapsedItemsAreSweptByInsertions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		for i := range 10_000 {
			fill(t, s, key(i), 10, time.Second)
		}
		full := s.used.Load()
		time.Sleep(time.Hour)
		for i := range 10_000 {
			fill(t, s, key(20_000+i), 10, time.Hour)
		}
		if now := s.used.Load(); now > full+full/10 {
			t.Errorf("%d bytes are counted after as many new items, %d before: what lapsed is still there", now, full)
		}
	})
}

func TestEverythingThatIsCountedIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		for i := range 1000 {
			fill(t, s, key(i), 100*i, time.Minute)
			fail := &store.Failure{Reason: "no", Cooldown: time.Second}
			if err := s.Release(t.Context(), store.Grant{Key: key(i), Holder: "B/1"}, fail); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Hour)
		for i := range 1000 {
			if has(t, s, key(i)) {
				t.Fatalf("entry %d is still there", i)
			}
			if _, err := s.Begin(t.Context(), key(i), time.Second); err != nil { // looks at the record
				t.Fatal(err)
			}
			s.DropRecord(key(i))
		}
		if used := s.used.Load(); used != 0 {
			t.Errorf("%d bytes are counted for nothing", used)
		}
		for i := range s.shards {
			if sh := &s.shards[i]; len(sh.slots)+len(sh.ends) > 0 || sh.uses.first != nil || sh.uses.last != nil {
				t.Errorf("shard %d still has %d slots and %d ends", i, len(sh.slots), len(sh.ends))
			}
		}
	})
}

func TestAnEntryAboveTheBoundIsRefused(t *testing.T) {
	s := New(Options{MaxBytes: 1 << 20})
	fill(t, s, key(1), 1<<19, time.Hour)
	err := s.Set(t.Context(), store.Write{Key: key(1), Content: content(1<<20, time.Hour)})
	if store.ClassOf(err) != store.ClassFull {
		t.Errorf("set: %v, want a fault of class full", err)
	}
	v, _ := s.Claim(t.Context(), store.Claim{Key: key(2), Holder: "A/1", Length: time.Minute, Keep: time.Minute})
	err = s.Fill(t.Context(), v.Grant, content(1<<20, time.Hour))
	if store.ClassOf(err) != store.ClassFull {
		t.Errorf("fill: %v, want a fault of class full", err)
	}
	if !has(t, s, key(1)) {
		t.Errorf("a refused write has evicted another entry")
	}
	for size := 1<<20 - 64<<10; size < 1<<20; size += 1000 {
		err := s.Set(t.Context(), store.Write{Key: key(3), Content: content(size, time.Hour)})
		if (err == nil) != has(t, s, key(3)) {
			t.Errorf("set of %d bytes: %v, but the entry is there: %v", size, err, err != nil)
		}
		s.DropEntry(key(3))
	}
}

func TestZeroAndNegativeBoundsMeanTheDefault(t *testing.T) {
	for _, n := range []int64{0, -1, -1 << 62} {
		if s := New(Options{MaxBytes: n}); s.max != DefaultMaxBytes {
			t.Errorf("MaxBytes %d: the bound is %d, want %d", n, s.max, DefaultMaxBytes)
		}
	}
}

// Writers that find the store full, readers, and losses, all at once.
func TestBoundHoldsUnderConcurrency(t *testing.T) {
	const limit = 1 << 20
	s := New(Options{MaxBytes: limit})
	var all sync.WaitGroup
	for w := range 8 {
		all.Go(func() {
			for i := range 2000 {
				k := key((i*7 + w*13) % 300)
				switch i % 5 {
				case 0, 1:
					set(t, s, k, (i*37)%20_000, time.Duration(i%3)*time.Millisecond+time.Millisecond)
				case 2:
					_, _ = s.Claim(t.Context(), store.Claim{Key: k, Holder: "A/1", Length: time.Millisecond, Keep: time.Millisecond})
				case 3:
					s.Expire(t.Context(), []store.Key{k})
					s.DropRecord(k)
				case 4:
					_, _ = s.Load(t.Context(), k)
				}
			}
		})
	}
	all.Wait()
	var counted int64
	for i := range s.shards {
		sh := &s.shards[i]
		items := 0
		for it := sh.uses.first; it != nil; it = it.next {
			counted += it.size
			items++
		}
		if items != len(sh.ends) {
			t.Errorf("shard %d: %d items in the order of use, %d in that of ends", i, items, len(sh.ends))
		}
	}
	if used := s.used.Load(); used != counted || used > limit {
		t.Errorf("%d bytes are counted, the items add up to %d, the limit is %d", used, counted, limit)
	}
}

func TestPayloadsAreSharedByReadersButSafeToAppendTo(t *testing.T) {
	s := New(Options{})
	set(t, s, key(1), 100, time.Hour)
	one, _ := s.Load(t.Context(), key(1))
	two, _ := s.Load(t.Context(), key(1))
	if &one.Payload[0] != &two.Payload[0] {
		t.Errorf("two readers have two copies")
	}
	_ = append(one.Payload, 1)
	_ = append(two.Payload, 2)
	if !bytes.Equal(one.Payload, make([]byte, 100)) || cap(one.Payload) != 100 {
		t.Errorf("a reader may write into what another holds")
	}
}

func TestReadsDoNotAllocate(t *testing.T) {
	s := New(Options{})
	set(t, s, key(1), 100, time.Hour)
	k, ctx := key(1), t.Context()
	if n := testing.AllocsPerRun(100, func() { _, _ = s.Load(ctx, k) }); n != 0 {
		t.Errorf("a read allocates %v times", n)
	}
}

// A process that starts again gives higher tokens than before: a resource that
// keeps the highest it has seen goes on.
func TestTokensGrowOverARestart(t *testing.T) {
	before, _ := New(Options{}).Begin(t.Context(), key(1), time.Minute)
	time.Sleep(2 * time.Microsecond)
	after, _ := New(Options{}).Begin(t.Context(), key(1), time.Minute)
	if after.Token <= before.Token || after.Birth == before.Birth {
		t.Errorf("begun %+v after %+v, want a higher token and another birth", after, before)
	}
}

func TestTokensGrowWithinOneTick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // in which time stands still
		s := New(Options{})
		var tokens []store.Token
		for range 100 {
			b, err := s.Begin(t.Context(), key(1), time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			tokens = append(tokens, b.Token)
			s.Invalidate(t.Context(), []store.Key{key(1)})
			s.DropRecord(key(1))
		}
		if !slices.IsSorted(tokens) || len(slices.Compact(slices.Clone(tokens))) != len(tokens) {
			t.Errorf("tokens do not grow: %v", tokens)
		}
	})
}

func TestMisuseIsRefusedAndChangesNothing(t *testing.T) {
	s := New(Options{})
	k := key(1)
	g := store.Grant{Key: k, Holder: "A/1"}
	claim := func(c store.Claim) error { c.Key = k; _, err := s.Claim(t.Context(), c); return err }
	put := func(c store.Content) error { return s.Set(t.Context(), store.Write{Key: k, Content: c}) }
	calls := map[string]error{
		"no holder":            claim(store.Claim{Length: 1, Keep: 1}),
		"no length":            claim(store.Claim{Holder: "A/1", Keep: 1}),
		"length above keep":    claim(store.Claim{Holder: "A/1", Length: 2, Keep: 1}),
		"renewal of no length": errors.Join(s.Renew(t.Context(), []store.Renewal{{Grant: g}})...),
		"begin without keep":   func() error { _, err := s.Begin(t.Context(), k, 0); return err }(),
		"no kind":              put(store.Content{TTL: 1}),
		"unknown kind":         put(store.Content{Kind: 9, TTL: 1}),
		"negative TTL":         put(store.Content{Kind: store.Value, TTL: -1}),
		"negative grace":       put(store.Content{Kind: store.Value, TTL: 1, Grace: -1}),
		"no hand-over":         s.Fill(t.Context(), g, store.Content{Kind: store.Value, TTL: 1}),
	}
	for name, err := range calls {
		var f *store.Fault
		if !errors.As(err, &f) || f.Class != store.ClassOther {
			t.Errorf("%s: %v, want a fault", name, err)
		}
	}
	if used := s.used.Load(); used != 0 {
		t.Errorf("%d bytes are kept", used)
	}
}

func TestListenersMayCallTheStore(t *testing.T) {
	s := New(Options{})
	var again sync.Once
	stop := s.Listen("s", func(e store.Event) {
		if e.Kind == store.Written {
			again.Do(func() {
				s.Invalidate(t.Context(), []store.Key{key(1)})
				inner := s.Listen("s", func(store.Event) {})
				inner()
			})
		}
	})
	set(t, s, key(1), 1, time.Hour)
	stop()
	if has(t, s, key(1)) {
		t.Errorf("the listener's invalidate was lost")
	}
	if s.hub.listeners["s"] != nil {
		t.Errorf("listeners are left after stop")
	}
}

func TestStopReturnsThoughAListenerPanicked(t *testing.T) {
	s := New(Options{})
	stop := s.Listen("s", func(e store.Event) {
		if e.Kind == store.Written {
			panic("listener")
		}
	})
	func() {
		defer func() { _ = recover() }()
		set(t, s, key(1), 1, time.Hour)
	}()
	stop()
	if !has(t, s, key(1)) {
		t.Errorf("what was written before the listener panicked is lost")
	}
}
