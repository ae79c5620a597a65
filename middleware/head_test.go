package middleware

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

// headed answers GET with a page that has the given fields, and HEAD with those
// of head. Each answer has the number of its run in X-Run.
func headed(get, head *[]string) http.HandlerFunc {
	var n atomic.Int64
	return func(w http.ResponseWriter, r *http.Request) {
		pairs := *get
		if r.Method == "HEAD" {
			pairs = *head
		}
		for i := 0; i < len(pairs); i += 2 {
			w.Header().Set(pairs[i], pairs[i+1])
		}
		w.Header().Set("X-Run", fmt.Sprint(n.Add(1)))
		io.WriteString(w, "page")
	}
}

func TestAHeadFreshensWhatItVouchesForAndMakesStaleWhatItContradicts(t *testing.T) {
	const modified, later = "Mon, 30 Nov 2026 11:00:00 GMT", "Mon, 30 Nov 2026 11:30:00 GMT"
	kept := []string{"Cache-Control", "max-age=10, stale-while-revalidate=5", "Etag", `"v1"`, "Last-Modified", modified, "X-Note", "old"}
	for _, tt := range []struct {
		name string
		head []string
		want headWord
	}{
		{"the same tag", []string{"Etag", `"v1"`}, headSame},
		{"the same tag, weak", []string{"Etag", `W/"v1"`}, headSame},
		{"the same date", []string{"Last-Modified", modified}, headSame},
		{"the same of all", []string{"Etag", `"v1"`, "Last-Modified", modified, "Content-Length", "4"}, headSame},
		{"another tag", []string{"Etag", `"v2"`}, headOther},
		{"another tag, the same date", []string{"Etag", `"v2"`, "Last-Modified", modified}, headOther},
		{"another date", []string{"Last-Modified", later}, headOther},
		{"another length", []string{"Etag", `"v1"`, "Content-Length", "5"}, headOther},
		{"another length and nothing else", []string{"Content-Length", "5"}, headOther},
		{"the same, not to be kept any longer", []string{"Etag", `"v1"`, "Cache-Control", "private"}, headOther},
		{"nothing", nil, headNothing},
		{"the same length and nothing else", []string{"Content-Length", "4"}, headNothing},
	} {
		for _, stale := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, stale %v", tt.name, stale), func(t *testing.T) {
				get, head := kept, append([]string{"X-Note", "new"}, tt.head...)
				inBubble(t, Options{}, headed(&get, &head), func(b *bench) {
					b.get("/p", "A", "1")
					time.Sleep(8 * time.Second)
					cc := "no-cache" // so that the HEAD reaches the handler
					if stale {
						time.Sleep(9 * time.Second)
						cc = ""
					}
					if a := b.do("HEAD", "/p", "Cache-Control", cc); a.cached() || a.header.Get("X-Run") != "2" {
						t.Fatalf("the HEAD did not reach the handler: %v", a.header)
					}
					time.Sleep(time.Second)
					a := b.get("/p", "Cache-Control", "only-if-cached")
					switch {
					case tt.want == headSame:
						if a.body != "page" || a.header.Get("X-Note") != "new" || a.header.Get("Age") != "1" || !hasStatus(a, "; hit; ttl=9") {
							t.Errorf("not freshened: %d %q %v", a.status, a.body, a.header)
						}
					case stale:
						if a.status != 504 {
							t.Errorf("what was stale is served: %d %v", a.status, a.header)
						}
					case tt.want == headOther:
						if a.header.Get("X-Note") != "old" || a.header.Get("Age") != "9" || !hasStatus(a, "; hit; ttl=-") {
							t.Errorf("not stale: %d %v", a.status, a.header)
						}
					default:
						if a.header.Get("X-Note") != "old" || a.header.Get("Age") != "9" || !hasStatus(a, "; hit; ttl=1") {
							t.Errorf("touched: %d %v", a.status, a.header)
						}
					}
				})
			})
		}
	}
}

