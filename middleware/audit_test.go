package middleware

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-chi/chi/v5"
)

// audited asks a handler once, waits for the audit, and returns what was found,
// in order of the inputs.
func audited(t *testing.T, opts Options, handler http.HandlerFunc, target string, pairs ...string) (found []Unkeyed, runs int64) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		opts.Audit = func(u Unkeyed) {
			mu.Lock()
			defer mu.Unlock()
			found = append(found, u)
		}
		b := newBench(t, opts, handler)
		if a := b.get(target, pairs...); a.status != 200 {
			t.Fatalf("got %d", a.status)
		}
		synctest.Wait()
		runs = b.runs.Load()
		for _, u := range found {
			if !strings.Contains(u.String(), u.Input) || !strings.HasPrefix(u.URL, "http://site.test"+target) {
				t.Errorf("got %s of %s", u, u.URL)
			}
		}
	})
	return found, runs
}

// inputsOf are the inputs that were found, each once, with what differs.
func inputsOf(found []Unkeyed) string {
	var list []string
	for _, u := range found {
		s := u.Input + ":" + strings.Join(u.Differs, "+")
		if u.Reflected {
			s += " reflected"
		}
		if u.Stored {
			s += " stored"
		}
		if !slices.Contains(list, s) {
			list = append(list, s)
		}
	}
	return strings.Join(list, ", ")
}

