package middleware

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	chimiddleware "github.com/go-chi/chi/v5/middleware"

	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
)

// The handler and its client: what happens when either does not behave.

func TestTheLeadersClientLeavesAndTheFollowersAreAnswered(t *testing.T) {
	f := newFleet(t, 1, Options{}, func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(handlerTime):
			w.Header().Set("Cache-Control", "max-age=60")
			io.WriteString(w, "page")
		case <-r.Context().Done():
			w.WriteHeader(502)
		}
	})
	f.warm(11)
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan answer, 1)
	go func() { left <- f.askContext(ctx, 0, "GET", "/p") }()
	for f.runs.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	answers := f.storm(10, func(i int) answer {
		if i == 0 {
			time.AfterFunc(handlerTime/4, leave)
		}
		return f.ask(0, "GET", "/p")
	})
	if a := <-left; !errors.Is(a.err, context.Canceled) {
		t.Errorf("the leader got %v", a.err)
	}
	f.wantRuns(1)
	for _, a := range answers {
		if a.status != 200 || a.body != "page" {
			t.Errorf("a follower got %d %q %v", a.status, a.body, a.err)
		}
	}
}

func TestTheOnlyClientLeavesAndTheAnswerIsStored(t *testing.T) {
	release := make(chan struct{})
	f := newFleet(t, 1, Options{}, func(w http.ResponseWriter, r *http.Request) {
		<-release
		w.Header().Set("Cache-Control", "max-age=60")
		io.WriteString(w, "page")
	})
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan answer, 1)
	go func() { left <- f.askContext(ctx, 0, "GET", "/p") }()
	for f.runs.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	leave()
	<-left
	close(release)
	if a := f.get("/p"); a.status != 200 || a.body != "page" {
		t.Errorf("the next got %d %q", a.status, a.body)
	}
	f.wantRuns(1)
}

func TestAnUnsharedRunEndsWithItsClient(t *testing.T) {
	ended := make(chan error, 1)
	f := newFleet(t, 1, Options{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "private")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		_, err := io.WriteString(w, strings.Repeat("x", 1<<20))
		ended <- err
	})
	ctx, leave := context.WithCancel(t.Context())
	go func() { f.askContext(ctx, 0, "GET", "/p") }()
	for f.runs.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	leave()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("writing to a client that has left succeeds")
		}
	case <-time.After(5 * time.Second):
		t.Fatal("the handler was not told that its client has left")
	}
}

func TestAHandlerThatAbortsLeavesNoShortAnswerBehind(t *testing.T) {
	for name, abort := range map[string]func(w http.ResponseWriter){
		"panic":          func(http.ResponseWriter) { panic("broken") },
		"abort":          func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
		"goexit":         func(http.ResponseWriter) { runtime.Goexit() },
		"content length": func(w http.ResponseWriter) {},
	} {
		t.Run(name, func(t *testing.T) {
			var n atomic.Int64
			f := newFleet(t, 1, Options{}, func(w http.ResponseWriter, r *http.Request) {
				time.Sleep(50 * time.Millisecond)
				w.Header().Set("Cache-Control", "max-age=60")
				w.Header().Set("Content-Length", "8")
				if n.Add(1) == 1 {
					io.WriteString(w, "half")
					abort(w)
					return
				}
				io.WriteString(w, "whole   ")
			})
			began := time.Now()
			answers := f.storm(11, func(int) answer { return f.ask(0, "GET", "/p") })
			broken := 0
			for _, a := range answers {
				switch {
				case a.err != nil:
					broken++
				case a.status != 200 || a.body != "whole   ":
					t.Errorf("got %d %q", a.status, a.body)
				}
			}
			if broken > 1 {
				t.Errorf("%d clients saw the abort, want the leader alone", broken)
			}
			if d := time.Since(began); d > 2*time.Second {
				t.Errorf("took %v", d)
			}
			if a := f.get("/p"); a.body != "whole   " {
				t.Errorf("the next got %q", a.body)
			}
		})
	}
}

func TestAPanicIsRaisedWhereItWouldHaveBeen(t *testing.T) {
	cause := errors.New("broken")
	for name, raised := range map[string]any{"error": cause, "text": "broken", "abort": http.ErrAbortHandler} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, Options{}, func(http.ResponseWriter, *http.Request) { panic(raised) })
			func() {
				defer func() {
					if got := recover(); got != raised {
						t.Errorf("got panic %v, want %v", got, raised)
					}
				}()
				b.get("/p")
				t.Error("no panic")
			}()
			b.h = b.cache.Handler(page("max-age=60"))
			if a := b.get("/p"); a.body != "run 1" {
				t.Errorf("the next got %q", a.body)
			}
		})
	}
}

