package middleware

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard"
)

var nearHour = cacheguard.Near{MaxEntries: 100, TTL: time.Hour}

// The near cache has a way of its own through the cache. Whatever is kept and
// whoever asks, it has to end with the answer that the store's has.
func TestTheNearCacheAnswersAsTheStoreDoes(t *testing.T) {
	const date = "Thu, 31 Dec 1998 12:00:00 GMT" // before the bubble's time
	pages := map[string]struct {
		cc     string
		fields []string
		write  func(http.ResponseWriter, *http.Request)
	}{
		"plain":       {cc: "max-age=60"},
		"listed":      {cc: "max-age=60", fields: []string{"X-A", "1", "X-A", "2", "Content-Type", "text/plain", "Link", "</a>"}},
		"old":         {cc: "max-age=600", fields: []string{"Age", "100"}},
		"validators":  {cc: "max-age=60", fields: []string{"Etag", `"1"`, "Last-Modified", date}},
		"upstream":    {cc: "max-age=60", fields: []string{"Cache-Status", "origin; hit"}},
		"no-cache":    {cc: "no-cache", fields: []string{"Etag", `"1"`}},
		"s-maxage":    {cc: "s-maxage=60"},
		"public":      {cc: "public, max-age=60"},
		"over":        {cc: "max-age=5"},
		"stale":       {cc: "max-age=5, stale-while-revalidate=60"},
		"never stale": {cc: "max-age=5, must-revalidate"},
		"tagged":      {cc: "max-age=60", fields: []string{"Surrogate-Key", "a b"}},
		"vary":        {cc: "max-age=60", fields: []string{"Vary", "Accept-Language"}},
		"vary deeper": {cc: "max-age=60", fields: []string{"Vary", "Accept-Language"}, write: func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Accept-Language") == "de" {
				w.Header().Add("Vary", "X-Shade")
			}
		}},
		"empty": {cc: "max-age=60", write: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }},
		"lost":  {cc: "max-age=60", write: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) }},
		"trailers": {cc: "max-age=60", fields: []string{"Trailer", "X-Sum"}, write: func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, "and ")
			w.Header().Set("X-Sum", "7")
		}},
	}
	requests := [][]string{
		nil,
		{"Accept-Language", "de"},
		{"Accept-Language", "de", "X-Shade", "dark"},
		{"Accept-Language", "fr, en"},
		{"Cache-Control", "no-cache"},
		{"Cache-Control", "no-store"},
		{"Cache-Control", "max-age=3"},
		{"Cache-Control", "max-age=30"},
		{"Cache-Control", "min-fresh=30"},
		{"Cache-Control", "min-fresh=58"},
		{"Cache-Control", "max-stale"},
		{"Cache-Control", "only-if-cached"},
		{"Pragma", "no-cache"},
		{"If-None-Match", `"1"`},
		{"If-None-Match", `"2"`},
		{"If-Modified-Since", date},
		{"Range", "bytes=1-2"},
		{"Range", "bytes=1-2", "If-Range", `"2"`},
		{"Authorization", "Basic x"},
		{"Cookie", "a=b"},
	}
	options := map[string]Options{
		"plain":   {},
		"tags":    {TagHeaders: []string{"Surrogate-Key"}},
		"keyed":   {KeyHeaders: []string{"X-Shade"}, KeyCookies: []string{"a"}},
		"hidden":  {HideStatus: true},
		"tenants": {Tenant: func(*http.Request) (string, error) { return "t", nil }},
	}
	const url = "http://site.test/p"
	stages := []func(context.Context, *Cache) error{
		func(context.Context, *Cache) error { return nil },
		func(context.Context, *Cache) error { return nil },
		func(ctx context.Context, c *Cache) error { return c.Expire(ctx, url) },
		func(ctx context.Context, c *Cache) error { return c.Invalidate(ctx, url) },
		func(ctx context.Context, c *Cache) error { return c.ExpireTags(ctx, "a") },
		func(ctx context.Context, c *Cache) error { return c.InvalidateTags(ctx, "b") },
		func(ctx context.Context, c *Cache) error {
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
			if err == nil {
				r.Header.Set("Accept-Language", "de")
				err = c.InvalidateVariant(ctx, r)
			}
			return err
		},
	}
	near := 0
	for optsName, opts := range options {
		for pageName, p := range pages {
			synctest.Test(t, func(t *testing.T) {
				var via cacheguard.Via
				var said [2]Outcome
				var both [2]*bench
				for i := range both {
					own := opts
					own.Observe = func(o Outcome) { said[i] = o }
					if i == 1 {
						own.Near = nearHour
						own.Hooks.Answer = func(a cacheguard.AnswerInfo) { via = a.Via }
					}
					both[i] = newBench(t, own, func(w http.ResponseWriter, r *http.Request) {
						maps.Copy(w.Header(), fields(append(p.fields, "Cache-Control", p.cc)...))
						if p.write != nil {
							p.write(w, r)
						}
						fmt.Fprintf(w, "run %d", both[i].runs.Load())
					})
				}
				for stage, begin := range stages {
					time.Sleep(7 * time.Second)
					for _, b := range both {
						if err := begin(t.Context(), b.cache); err != nil && !errors.Is(err, errNoTags) {
							t.Fatal(err)
						}
					}
					for _, pairs := range requests {
						for _, method := range []string{"GET", "HEAD"} {
							via = 0
							var got [2]answer
							for i, b := range both {
								got[i] = b.do(method, "/p", pairs...)
								synctest.Wait()
							}
							if via == cacheguard.ViaNear && said[1].Hit {
								near++
							}
							asked := fmt.Sprintf("%s, %s, stage %d, %s %v", optsName, pageName, stage, method, pairs)
							if !reflect.DeepEqual(got[0], got[1]) || said[0] != said[1] {
								t.Errorf("%s:\n%+v %+v from the store,\n%+v %+v with the near cache", asked, got[0], said[0], got[1], said[1])
							}
							if without, with := both[0].runs.Load(), both[1].runs.Load(); without != with {
								t.Fatalf("%s: %d runs without and %d with the near cache", asked, without, with)
							}
						}
					}
				}
			})
		}
	}
	if near < 1000 {
		t.Errorf("the near cache has answered %d times: this compares nothing", near)
	}
}

// The values of one answer lie beside each other, copied from those of all.
func TestAHeaderOfAHitIsItsReceiversAlone(t *testing.T) {
	for name, near := range map[string]cacheguard.Near{"store": {}, "near": nearHour} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, Options{Near: near}, page("max-age=60", "X-A", "1", "X-B", "1", "X-B", "2", "Vary", "X-C", "Cache-Status", "origin"))
			b.get("/p")
			want := b.get("/p").header
			if len(want["Cache-Status"]) != 2 || want["Age"] == nil || want["Content-Length"] == nil {
				t.Fatalf("%s: no hit: %v", name, want)
			}
			for field := range want {
				w := &sink{make(http.Header)}
				b.h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://site.test/p", nil))
				w.h.Add(field, "more")
				grown := maps.Clone(want)
				grown[field] = append(slices.Clone(want[field]), "more")
				if !reflect.DeepEqual(w.h, grown) {
					t.Errorf("%s: more of %s makes\n%v of\n%v", name, field, w.h, want)
				}
				for _, values := range w.h {
					for i := range values {
						values[i] = "spoilt"
					}
				}
				if got := b.get("/p").header; !reflect.DeepEqual(got, want) {
					t.Errorf("%s: after that the next gets\n%v, not\n%v", name, got, want)
				}
			}
			b.wantRuns(1)
		})
	}
}
