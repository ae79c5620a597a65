package middleware

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
)

// conditional answers with an ETag and a Last-Modified, and with 304 to who has
// them. It records what it was asked.
func conditional(cc, etag string, modified time.Time, asked *[]http.Header, body func() string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if asked != nil {
			*asked = append(*asked, r.Header.Clone())
		}
		w.Header().Set("Cache-Control", cc)
		if etag != "" {
			w.Header().Set("Etag", etag)
		}
		w.Header().Set("Last-Modified", modified.Format(http.TimeFormat))
		if etag != "" && r.Header.Get("If-None-Match") == etag {
			w.WriteHeader(304)
			return
		}
		io.WriteString(w, body())
	}
}

func TestConditionalRequestsAreAnsweredFromWhatIsStored(t *testing.T) {
	var asked []http.Header
	b := newBench(t, Options{}, conditional("max-age=60", `"v1"`, noon, &asked, func() string { return "page" }))
	// A conditional request on a cold key fills it in full (C018).
	a := b.get("/p", "If-None-Match", `"v1"`)
	if a.status != 304 || a.body != "" || a.header.Get("Etag") != `"v1"` {
		t.Errorf("cold: got %d %q %v", a.status, a.body, a.header)
	}
	if h := asked[0]; h.Get("If-None-Match") != "" {
		t.Errorf("the handler was asked conditionally: %v", h)
	}
	for _, pairs := range [][]string{{"If-None-Match", `W/"v1"`}, {"If-None-Match", "*"}, {"If-Modified-Since", at(0)}, {"If-Modified-Since", "Monday, 30-Nov-26 12:00:00 GMT"}} {
		a := b.get("/p", pairs...)
		if a.status != 304 || a.body != "" || !a.cached() {
			t.Errorf("%q: got %d %q", pairs, a.status, a.body)
		}
		for _, name := range []string{"Etag", "Cache-Control", "Date", "Last-Modified"} {
			if a.header.Get(name) == "" {
				t.Errorf("%q: the 304 has no %s", pairs, name)
			}
		}
		for _, name := range []string{"Content-Length", "Content-Type"} {
			if a.header.Get(name) != "" {
				t.Errorf("%q: the 304 has %s", pairs, name)
			}
		}
	}
	if a := b.get("/p", "If-None-Match", `"v0"`, "If-Modified-Since", at(0)); a.status != 200 || a.body != "page" {
		t.Errorf("another tag: got %d %q", a.status, a.body)
	}
	if a := b.get("/p"); a.status != 200 || a.body != "page" {
		t.Errorf("without condition: got %d %q", a.status, a.body)
	}
	b.wantRuns(1)
}

func TestAStaleAnswerIsAskedAboutAndFreshened(t *testing.T) {
	version := `"v1"`
	var asked []http.Header
	inBubble(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Header.Clone())
		w.Header().Set("Cache-Control", "max-age=10")
		w.Header().Set("Etag", version)
		w.Header().Set("X-Run", strconv.Itoa(len(asked)))
		w.Header().Set("Content-Security-Policy", "run "+strconv.Itoa(len(asked)))
		if r.Header.Get("If-None-Match") == version {
			w.Header().Set("Content-Length", "999")
			w.Header().Set("Content-Encoding", "br")
			w.WriteHeader(304)
			return
		}
		w.Header().Set("X-Stored", "1")
		io.WriteString(w, "page "+version)
	}, func(b *bench) {
		b.get("/p")
		time.Sleep(11 * time.Second)
		a := b.get("/p")
		if a.status != 200 || a.body != `page "v1"` || a.header.Get("X-Run") != "2" || a.header.Get("X-Stored") != "1" ||
			a.header.Get("Content-Encoding") != "" || a.header.Get("Content-Length") != "9" {
			t.Errorf("freshened: got %d %q %v", a.status, a.body, a.header)
		}
		if !hasStatus(a, "fwd=stale; fwd-status=304") {
			t.Errorf("Cache-Status %q", a.header["Cache-Status"])
		}
		if h := asked[1]; h.Get("If-None-Match") != version {
			t.Errorf("asked with %v", h)
		}
		time.Sleep(5 * time.Second)
		if a := b.get("/p"); !a.cached() || a.header.Get("X-Run") != "2" || a.header.Get("Age") != "5" {
			t.Errorf("after freshening: %v", a.header)
		}
		version = `"v2"`
		time.Sleep(10 * time.Second)
		if a := b.get("/p"); a.body != `page "v2"` {
			t.Errorf("changed: got %q", a.body)
		}
		b.wantRuns(3)
	})
}

