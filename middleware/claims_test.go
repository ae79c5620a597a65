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

	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
)

// The same POST from many clients is as many POSTs.
func TestIdenticalPostsAllReachTheHandler(t *testing.T) {
	f := newFleet(t, 2, Options{Policy: Policy{Lifetime: time.Minute}}, cacheable)
	f.warm(20)
	for _, a := range f.storm(40, func(i int) answer { return f.ask(i%2, "POST", "/p") }) {
		if a.status != 200 || a.body != "page /p" || !hasStatus(a, "fwd=method;") {
			t.Errorf("got %d %q %v", a.status, a.body, a.header["Cache-Status"])
		}
	}
	f.wantRuns(40)
}

// A path that looks like a file's is an answer like any other: a handler that
// ignores what follows its name must not have its private page kept for that.
func TestAPathThatLooksLikeAFileChangesNothing(t *testing.T) {
	b := newBench(t, Options{Policy: Policy{Lifetime: time.Minute}}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "private")
		io.WriteString(w, "account of "+r.Header.Get("X-User"))
	})
	for _, suffix := range []string{"/x.css", ".js", "%2Fx.png", ";x.css", "%3Fx.css", "%00.css", "/%2e%2e/static/x.css", "?x.css"} {
		for _, user := range []string{"ann", "bob"} {
			if a := b.get("/account"+suffix, "X-User", user); a.body != "account of "+user || hasStatus(a, "; stored;") {
				t.Errorf("%s: %s got %q %v", suffix, user, a.body, a.header["Cache-Status"])
			}
		}
	}
}

// The redirect that a handler makes of the Host is that host's, and no other's.
func TestARedirectToTheHostIsThatHostsAlone(t *testing.T) {
	b := newBench(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		http.Redirect(w, r, "https://"+r.Host+"/login", http.StatusMovedPermanently)
	})
	for range 2 {
		for _, host := range []string{"evil.test", "site.test", "site.test:8080"} {
			r := httptest.NewRequest("GET", "http://"+host+"/", nil)
			w := httptest.NewRecorder()
			b.h.ServeHTTP(w, r)
			if got := w.Header().Get("Location"); got != "https://"+host+"/login" {
				t.Errorf("%s is sent to %s", host, got)
			}
		}
	}
	b.wantRuns(3)
}

// Those who have waited too long run the handler themselves, but not all at
// once.
func TestThoseWhoWaitedTooLongAreNotAHerd(t *testing.T) {
	hold := make(chan struct{})
	f := newFleet(t, 1, Options{WaitLimit: 100 * time.Millisecond}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		<-hold
		io.WriteString(w, "page")
	})
	const clients = maxEscapes + 20
	done := make(chan []answer, 1)
	var refused atomic.Int64
	go func() {
		done <- f.storm(clients, func(int) answer {
			a := f.ask(0, "GET", "/p")
			if a.status == 503 {
				refused.Add(1)
			}
			return a
		})
	}()
	deadline := time.Now().Add(10 * time.Second)
	for refused.Load() < clients-maxEscapes-1 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	if n := f.runs.Load(); n > maxEscapes+1 {
		t.Errorf("%d runs at once, want at most %d", n, maxEscapes+1)
	}
	close(hold)
	for _, a := range <-done {
		if (a.status != 200 || a.body != "page") && (a.status != 503 || a.header.Get("Retry-After") == "" || !hasStatus(a, "detail=waited;")) {
			t.Errorf("got %d %q %v", a.status, a.body, a.header)
		}
	}
	if refused.Load() == 0 {
		t.Error("nobody was refused")
	}
}

// gated is a client that reads when it is let.
type gated struct {
	counter
	gate chan struct{}
}

func (g *gated) Write(p []byte) (int, error) {
	<-g.gate
	return g.counter.Write(p)
}

func (g *gated) Flush() {}

// What will not be kept is not held for a client that does not read: the handler
// waits.
func TestAStreamIsHeldForASlowClientOnlyAsFarAsItsWindow(t *testing.T) {
	for name, cc := range map[string]string{"private": "private", "too big": "max-age=60"} {
		t.Run(name, func(t *testing.T) {
			const size, chunk, limit = 4 << 20, 10_000, 100_000
			c, err := New(memstore.New(memstore.Options{}), Options{MaxBody: limit})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			var written atomic.Int64
			h := c.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", cc)
				part := strings.Repeat("x", chunk)
				for written.Load() < size {
					n, err := io.WriteString(w, part)
					if err != nil {
						t.Error(err)
						return
					}
					written.Add(int64(n))
				}
			}))
			w := &gated{counter: counter{h: make(http.Header)}, gate: make(chan struct{})}
			done := make(chan struct{})
			go func() { defer close(done); h.ServeHTTP(w, request("http://site.test/s")) }()
			// The handler is ahead by what may still be kept, or by a window, and
			// by what the client is about to write.
			most := int64(window + chunk)
			if cc != "private" {
				most = limit + chunk
			}
			for last := int64(-1); written.Load() != last; time.Sleep(100 * time.Millisecond) {
				last = written.Load()
			}
			if n := written.Load(); n == 0 || n > 2*most {
				t.Errorf("the handler has written %d bytes for a client that reads none", n)
			}
			close(w.gate)
			<-done
			if want := written.Load(); w.n != want || want < size {
				t.Errorf("the client got %d bytes of %d", w.n, want)
			}
		})
	}
}

func TestRequestFieldsOfTheCachesOwnAreNotBelieved(t *testing.T) {
	b := newBench(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		fmt.Fprint(w, "page")
	})
	lies := []string{"Cache-Status", "cacheguard; hit; ttl=1000", "Age", "100", "Surrogate-Key", "x", "Cdn-Cache-Control", "no-store", "Expires", at(time.Hour)}
	if a := b.get("/p", lies...); a.cached() || a.header.Get("Age") != "" || !hasStatus(a, "; stored;") || len(a.header["Cache-Status"]) != 1 {
		t.Errorf("first: %v", a.header)
	}
	if a := b.get("/p", lies...); !a.cached() || a.header.Get("Age") != "0" || len(a.header["Cache-Status"]) != 1 || a.header.Get("Surrogate-Key") != "" {
		t.Errorf("then: %v", a.header)
	}
}
