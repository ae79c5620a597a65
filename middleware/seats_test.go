package middleware

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

// variantsOf answers with a variant for each value of A.
func variantsOf(cc string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", cc)
		w.Header().Set("Vary", "A")
		io.WriteString(w, "page "+r.Header.Get("A"))
	}
}

// keptVariants are those of n variants of a path that are stored.
func keptVariants(f *fleet, path string, n int) (kept []int) {
	for i := range n {
		if f.ask(i%len(f.servers), "GET", path, "A", strconv.Itoa(i), "Cache-Control", "only-if-cached").cached() {
			kept = append(kept, i)
		}
	}
	return kept
}

func TestAVariedFieldOfAnyValueDoesNotFillTheStore(t *testing.T) {
	const most, values = 20, 600
	server := redistest.Start(t)
	for name, stores := range map[string]func() store.Store{"memory": inMemory(), "redis": overRedis(t, server.Addr, nil, redisstore.Options{})} {
		t.Run(name, func(t *testing.T) {
			f := newFleetOver(t, stores, 3, Options{MaxVariants: most}, variantsOf("max-age=60"), nil)
			f.get("/p", "A", "0") // or many wait for one answer; see oneOffs
			var answers []answer
			for wave := range values / 30 {
				answers = append(answers, f.storm(30, func(i int) answer {
					return f.ask(i%3, "GET", "/p", "A", strconv.Itoa(30*wave+i))
				})...)
			}
			stored := 0
			for i, a := range answers {
				if want := "page " + strconv.Itoa(i); a.status != 200 || a.body != want {
					t.Errorf("got %d %q %v, want %q", a.status, a.body, a.err, want)
				}
				if hasStatus(a, "; stored;") {
					stored++
				}
			}
			kept := keptVariants(f, "/p", values)
			if len(kept) > most || len(kept) < most*3/4 {
				t.Errorf("%d variants are kept, want at most %d and most of them", len(kept), most)
			}
			if stored > len(kept) {
				t.Errorf("%d answers say that they are stored, and %d are", stored, len(kept))
			}
			told := false // a client that is let go before its seat was looked for is not
			for i := 0; i < 100 && !told; i++ {
				told = hasStatus(f.get("/p", "A", fmt.Sprint("late ", i)), "detail=max-variants;")
			}
			if !told {
				t.Error("nobody is told that there are too many")
			}
			if kept := keptVariants(f, "/another", values); len(kept) != 0 {
				t.Errorf("%d variants of a page that nobody has asked for", len(kept))
			}
			for range 2 { // the second time waits until it is stored
				f.get("/another", "A", "1")
				f.get("/another", "A", "2")
			}
			if a := f.get("/another", "A", "2"); !a.cached() {
				t.Errorf("another URL has no seat: %v", a.header["Cache-Status"])
			}
		})
	}
}

// noSeats is a store that takes no seats, and says so too late to be believed.
type noSeats struct{ store.Store }

func (s noSeats) Fill(ctx context.Context, g store.Grant, c store.Content) error {
	if strings.HasSuffix(g.Key.Space, "-seats") {
		return &store.Fault{Op: "fill", Class: store.ClassTimeout, Err: context.DeadlineExceeded}
	}
	return s.Store.Fill(ctx, g, c)
}

// A seat that was not written is anybody's: who counts on it is one too many.
func TestAVariantIsNotKeptOnASeatThatMayNotHaveBeenWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := benchOver(t, noSeats{memstore.New(memstore.Options{})}, Options{}, variantsOf("max-age=60"))
		for _, variant := range []string{"1", "2", "3", "2", "3"} {
			if a := b.get("/p", "A", variant); a.body != "page "+variant || a.cached() || hasStatus(a, "; stored") != (variant == "1") {
				t.Errorf("variant %s: got %q, %v", variant, a.body, a.header)
			}
		}
		b.wantRuns(5)
	})
}

func TestAVariantWithoutASeatIsStillAskedForOnceByThoseWhoWait(t *testing.T) {
	started, release := make(chan struct{}, 8), make(chan struct{})
	p := variantsOf("max-age=60")
	f := newFleet(t, 1, Options{MaxVariants: 1}, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("A") == "2" {
			started <- struct{}{}
			<-release
			time.Sleep(handlerTime) // the second run, so that all who wait are there before it ends
		}
		p(w, r)
	})
	f.get("/p", "A", "1")
	f.runs.Store(0)
	go func() {
		// One run is under way when the others come; the second is for all of them.
		<-started
		f.awaitWaiting(20)
		close(release)
	}()
	for _, a := range f.storm(20, func(int) answer { return f.ask(0, "GET", "/p", "A", "2") }) {
		if a.body != "page 2" || (hasStatus(a, "; collapsed") && !hasStatus(a, "detail=max-variants;")) || a.cached() {
			t.Errorf("got %q %v", a.body, a.header["Cache-Status"])
		}
	}
	if n := f.runs.Load(); n > 2 {
		t.Errorf("handler ran %d times", n)
	}
	if a := f.get("/p", "A", "1"); !a.cached() {
		t.Errorf("the one that is kept is gone: %v", a.header["Cache-Status"])
	}
}

func TestASeatIsKeptByRefreshesAndFreeOnceItsVariantHasExpired(t *testing.T) {
	inBubble(t, Options{MaxVariants: 2, Keep: time.Second}, variantsOf("max-age=10"), func(b *bench) {
		ask := func(v, want string) {
			t.Helper()
			if a := b.get("/p", "A", v); !hasStatus(a, want) {
				t.Errorf("%s: got %v, want %s", v, a.header["Cache-Status"], want)
			}
		}
		ask("0", "; stored;")
		ask("1", "; stored;")
		for range 10 { // longer than a seat lasts that nobody renews
			for range 2 {
				ask("2", "max-variants")
				time.Sleep(5*time.Second + 250*time.Millisecond)
			}
			ask("0", "; stored;")
			ask("1", "; stored;")
			ask("2", "max-variants")
		}
		for range 10 {
			time.Sleep(10*time.Second + 500*time.Millisecond)
			ask("0", "; stored;") // so that what is above the variants stays
		}
		ask("2", "; stored;")
		ask("1", "max-variants")
	})
}

func TestVariantsOfVariantsAreCounted(t *testing.T) {
	f := newFleet(t, 1, Options{MaxVariants: 10}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		w.Header().Set("Vary", "A")
		if r.Header.Get("A") == "1" {
			w.Header().Set("Vary", "A, B")
		}
		fmt.Fprintf(w, "%s/%s", r.Header.Get("A"), r.Header.Get("B"))
	})
	kept := 0
	for i := range 200 {
		pairs := []string{"A", strconv.Itoa(i % 2), "B", strconv.Itoa(i)}
		f.get("/p", pairs...)
	}
	for i := range 200 {
		if i%2 == 1 && f.get("/p", "A", "1", "B", strconv.Itoa(i), "Cache-Control", "only-if-cached").cached() {
			kept++
		}
	}
	if kept == 0 || kept > 9 {
		t.Errorf("%d variants of a variant are kept, want at most 9", kept)
	}
}