// The client has not asked for a 304, whether or not others may have what it says.
func TestA304ThatMayNotBeKeptIsAWholePageToItsClient(t *testing.T) {
	for _, cc := range []string{"private", "no-store", "max-age=0"} {
		inBubble(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Etag", `"v1"`)
			if r.Header.Get("If-None-Match") != "" {
				w.Header().Set("Cache-Control", cc)
				w.WriteHeader(304)
				return
			}
			w.Header().Set("Cache-Control", "max-age=10")
			io.WriteString(w, "page")
		}, func(b *bench) {
			b.get("/p")
			time.Sleep(11 * time.Second)
			if a := b.get("/p"); a.status != 200 || a.body != "page" || a.header.Get("Cache-Control") != cc || !hasStatus(a, "fwd-status=304;") {
				t.Errorf("%s: got %d %q %v", cc, a.status, a.body, a.header)
			}
			time.Sleep(time.Second)
			if a := b.get("/p"); a.cached() {
				t.Errorf("%s: then %v", cc, a.header)
			}
			time.Sleep(11 * time.Second)
			if a := b.get("/p", "If-None-Match", `"v1"`); a.status != 304 || a.body != "" {
				t.Errorf("%s: who asks for a 304 got %d %q %v", cc, a.status, a.body, a.header)
			}
		})
	}
}

func TestA304ThatIsOldItselfFreshensNoLongerThanThat(t *testing.T) {
	inBubble(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=10")
		w.Header().Set("Etag", `"v1"`)
		if r.Header.Get("If-None-Match") != "" {
			w.Header().Set("Age", "8") // from a cache behind this one
			w.WriteHeader(304)
			return
		}
		io.WriteString(w, "page")
	}, func(b *bench) {
		b.get("/p")
		time.Sleep(11 * time.Second)
		if a := b.get("/p"); !hasStatus(a, "fwd-status=304") || a.header.Get("Age") != "8" {
			t.Errorf("freshened: %v", a.header)
		}
		time.Sleep(time.Second)
		if a := b.get("/p"); !a.cached() || a.header.Get("Age") != "9" {
			t.Errorf("a second later: %v", a.header)
		}
		time.Sleep(2 * time.Second)
		if a := b.get("/p"); a.cached() {
			t.Errorf("fresh for longer than the 304 was: %v", a.header)
		}
	})
}

func TestA304ThatSpeaksOfSomethingElseIsNotBelieved(t *testing.T) {
	var n atomic.Int64
	inBubble(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=10")
		w.Header().Set("Etag", fmt.Sprintf(`"v%d"`, n.Add(1)))
		if r.Header.Get("If-None-Match") != "" {
			w.WriteHeader(304)
			return
		}
		fmt.Fprintf(w, "page %d", n.Load())
	}, func(b *bench) {
		b.get("/p")
		time.Sleep(11 * time.Second)
		if a := b.get("/p"); a.status != 200 || a.body != "page 3" || a.header.Get("Etag") != `"v3"` {
			t.Errorf("got %d %q %v", a.status, a.body, a.header)
		}
	})
}

// The handler is asked a second time by one run: chi's routing context, in which
// the first time has left its marks, must not be the same.
func TestA304ThatIsNotBelievedIsAskedAboutByTheSameRoute(t *testing.T) {
	var n atomic.Int64
	b := newBench(t, Options{}, nil)
	r := chi.NewRouter()
	r.Use(b.cache.Handler)
	r.Route("/shop", func(r chi.Router) {
		r.Route("/{section}", func(r chi.Router) {
			r.Get("/{id}", func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "max-age=60")
				w.Header().Set("Etag", fmt.Sprintf(`"v%d"`, n.Add(1)))
				if r.Header.Get("If-None-Match") != "" {
					w.WriteHeader(304)
					return
				}
				fmt.Fprintf(w, "%s/%s run %d", chi.URLParam(r, "section"), chi.URLParam(r, "id"), n.Load())
			})
		})
	})
	b.h = r
	b.get("/shop/books/7")
	if a := b.get("/shop/books/7", "Cache-Control", "no-cache"); a.status != 200 || a.body != "books/7 run 3" {
		t.Errorf("got %d %q", a.status, a.body)
	}
}

func TestNoCacheIsAskedAboutEachTime(t *testing.T) {
	inBubble(t, Options{}, conditional("no-cache", `"v1"`, noon, nil, func() string { return "page" }), func(b *bench) {
		for range 3 {
			if a := b.get("/p"); a.status != 200 || a.body != "page" {
				t.Errorf("got %d %q", a.status, a.body)
			}
			time.Sleep(time.Second)
		}
		b.wantRuns(3)
	})
}