func TestAFailureIsSeenByAllWhoWaitedAndIsNotKept(t *testing.T) {
	f := newFleet(t, 2, Options{}, func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(handlerTime)
		http.Error(w, "broken", 500)
	})
	f.warm(10)
	for _, a := range f.storm(20, func(i int) answer { return f.ask(i%2, "GET", "/p") }) {
		if a.status != 500 || a.body != "broken\n" {
			t.Errorf("got %d %q %v", a.status, a.body, a.err)
		}
	}
	if n := f.runs.Load(); n > 2 {
		t.Errorf("handler ran %d times, want at most 2", n)
	}
	before := f.runs.Load()
	if a := f.get("/p"); a.status != 500 || f.runs.Load() != before+1 {
		t.Errorf("the failure was kept: %d, %d runs", a.status, f.runs.Load()-before)
	}
}

func TestAHandlerThatAsksForItselfIsNotBlocked(t *testing.T) {
	var inner http.Handler
	b := newBench(t, Options{}, nil)
	b.h = b.cache.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		if r.Header.Get("X-Inner") != "" {
			io.WriteString(w, "inner")
			return
		}
		again := r.Clone(r.Context())
		again.Header.Set("X-Inner", "1")
		rec := httptest.NewRecorder()
		inner.ServeHTTP(rec, again)
		io.WriteString(w, "outer "+rec.Body.String())
	}))
	inner = b.h
	done := make(chan answer, 1)
	go func() { done <- b.get("/p") }()
	select {
	case a := <-done:
		if a.body != "outer inner" {
			t.Errorf("got %q", a.body)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("blocked")
	}
}

func TestAHandlerThatWritesNothingIsNotKept(t *testing.T) {
	f := newFleet(t, 1, Options{Policy: Policy{Lifetime: time.Minute}}, func(http.ResponseWriter, *http.Request) {})
	for range 2 {
		if a := f.get("/p"); a.status != 200 || a.body != "" {
			t.Errorf("got %d %q", a.status, a.body)
		}
	}
	f.wantRuns(2)
}

func TestLateAndRepeatedWritesReachNobody(t *testing.T) {
	late := make(chan error, 1)
	var kept http.ResponseWriter
	b := newBench(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		kept = w
		w.Header().Set("Cache-Control", "max-age=60")
		w.WriteHeader(201)
		w.WriteHeader(500)
		w.Header().Set("X-Late", "1")
		io.WriteString(w, "page")
	})
	for range 2 {
		if a := b.get("/p"); a.status != 201 || a.body != "page" || a.header.Get("X-Late") != "" {
			t.Errorf("got %d %q %v", a.status, a.body, a.header)
		}
	}
	go func() { _, err := io.WriteString(kept, "late"); late <- err }()
	if err := <-late; err == nil {
		t.Error("a write after the handler has returned succeeds")
	}
	kept.WriteHeader(500)
	kept.(http.Flusher).Flush()
	if a := b.get("/p"); a.status != 201 || a.body != "page" {
		t.Errorf("got %d %q", a.status, a.body)
	}
	b.wantRuns(1)
}

