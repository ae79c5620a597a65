package middleware_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
	"github.com/cacheguard-go/cacheguard/internal/weigh"
	"github.com/cacheguard-go/cacheguard/middleware"
)

// BenchmarkMemory: a request that waits for a page that another is making, with
// its goroutine, in bytes of heap and stacks; beside the same number of requests
// in a handler that waits.
func BenchmarkMemory(b *testing.B) {
	const waiters = 2000
	waiting := func(guarded bool) func(*testing.B) {
		return func(b *testing.B) {
			pages, err := middleware.New(memstore.New(memstore.Options{}), middleware.Options{})
			if err != nil {
				b.Fatal(err)
			}
			defer pages.Close()
			round := 0
			weigh.Growth(b, waiters, func() (end func()) {
				round++
				gate := make(chan struct{})
				handler := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					<-gate
					w.Header().Set("Cache-Control", "max-age=3600")
				}))
				if guarded {
					handler = pages.Handler(handler)
				}
				requests := make([]*http.Request, waiters)
				for i := range requests {
					requests[i] = httptest.NewRequest(http.MethodGet, fmt.Sprint("http://bench.test/", round), nil)
				}
				return weigh.Parked(waiters, func(i int) { handler.ServeHTTP(httptest.NewRecorder(), requests[i]) }, func() { close(gate) })
			})
		}
	}
	b.Run("request", waiting(true))
	b.Run("bare", waiting(false))
}