func TestANoCacheRequestIsAnsweredByWhatIsAskedAfterIt(t *testing.T) {
	started, release := make(chan struct{}, 4), make(chan struct{})
	p := page("max-age=60")
	f := newFleet(t, 1, Options{}, func(w http.ResponseWriter, r *http.Request) {
		started <- struct{}{}
		<-release
		p(w, r)
	})
	first, second := make(chan answer, 1), make(chan answer, 1)
	go func() { first <- f.ask(0, "GET", "/p") }()
	<-started
	go func() { second <- f.ask(0, "GET", "/p", "Cache-Control", "no-cache") }()
	f.awaitWaiting(2) // so that it has what it must not be answered by before it
	close(release)
	a, b := <-first, <-second
	if a.body != "run 1" || b.body != "run 2" {
		t.Errorf("got %q and %q", a.body, b.body)
	}
	if a := f.get("/p"); a.body != "run 2" {
		t.Errorf("the newer answer is not kept: %q", a.body)
	}
}

func TestOnlyIfCachedNeverRunsTheHandler(t *testing.T) {
	b := newBench(t, Options{}, page("max-age=60"))
	if a := b.get("/p", "Cache-Control", "only-if-cached"); a.status != 504 {
		t.Errorf("got %d", a.status)
	}
	b.wantRuns(0)
	b.get("/p")
	if a := b.get("/p", "Cache-Control", "only-if-cached"); a.body != "run 1" {
		t.Errorf("got %d %q", a.status, a.body)
	}
	b.wantRuns(1)
}

func TestHeadIsAnsweredFromGetAndNeverFillsIt(t *testing.T) {
	f := newFleet(t, 1, Options{}, func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(20 * time.Millisecond)
		w.Header().Set("Cache-Control", "max-age=60")
		io.WriteString(w, "0123456789")
	})
	if a := f.ask(0, "HEAD", "/p"); a.status != 200 || a.body != "" {
		t.Errorf("cold HEAD: %d %q", a.status, a.body)
	}
	if a := f.get("/p"); a.cached() || a.body != "0123456789" {
		t.Errorf("GET after HEAD: %q %v", a.body, a.header)
	}
	a := f.ask(0, "HEAD", "/p")
	if !a.cached() || a.body != "" || a.header.Get("Content-Length") != "10" {
		t.Errorf("HEAD after GET: %v", a.header)
	}
	f.wantRuns(2)
	for i, a := range f.storm(40, func(i int) answer { return f.ask(0, []string{"GET", "HEAD"}[i%2], "/q") }) {
		if want := []string{"0123456789", ""}[i%2]; a.status != 200 || a.body != want {
			t.Errorf("got %d %q, want %q", a.status, a.body, want)
		}
	}
}

func TestRangesAreCutFromTheWhole(t *testing.T) {
	var asked []http.Header
	b := newBench(t, Options{}, conditional("max-age=60", `"v1"`, noon, &asked, func() string { return "0123456789" }))
	for _, tt := range []struct {
		pairs  []string
		status int
		body   string
	}{
		{[]string{"Range", "bytes=0-1"}, 206, "01"}, // on a cold key: the whole is asked for
		{[]string{"Range", "bytes=1-"}, 206, "123456789"},
		{[]string{"Range", "bytes=-1"}, 206, "9"},
		{[]string{"Range", "bytes=8-100"}, 206, "89"},
		{[]string{"Range", "bytes=100-"}, 416, ""},
		{[]string{"Range", "bytes=2-1"}, 200, "0123456789"},
		{[]string{"Range", "items=0-1"}, 200, "0123456789"},
		{[]string{"Range", "bytes=0-1", "If-Range", `"v1"`}, 206, "01"},
		{[]string{"Range", "bytes=0-1", "If-Range", `W/"v1"`}, 200, "0123456789"},
		{[]string{"Range", "bytes=0-1", "If-Range", `"v0"`}, 200, "0123456789"},
		{[]string{"Range", "bytes=0-1", "If-Range", at(0)}, 206, "01"},
		{[]string{"Range", "bytes=0-1", "If-Range", at(-time.Hour)}, 200, "0123456789"},
		{[]string{"Range", "bytes=0-1", "If-None-Match", `"v1"`}, 304, ""},
	} {
		a := b.get("/p", tt.pairs...)
		if a.status != tt.status || (tt.status != 416 && a.body != tt.body) {
			t.Errorf("%q: got %d %q, want %d %q", tt.pairs, a.status, a.body, tt.status, tt.body)
		}
	}
	if a := b.get("/p", "Range", "bytes=0-0,-1"); a.status != 206 || !strings.HasPrefix(a.header.Get("Content-Type"), "multipart/byteranges") {
		t.Errorf("two ranges: %d %v", a.status, a.header)
	}
	b.wantRuns(1)
	if asked[0].Get("Range") != "" {
		t.Error("the handler was asked for a range")
	}
}