// What the handlers behind every chi mount see must be their own parameters,
// also in runs that outlive their request, while other requests use the pool.
func TestDetachedRunsOwnTheirRouteAtEveryDepth(t *testing.T) {
	for _, where := range []string{"before routing", "in a group", "in a sub-router", "inline", "around chi"} {
		t.Run(where, func(t *testing.T) {
			c, err := New(memstore.New(memstore.Options{}), Options{})
			if err != nil {
				t.Fatal(err)
			}
			started := make(chan string, 64)
			handler := func(w http.ResponseWriter, r *http.Request) {
				started <- r.URL.Path
				time.Sleep(20 * time.Millisecond)
				w.Header().Set("Cache-Control", "max-age=60")
				fmt.Fprintf(w, "id %s", chi.URLParam(r, "id"))
			}
			other := func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, chi.URLParam(r, "id")) }
			root := chi.NewRouter()
			var h http.Handler = root
			switch where {
			case "before routing":
				root.Use(c.Handler)
				root.Get("/x/{id}", handler)
			case "in a group":
				root.Group(func(r chi.Router) { r.Use(c.Handler); r.Get("/x/{id}", handler) })
			case "in a sub-router":
				root.Route("/x", func(r chi.Router) { r.Use(c.Handler); r.Get("/{id}", handler) })
			case "inline":
				root.With(c.Handler).Get("/x/{id}", handler)
			case "around chi":
				root.Get("/x/{id}", handler)
				h = c.Handler(root)
			}
			root.Post("/other/{id}", other)
			serve := func(ctx context.Context, method, path string) string {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, method, "http://site.test"+path, nil))
				return w.Body.String()
			}
			for i := range 20 {
				// The request leaves while its run goes on; others take the
				// route contexts that it gave back.
				ctx, leave := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() { defer close(done); serve(ctx, "GET", fmt.Sprintf("/x/%d", i)) }()
				<-started
				leave()
				<-done
				for n := range 20 {
					serve(t.Context(), "POST", fmt.Sprintf("/other/%d", 1000+n))
				}
			}
			for i := range 20 {
				if got, want := serve(t.Context(), "GET", fmt.Sprintf("/x/%d", i)), fmt.Sprintf("id %d", i); got != want {
					t.Errorf("got %q, want %q", got, want)
				}
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestWorksAroundAndInsideChisMiddlewares(t *testing.T) {
	for name, wrap := range map[string]func(c *Cache, next http.Handler) http.Handler{
		"compress outside": func(c *Cache, next http.Handler) http.Handler { return chimiddleware.Compress(5)(c.Handler(next)) },
		"compress inside":  func(c *Cache, next http.Handler) http.Handler { return c.Handler(chimiddleware.Compress(5)(next)) },
		"timeout outside": func(c *Cache, next http.Handler) http.Handler {
			return chimiddleware.Timeout(time.Minute)(c.Handler(next))
		},
		"timeout inside": func(c *Cache, next http.Handler) http.Handler {
			return c.Handler(chimiddleware.Timeout(time.Minute)(next))
		},
		"recoverer outside": func(c *Cache, next http.Handler) http.Handler { return chimiddleware.Recoverer(c.Handler(next)) },
		"recoverer inside":  func(c *Cache, next http.Handler) http.Handler { return c.Handler(chimiddleware.Recoverer(next)) },
		"throttle outside":  func(c *Cache, next http.Handler) http.Handler { return chimiddleware.Throttle(100)(c.Handler(next)) },
		"throttle inside":   func(c *Cache, next http.Handler) http.Handler { return c.Handler(chimiddleware.Throttle(1)(next)) },
		"logger outside":    func(c *Cache, next http.Handler) http.Handler { return quietLogger(c.Handler(next)) },
		"logger inside":     func(c *Cache, next http.Handler) http.Handler { return c.Handler(quietLogger(next)) },
		"request id around": func(c *Cache, next http.Handler) http.Handler { return chimiddleware.RequestID(c.Handler(next)) },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleetOver(t, inMemory(), 1, Options{}, func(w http.ResponseWriter, r *http.Request) {
				time.Sleep(50 * time.Millisecond)
				w.Header().Set("Cache-Control", "max-age=60")
				w.Header().Set("Content-Type", "text/plain")
				io.WriteString(w, strings.Repeat("page ", 1000))
			}, wrap)
			for _, a := range f.storm(10, func(int) answer { return f.ask(0, "GET", "/p", "Accept-Encoding", "identity") }) {
				if a.err != nil || a.body != strings.Repeat("page ", 1000) {
					t.Fatalf("got %d, %d bytes, %v", a.status, len(a.body), a.err)
				}
			}
			f.wantRuns(1)
			zipped := f.get("/p", "Accept-Encoding", "gzip")
			// chi's Compress says Vary only of what it has compressed: inside, the
			// plain page that came first is everybody's.
			if (name == "compress outside") != (zipped.header.Get("Content-Encoding") == "gzip") {
				t.Errorf("Content-Encoding %q", zipped.header.Get("Content-Encoding"))
			}
			if plain := f.get("/p", "Accept-Encoding", "identity"); plain.body != strings.Repeat("page ", 1000) {
				t.Errorf("after a compressed one: %d bytes, %v", len(plain.body), plain.header)
			}
		})
	}
}

var quietLogger = chimiddleware.RequestLogger(&chimiddleware.DefaultLogFormatter{Logger: discardLog})

func TestCloseEndsEverything(t *testing.T) {
	started := make(chan struct{})
	b := newBench(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		close(started)
		<-r.Context().Done()
		w.WriteHeader(503)
	})
	done := make(chan answer, 1)
	go func() {
		defer func() { recover() }()
		done <- b.get("/p")
	}()
	<-started
	for range 2 {
		if err := b.cache.Close(); err != nil {
			t.Error(err)
		}
	}
	b.h = b.cache.Handler(page("max-age=60"))
	if a := b.get("/p"); a.body != "run 1" {
		t.Errorf("after Close: %q", a.body)
	}
	if a := b.get("/p"); a.body != "run 2" {
		t.Errorf("after Close: %q", a.body)
	}
}

func TestARunThatBeginsAfterItsClientHasLeftIsNotBlocked(t *testing.T) {
	release, ended := make(chan struct{}), make(chan error, 1)
	var n atomic.Int64
	f := newFleet(t, 2, Options{MaxBody: 1000}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		if n.Add(1) == 1 {
			<-release
			panic(http.ErrAbortHandler)
		}
		_, err := io.WriteString(w, strings.Repeat("x", 1<<20))
		ended <- err
	})
	go f.ask(0, "GET", "/p")
	for n.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan answer, 1)
	go func() { left <- f.askContext(ctx, 1, "GET", "/p") }()
	for f.caches[1].waiting.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	leave()
	<-left
	for f.caches[1].waiting.Load() != 0 {
		time.Sleep(time.Millisecond)
	}
	close(release) // the other's lease ends, and this flight's turn comes
	select {
	case err := <-ended:
		if err == nil {
			t.Error("a body that nobody reads and nobody keeps was written")
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the handler is blocked")
	}
}