func TestAnAuditFindsWhatAHandlerReadsWithoutSayingSo(t *testing.T) {
	keep := func(w http.ResponseWriter) { w.Header().Set("Cache-Control", "max-age=60") }
	for _, tt := range []struct {
		name    string
		opts    Options
		target  string
		pairs   []string
		handler http.HandlerFunc
		want    string
	}{
		{name: "nothing", handler: func(w http.ResponseWriter, r *http.Request) {
			keep(w)
			io.WriteString(w, "page "+r.URL.Path+r.Host)
		}},
		{name: "a link made of X-Forwarded-Host", handler: func(w http.ResponseWriter, r *http.Request) {
			keep(w)
			host := r.Header.Get("X-Forwarded-Host")
			if host == "" {
				host = r.Host
			}
			io.WriteString(w, "<script src=//"+host+"/x.js>")
		}, want: "X-Forwarded-Host:body reflected stored"},
		{name: "a redirect by X-Forwarded-Proto, not kept", handler: func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Forwarded-Proto") == "http" {
				http.Redirect(w, r, "https://site.test/", 302)
				return
			}
			keep(w)
			io.WriteString(w, "page")
		}, want: "X-Forwarded-Proto:Cache-Control+Content-Type+Location+body+status"},
		{name: "a language, unsaid", pairs: []string{"Accept-Language", "fr"}, handler: func(w http.ResponseWriter, r *http.Request) {
			keep(w)
			if strings.HasPrefix(r.Header.Get("Accept-Language"), "fr") {
				io.WriteString(w, "bonjour")
				return
			}
			io.WriteString(w, "hello")
		}, want: "Accept-Language:body stored"},
		{name: "a language, said", pairs: []string{"Accept-Language", "fr"}, handler: func(w http.ResponseWriter, r *http.Request) {
			keep(w)
			w.Header().Set("Vary", "Accept-Language")
			io.WriteString(w, "in "+r.Header.Get("Accept-Language"))
		}},
		{name: "a field that is part of the key", opts: Options{KeyHeaders: []string{"X-Debug"}, AuditHeaders: []string{"X-Site"}, Tenant: func(r *http.Request) (string, error) { return r.Header.Get("X-Site"), nil }},
			handler: func(w http.ResponseWriter, r *http.Request) {
				keep(w)
				io.WriteString(w, r.Header.Get("X-Debug")+r.Header.Get("X-Site"))
			}},
		{name: "a field of the user's own", opts: Options{AuditHeaders: []string{"x-site"}}, handler: func(w http.ResponseWriter, r *http.Request) {
			keep(w)
			io.WriteString(w, r.Header.Get("X-Site"))
		}, want: "X-Site:Content-Type+body reflected stored"}, // an empty page has no type

		{name: "a field that is hidden", opts: Options{HideHeaders: []string{"X-Forwarded-Host"}}, pairs: []string{"X-Forwarded-Host", "evil.test"}, handler: func(w http.ResponseWriter, r *http.Request) {
			keep(w)
			io.WriteString(w, r.Header.Get("X-Forwarded-Host"))
		}},
		{name: "a field that the first request had", pairs: []string{"X-Beta", "1"}, handler: func(w http.ResponseWriter, r *http.Request) {
			keep(w)
			io.WriteString(w, "beta "+r.Header.Get("X-Beta"))
		}, want: "X-Beta:body stored"},
		{name: "one field hides another", handler: func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Host") != "" {
				w.WriteHeader(421)
				return
			}
			keep(w)
			w.Header().Set("X-Echo", strings.ToUpper(r.Header.Get("X-Original-Url")))
			io.WriteString(w, "page")
		}, want: "X-Host:Cache-Control+Content-Type+X-Echo+body+status, X-Original-Url:X-Echo reflected stored"},
		{name: "a page that is never the same", handler: func() http.HandlerFunc {
			var n atomic.Int64
			return func(w http.ResponseWriter, r *http.Request) {
				keep(w)
				w.Header().Set("X-Run", fmt.Sprint(n.Add(1)))
				fmt.Fprintf(w, "run %d", n.Load())
			}
		}()},
		{name: "and reflects", handler: func() http.HandlerFunc {
			var n atomic.Int64
			return func(w http.ResponseWriter, r *http.Request) {
				keep(w)
				w.Header().Set("X-Run", fmt.Sprint(n.Add(1)))
				fmt.Fprintf(w, "run %d for %s", n.Load(), r.Header.Get("X-Forwarded-For"))
			}
		}(), want: "X-Forwarded-For:body reflected stored"},
		{name: "a page that changes once in between", handler: func() http.HandlerFunc {
			var n atomic.Int64
			return func(w http.ResponseWriter, r *http.Request) {
				keep(w)
				fmt.Fprintf(w, "page %v", n.Add(1) > 4)
			}
		}()},
		{name: "an origin, as CORS has it", handler: func(w http.ResponseWriter, r *http.Request) {
			keep(w)
			if o := r.Header.Get("Origin"); o != "" {
				w.Header().Set("Access-Control-Allow-Origin", o)
			}
			io.WriteString(w, "page")
		}, want: "Origin:Access-Control-Allow-Origin reflected"},
		{name: "another method", handler: func(w http.ResponseWriter, r *http.Request) {
			keep(w)
			if r.Header.Get("X-Http-Method-Override") == "" {
				io.WriteString(w, "page")
			}
		}, want: "X-Http-Method-Override:Content-Type+body stored"},
		{name: "a cookie that is said to mean nothing", opts: Options{IgnoreCookies: []string{"*"}, KeyCookies: []string{"lang"}}, pairs: []string{"Cookie", "lang=de; theme=dark"}, handler: func(w http.ResponseWriter, r *http.Request) {
			keep(w)
			for _, c := range r.Cookies() {
				if c.Name == "theme" || c.Name == "lang" {
					fmt.Fprintf(w, "%s is %s ", c.Name, c.Value)
				}
			}
		}, want: "Cookie:body reflected stored"},
		{name: "a parameter that is said to mean nothing", opts: Options{Query: Query{Deny: []string{"utm_source"}}}, target: "?id=1&utm_source=x", handler: func(w http.ResponseWriter, r *http.Request) {
			keep(w)
			io.WriteString(w, r.FormValue("id")+r.FormValue("utm_source"))
		}, want: "?utm_source:body reflected stored"},
		{name: "a link with all parameters", opts: Options{Query: Query{Allow: []string{"id"}}}, target: "?id=1", handler: func(w http.ResponseWriter, r *http.Request) {
			keep(w)
			io.WriteString(w, r.RequestURI)
		}, want: "?*:body reflected stored"},
		{name: "a handler that panics", handler: func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Rewrite-Url") != "" {
				panic("broken")
			}
			if r.Header.Get("X-Debug") != "" {
				runtime.Goexit()
			}
			keep(w)
			w.Header().Set("Content-Type", "text/plain")
			io.WriteString(w, "page")
		}, want: "X-Debug:Cache-Control+Content-Type+status, X-Rewrite-Url:Cache-Control+Content-Type+status"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			found, runs := audited(t, tt.opts, tt.handler, "/p"+tt.target, tt.pairs...)
			for i, u := range found {
				if name, ok := strings.CutPrefix(u.Input, "?audit"); ok && name != "" {
					found[i].Input = "?*" // a parameter that nobody knows
				}
			}
			if got := inputsOf(found); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			if most := int64(8); tt.want == "" && !strings.Contains(tt.name, "changes") && runs > most {
				t.Errorf("%d runs for a page without fault, want at most %d", runs, most)
			}
		})
	}
}