func TestVariantsAreKeptAsideAndEachAskedForOnce(t *testing.T) {
	f := newFleet(t, 2, Options{}, func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(handlerTime)
		w.Header().Set("Cache-Control", "max-age=60")
		w.Header().Set("Vary", "Accept-Language")
		io.WriteString(w, "in "+r.Header.Get("Accept-Language"))
	})
	f.warm(5)
	for round, limit := range []time.Duration{2 * handlerTime, handlerTime / 2} {
		answers := f.storm(10, func(i int) answer {
			return f.ask(i%2, "GET", "/p", "Accept-Language", []string{"de", "en"}[i/5])
		})
		for i, a := range answers {
			if want := "in " + []string{"de", "en"}[i/5]; a.body != want {
				t.Errorf("round %d: got %q, want %q", round, a.body, want)
			}
		}
		if d := slowest(answers); d > limit+handlerTime/2 {
			t.Errorf("round %d took %v, want at most %v", round, d, limit)
		}
		f.wantRuns(2)
	}
}

func TestVaryMayChangeOverTime(t *testing.T) {
	vary := "A"
	b := newBench(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		w.Header().Set("Vary", vary)
		fmt.Fprintf(w, "%s/%s", r.Header.Get("A"), r.Header.Get("B"))
	})
	b.get("/p", "A", "1", "B", "1")
	vary = "A, B"
	for range 2 {
		for _, bb := range []string{"1", "2"} {
			if a := b.get("/p", "A", "2", "B", bb); a.body != "2/"+bb {
				t.Errorf("got %q, want 2/%s", a.body, bb)
			}
		}
	}
	if a := b.get("/p", "A", "1", "B", "1"); a.body != "1/1" || !a.cached() {
		t.Errorf("the old variant is lost: %q", a.body)
	}
	b.wantRuns(3)
}

func TestExpiringAURLExpiresAllItsVariants(t *testing.T) {
	var n atomic.Int64
	inBubble(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60, stale-while-revalidate=60")
		w.Header().Set("Vary", "A")
		fmt.Fprintf(w, "%s run %d", r.Header.Get("A"), n.Add(1))
	}, func(b *bench) {
		b.get("/p", "A", "x")
		b.get("/p", "A", "y")
		if err := b.cache.Expire(t.Context(), "http://site.test/p"); err != nil {
			t.Fatal(err)
		}
		// Stale, and served while the handler is asked.
		if a := b.get("/p", "A", "y"); a.body != "y run 2" {
			t.Errorf("got %q, want the stale variant", a.body)
		}
		time.Sleep(time.Second)
		for _, v := range []string{"x", "y", "x", "y"} {
			if a := b.get("/p", "A", v); a.body == "x run 1" || a.body == "y run 2" {
				t.Errorf("not refreshed: %q", a.body)
			}
		}
		b.wantRuns(4)
	})
}

func TestUnsafeMethodsInvalidate(t *testing.T) {
	for _, tt := range []struct {
		method, location, contentLocation, host string
		status                                  int
		gone, other                             bool // /p, /q
	}{
		{method: "POST", status: 200, gone: true},
		{method: "PUT", status: 201, gone: true},
		{method: "DELETE", status: 204, gone: true},
		{method: "FROBNICATE", status: 200, gone: true},
		{method: "POST", status: 303, location: "/q", gone: true, other: true},
		{method: "POST", status: 200, contentLocation: "http://site.test/q", gone: true, other: true},
		{method: "POST", status: 200, location: "http://other.test/q", gone: true},
		{method: "POST", status: 200, location: "https://site.test/q", gone: true},
		{method: "POST", status: 400},
		{method: "POST", status: 500},
		{method: "OPTIONS", status: 200},
	} {
		t.Run(fmt.Sprint(tt.method, tt.status, tt.location, tt.contentLocation), func(t *testing.T) {
			p := page("max-age=60", "Vary", "A")
			b := newBench(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
				if r.Method == "GET" {
					p(w, r)
					return
				}
				if tt.location != "" {
					w.Header().Set("Location", tt.location)
				}
				if tt.contentLocation != "" {
					w.Header().Set("Content-Location", tt.contentLocation)
				}
				w.WriteHeader(tt.status)
			})
			for _, path := range []string{"/p", "/q"} {
				b.get(path, "A", "1")
				b.get(path, "A", "2")
			}
			b.do(tt.method, "/p")
			for path, gone := range map[string]bool{"/p": tt.gone, "/q": tt.other} {
				for _, v := range []string{"1", "2"} {
					if a := b.get(path, "A", v); a.cached() == gone {
						t.Errorf("%s variant %s: cached %v", path, v, a.cached())
					}
				}
			}
		})
	}
}

