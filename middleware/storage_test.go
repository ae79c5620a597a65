package middleware

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

// longText is a body that becomes much smaller.
var longText = strings.Repeat("a page of some length. ", 4000)

func long(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Cache-Control", "max-age=60")
	io.WriteString(w, longText)
}

// stored is what a store holds under the key of a path of site.test.
func stored(t *testing.T, s store.Store, c *Cache, path string) store.Entry {
	t.Helper()
	key, err := c.keys.primary(request("http://site.test" + path))
	if err != nil {
		t.Fatal(err)
	}
	e, err := s.Load(t.Context(), store.Key{Space: c.opts.Namespace, ID: key})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// benchOver is newBench over a given store.
func benchOver(t *testing.T, s store.Store, opts Options, handler http.HandlerFunc) *bench {
	t.Helper()
	b := &bench{t: t}
	c, err := New(s, b.flights.of(opts))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	b.cache = c
	b.h = c.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.runs.Add(1)
		handler(w, r)
	}))
	return b
}

func TestLargeEntriesAreCompressedInTheStoreAndServedWhole(t *testing.T) {
	s := memstore.New(memstore.Options{})
	compressing := benchOver(t, s, Options{CompressAbove: 1024}, long)
	other := benchOver(t, s, Options{}, long) // has the option off, and reads all the same
	compressing.get("/p")
	if n := len(stored(t, s, compressing.cache, "/p").Payload); n > len(longText)/10 {
		t.Errorf("%d bytes are stored as %d", len(longText), n)
	}
	for _, b := range []*bench{compressing, other} {
		if a := b.get("/p"); !a.cached() || a.body != longText {
			t.Errorf("got %d bytes, %v", len(a.body), a.header)
		}
		if a := b.get("/p", "Range", "bytes=7-10"); a.status != 206 || a.body != longText[7:11] {
			t.Errorf("a range got %d %q", a.status, a.body)
		}
	}
	other.get("/q")
	if n := len(stored(t, s, other.cache, "/q").Payload); n < len(longText) {
		t.Errorf("with the option off, %d bytes are stored as %d", len(longText), n)
	}
	if a := compressing.get("/q"); !a.cached() || a.body != longText {
		t.Errorf("what was stored whole: got %d bytes, %v", len(a.body), a.header)
	}
}

func TestASmallEntryIsNotCompressed(t *testing.T) {
	s := memstore.New(memstore.Options{})
	b := benchOver(t, s, Options{CompressAbove: 100_000}, long)
	b.get("/p")
	if n := len(stored(t, s, b.cache, "/p").Payload); n < len(longText) {
		t.Errorf("%d bytes are stored as %d", len(longText), n)
	}
}

func TestACompressedEntryThatIsTooLargeIsAMiss(t *testing.T) {
	s := memstore.New(memstore.Options{})
	large := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		w.Write(make([]byte, 3<<20))
	}
	benchOver(t, s, Options{CompressAbove: 1024}, large).get("/p")
	var faults int
	b := benchOver(t, s, Options{MaxBody: 1 << 20, Hooks: cacheguard.Hooks{Fault: func(cacheguard.FaultInfo) { faults++ }}}, long)
	if a := b.get("/p"); a.status != 200 || a.body != longText || faults == 0 {
		t.Errorf("got %d with %d bytes, %d faults", a.status, len(a.body), faults)
	}
}

func TestPagesThatNobodyWithTheKeyHasMadeAreNotServed(t *testing.T) {
	s := memstore.New(memstore.Options{})
	forger := benchOver(t, s, Options{}, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		io.WriteString(w, "forged")
	})
	var faults []store.Class
	b := benchOver(t, s, Options{
		SealKeys: [][]byte{bytes.Repeat([]byte("k"), 32)},
		Hooks:    cacheguard.Hooks{Fault: func(f cacheguard.FaultInfo) { faults = append(faults, f.Class) }},
	}, page("max-age=60"))
	forger.get("/p")
	if a := b.get("/p"); a.body != "run 1" {
		t.Errorf("got %q", a.body)
	}
	if len(faults) == 0 || faults[0] != store.ClassData {
		t.Errorf("the forged page is not told: %v", faults)
	}
	if a := b.get("/p"); !a.cached() || a.body != "run 1" {
		t.Errorf("then got %q, %v", a.body, a.header)
	}
	// A whole entry of one page, under another.
	e := stored(t, s, b.cache, "/p")
	key, err := b.cache.keys.primary(request("http://site.test/q"))
	if err != nil {
		t.Fatal(err)
	}
	w := store.Write{Key: store.Key{Space: "http", ID: key}, Content: store.Content{Kind: store.Value, Payload: e.Payload, TTL: time.Minute}}
	if err := s.Set(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	if a := b.get("/q"); a.cached() || a.body != "run 2" {
		t.Errorf("the page of another URL was served: %q", a.body)
	}
}

func TestAFleetOverRedisSharesWhatItSealsAndCompresses(t *testing.T) {
	server := redistest.Start(t)
	f := newFleetOver(t, overRedis(t, server.Addr, nil, redisstore.Options{}), 2, Options{
		CompressAbove: 1024,
		SealKeys:      [][]byte{bytes.Repeat([]byte("k"), 32)},
		TagHeaders:    []string{"Surrogate-Key"},
	}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Surrogate-Key", "page")
		long(w, r)
	}, nil)
	for i := range 4 {
		if a := f.ask(i%2, "GET", "/p"); a.err != nil || a.status != 200 || a.body != longText {
			t.Fatalf("got %d, %d bytes, %v", a.status, len(a.body), a.err)
		}
	}
	f.wantRuns(1)
	if err := f.caches[1].InvalidateTags(t.Context(), "page"); err != nil {
		t.Fatal(err)
	}
	if a := f.ask(0, "GET", "/p"); a.cached() || a.body != longText {
		t.Errorf("after the invalidation: %v", a.header)
	}
	f.wantRuns(2)
}
