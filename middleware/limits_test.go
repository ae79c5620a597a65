package middleware

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
)

func TestWhoWaitsTooLongIsServedAnyway(t *testing.T) {
	hold := make(chan struct{})
	var n atomic.Int64
	f := newFleet(t, 2, Options{WaitLimit: 100 * time.Millisecond}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		if n.Add(1) == 1 {
			<-hold
		}
		io.WriteString(w, "page")
	})
	leader := make(chan answer, 1)
	go func() { leader <- f.ask(0, "GET", "/p") }()
	for n.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	for _, a := range f.storm(10, func(i int) answer { return f.ask(i%2, "GET", "/p") }) {
		if a.status != 200 || a.body != "page" || !hasStatus(a, "detail=waited") {
			t.Errorf("got %d %q %v %v", a.status, a.body, a.header["Cache-Status"], a.err)
		}
	}
	close(hold)
	if a := <-leader; a.body != "page" {
		t.Errorf("the leader got %q", a.body)
	}
}

func TestTooManyWhoWaitAreRefused(t *testing.T) {
	hold := make(chan struct{})
	var n atomic.Int64
	f := newFleet(t, 1, Options{MaxWaiting: 5}, func(w http.ResponseWriter, r *http.Request) {
		n.Add(1)
		<-hold
		w.Header().Set("Cache-Control", "max-age=60")
		io.WriteString(w, "page")
	})
	var refused atomic.Int64
	done := make(chan []answer, 1)
	go func() {
		done <- f.storm(30, func(int) answer {
			a := f.ask(0, "GET", "/p")
			if a.status == 503 {
				refused.Add(1)
			}
			return a
		})
	}()
	deadline := time.Now().Add(5 * time.Second)
	for refused.Load() < 20 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	close(hold)
	for _, a := range <-done {
		if (a.status != 200 || a.body != "page") && (a.status != 503 || a.header.Get("Retry-After") != "1") {
			t.Errorf("got %d %q %v", a.status, a.body, a.header)
		}
	}
	f.wantRuns(1)
	if refused.Load() < 20 {
		t.Errorf("%d of 30 were refused with room for 5", refused.Load())
	}
}

func TestTenThousandWaitersAreCheap(t *testing.T) {
	const waiters = 10_000
	hold := make(chan struct{})
	started := make(chan struct{}, 1)
	c, err := New(memstore.New(memstore.Options{}), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	h := c.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		started <- struct{}{}
		<-hold
		w.Header().Set("Cache-Control", "max-age=60")
		w.Write(make([]byte, 1<<20))
	}))
	base := runtime.NumGoroutine()
	var wg sync.WaitGroup
	var bytes atomic.Int64
	for range waiters {
		wg.Go(func() {
			w := &counter{h: make(http.Header)}
			h.ServeHTTP(w, request("http://site.test/p"))
			bytes.Add(w.n)
		})
	}
	<-started
	for c.waiting.Load() < waiters {
		time.Sleep(time.Millisecond)
	}
	var mem runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&mem)
	if n := runtime.NumGoroutine() - base; n > waiters+100 {
		t.Errorf("%d goroutines for %d waiters", n, waiters)
	}
	if per := mem.HeapInuse / waiters; per > 16<<10 {
		t.Errorf("%d bytes of heap for each waiter", per)
	}
	close(hold)
	wg.Wait()
	if bytes.Load() != waiters<<20 {
		t.Errorf("got %d bytes in all", bytes.Load())
	}
}

// counter is a writer that counts.
type counter struct {
	h http.Header
	n int64
}

func (c *counter) Header() http.Header         { return c.h }
func (c *counter) WriteHeader(int)             {}
func (c *counter) Write(p []byte) (int, error) { c.n += int64(len(p)); return len(p), nil }