func TestAnInvalidationBeatsAFillThatIsUnderWay(t *testing.T) {
	for _, server := range []int{0, 1} {
		t.Run(fmt.Sprint("server ", server), func(t *testing.T) {
			var version atomic.Int64
			started, release := make(chan struct{}, 8), make(chan struct{})
			f := newFleet(t, 2, Options{}, func(w http.ResponseWriter, r *http.Request) {
				if r.Method == "PUT" {
					version.Add(1)
					return
				}
				seen := version.Load()
				started <- struct{}{}
				<-release
				w.Header().Set("Cache-Control", "max-age=60")
				fmt.Fprintf(w, "v%d", seen)
			})
			first := make(chan answer, 1)
			go func() { first <- f.ask(0, "GET", "/p") }()
			<-started
			if a := f.ask(server, "PUT", "/p"); a.status != 200 {
				t.Fatal(a.status, a.err)
			}
			after := make(chan answer, 1)
			go func() { after <- f.ask(1-server, "GET", "/p") }()
			f.awaitWaiting(2)
			close(release)
			if a := <-first; a.body != "v0" {
				t.Errorf("who asked before got %q", a.body)
			}
			if a := <-after; a.body != "v1" {
				t.Errorf("who asked after the write got %q", a.body)
			}
			for s := range 2 {
				if a := f.ask(s, "GET", "/p"); a.body != "v1" {
					t.Errorf("server %d: %q", s, a.body)
				}
			}
		})
	}
}

func TestInvalidateReachesEveryKeyOfAURL(t *testing.T) {
	opts := Options{
		Tenant:     func(r *http.Request) (string, error) { return r.Header.Get("X-Tenant"), nil },
		Identity:   func(r *http.Request) (string, bool) { u, _, ok := r.BasicAuth(); return u, ok },
		KeyCookies: []string{"c"},
	}
	f := newFleetOver(t, inMemory(), 2, opts, page("max-age=60"), nil)
	askers := [][]string{{"X-Tenant", "a"}, {"X-Tenant", "b"}, {"Authorization", "Basic dTp4"}, {"Authorization", "Basic djp4"}, {"Cookie", "c=1"}}
	seen := make(map[string]bool)
	for _, pairs := range askers {
		a := f.get("/p", pairs...)
		if seen[a.body] {
			t.Errorf("%q shares an entry", pairs)
		}
		seen[a.body] = true
		if a := f.ask(1, "GET", "/p", pairs...); !a.cached() {
			t.Errorf("%q: the other server has it not: %v", pairs, a.header)
		}
	}
	if err := f.caches[1].Invalidate(t.Context(), "http://site.test/p"); err != nil {
		t.Fatal(err)
	}
	for _, pairs := range askers {
		if a := f.get("/p", pairs...); a.cached() {
			t.Errorf("%q: still there", pairs)
		}
	}
}

func TestInvalidateNamesWhatIsNotAURL(t *testing.T) {
	b := newBench(t, Options{}, page("max-age=60"))
	b.get("/p")
	err := b.cache.Invalidate(t.Context(), "/p", "ftp://site.test/", "http://site.test/p", "http://%zz/")
	for _, bad := range []string{`"/p"`, "ftp:", "%zz"} {
		if err == nil || !strings.Contains(err.Error(), bad) {
			t.Errorf("the error does not name %s: %v", bad, err)
		}
	}
	if a := b.get("/p"); a.cached() {
		t.Error("the good one among them was not invalidated")
	}
}

func TestAnAnswerThatCanBeSharedHealsTheKey(t *testing.T) {
	cc := "private"
	b := newBench(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", cc)
		io.WriteString(w, "page")
	})
	b.get("/p")
	b.get("/p")
	cc = "max-age=60"
	b.get("/p") // sees that it could be shared
	b.get("/p") // is kept
	if a := b.get("/p"); !a.cached() {
		t.Errorf("not healed: %v", a.header)
	}
	b.wantRuns(4)
}

