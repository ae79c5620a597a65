package middleware

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
)

// sink is a writer without a network, as cheap as one can be.
type sink struct{ h http.Header }

func (s *sink) Header() http.Header         { return s.h }
func (s *sink) Write(p []byte) (int, error) { return len(p), nil }
func (s *sink) WriteHeader(int)             {}

func BenchmarkServe(b *testing.B) {
	body := make([]byte, 1024)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "max-age=60")
		w.Write(body)
	})
	run := func(b *testing.B, opts Options, bare bool, pairs ...string) {
		c, err := New(memstore.New(memstore.Options{}), opts)
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		h := c.Handler(handler)
		if bare {
			h = handler
		}
		r := httptest.NewRequest("GET", "http://site.test/products/1?x=1", nil)
		r.Header = fields(append([]string{"User-Agent", "bench", "Accept", "*/*"}, pairs...)...)
		h.ServeHTTP(httptest.NewRecorder(), r)
		b.ReportAllocs()
		b.ResetTimer()
		for b.Loop() {
			h.ServeHTTP(&sink{make(http.Header)}, r)
		}
	}
	near := cacheguard.Near{MaxEntries: 100, TTL: time.Minute}
	b.Run("bare", func(b *testing.B) { run(b, Options{}, true) })
	b.Run("near hit", func(b *testing.B) { run(b, Options{Near: near}, false) })
	b.Run("near hit, no status", func(b *testing.B) { run(b, Options{Near: near, HideStatus: true}, false) })
	b.Run("memstore hit", func(b *testing.B) { run(b, Options{}, false) })
	b.Run("bypass", func(b *testing.B) { run(b, Options{}, false, "Cookie", "a=b") })
	b.Run("bypass, no status", func(b *testing.B) { run(b, Options{HideStatus: true}, false, "Cookie", "a=b") })
}
