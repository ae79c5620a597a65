package middleware

import (
	"context"
	"io"
	"net/http"
	"strings"
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
		b := benchOver(t, slowToFill{memstore.New(memstore.Options{}), time.Second}, Options{AutoETag: true, TagHeaders: []string{"Surrogate-Key"}}, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(20 * time.Second)
			w.Header().Set("Surrogate-Key", "page")
			w.Header().Set("Cache-Control", "max-age=600")
			w.Header().Set("Vary", "A")
			io.WriteString(w, "page "+r.Header.Get("A"))
		})
		for _, variant := range []string{"1", "2"} {
			a := b.get("/p", "A", variant)
			if a.status != 200 || a.body != "page "+variant || a.header.Get("Etag") == "" {
				t.Errorf("got %d %q %v", a.status, a.body, a.header)
			}
			before := 2 * time.Second // to find out about tags
			if a.took > before+20*time.Second+settlePatience+fillPatience {
				t.Errorf("variant %s: answered after %v, the handler took 20s", variant, a.took)
			}
			if hasStatus(a, "; stored") {
				t.Errorf("said to be stored before it is: %v", a.header)
			}
			time.Sleep(20 * time.Second)
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

// slowSeats is a store that takes its time to find a seat.
type slowSeats struct {
	store.Store
	takes time.Duration
}

func (s slowSeats) Load(ctx context.Context, key store.Key) (store.Entry, error) {
	if strings.HasSuffix(key.Space, "-seats") {
		time.Sleep(s.takes)
	}
	return s.Store.Load(ctx, key)
}

func TestAVariantsClientDoesNotWaitForItsSeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := benchOver(t, slowSeats{memstore.New(memstore.Options{}), time.Second}, Options{}, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Second)
			variantsOf("max-age=60")(w, r)
		})
		b.get("/p", "A", "1")
		if a := b.get("/p", "A", "2"); a.body != "page 2" || a.took > time.Second+seatPatience || hasStatus(a, "; stored") {
			t.Errorf("got %q after %v: %v", a.body, a.took, a.header)
		}
		if a := b.get("/p", "A", "2"); a.body != "page 2" || !hasStatus(a, "; collapsed") {
			t.Errorf("who asks while a seat is looked for got %q, %v", a.body, a.header)
		}
		if a := b.get("/p", "A", "2"); !a.cached() {
			t.Errorf("then: %v", a.header)
		}
		b.wantRuns(2)
	})
}

// Until its seat is found, nothing but what is stored can answer the client of a
// run that said "not modified".
func TestAClientWhoseVariantIsFreshenedGetsAllOfIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := benchOver(t, slowSeats{memstore.New(memstore.Options{}), time.Second}, Options{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Etag", `"v1"`)
			w.Header().Set("Cache-Control", "max-age=10")
			w.Header().Set("Vary", "A")
			if r.Header.Get("If-None-Match") != "" {
				w.WriteHeader(http.StatusNotModified)
				return
			}
			io.WriteString(w, "page "+r.Header.Get("A"))
		})
		for range 2 {
			for _, variant := range []string{"1", "2"} {
				if a := b.get("/p", "A", variant); a.status != 200 || a.body != "page "+variant {
					t.Errorf("variant %s: got %d %q %v", variant, a.status, a.body, a.header)
				}
			}
			time.Sleep(20 * time.Second)
		}
		b.wantRuns(4)
	})
}

// slowToAnswer is a store whose replies to reads are a while on their way.
type slowToAnswer struct {
	store.Store
	takes time.Duration
}

func (s slowToAnswer) Load(ctx context.Context, key store.Key) (store.Entry, error) {
	e, err := s.Store.Load(ctx, key)
	time.Sleep(s.takes)
	return e, err
}

// What was asked for a moment before a request is not from after it because the
// store took its time to say so.
func TestTheAnswerToANoCacheIsNotOlderThanItHoweverLongTheStoreTakes(t *testing.T) {
	for _, method := range []string{"GET", "HEAD"} {
		t.Run(method, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memstore.New(memstore.Options{})
				handler := func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Cache-Control", "max-age=60")
					io.WriteString(w, "page")
				}
				here, elsewhere := benchOver(t, slowToAnswer{s, 50 * time.Millisecond}, Options{}, handler), benchOver(t, s, Options{}, handler)
				elsewhere.get("/p")
				time.Sleep(time.Millisecond)
				if a := here.do(method, "/p", "Cache-Control", "no-cache"); a.cached() {
					t.Errorf("the answer is from before: %v", a.header)
				}
				here.wantRuns(1)
				elsewhere.wantRuns(1)
			})
		})
	}
}