func TestAClientsBadRequestDoesNotMarkTheKey(t *testing.T) {
	b := newBench(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Odd") != "" {
			http.Error(w, "bad", 400)
			return
		}
		w.Header().Set("Cache-Control", "max-age=60")
		io.WriteString(w, "page")
	})
	if a := b.get("/p", "X-Odd", "1"); a.status != 400 {
		t.Fatal(a.status)
	}
	b.get("/p")
	if a := b.get("/p", "X-Odd", "1"); !a.cached() {
		t.Errorf("the key was marked: %v", a.header)
	}
}

func TestCredentialsNeverReachTheCacheUnlessTheAnswerAllowsIt(t *testing.T) {
	f := newFleet(t, 1, Options{}, func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(50 * time.Millisecond)
		if r.URL.Path == "/public" {
			w.Header().Set("Cache-Control", "public, max-age=60")
		} else {
			w.Header().Set("Cache-Control", "max-age=60")
		}
		user, _, _ := r.BasicAuth()
		io.WriteString(w, "for "+user)
	})
	user := func(i int) (string, string) { return "Authorization", []string{"Basic YTp4", "Basic Yjp4"}[i%2] }
	for round := range 2 {
		for i, a := range f.storm(10, func(i int) answer {
			name, value := user(i)
			return f.ask(0, "GET", "/mine", name, value)
		}) {
			if want := "for " + []string{"a", "b"}[i%2]; a.body != want {
				t.Errorf("round %d: got %q, want %q", round, a.body, want)
			}
			if a.cached() || hasStatus(a, "; collapsed") {
				t.Errorf("round %d: %v", round, a.header["Cache-Status"])
			}
		}
	}
	f.wantRuns(20)
	// What was stored for somebody without is not given to somebody with.
	f.get("/mine")
	if a := f.get("/mine", "Authorization", "Basic YTp4"); a.body != "for a" {
		t.Errorf("got %q", a.body)
	}
	// And nobody gets what was made for somebody with.
	if a := f.get("/mine"); a.body != "for " {
		t.Errorf("got %q", a.body)
	}
	// Where the answer says that it is for everybody, it is.
	first := f.get("/public", "Authorization", "Basic YTp4")
	if a := f.get("/public"); a.body != first.body || !a.cached() {
		t.Errorf("public: got %q, %v", a.body, a.header["Cache-Status"])
	}
	if a := f.get("/public", "Authorization", "Basic Yjp4"); a.body != first.body || !a.cached() {
		t.Errorf("public, with credentials: got %q, %v", a.body, a.header["Cache-Status"])
	}
}

// Each process has one request that finds out, and none of them waits for those
// of the others to have found out first.
func TestProcessesFindOutAboutCredentialsAtTheSameTime(t *testing.T) {
	const servers = 5
	f := newFleet(t, servers, Options{}, func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(handlerTime)
		w.Header().Set("Cache-Control", "max-age=60")
		user, _, _ := r.BasicAuth()
		io.WriteString(w, "for "+user)
	})
	f.warm(servers * 2)
	for round := range 2 {
		for i, a := range f.storm(servers*2, func(i int) answer {
			return f.ask(i%servers, "GET", "/mine", "Authorization", []string{"Basic YTp4", "Basic Yjp4"}[i%2])
		}) {
			if want := "for " + []string{"a", "b"}[i%2]; a.body != want || a.cached() {
				t.Errorf("round %d: got %q, want %q", round, a.body, want)
			}
			if a.took > 3*handlerTime {
				t.Errorf("round %d: an answer took %v, a run %v: they have queued", round, a.took, handlerTime)
			}
		}
	}
	f.wantRuns(servers * 2 * 2)
}

