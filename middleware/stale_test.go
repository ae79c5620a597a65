package middleware

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
)

// bench is a cache in front of a handler, without a network, for tests in a
// bubble of fake time.
type bench struct {
	t     *testing.T
	cache *Cache
	h     http.Handler
	runs  atomic.Int64

	flights flights
}

func newBench(t *testing.T, opts Options, handler http.HandlerFunc) *bench {
	t.Helper()
	return benchOver(t, memstore.New(memstore.Options{}), opts, handler)
}

func (b *bench) do(method, path string, pairs ...string) answer {
	r := httptest.NewRequest(method, "http://site.test"+path, nil)
	r.Header = fields(pairs...)
	w := httptest.NewRecorder()
	began := time.Now()
	b.h.ServeHTTP(w, r)
	resp := w.Result()
	a := answer{status: resp.StatusCode, header: resp.Header, trailer: resp.Trailer, body: w.Body.String(), took: time.Since(began)}
	b.flights.settle(a)
	return a
}

func (b *bench) get(path string, pairs ...string) answer { return b.do("GET", path, pairs...) }

func (b *bench) wantRuns(want int64) {
	b.t.Helper()
	if got := b.runs.Load(); got != want {
		b.t.Errorf("handler ran %d times, want %d", got, want)
	}
}

// inBubble runs a test in fake time.
func inBubble(t *testing.T, opts Options, handler http.HandlerFunc, test func(b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(newBench(t, opts, handler)) })
}

// page answers with a cache control and the number of its run.
func page(cc string, pairs ...string) http.HandlerFunc {
	var n atomic.Int64
	return func(w http.ResponseWriter, r *http.Request) {
		for i := 0; i < len(pairs); i += 2 {
			w.Header().Add(pairs[i], pairs[i+1])
		}
		if cc != "" {
			w.Header().Set("Cache-Control", cc)
		}
		fmt.Fprintf(w, "run %d", n.Add(1))
	}
}

func TestStaleWhileRevalidateAnswersAtOnceAndAsksOnce(t *testing.T) {
	slow := page("max-age=10, stale-while-revalidate=30")
	inBubble(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(time.Second)
		slow(w, r)
	}, func(b *bench) {
		b.get("/p")
		time.Sleep(12 * time.Second)
		for range 20 {
			a := b.get("/p")
			if a.body != "run 1" || a.took > 10*time.Millisecond || !hasStatus(a, "; hit; ttl=-") {
				t.Fatalf("got %q after %v, %v", a.body, a.took, a.header)
			}
		}
		time.Sleep(2 * time.Second)
		b.wantRuns(2)
		if a := b.get("/p"); a.body != "run 2" || a.took > 10*time.Millisecond {
			t.Errorf("after the refresh: %q", a.body)
		}
	})
}

func TestARefreshSurvivesTheRequestThatBeganIt(t *testing.T) {
	f := newFleet(t, 1, Options{}, func() http.HandlerFunc {
		p := page("max-age=1, stale-while-revalidate=30")
		return func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-time.After(100 * time.Millisecond):
				p(w, r)
			case <-r.Context().Done():
				panic(http.ErrAbortHandler)
			}
		}
	}())
	f.get("/p")
	time.Sleep(1100 * time.Millisecond)
	if a := f.get("/p"); a.body != "run 1" {
		t.Fatalf("got %q", a.body)
	}
	deadline := time.Now().Add(5 * time.Second)
	for f.get("/p").body != "run 2" {
		if time.Now().After(deadline) {
			t.Fatal("the refresh never came")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// failing answers well once, and then as fail does.
func failing(cc string, fail http.HandlerFunc) http.HandlerFunc {
	good := page(cc)
	var n atomic.Int64
	return func(w http.ResponseWriter, r *http.Request) {
		if n.Add(1) == 1 {
			good(w, r)
			return
		}
		fail(w, r)
	}
}

func TestStaleIfErrorOutlivesEveryKindOfFailure(t *testing.T) {
	for name, fail := range map[string]http.HandlerFunc{
		"500": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "broken", 500) },
		"503 no-store": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Cache-Control", "no-store")
			w.WriteHeader(503)
		},
		"502 and fresh": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			w.WriteHeader(502)
		},
		"panic": func(http.ResponseWriter, *http.Request) { panic("broken") },
		"abort": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			w.Write([]byte("half"))
			panic(http.ErrAbortHandler)
		},
		"too slow": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, Options{FillLimit: 2 * time.Second}, failing("max-age=10, stale-if-error=60", fail), func(b *bench) {
				b.get("/p")
				time.Sleep(15 * time.Second)
				for range 10 {
					if a := b.get("/p"); a.status != 200 || a.body != "run 1" {
						t.Fatalf("got %d %q", a.status, a.body)
					}
				}
				// The handler is left alone for a moment between two tries.
				if n := b.runs.Load(); n != 2 {
					t.Errorf("handler ran %d times, want 2", n)
				}
				// A failed refresh does not lengthen what is allowed (10 + 60 s).
				time.Sleep(60 * time.Second)
				func() {
					defer func() { recover() }()
					if a := b.get("/p"); a.body == "run 1" {
						t.Error("served beyond stale-if-error")
					}
				}()
			})
		})
	}
}

