package middleware

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
)

// withToken lets those in who have the token.
func withToken(r *http.Request) error {
	if r.Header.Get("Authorization") != "Bearer secret" {
		return errors.New("the token is not secret")
	}
	return nil
}

// purging is a cache with a purge handler.
func purging(t *testing.T, opts Options, h http.HandlerFunc) (b *bench, purge func(body string, pairs ...string) *httptest.ResponseRecorder) {
	t.Helper()
	b = newBench(t, opts, h)
	ph, err := b.cache.PurgeHandler(withToken)
	if err != nil {
		t.Fatal(err)
	}
	return b, func(body string, pairs ...string) *httptest.ResponseRecorder {
		r := httptest.NewRequest("POST", "http://admin.test/purge", strings.NewReader(body))
		r.Header = fields("Authorization", "Bearer secret", "Content-Type", "application/json")
		for i := 0; i < len(pairs); i += 2 {
			r.Header.Set(pairs[i], pairs[i+1])
			if pairs[i] == "Method" {
				r.Method = pairs[i+1]
			}
		}
		w := httptest.NewRecorder()
		ph.ServeHTTP(w, r)
		return w
	}
}

// shopPage bears the path as its tag, and has two variants.
func shopPage(cc string) http.HandlerFunc {
	var n atomic.Int64
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", cc)
		w.Header().Set("Surrogate-Key", "tag"+strings.ReplaceAll(r.URL.Path, "/", "-"))
		w.Header().Set("Vary", "A")
		fmt.Fprintf(w, "run %d", n.Add(1))
	}
}

func TestAPurgeReachesExactlyWhatItNames(t *testing.T) {
	for _, tt := range []struct {
		body string
		hit  string // what is purged of "path variant"
	}{
		{`{"urls": ["http://site.test/1"]}`, "/1 x, /1 y"},
		{`{"urls": ["http://site.test/1", "http://SITE.test:80/2"]}`, "/1 x, /1 y, /2 x, /2 y"},
		{`{"tags": ["tag-2"]}`, "/2 x, /2 y"},
		{`{"variants": [{"url": "http://site.test/1", "header": {"a": "y"}}]}`, "/1 y"},
		{`{"variants": [{"url": "http://site.test/1", "header": {"A": "x"}}, {"url": "http://site.test/2", "header": {"A": "y"}}]}`, "/1 x, /2 y"},
		{`{"urls": ["http://site.test/1"], "tags": ["tag-2"], "variants": [{"url": "http://site.test/3", "header": {"A": "x"}}]}`, "/1 x, /1 y, /2 x, /2 y, /3 x"},
		{`{"all": true}`, "/1 x, /1 y, /2 x, /2 y, /3 x, /3 y"},
		{`{"urls": ["http://site.test/another"]}`, ""},
		{`{"variants": [{"url": "http://site.test/1"}]}`, ""},
	} {
		for _, soft := range []bool{false, true} {
			t.Run(fmt.Sprint(tt.body, soft), func(t *testing.T) {
				b, purge := purging(t, tagOptions, shopPage("max-age=60, stale-while-revalidate=60"))
				body := tt.body
				if soft {
					body = strings.TrimSuffix(body, "}") + `, "soft": true}`
				}
				for range 2 { // the first ask of a tag makes it known
					for _, p := range []string{"/1", "/2", "/3"} {
						b.get(p, "A", "x")
						b.get(p, "A", "y")
					}
				}
				if w := purge(body); w.Code != 204 || w.Body.Len() != 0 || w.Header().Get("Cache-Control") != "no-store" {
					t.Fatalf("got %d %q %v", w.Code, w.Body, w.Header())
				}
				var gone []string
				for _, p := range []string{"/1", "/2", "/3"} {
					for _, v := range []string{"x", "y"} {
						a := b.get(p, "A", v, "Cache-Control", "only-if-cached")
						switch {
						case a.status == 504 && !soft, soft && hasStatus(a, "; hit; ttl=-"):
							gone = append(gone, p+" "+v)
						case !a.cached():
							t.Errorf("%s %s: %d %v", p, v, a.status, a.header["Cache-Status"])
						}
					}
				}
				if got := strings.Join(gone, ", "); got != tt.hit {
					t.Errorf("purged: %s; want %s", got, tt.hit)
				}
			})
		}
	}
}