func TestAnAnswerThatIsAtOnceStaleGoesToThoseWhoWereThere(t *testing.T) {
	started, release := make(chan struct{}, 8), make(chan struct{})
	var n atomic.Int64
	f := newFleet(t, 1, Options{}, func(w http.ResponseWriter, r *http.Request) {
		run := n.Add(1)
		started <- struct{}{}
		<-release
		w.Header().Set("Cache-Control", "max-age=0")
		fmt.Fprintf(w, "run %d", run)
	})
	first, second := make(chan answer, 1), make(chan answer, 1)
	go func() { first <- f.ask(0, "GET", "/p") }()
	<-started
	go func() { second <- f.ask(0, "GET", "/p") }() // after the handler began
	f.awaitWaiting(2)
	close(release)
	if a := <-first; a.body != "run 1" {
		t.Errorf("first: %q", a.body)
	}
	if a := <-second; a.body != "run 2" {
		t.Errorf("who came after the handler began got %q", a.body)
	}
	if a := f.get("/p"); a.body != "run 3" {
		t.Errorf("a later one got %q", a.body)
	}
}

func TestAMillionQueriesDoNotFillTheMemory(t *testing.T) {
	const limit = 4 << 20
	body := strings.Repeat("x", 10<<10)
	c, err := New(memstore.New(memstore.Options{MaxBytes: limit}), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	h := c.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		cc := "max-age=60"
		if strings.HasSuffix(r.URL.RawQuery, "7") {
			cc = "private"
		}
		w.Header().Set("Cache-Control", cc)
		io.WriteString(w, body)
	}))
	heap := func() uint64 {
		var mem runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&mem)
		return mem.HeapAlloc
	}
	ask := func(from, to int) {
		for i := from; i < to; i++ {
			r := request(fmt.Sprintf("http://site.test/p?cb=%d", i))
			if i%3 == 0 {
				r.Header.Set("Authorization", "x")
			}
			h.ServeHTTP(&counter{h: make(http.Header)}, r)
		}
	}
	ask(0, 2000)
	before := heap()
	ask(2000, 12000)
	if after := heap(); after > before+4*limit { // what is under way when it is measured included; all of it would be 100 MB
		t.Errorf("the heap grew from %d to %d bytes by 10,000 queries", before, after)
	}
}

