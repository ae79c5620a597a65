package middleware

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

// While the store is out of reach, nobody knows what has become of the marks of
// tags and of URLs. A process still collapses what it can.

func tenant(r *http.Request) (string, error) { return r.Header.Get("X-Tenant"), nil }

// markedOptions are those with which a cache needs marks.
var markedOptions = map[string]Options{
	"tags":   {TagHeaders: []string{"Surrogate-Key"}},
	"tenant": {Tenant: tenant},
	"both":   {TagHeaders: []string{"Surrogate-Key"}, Tenant: tenant},
}

func marked(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Surrogate-Key", "page")
	cacheable(w, r)
}

func TestWithoutAStoreMarksDoNotKeepAProcessFromCollapsing(t *testing.T) {
	broken := func() store.Store { return brokenStore{memstore.New(memstore.Options{})} }
	for name, opts := range markedOptions {
		t.Run(name, func(t *testing.T) {
			f := newFleetOver(t, broken, 1, opts, marked, nil)
			f.warm(20)
			collapsed := 0
			for _, a := range f.storm(20, func(int) answer { return f.ask(0, "GET", "/p", "X-Tenant", "one") }) {
				if a.status != 200 || a.body != "page /p" {
					t.Errorf("got %d %q %v", a.status, a.body, a.err)
				}
				if hasStatus(a, "; collapsed") {
					collapsed++
				}
			}
			if n := f.runs.Load(); n > 2 || collapsed < 18 {
				t.Errorf("handler ran %d times, %d collapsed", n, collapsed)
			}
		})
	}
}

func TestWithoutAStoreTenantsStillGetTheirOwn(t *testing.T) {
	broken := func() store.Store { return brokenStore{memstore.New(memstore.Options{})} }
	f := newFleetOver(t, broken, 1, Options{Tenant: tenant}, func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(handlerTime)
		w.Header().Set("Cache-Control", "max-age=60")
		io.WriteString(w, r.Header.Get("X-Tenant"))
	}, nil)
	f.warm(20)
	own := func(i int) string { return fmt.Sprint("tenant ", i%4) }
	for i, a := range f.storm(20, func(i int) answer { return f.ask(0, "GET", "/p", "X-Tenant", own(i)) }) {
		if a.status != 200 || a.body != own(i) {
			t.Errorf("%s got %d %q %v", own(i), a.status, a.body, a.err)
		}
	}
	if n := f.runs.Load(); n > 8 {
		t.Errorf("handler ran %d times for 4 tenants", n)
	}
}

// deafToMarks is a store that can be reached but for the marks: a breaker that
// is still open for them, or the moment at which a server goes or comes back.
type deafToMarks struct {
	store.Store
	deaf *atomic.Bool
}

func (s deafToMarks) gone(key store.Key) bool {
	return s.deaf.Load() && strings.HasSuffix(key.Space, "-marks")
}

func (s deafToMarks) Load(ctx context.Context, key store.Key) (store.Entry, error) {
	if s.gone(key) {
		return store.Entry{}, errBroken
	}
	return s.Store.Load(ctx, key)
}

func (s deafToMarks) LoadMany(ctx context.Context, keys []store.Key) ([]store.Entry, []error) {
	if s.gone(keys[0]) {
		errs := make([]error, len(keys))
		for i := range errs {
			errs[i] = errBroken
		}
		return make([]store.Entry, len(keys)), errs
	}
	return s.Store.LoadMany(ctx, keys)
}

func (s deafToMarks) Claim(ctx context.Context, c store.Claim) (store.Verdict, error) {
	if s.gone(c.Key) {
		return store.Verdict{}, errBroken
	}
	return s.Store.Claim(ctx, c)
}

// Nothing that was made while the marks were away may be found later: an
// invalidation would not reach it. Nor may it be given to those who came after
// its run had begun, here or in another process: they may have come after an
// invalidation.
func TestWhatIsMadeWhileTheMarksAreAwayIsForThoseAloneWhoWereThere(t *testing.T) {
	for name, opts := range markedOptions {
		t.Run(name, func(t *testing.T) {
			s, deaf := memstore.New(memstore.Options{}), new(atomic.Bool)
			stores := func() store.Store { return deafToMarks{s, deaf} }
			var n atomic.Int64
			f := newFleetOver(t, stores, 2, opts, func(w http.ResponseWriter, r *http.Request) {
				number := n.Add(1)
				time.Sleep(handlerTime)
				w.Header().Set("Cache-Control", "max-age=60")
				w.Header().Set("Surrogate-Key", "page")
				fmt.Fprintf(w, "run %d", number)
			}, nil)
			f.warm(20)
			before := n.Load()
			deaf.Store(true)
			ask := func(server int) answer { return f.ask(server, "GET", "/p", "X-Tenant", "one") }
			early := make(chan answer, 1)
			go func() { early <- ask(0) }()
			for n.Load() == before {
				time.Sleep(time.Millisecond)
			}
			for i, a := range f.storm(20, func(i int) answer { return ask(i % 2) }) {
				if a.status != 200 || a.body == fmt.Sprint("run ", before+1) {
					t.Errorf("who came to process %d after the run had begun got %d %q, %v", i%2, a.status, a.body, a.header)
				}
			}
			if a := <-early; a.body != fmt.Sprint("run ", before+1) {
				t.Errorf("whose run it is got %q", a.body)
			}
			deaf.Store(false)
			ran := n.Load()
			deadline := time.Now().Add(10 * time.Second)
			for !ask(0).cached() { // until the breaker has closed again
				if time.Now().After(deadline) {
					t.Fatal("nothing is kept after the marks are back")
				}
			}
			if a := ask(1); !a.cached() || n.Load() == ran {
				t.Errorf("got %q, %v", a.body, a.header)
			}
		})
	}
}

func TestMarksDoNotMakeAStormOfRedisGoingAway(t *testing.T) {
	for name, opts := range markedOptions {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t)
			f := newFleetOver(t, overRedis(t, server.Addr, nil, redisstore.Options{}), 1, opts, marked, nil)
			f.warm(20)
			f.get("/warm", "X-Tenant", "one")
			for round := range 3 {
				if round == 1 {
					server.Stop()
				}
				before := f.runs.Load()
				for _, a := range f.storm(20, func(int) answer { return f.ask(0, "GET", fmt.Sprint("/p", round), "X-Tenant", "one") }) {
					if a.err != nil || a.status != 200 || a.body != fmt.Sprint("page /p", round) {
						t.Errorf("round %d: got %d %q %v", round, a.status, a.body, a.err)
					}
				}
				if n := f.runs.Load() - before; n > 3 {
					t.Errorf("round %d: the handler ran %d times", round, n)
				}
			}
		})
	}
}