func TestARefusedPurgeSaysWhyAndPurgesNothing(t *testing.T) {
	const good = `{"urls": ["http://site.test/1"], "all": true}`
	long := func(n int) string {
		return `{"urls": ["http://site.test/1` + strings.Repeat(`", "http://site.test/1`, n) + `"]}`
	}
	for name, tt := range map[string]struct {
		body   string
		pairs  []string
		status int
		detail string
	}{
		"nobody":              {good, []string{"Authorization", ""}, 403, ""},
		"somebody else":       {good, []string{"Authorization", "Bearer guess"}, 403, ""},
		"nobody with GET":     {"", []string{"Authorization", "", "Method", "GET"}, 403, ""},
		"GET":                 {good, []string{"Method", "GET"}, 405, "POST"},
		"HEAD":                {good, []string{"Method", "HEAD"}, 405, "POST"},
		"PURGE":               {good, []string{"Method", "PURGE"}, 405, "POST"},
		"a form":              {good, []string{"Content-Type", "application/x-www-form-urlencoded"}, 415, "application/json"},
		"plain text":          {good, []string{"Content-Type", "text/plain"}, 415, "application/json"},
		"no type":             {good, []string{"Content-Type", ""}, 415, "application/json"},
		"nothing":             {"", nil, 400, "EOF"},
		"half":                {good[:20], nil, 400, "unexpected EOF"},
		"not an object":       {`"all"`, nil, 400, "not a purge"},
		"null":                {`null`, nil, 400, "name urls"},
		"names nothing":       {`{"soft": true}`, nil, 400, "name urls"},
		"a name misspelt":     {`{"url": ["http://site.test/1"], "all": true}`, nil, 400, "url"},
		"a wrong type":        {`{"urls": "http://site.test/1", "all": true}`, nil, 400, "urls"},
		"two values":          {good + good, nil, 400, "more than one"},
		"something after":     {good + "x", nil, 400, "more than one"},
		"no URL":              {`{"urls": ["/1"], "all": true}`, nil, 400, "https://host/path"},
		"one of two no URL":   {`{"urls": ["http://site.test/1", "ftp://site.test/1"]}`, nil, 400, "ftp://"},
		"a variant of no URL": {`{"variants": [{"url": "/1"}], "all": true}`, nil, 400, "https://host/path"},
		"no header":           {`{"variants": [{"url": "http://site.test/1", "header": {"a b": "x"}}], "all": true}`, nil, 400, "a b"},
		"a broken header":     {`{"variants": [{"url": "http://site.test/1", "header": {"A": "x\r\nB: y"}}], "all": true}`, nil, 400, "header"},
		"too long":            {`{"tags": ["` + strings.Repeat("x", MaxPurgeBody) + `"]}`, nil, 413, "1048576"},
		"too long, good":      {good + strings.Repeat(" ", MaxPurgeBody), nil, 413, "1048576"},
		"too many":            {long(maxPurgeNames), nil, 400, "1000"},
	} {
		t.Run(name, func(t *testing.T) {
			b, purge := purging(t, tagOptions, shopPage("max-age=60"))
			b.get("/1", "A", "x")
			b.get("/1", "A", "x")
			w := purge(tt.body, tt.pairs...)
			if w.Code != tt.status || w.Header().Get("Content-Type") != "application/problem+json" || w.Header().Get("Cache-Control") != "no-store" {
				t.Errorf("got %d %v, want %d", w.Code, w.Header(), tt.status)
			}
			var p problem
			if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || p.Status != tt.status || p.Title != http.StatusText(tt.status) || !strings.Contains(p.Detail, tt.detail) {
				t.Errorf("got %s (%v), want %q in it", w.Body, err, tt.detail)
			}
			if strings.Contains(w.Body.String(), "secret") {
				t.Errorf("it tells what authorize said: %s", w.Body)
			}
			if (w.Code == 405) != (w.Header().Get("Allow") == "POST") {
				t.Errorf("Allow: %q", w.Header().Get("Allow"))
			}
			if a := b.get("/1", "A", "x"); !a.cached() {
				t.Error("purged all the same")
			}
		})
	}
}

func TestAPurgeOfTagsNeedsTags(t *testing.T) {
	b, purge := purging(t, Options{}, page("max-age=60"))
	b.get("/1")
	b.get("/1") // waits until it is stored
	for _, body := range []string{`{"urls": ["http://site.test/1"], "tags": ["a"]}`, `{"urls": ["http://site.test/1"], "all": true}`} {
		if w := purge(body); w.Code != 400 || !strings.Contains(w.Body.String(), "TagHeaders") {
			t.Errorf("%s: got %d %s", body, w.Code, w.Body)
		}
	}
	if a := b.get("/1"); !a.cached() {
		t.Error("half of what was refused was done")
	}
}

func TestThereIsNoPurgeHandlerWithoutAnAuthorizer(t *testing.T) {
	b := newBench(t, Options{}, page("max-age=60"))
	if h, err := b.cache.PurgeHandler(nil); err == nil || h != nil || !strings.Contains(err.Error(), "authorize") {
		t.Errorf("got %v, %v", h, err)
	}
}