func TestCacheStatusSaysWhatHappened(t *testing.T) {
	inBubble(t, Options{StatusName: "edge"}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Status", "origin; hit")
		if r.URL.Path == "/p" {
			w.Header().Set("Cache-Control", "max-age=10, stale-while-revalidate=60")
			w.Header().Set("Vary", "A")
		}
		io.WriteString(w, "page")
	}, func(b *bench) {
		for _, tt := range []struct {
			method, path string
			pairs        []string
			wait         time.Duration
			want         string
		}{
			{"GET", "/p", nil, 0, "edge; fwd=uri-miss; fwd-status=200; stored"},
			{"GET", "/p", nil, 3 * time.Second, "edge; hit; ttl=7"},
			{"GET", "/p", []string{"A", "1"}, 0, "edge; fwd=vary-miss; fwd-status=200; stored"},
			{"GET", "/p", []string{"Cache-Control", "no-cache"}, 0, "edge; fwd=request; fwd-status=200; stored"},
			{"GET", "/p", nil, 12 * time.Second, "edge; hit; ttl=-2"},
			{"GET", "/p", []string{"A", "1"}, 80 * time.Second, "edge; fwd=stale; fwd-status=200; stored"},
			{"POST", "/x", nil, 0, "edge; fwd=method"},
			{"GET", "/x", []string{"Cookie", "a=b"}, 0, "edge; fwd=bypass; detail=cookie"},
			{"GET", "/x", nil, 0, "edge; fwd=uri-miss; fwd-status=200; detail=no-freshness"},
			{"GET", "/x", nil, 0, "edge; fwd=miss; fwd-status=200; detail=pass"},
			{"GET", "/y", []string{"Cache-Control", "only-if-cached"}, 0, "edge; detail=only-if-cached"},
		} {
			time.Sleep(tt.wait)
			a := b.do(tt.method, tt.path, tt.pairs...)
			lines := a.header["Cache-Status"]
			if len(lines) == 0 || lines[len(lines)-1] != tt.want || (len(lines) == 2) != (lines[0] == "origin; hit") {
				t.Errorf("%s %s %q: got %q, want %q last", tt.method, tt.path, tt.pairs, lines, tt.want)
			}
		}
	})
	b := newBench(t, Options{HideStatus: true}, page("max-age=60"))
	b.get("/p")
	if a := b.get("/p"); a.header["Cache-Status"] != nil {
		t.Errorf("hidden: %q", a.header["Cache-Status"])
	}
}

func TestFollowersGetTheirOwnHeaders(t *testing.T) {
	var n atomic.Int64
	f := newFleet(t, 1, Options{}, func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(100 * time.Millisecond)
		w.Header().Set("Cache-Control", "max-age=60")
		w.Header().Set("X-Request-Id", fmt.Sprint(n.Add(1)))
		w.Header().Set("Server-Timing", "db;dur=5")
		w.Header().Add("X-Many", "a")
		w.Header().Add("X-Many", "b")
		io.WriteString(w, "page")
	})
	ids := 0
	for _, a := range f.storm(10, func(int) answer { return f.ask(0, "GET", "/p") }) {
		if a.header.Get("X-Request-Id") != "" {
			ids++
		}
		if fmt.Sprint(a.header["X-Many"]) != "[a b]" || a.header.Get("Date") == "" {
			t.Errorf("got %v", a.header)
		}
	}
	if ids != 1 {
		t.Errorf("%d clients got the leader's request id, want the leader", ids)
	}
}

func TestOneAnswersHeaderIsNotAnothers(t *testing.T) {
	f := newFleetOver(t, inMemory(), 1, Options{}, page("max-age=60", "X-A", "1"), func(c *Cache, next http.Handler) http.Handler {
		h := c.Handler(next)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h.ServeHTTP(spoil{w}, r)
		})
	})
	for range 3 {
		for _, a := range f.storm(10, func(int) answer { return f.ask(0, "GET", "/p") }) {
			if a.header.Get("X-A") != "spoilt" {
				t.Fatal("not spoilt")
			}
		}
	}
	f.servers[0].Config.Handler = f.caches[0].Handler(page("max-age=60"))
	if a := f.get("/p"); a.header.Get("X-A") != "1" {
		t.Errorf("what a client's middleware did to its header is in the entry: %q", a.header.Get("X-A"))
	}
}

// spoil changes the header in place before it is sent.
type spoil struct{ http.ResponseWriter }

func (s spoil) WriteHeader(status int) {
	s.Header()["X-A"][0] = "spoilt"
	s.Header().Add("X-A", "more")
	s.ResponseWriter.WriteHeader(status)
}

func TestAutoETagIsOverTheStoredBytes(t *testing.T) {
	b := newBench(t, Options{AutoETag: true}, page("max-age=60"))
	first := b.get("/p")
	tag := first.header.Get("Etag")
	if len(tag) < 20 || tag[0] != '"' {
		t.Fatalf("Etag %q", tag)
	}
	if a := b.get("/p", "If-None-Match", tag); a.status != 304 {
		t.Errorf("got %d", a.status)
	}
	if other := b.get("/q").header.Get("Etag"); other == tag {
		t.Error("another body has the same tag")
	}
	for name, b := range map[string]*bench{
		"no-transform": newBench(t, Options{AutoETag: true}, page("max-age=60, no-transform")),
		"its own":      newBench(t, Options{AutoETag: true}, page("max-age=60", "Etag", `W/"own"`)),
		"off":          newBench(t, Options{}, page("max-age=60")),
	} {
		b.get("/p")
		if got := b.get("/p").header.Get("Etag"); got != "" && got != `W/"own"` {
			t.Errorf("%s: Etag %q", name, got)
		}
	}
}