func TestTheRequestsOwnStaleIfErrorIsHeard(t *testing.T) {
	inBubble(t, Options{}, failing("max-age=10", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }), func(b *bench) {
		b.get("/p")
		time.Sleep(15 * time.Second)
		if a := b.get("/p", "Cache-Control", "stale-if-error=60"); a.status != 200 || a.body != "run 1" {
			t.Errorf("got %d %q", a.status, a.body)
		}
		time.Sleep(5 * time.Second)
		if a := b.get("/p"); a.status != 503 {
			t.Errorf("without it: got %d", a.status)
		}
	})
}

func TestStaleIsForbiddenByMustRevalidateAndItsLike(t *testing.T) {
	for _, forbids := range []string{"max-age=10, must-revalidate", "max-age=10, proxy-revalidate", "s-maxage=10", "no-cache"} {
		t.Run(forbids, func(t *testing.T) {
			inBubble(t, Options{}, failing(forbids+", stale-while-revalidate=60, stale-if-error=60", func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(503)
			}), func(b *bench) {
				b.get("/p")
				time.Sleep(15 * time.Second)
				for _, cc := range []string{"max-age=100", "max-stale", "stale-if-error=100"} {
					if a := b.get("/p", "Cache-Control", cc); a.status != 503 {
						t.Errorf("%s: got %d %q", cc, a.status, a.body)
					}
				}
			})
		})
	}
}

func TestAServerErrorNeverReplacesAUsableAnswer(t *testing.T) {
	inBubble(t, Options{}, failing("max-age=100", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }), func(b *bench) {
		b.get("/p")
		if a := b.get("/p", "Cache-Control", "no-cache"); a.status != 500 {
			t.Errorf("no-cache: got %d", a.status)
		}
		if a := b.get("/p"); a.status != 200 || !a.cached() {
			t.Errorf("the fresh answer is gone: %d %q", a.status, a.body)
		}
	})
}

func TestStalenessHasAHardBound(t *testing.T) {
	inBubble(t, Options{MaxStale: 20 * time.Second}, page("max-age=10, stale-while-revalidate=1000"), func(b *bench) {
		b.get("/p")
		time.Sleep(31 * time.Second)
		if a := b.get("/p", "Cache-Control", "max-stale"); a.body != "run 2" {
			t.Errorf("served %q after MaxStale", a.body)
		}
	})
}

func TestFreshUntilItsLifetimeIsOverAndNoLonger(t *testing.T) {
	inBubble(t, Options{}, page("max-age=10", "Age", "4"), func(b *bench) {
		b.get("/p")
		time.Sleep(3 * time.Second)
		if a := b.get("/p"); !a.cached() || a.header.Get("Age") != "7" {
			t.Errorf("got Age %q, %v", a.header.Get("Age"), a.header["Cache-Status"])
		}
		time.Sleep(3 * time.Second)
		if a := b.get("/p"); a.body != "run 2" {
			t.Errorf("served after its lifetime: %v", a.header)
		}
	})
}

func TestStaleWhileRevalidateAsksOnceInTheFleet(t *testing.T) {
	p := page("max-age=1, stale-while-revalidate=60")
	f := newFleet(t, 3, Options{}, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && r.Header.Get("X-First") == "" {
			time.Sleep(handlerTime)
		}
		p(w, r)
	})
	f.warm(20)
	f.get("/p", "X-First", "1")
	time.Sleep(1100 * time.Millisecond)
	f.runs.Store(0)
	for _, a := range f.storm(60, func(i int) answer { return f.ask(i%3, "GET", "/p") }) {
		if !a.cached() || a.took > handlerTime*3/4 {
			t.Errorf("got %q after %v, %v", a.body, a.took, a.header["Cache-Status"])
		}
	}
	time.Sleep(2 * handlerTime)
	f.wantRuns(1)
}

func TestAPanicInTheBackgroundIsToldAndFailsNobody(t *testing.T) {
	var told atomic.Int64
	opts := Options{Hooks: cacheguard.Hooks{Panic: func(p cacheguard.PanicInfo) {
		if p.Where == "handler" && p.Value == "broken" && len(p.Stack) > 0 {
			told.Add(1)
		}
	}}}
	inBubble(t, opts, failing("max-age=10, stale-while-revalidate=60", func(http.ResponseWriter, *http.Request) { panic("broken") }), func(b *bench) {
		b.get("/p")
		time.Sleep(11 * time.Second)
		for range 5 {
			if a := b.get("/p"); a.status != 200 || a.body != "run 1" {
				t.Errorf("got %d %q", a.status, a.body)
			}
		}
		synctest.Wait()
		if told.Load() != 1 {
			t.Errorf("told of %d panics, want 1: the handler is left alone for a moment", told.Load())
		}
	})
}