func TestDamagedEntriesAreAMiss(t *testing.T) {
	s := memstore.New(memstore.Options{})
	c, err := New(s, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	b := &bench{t: t, cache: c, h: c.Handler(page("max-age=60"))}
	key, err := c.keys.primary(request("http://site.test/p"))
	if err != nil {
		t.Fatal(err)
	}
	write := store.Write{Key: store.Key{Space: "http", ID: key}, Content: store.Content{
		Kind: store.Value, Payload: []byte("\x01 not ours"), TTL: time.Minute,
	}}
	if err := s.Set(t.Context(), write); err != nil {
		t.Fatal(err)
	}
	if a := b.get("/p"); a.status != 200 || a.body != "run 1" {
		t.Errorf("got %d %q", a.status, a.body)
	}
	if a := b.get("/p"); !a.cached() {
		t.Errorf("the damaged entry was not replaced: %v", a.header)
	}
}

func TestOptionsOutOfRangeSayWhatToWrite(t *testing.T) {
	for name, o := range map[string]Options{
		"Namespace":            {Namespace: strings.Repeat("x", 49)},
		"Policy":               {Policy: Policy{Lifetime: 1 << 62}},
		"StatusLifetime":       {StatusLifetime: map[int]time.Duration{206: time.Second}},
		"Heuristic":            {Heuristic: 2},
		"MaxStale":             {MaxStale: -1},
		"Keep":                 {Keep: 48 * time.Hour},
		"PassFor":              {PassFor: time.Hour},
		"MaxBody":              {MaxBody: -1},
		"MaxKey":               {MaxKey: 1 << 20},
		"CompressAbove":        {CompressAbove: -1},
		"KeyBody":              {KeyBody: 1 << 30},
		"PostReads":            {Policy: Policy{PostReads: true}},
		"SealKeys":             {SealKeys: [][]byte{[]byte("short")}},
		"MaxWaiting":           {MaxWaiting: -1},
		"MaxVariants":          {MaxVariants: 10_001},
		"Targets":              {Targets: []string{"not a field"}},
		"Strip":                {Strip: []string{""}},
		"KeyHeaders":           {KeyHeaders: []string{"a:b"}},
		"TagHeaders":           {TagHeaders: []string{"a b"}},
		"AuditHeaders":         {AuditHeaders: []string{"a b"}},
		"SetCookie":            {SetCookie: 7},
		"StatusName":           {StatusName: "a b"},
		"FillLimit":            {FillLimit: -1},
		"WaitLimit":            {WaitLimit: -1},
		"StaleWhileRevalidate": {Policy: Policy{StaleWhileRevalidate: 1 << 62}},
	} {
		_, err := New(memstore.New(memstore.Options{}), o)
		want := name
		if name == "Policy" {
			want = "Lifetime"
		}
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "use ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := New(nil, Options{}); err == nil {
		t.Error("a nil store is accepted")
	}
}

func TestTheCacheCanBeSwitchedOff(t *testing.T) {
	b := newBench(t, Options{}, page("max-age=60"))
	b.get("/p")
	b.cache.SetEnabled(false)
	if a := b.get("/p"); a.body != "run 2" || a.header["Cache-Status"] != nil {
		t.Errorf("off: %q %v", a.body, a.header)
	}
	b.cache.SetEnabled(true)
	if a := b.get("/p"); a.body != "run 1" || !a.cached() {
		t.Errorf("on again: %q", a.body)
	}
	b.cache.SetEnabled(false)
	b.do("POST", "/p")
	b.cache.SetEnabled(true)
	if a := b.get("/p"); a.cached() {
		t.Errorf("what was changed while it was off is served as it was: %q", a.body)
	}
}

func TestARouteHasAPolicyOfItsOwn(t *testing.T) {
	b := newBench(t, Options{Policy: Policy{Lifetime: time.Minute}}, nil)
	for name, tt := range map[string]struct {
		policy Policy
		cached bool
	}{"the cache's": {Policy{}, true}, "longer": {Policy{Lifetime: time.Hour}, true}, "off": {Policy{Lifetime: -1}, false}} {
		b.h = b.cache.With(tt.policy)(page(""))
		path := "/" + strings.ReplaceAll(name, " ", "-")
		b.get(path)
		if a := b.get(path); a.cached() != tt.cached {
			t.Errorf("%s: cached %v", name, a.cached())
		}
	}
}

func TestTheObserverHearsOfEveryAnswer(t *testing.T) {
	var mu sync.Mutex
	var heard []string
	b := newBench(t, Options{Observe: func(o Outcome) {
		mu.Lock()
		defer mu.Unlock()
		heard = append(heard, fmt.Sprintf("hit=%v stored=%v fwd=%s detail=%s", o.Hit, o.Stored, o.Forwarded, o.Detail))
	}, HideStatus: true}, page("max-age=60"))
	b.get("/p")
	b.get("/p")
	b.get("/p", "Cookie", "a=b")
	b.do("POST", "/p")
	want := "[hit=false stored=true fwd=uri-miss detail= hit=true stored=false fwd= detail= hit=false stored=false fwd=bypass detail=cookie hit=false stored=false fwd=method detail=]"
	if got := fmt.Sprint(heard); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// brokenStore fails every call.
type brokenStore struct{ store.Store }

var errBroken = &store.Fault{Op: "load", Class: store.ClassConnection, Err: errors.New("gone")}

func (brokenStore) Load(_ context.Context, _ store.Key) (store.Entry, error) {
	return store.Entry{}, errBroken
}
func (brokenStore) Claim(_ context.Context, _ store.Claim) (store.Verdict, error) {
	return store.Verdict{}, errBroken
}
func (brokenStore) Fill(_ context.Context, _ store.Grant, _ store.Content) error { return errBroken }

func TestWithoutAStoreAProcessCollapsesOnItsOwn(t *testing.T) {
	broken := func() store.Store { return brokenStore{memstore.New(memstore.Options{})} }
	f := newFleetOver(t, broken, 1, Options{}, cacheable, nil)
	f.warm(20)
	for _, a := range f.storm(20, func(int) answer { return f.ask(0, "GET", "/p") }) {
		if a.status != 200 || a.body != "page /p" {
			t.Errorf("got %d %q %v", a.status, a.body, a.err)
		}
	}
	if n := f.runs.Load(); n > 2 {
		t.Errorf("handler ran %d times", n)
	}
}