func TestAFreshenedAnswerIsNoFresherThanItsHead(t *testing.T) {
	get := []string{"Cache-Control", "max-age=100", "Etag", `"v1"`}
	head := []string{"Cache-Control", "max-age=100", "Etag", `"v1"`, "Age", "30"}
	p := headed(&get, &head)
	inBubble(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		p(w, r)
		if r.Method == "HEAD" {
			time.Sleep(20 * time.Second)
		}
	}, func(b *bench) {
		b.get("/p")
		b.do("HEAD", "/p", "Cache-Control", "no-cache")
		// Made up to 30 s before the question, which was asked 20 s ago.
		if a := b.get("/p"); !a.cached() || a.header.Get("Age") != "50" {
			t.Errorf("got %v", a.header)
		}
		time.Sleep(51 * time.Second)
		if a := b.get("/p"); a.cached() {
			t.Errorf("served beyond its lifetime: %v", a.header)
		}
	})
}

func TestAHeadOnlySpeaksForTheVariantThatItSelects(t *testing.T) {
	var get, head []string
	get = []string{"Cache-Control", "max-age=10", "Vary", "A", "Etag", `"v1"`, "X-Note", "old"}
	for _, tt := range []struct{ tag, note, status string }{{`"v1"`, "new", "; hit; ttl=10"}, {`"v2"`, "", ""}} {
		for _, v := range []string{"1", "2"} {
			head = []string{"Etag", tt.tag, "X-Note", "new"}
			inBubble(t, Options{}, headed(&get, &head), func(b *bench) {
				b.get("/p", "A", "1")
				b.get("/p", "A", "2")
				time.Sleep(5 * time.Second)
				b.do("HEAD", "/p", "A", v, "Cache-Control", "no-cache")
				if a := b.get("/p", "A", v, "Cache-Control", "only-if-cached"); a.header.Get("X-Note") != tt.note || (tt.note == "" && a.status != 504) {
					t.Errorf("variant %s after %s: %d %v", v, tt.tag, a.status, a.header)
				}
				other := map[string]string{"1": "2", "2": "1"}[v]
				if a := b.get("/p", "A", other, "Cache-Control", "only-if-cached"); a.header.Get("X-Note") != "old" || !hasStatus(a, "; hit; ttl=5") {
					t.Errorf("variant %s after a HEAD of %s: %d %v", other, v, a.status, a.header)
				}
			})
		}
	}
}

func TestAHeadsFieldsAreTheHandlersAndNotThoseInFront(t *testing.T) {
	get := []string{"Cache-Control", "max-age=60", "Etag", `"v1"`, "Vary", "A"}
	head := []string{"Etag", `"v1"`, "X-Note", "new", "X-Request-Id", "of the HEAD", "Set-Cookie", "a=b"}
	b := newBench(t, Options{}, headed(&get, &head))
	inner := b.h
	b.h = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Front", r.Method)
		w.Header().Set("Vary", "Origin")
		inner.ServeHTTP(w, r)
	})
	b.get("/p")
	b.do("HEAD", "/p", "Cache-Control", "no-cache")
	a := b.get("/p")
	if !a.cached() || a.header.Get("X-Note") != "new" || a.header.Get("X-Front") != "GET" || len(a.header["X-Front"]) != 1 ||
		fmt.Sprint(a.header["Vary"]) != "[Origin A]" || a.header["X-Request-Id"] != nil || a.header["Set-Cookie"] != nil {
		t.Errorf("got %v", a.header)
	}
	w := httptest.NewRecorder()
	inner.ServeHTTP(w, request("http://site.test/p"))
	if w.Header()["X-Front"] != nil {
		t.Errorf("what stands in front is kept: %v", w.Header())
	}
}

// With credentials, a HEAD is told about what may be its client's alone.
func TestAHeadWithCredentialsSaysNothingAboutWhatIsShared(t *testing.T) {
	get := []string{"Cache-Control", "public, max-age=60", "Etag", `"v1"`, "X-Note", "old"}
	head := []string{"Cache-Control", "public, max-age=60", "Etag", `"v1"`, "X-Note", "for one user"}
	b := newBench(t, Options{}, headed(&get, &head))
	b.get("/p")
	b.do("HEAD", "/p", "Authorization", "Basic x", "Cache-Control", "no-cache")
	if a := b.get("/p"); a.header.Get("X-Note") != "old" {
		t.Errorf("got %v", a.header)
	}
}