func TestWithoutAnAuditNoHandlerRunsTwice(t *testing.T) {
	inBubble(t, Options{AuditHeaders: []string{"X-Site"}}, page("max-age=60"), func(b *bench) {
		b.get("/p")
		synctest.Wait()
		b.wantRuns(1)
	})
}

func TestAnAuditIsOfWhatIsStoredAndOnlyOnceInAWhile(t *testing.T) {
	opts := Options{Audit: func(u Unkeyed) { t.Errorf("found %s", u) }}
	for name, tt := range map[string]struct {
		method, cc string
		audited    bool
	}{"kept": {"GET", "max-age=60", true}, "private": {"GET", "private", false}, "at once stale": {"GET", "max-age=0", false},
		"HEAD": {"HEAD", "max-age=60", false}, "POST": {"POST", "max-age=60", false}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, opts, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", tt.cc)
				io.WriteString(w, "page")
			}, func(b *bench) {
				b.do(tt.method, "/p")
				synctest.Wait()
				first := b.runs.Load()
				if (first > 1) != tt.audited {
					t.Errorf("%d runs, want an audit: %v", first, tt.audited)
				}
				b.do(tt.method, "/p", "Cache-Control", "no-cache")
				synctest.Wait()
				if again := b.runs.Load() - first; again != 1 {
					t.Errorf("%d runs the second time", again)
				}
				time.Sleep(auditEvery + time.Second)
				b.do(tt.method, "/p", "Cache-Control", "no-cache")
				synctest.Wait()
				if again := b.runs.Load() - first - 1; (again > 1) != tt.audited {
					t.Errorf("%d runs after %v", again, auditEvery)
				}
			})
		})
	}
}

// What an audit asks is nobody's answer, and is not stored.
func TestAnAuditLeavesNoTrace(t *testing.T) {
	inBubble(t, Options{Audit: func(Unkeyed) {}}, func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(time.Second)
		w.Header().Set("Cache-Control", "max-age=60")
		io.WriteString(w, "host "+r.Header.Get("X-Forwarded-Host"))
	}, func(b *bench) {
		if a := b.get("/p"); a.body != "host " || a.took > time.Second {
			t.Errorf("the first got %q after %v", a.body, a.took)
		}
		for range 20 { // while it goes on
			if a := b.get("/p"); a.body != "host " || !a.cached() || a.took != 0 {
				t.Errorf("got %q %v after %v", a.body, a.header["Cache-Status"], a.took)
			}
			time.Sleep(time.Second)
		}
	})
}

func TestCloseEndsAnAudit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told atomic.Int64
		b := newBench(t, Options{Audit: func(Unkeyed) { told.Add(1) }}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			select {
			case <-time.After(time.Second):
				io.WriteString(w, "host "+r.Header.Get("X-Forwarded-Host"))
			case <-r.Context().Done():
			}
		})
		for i := range 10 {
			b.get(fmt.Sprint("/p", i))
		}
		synctest.Wait() // one audit is in its first run, the others wait for their turn
		began, runs := time.Now(), b.runs.Load()
		if err := b.cache.Close(); err != nil {
			t.Error(err)
		}
		if d := time.Since(began); d != 0 {
			t.Errorf("Close took %v", d)
		}
		synctest.Wait()
		if n := b.runs.Load(); n != runs || told.Load() > 0 {
			t.Errorf("%d runs and %d findings after Close", n-runs, told.Load())
		}
	})
}

func TestAnAuditRoutesLikeTheRequest(t *testing.T) {
	var mu sync.Mutex
	var found []Unkeyed
	b := newBench(t, Options{Audit: func(u Unkeyed) {
		mu.Lock()
		defer mu.Unlock()
		found = append(found, u)
	}}, nil)
	var runs atomic.Int64
	r := chi.NewRouter()
	r.Use(b.cache.Handler)
	r.Route("/shop", func(r chi.Router) {
		r.Route("/{section}", func(r chi.Router) {
			r.Get("/{id}", func(w http.ResponseWriter, r *http.Request) {
				runs.Add(1)
				w.Header().Set("Cache-Control", "max-age=60")
				io.WriteString(w, chi.URLParam(r, "section")+"/"+chi.URLParam(r, "id"))
			})
		})
	})
	w := httptest.NewRecorder()
	r.ServeHTTP(w, request("http://site.test/shop/books/7"))
	if w.Body.String() != "books/7" {
		t.Fatalf("got %d %q", w.Code, w.Body)
	}
	deadline := time.Now().Add(5 * time.Second)
	for runs.Load() < 6 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	if err := b.cache.Close(); err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(found) > 0 || runs.Load() < 6 {
		t.Errorf("after %d runs: %v", runs.Load(), found)
	}
}