// An authorize that panics lets nobody in.
func TestAPurgeWhoseAuthorizerPanicsIsNotDone(t *testing.T) {
	b := newBench(t, tagOptions, shopPage("max-age=60"))
	b.get("/1")
	b.get("/1")
	h, err := b.cache.PurgeHandler(func(*http.Request) error { panic("broken") })
	if err != nil {
		t.Fatal(err)
	}
	func() {
		defer func() {
			if recover() != "broken" {
				t.Error("the panic is hidden")
			}
		}()
		r := httptest.NewRequest("POST", "http://admin.test/purge", strings.NewReader(`{"all": true}`))
		r.Header.Set("Content-Type", "application/json")
		h.ServeHTTP(httptest.NewRecorder(), r)
	}()
	if a := b.get("/1"); !a.cached() {
		t.Error("purged")
	}
}

func TestAPurgeHandlerBehindACacheRefusesToWork(t *testing.T) {
	wrappers := map[string]func(http.Handler) http.Handler{
		"at once": func(h http.Handler) http.Handler { return h },
		"in a middleware between": func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.ServeHTTP(unwrapping{w}, r) })
		},
	}
	for name, between := range wrappers {
		for _, opts := range []Options{tagOptions, {TagHeaders: tagOptions.TagHeaders, DryRun: true}} {
			t.Run(fmt.Sprint(name, " dry ", opts.DryRun), func(t *testing.T) {
				asked := 0
				b := newBench(t, opts, shopPage("max-age=60"))
				h, err := b.cache.PurgeHandler(func(*http.Request) error { asked++; return nil })
				if err != nil {
					t.Fatal(err)
				}
				pages := b.h
				b.get("/1")
				b.get("/1")
				b.h = b.cache.Handler(between(h))
				for _, method := range []string{"POST", "GET", "HEAD"} {
					r := httptest.NewRequest(method, "http://site.test/purge", nil)
					if method == "POST" {
						r = httptest.NewRequest(method, "http://site.test/purge", strings.NewReader(`{"all": true}`))
						r.Header.Set("Content-Type", "application/json")
					}
					for range 2 {
						w := httptest.NewRecorder()
						b.h.ServeHTTP(w, r)
						if w.Code != 500 || w.Header().Get("Cache-Control") != "no-store" {
							t.Errorf("%s: got %d %s", method, w.Code, w.Body)
						}
					}
				}
				b.h = pages
				if a := b.get("/1"); !opts.DryRun && !a.cached() {
					t.Error("purged")
				}
				if asked != 0 {
					t.Errorf("authorize was asked %d times", asked)
				}
			})
		}
	}
}

// unwrapping is a middleware's writer, as http.ResponseController knows it.
type unwrapping struct{ http.ResponseWriter }

func (u unwrapping) Unwrap() http.ResponseWriter { return u.ResponseWriter }

// No method and no field of a request to a cached route purges anything.
func TestNoRequestToACachedRouteIsAPurge(t *testing.T) {
	b := newBench(t, tagOptions, func() http.HandlerFunc {
		p := shopPage("max-age=60")
		return func(w http.ResponseWriter, r *http.Request) {
			if r.Method != "GET" {
				w.WriteHeader(405)
				return
			}
			p(w, r)
		}
	}())
	b.get("/1")
	b.get("/1")
	for _, method := range []string{"PURGE", "BAN", "REFRESH", "FASTLYPURGE", "DELETE"} {
		b.do(method, "/1", "Authorization", "Bearer secret", "Surrogate-Key", "tag-1", "Fastly-Soft-Purge", "1", "X-Purge", "1")
	}
	if a := b.get("/1", "X-Purge", "1", "Surrogate-Key", "tag-1"); !a.cached() {
		t.Error("purged")
	}
}

func TestAPurgeThatDoesNotReachTheStoreSaysSo(t *testing.T) {
	c, err := New(unreachable{brokenStore{memstore.New(memstore.Options{})}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	h, err := c.PurgeHandler(func(*http.Request) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{`{"urls": ["http://site.test/1"]}`, `{"variants": [{"url": "http://site.test/1"}]}`} {
		r := httptest.NewRequest("POST", "http://admin.test/purge", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json; charset=utf-8")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != 503 || !strings.Contains(w.Body.String(), "tried again") {
			t.Errorf("%s: got %d %s", body, w.Code, w.Body)
		}
	}
}

func FuzzPurge(f *testing.F) {
	f.Add(`{"urls": ["http://site.test/1"], "variants": [{"url": "http://site.test/1", "header": {"A": "y"}}]}`)
	f.Add(`{"all": true}`)
	c, err := New(memstore.New(memstore.Options{}), tagOptions)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { c.Close() })
	h, err := c.PurgeHandler(func(*http.Request) error { return nil })
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, body string) {
		r := httptest.NewRequest("POST", "http://admin.test/purge", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		switch w.Code {
		case 204:
			var p Purge
			if err := json.Unmarshal([]byte(body), &p); err != nil || (!p.All && len(p.URLs)+len(p.Tags)+len(p.Variants) == 0) {
				t.Fatalf("%q is taken for a purge: %v", body, err)
			}
		case 400, 413:
		default:
			t.Fatalf("%q: %d %s", body, w.Code, w.Body)
		}
	})
}
