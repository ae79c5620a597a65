package middleware

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
)

var tagOptions = Options{TagHeaders: []string{"Surrogate-Key", "Cache-Tag", "Cache-Groups"}}

// taggedPage bears the tags that its query names.
func taggedPage(n *atomic.Int64) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60, stale-while-revalidate=60")
		w.Header().Set("Surrogate-Key", r.URL.Query().Get("tags"))
		w.Header().Set("Vary", "A")
		fmt.Fprintf(w, "run %d", n.Add(1))
	}
}

func TestTagsReachEveryAnswerThatBearsThem(t *testing.T) {
	var n atomic.Int64
	f := newFleet(t, 2, tagOptions, taggedPage(&n))
	pages := []string{"/1?tags=a", "/2?tags=a+b", "/3?tags=b", "/4?tags=ab", "/5"}
	fill := func() {
		for _, p := range pages {
			f.get(p, "A", "1")
			f.get(p, "A", "2")
		}
	}
	cached := func() string {
		var got []string
		for i, p := range pages {
			one, two := f.ask(1, "GET", p, "A", "1", "Cache-Control", "only-if-cached"), f.ask(1, "GET", p, "A", "2", "Cache-Control", "only-if-cached")
			if one.cached() && two.cached() {
				got = append(got, fmt.Sprint(i+1))
			} else if one.cached() || two.cached() {
				t.Errorf("%s: one variant is there, the other is not", p)
			}
		}
		return strings.Join(got, " ")
	}
	fill()
	fill()
	if got := cached(); got != "1 2 3 4 5" {
		t.Fatalf("cached: %s", got)
	}
	if err := f.caches[0].InvalidateTags(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if got := cached(); got != "3 4 5" {
		t.Errorf("after invalidating a: %s are cached, want 3 4 5", got)
	}
	fill()
	if err := f.caches[0].InvalidateTags(t.Context(), "b", "nobody's"); err != nil {
		t.Fatal(err)
	}
	if got := cached(); got != "1 4 5" {
		t.Errorf("after invalidating b: %s are cached, want 1 4 5", got)
	}
	if err := f.caches[0].InvalidateAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := cached(); got != "" {
		t.Errorf("after invalidating all: %s are cached", got)
	}
}

func TestExpiredTagsAreServedStaleWhileTheHandlerIsAsked(t *testing.T) {
	var n atomic.Int64
	inBubble(t, tagOptions, taggedPage(&n), func(b *bench) {
		b.get("/p?tags=a")
		b.get("/p?tags=a")
		was := n.Load()
		if err := b.cache.ExpireTags(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		if a := b.get("/p?tags=a"); !a.cached() || a.body != fmt.Sprint("run ", was) {
			t.Errorf("got %q, %v; want the stale one", a.body, a.header["Cache-Status"])
		}
		time.Sleep(time.Second)
		if a := b.get("/p?tags=a"); !a.cached() || a.body != fmt.Sprint("run ", was+1) {
			t.Errorf("got %q, %v; want the new one", a.body, a.header["Cache-Status"])
		}
	})
}

func TestATagsInvalidationBeatsAFillThatIsUnderWay(t *testing.T) {
	for _, known := range []bool{false, true} {
		t.Run(fmt.Sprint("tag known before: ", known), func(t *testing.T) {
			var version atomic.Int64
			started, release := make(chan struct{}, 8), make(chan struct{})
			f := newFleet(t, 2, tagOptions, func(w http.ResponseWriter, r *http.Request) {
				seen := version.Load()
				if r.URL.Path == "/slow" {
					started <- struct{}{}
					<-release
				}
				w.Header().Set("Cache-Control", "max-age=60")
				w.Header().Set("Cache-Tag", "product")
				fmt.Fprintf(w, "v%d", seen)
			})
			if known {
				f.get("/other")
				f.get("/other")
			}
			first := make(chan answer, 1)
			go func() { first <- f.ask(0, "GET", "/slow") }()
			<-started
			version.Add(1)
			if err := f.caches[1].InvalidateTags(t.Context(), "product"); err != nil {
				t.Fatal(err)
			}
			close(release)
			if a := <-first; a.body != "v0" {
				t.Errorf("who asked before got %q", a.body)
			}
			for s := range 2 {
				if a := f.ask(s, "GET", "/slow"); a.body != "v1" {
					t.Errorf("server %d, after the invalidation: %q", s, a.body)
				}
			}
		})
	}
}

// late is a store whose reader has the server's clock from a request that was so
// long on its way: everything seems that much older.
type late struct {
	store.Store
	by time.Duration
}

func (s late) Load(ctx context.Context, key store.Key) (store.Entry, error) {
	e, err := s.Store.Load(ctx, key)
	e.Age, e.Fresh, e.Left = e.Age+s.by, e.Fresh-s.by, e.Left-s.by
	return e, err
}

// A tag is invalidated while a page is made, and has a new mark a moment later: to
// a process whose idea of the server's clock is late that seems to be from before.
func TestATagsNewMarkDoesNotPassForTheOldOneWhateverTheClocksSay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var version atomic.Int64
		handler := func(w http.ResponseWriter, r *http.Request) {
			seen := version.Load()
			if r.URL.Path == "/slow" {
				time.Sleep(100 * time.Millisecond)
			}
			w.Header().Set("Cache-Control", "max-age=60")
			w.Header().Set("Cache-Tag", "product")
			fmt.Fprintf(w, "v%d", seen)
		}
		s := memstore.New(memstore.Options{})
		here, elsewhere := benchOver(t, late{s, 10 * time.Millisecond}, tagOptions, handler), benchOver(t, s, tagOptions, handler)
		first := make(chan answer, 1)
		go func() { first <- here.get("/slow") }()
		time.Sleep(time.Millisecond)
		version.Add(1)
		if err := elsewhere.cache.InvalidateTags(t.Context(), "product"); err != nil {
			t.Fatal(err)
		}
		elsewhere.get("/other") // makes the mark
		if a := <-first; a.body != "v0" {
			t.Errorf("who asked before got %q", a.body)
		}
		if a := here.get("/slow"); a.body != "v1" {
			t.Errorf("after the invalidation: %q", a.body)
		}
		// And what is made when nothing is invalidated is kept.
		here.get("/slow")
		if a := here.get("/slow"); a.body != "v1" || !a.cached() {
			t.Errorf("then: %q, %v", a.body, a.header)
		}
	})
}

func TestTagNamesInEverySpelling(t *testing.T) {
	o := mustOptions(t, tagOptions)
	h := fields("Surrogate-Key", "a b", "Cache-Tag", "b,c , d", "Cache-Groups", `"e", "f"`)
	if got := fmt.Sprint(o.tagNames(h)); got != "[* a b c d e f]" {
		t.Errorf("got %s", got)
	}
}

func TestAnAnswerWithTooManyTagsIsNotKept(t *testing.T) {
	var n atomic.Int64
	b := newBench(t, tagOptions, taggedPage(&n))
	var tags []string
	for i := range maxTags {
		tags = append(tags, fmt.Sprint(i))
	}
	for range 3 {
		if a := b.get("/p?tags=" + strings.Join(tags, "+")); a.cached() {
			t.Error("kept")
		}
	}
}

func TestTagsNeedToBeSwitchedOn(t *testing.T) {
	b := newBench(t, Options{}, page("max-age=60"))
	if err := b.cache.InvalidateTags(t.Context(), "a"); err == nil || !strings.Contains(err.Error(), "TagHeaders") {
		t.Errorf("got %v", err)
	}
}