func TestHiddenFieldsReachNoHandler(t *testing.T) {
	b := newBench(t, Options{HideHeaders: []string{"x-forwarded-host"}}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		io.WriteString(w, "host "+r.Header.Get("X-Forwarded-Host"))
	})
	for _, method := range []string{"GET", "GET", "POST"} {
		if a := b.do(method, "/p", "X-Forwarded-Host", "evil.test"); a.body != "host " {
			t.Errorf("%s: got %q", method, a.body)
		}
	}
}

func TestADryRunTellsAndDoesNothing(t *testing.T) {
	cc := "max-age=60"
	b := newBench(t, Options{DryRun: true}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", cc)
		io.WriteString(w, "page")
	})
	for _, want := range []string{"dry-stored", "dry-stored", "dry-private"} {
		if want == "dry-private" {
			cc = "private"
		}
		if a := b.get("/p"); !hasStatus(a, "; detail="+want+";") {
			t.Errorf("got %q, want %s", a.header["Cache-Status"], want)
		}
	}
	b.wantRuns(3)
}

func TestACacheableAnswerIsNotKeptAgainstAnOuterCacheControl(t *testing.T) {
	f := newFleetOver(t, inMemory(), 1, Options{Policy: Policy{Lifetime: time.Minute}}, page(""), func(c *Cache, next http.Handler) http.Handler {
		h := c.Handler(next)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "no-store")
			h.ServeHTTP(w, r)
		})
	})
	for range 2 {
		if a := f.get("/p"); a.cached() || a.header.Get("Cache-Control") != "no-store" {
			t.Errorf("got %v", a.header)
		}
	}
}

func TestCORSHeadersAreEachOriginsOwn(t *testing.T) {
	cors := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Add("Vary", "Origin")
			if o := r.Header.Get("Origin"); o != "" {
				w.Header().Set("Access-Control-Allow-Origin", o)
			}
			next.ServeHTTP(w, r)
		})
	}
	careless := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Access-Control-Allow-Origin", r.Header.Get("Origin"))
			next.ServeHTTP(w, r)
		})
	}
	for name, wrap := range map[string]func(c *Cache, next http.Handler) http.Handler{
		"outside":           func(c *Cache, next http.Handler) http.Handler { return cors(c.Handler(next)) },
		"inside":            func(c *Cache, next http.Handler) http.Handler { return c.Handler(cors(next)) },
		"careless, inside":  func(c *Cache, next http.Handler) http.Handler { return c.Handler(careless(next)) },
		"careless, outside": func(c *Cache, next http.Handler) http.Handler { return careless(c.Handler(next)) },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleetOver(t, inMemory(), 1, Options{}, page("max-age=60"), wrap)
			for range 2 {
				for _, origin := range []string{"https://a.test", "https://b.test"} {
					if a := f.get("/p", "Origin", origin); a.header.Get("Access-Control-Allow-Origin") != origin {
						t.Errorf("origin %s got %q", origin, a.header.Get("Access-Control-Allow-Origin"))
					}
				}
			}
		})
	}
}

func TestATargetedFieldRulesAndCanBeStripped(t *testing.T) {
	b := newBench(t, Options{StripTargets: true}, page("no-store", "CDN-Cache-Control", "max-age=60"))
	for i := range 2 {
		a := b.get("/p")
		if a.header.Get("Cdn-Cache-Control") != "" || a.header.Get("Cache-Control") != "no-store" || a.cached() != (i == 1) {
			t.Errorf("answer %d: %v", i, a.header)
		}
	}
}

func TestAnUnsafeMethodThatStreamsInvalidatesAtItsEndToo(t *testing.T) {
	var version atomic.Int64
	begun, commit := make(chan struct{}), make(chan struct{})
	f := newFleet(t, 1, Options{}, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			w.(http.Flusher).Flush()
			close(begun)
			<-commit
			version.Add(1)
			return
		}
		w.Header().Set("Cache-Control", "max-age=60")
		fmt.Fprintf(w, "v%d", version.Load())
	})
	done := make(chan answer, 1)
	go func() { done <- f.ask(0, "POST", "/p") }()
	<-begun
	if a := f.get("/p"); a.body != "v0" {
		t.Errorf("before the change: %q", a.body)
	}
	close(commit)
	<-done
	if a := f.get("/p"); a.body != "v1" {
		t.Errorf("after the change: %q", a.body)
	}
}
