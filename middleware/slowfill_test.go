package middleware

import (
	"context"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
)

// slowToFill is a store that takes its time to write.
type slowToFill struct {
	store.Store
	takes time.Duration
}

func (s slowToFill) Fill(ctx context.Context, g store.Grant, c store.Content) error {
	time.Sleep(s.takes)
	return s.Store.Fill(ctx, g, c)
}

func TestAClientWaitsForItsOwnHandlerAndNotForTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := benchOver(t, slowToFill{memstore.New(memstore.Options{}), 50 * time.Millisecond}, Options{AutoETag: true}, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Second)
			w.Header().Set("Cache-Control", "max-age=60")
			w.Header().Set("Vary", "A")
			io.WriteString(w, "page "+r.Header.Get("A"))
		})
		for _, variant := range []string{"1", "2"} {
			a := b.get("/p", "A", variant)
			if a.status != 200 || a.body != "page "+variant || a.header.Get("Etag") == "" {
				t.Errorf("got %d %q %v", a.status, a.body, a.header)
			}
			if a.took > time.Second+fillPatience {
				t.Errorf("variant %s: answered after %v, the handler took a second", variant, a.took)
			}
			if hasStatus(a, "; stored") {
				t.Errorf("said to be stored before it is: %v", a.header)
			}
			time.Sleep(time.Second)
			if a := b.get("/p", "A", variant); !a.cached() || a.body != "page "+variant {
				t.Errorf("then got %q, %v", a.body, a.header)
			}
		}
		b.wantRuns(2)
		if n := len(b.cache.fillings.waiting); n != 0 {
			t.Errorf("%d fills are waited for by nobody", n)
		}
	})
}