// What is stored, written, invalidated or expired while a HEAD is answered, is
// newer than what the HEAD says.
func TestAHeadsAnswerNeverLandsOnSomethingNewer(t *testing.T) {
	server := redistest.Start(t)
	for name, stores := range map[string]func() store.Store{"memory": inMemory(), "redis": overRedis(t, server.Addr, nil, redisstore.Options{})} {
		for what, meanwhile := range map[string]func(f *fleet, path string) error{
			"filled": func(f *fleet, path string) error {
				return f.ask(1, "GET", path, "Cache-Control", "no-cache").err
			},
			"invalidated": func(f *fleet, path string) error {
				return f.caches[1].Invalidate(f.t.Context(), "http://site.test"+path)
			},
			"invalidated and filled": func(f *fleet, path string) error {
				defer f.ask(1, "GET", path)
				return f.caches[1].Invalidate(f.t.Context(), "http://site.test"+path)
			},
			"expired": func(f *fleet, path string) error {
				return f.caches[1].Expire(f.t.Context(), "http://site.test"+path)
			},
			"the variant invalidated": func(f *fleet, path string) error {
				return f.caches[1].InvalidateVariant(f.t.Context(), selecting(f.t, "http://site.test"+path))
			},
		} {
			for _, tag := range []string{`"v1"`, `"v9"`} {
				t.Run(name+" "+what+" "+tag, func(t *testing.T) {
					path := "/" + strings.ReplaceAll(what, " ", "-") + strings.Trim(tag, `"`)
					var version atomic.Int64
					started, release := make(chan struct{}), make(chan struct{})
					f := newFleetOver(t, stores, 2, Options{}, func(w http.ResponseWriter, r *http.Request) {
						w.Header().Set("Cache-Control", "max-age=60")
						if r.Method == "HEAD" {
							w.Header().Set("Etag", tag)
							w.Header().Set("X-Note", "HEAD")
							started <- struct{}{}
							<-release
							return
						}
						// The tag stays, so that the HEAD seems to vouch for any.
						w.Header().Set("Etag", `"v1"`)
						fmt.Fprintf(w, "version %d", version.Add(1))
					}, nil)
					f.get(path)
					heads := make(chan answer, 1)
					go func() { heads <- f.ask(0, "HEAD", path, "Cache-Control", "no-cache") }()
					select {
					case <-started:
					case a := <-heads:
						t.Fatalf("the HEAD was answered without the handler: %d %v %v", a.status, a.header, a.err)
					}
					if err := meanwhile(f, path); err != nil {
						t.Fatal(err)
					}
					close(release)
					<-heads
					for s := range 2 {
						a := f.ask(s, "GET", path)
						if a.body != "version 2" || a.header.Get("X-Note") != "" || (strings.Contains(what, "filled") && !a.cached()) {
							t.Errorf("server %d: %q %v", s, a.body, a.header)
						}
					}
				})
			}
		}
	}
}

func TestAHeadDoesNotWaitForARunThatIsUnderWay(t *testing.T) {
	started, release := make(chan struct{}), make(chan struct{})
	var n atomic.Int64
	f := newFleet(t, 1, Options{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		w.Header().Set("Etag", `"v1"`)
		if r.Method == "GET" && n.Add(1) == 2 {
			started <- struct{}{}
			<-release
		}
		fmt.Fprintf(w, "run %d", n.Load())
	})
	f.get("/p")
	second := make(chan answer, 1)
	go func() { second <- f.ask(0, "GET", "/p", "Cache-Control", "no-cache") }()
	<-started
	if a := f.ask(0, "HEAD", "/p", "Cache-Control", "no-cache"); a.status != 200 {
		t.Errorf("the HEAD got %d %v", a.status, a.err)
	}
	close(release)
	if a := <-second; a.body != "run 2" {
		t.Errorf("the GET got %q %v", a.body, a.err)
	}
	if a := f.get("/p"); a.body != "run 2" || !a.cached() {
		t.Errorf("got %q %v", a.body, a.header)
	}
}
