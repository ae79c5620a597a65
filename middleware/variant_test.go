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

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

// selecting is a request by hand, as whoever purges makes it.
func selecting(t *testing.T, url string, pairs ...string) *http.Request {
	t.Helper()
	r, err := http.NewRequest("GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header = fields(pairs...)
	return r
}

func TestOneVariantIsInvalidatedAndTheOthersStay(t *testing.T) {
	server := redistest.Start(t)
	for name, stores := range map[string]func() store.Store{"memory": inMemory(), "redis": overRedis(t, server.Addr, nil, redisstore.Options{})} {
		for _, near := range []cacheguard.Near{{}, {MaxEntries: 100}} {
			t.Run(fmt.Sprint(name, " near ", near.MaxEntries), func(t *testing.T) {
				path := fmt.Sprint("/p?", near.MaxEntries)
				f := newFleetOver(t, stores, 2, Options{Near: near}, func() http.HandlerFunc {
					var n atomic.Int64
					return func(w http.ResponseWriter, r *http.Request) {
						w.Header().Set("Cache-Control", "max-age=60")
						w.Header().Set("Vary", "A")
						if r.Header.Get("A") == "deep" {
							w.Header().Set("Vary", "A, B")
						}
						fmt.Fprintf(w, "%s run %d", r.Header.Get("A"), n.Add(1))
					}
				}(), nil)
				variants := [][]string{{"A", "first"}, {"A", "second"}, {"A", "deep", "B", "1"}, {"A", "deep", "B", "2"}}
				for _, v := range variants {
					f.get(path, v...)
				}
				for _, v := range variants {
					before := make(map[string]string)
					for _, o := range variants {
						before[fmt.Sprint(o)] = f.get(path, o...).body
					}
					if err := f.caches[0].InvalidateVariant(t.Context(), selecting(t, "http://site.test"+path, v...)); err != nil {
						t.Fatal(err)
					}
					for _, o := range variants {
						a := f.get(path, append(o, "Cache-Control", "only-if-cached")...)
						if gone := fmt.Sprint(o) == fmt.Sprint(v); gone && a.status != 504 {
							t.Errorf("%q is served after it was invalidated: %d %q %v", v, a.status, a.body, a.header["Cache-Status"])
						} else if !gone && a.body != before[fmt.Sprint(o)] {
							t.Errorf("%q went with %q: %d %q %v", o, v, a.status, a.body, a.header["Cache-Status"])
						}
					}
					if a := f.get(path, v...); a.status != 200 || a.cached() || a.body == before[fmt.Sprint(v)] {
						t.Errorf("%q: asked again, got %d %q %v", v, a.status, a.body, a.header["Cache-Status"])
					}
					if a := f.get(path, v...); !a.cached() {
						t.Errorf("%q is not kept again: %v", v, a.header["Cache-Status"])
					}
				}
			})
		}
	}
}

func TestAVariantsInvalidationBeatsAFillThatIsUnderWay(t *testing.T) {
	server := redistest.Start(t)
	for name, stores := range map[string]func() store.Store{"memory": inMemory(), "redis": overRedis(t, server.Addr, nil, redisstore.Options{})} {
		for what, fill := range map[string]struct {
			kept []string // variants that are there before
			ask  []string // what fills
		}{
			"nothing there":            {nil, []string{"A", "x"}},
			"the first variant":        {[]string{"x"}, []string{"A", "x", "Cache-Control", "no-cache"}},
			"another variant":          {[]string{"y"}, []string{"A", "x"}},
			"another variant, renewed": {[]string{"y", "x"}, []string{"A", "x", "Cache-Control", "no-cache"}},
		} {
			t.Run(name+" "+what, func(t *testing.T) {
				path := "/" + strings.ReplaceAll(what, " ", "-")
				var version atomic.Int64
				var slow atomic.Bool
				started, release := make(chan struct{}, 8), make(chan struct{})
				f := newFleetOver(t, stores, 2, Options{}, func(w http.ResponseWriter, r *http.Request) {
					seen := version.Load()
					if slow.CompareAndSwap(true, false) {
						started <- struct{}{}
						<-release
					}
					w.Header().Set("Cache-Control", "max-age=60")
					w.Header().Set("Vary", "A")
					fmt.Fprintf(w, "v%d", seen)
				}, nil)
				for _, v := range fill.kept {
					f.get(path, "A", v)
				}
				slow.Store(true)
				first := make(chan answer, 1)
				go func() { first <- f.ask(0, "GET", path, fill.ask...) }()
				<-started
				version.Add(1)
				if err := f.caches[1].InvalidateVariant(t.Context(), selecting(t, "http://site.test"+path, "A", "x")); err != nil {
					t.Fatal(err)
				}
				after := make(chan answer, 1)
				go func() { after <- f.ask(1, "GET", path, "A", "x") }()
				f.awaitWaiting(1)
				close(release)
				if a := <-first; a.body != "v0" {
					t.Errorf("who asked before got %q", a.body)
				}
				if a := <-after; a.body != "v1" {
					t.Errorf("who asked after got %q", a.body)
				}
				for s := range 2 {
					if a := f.ask(s, "GET", path, "A", "x"); a.body != "v1" {
						t.Errorf("server %d: %q %v", s, a.body, a.header["Cache-Status"])
					}
				}
				if len(fill.kept) > 0 && fill.kept[0] == "y" {
					if a := f.get(path, "A", "y"); a.body != "v0" || !a.cached() {
						t.Errorf("the other variant went too: %q %v", a.body, a.header["Cache-Status"])
					}
				}
			})
		}
	}
}

func TestOneVariantOfManyKeysIsInvalidated(t *testing.T) {
	opts := Options{
		Tenant: func(r *http.Request) (string, error) { return r.Header.Get("X-Tenant"), nil },
		Near:   cacheguard.Near{MaxBytes: 1 << 20},
	}
	f := newFleet(t, 2, opts, variantsOf("max-age=60"))
	askers := [][]string{{"X-Tenant", "a", "A", "1"}, {"X-Tenant", "a", "A", "2"}, {"X-Tenant", "b", "A", "1"}}
	for _, pairs := range askers {
		f.get("/p", pairs...)
	}
	// The other process does not know that the URL's generation has changed.
	if err := f.caches[1].Invalidate(t.Context(), "http://site.test/p"); err != nil {
		t.Fatal(err)
	}
	for _, pairs := range askers {
		f.ask(1, "GET", "/p", pairs...)
	}
	if err := f.caches[0].InvalidateVariant(t.Context(), selecting(t, "http://site.test/p", askers[0]...)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(1100 * time.Millisecond) // the near cache's time
	for i, pairs := range askers {
		if a := f.ask(1, "GET", "/p", append(pairs, "Cache-Control", "only-if-cached")...); a.cached() == (i == 0) {
			t.Errorf("%q: cached %v", pairs, a.cached())
		}
	}
	failing := opts
	failing.Tenant = func(*http.Request) (string, error) { return "", fmt.Errorf("unknown") }
	b := newBench(t, failing, page("max-age=60"))
	if err := b.cache.InvalidateVariant(b.t.Context(), selecting(t, "http://site.test/p")); err == nil {
		t.Error("a request without a key selects something")
	}
}

func TestAVariantBehindARewriteIsInvalidatedByItsOwnURL(t *testing.T) {
	strip := func(c *Cache, next http.Handler) http.Handler { return http.StripPrefix("/api", c.Handler(next)) }
	f := newFleetOver(t, inMemory(), 1, Options{}, variantsOf("max-age=60"), strip)
	f.get("/api/p?q=1", "A", "1")
	f.get("/api/p?q=1", "A", "2")
	for _, v := range []string{"2", "1"} {
		if err := f.caches[0].InvalidateVariant(t.Context(), selecting(t, "http://site.test/api/p?q=1", "A", v)); err != nil {
			t.Fatal(err)
		}
		if a := f.get("/api/p?q=1", "A", v, "Cache-Control", "only-if-cached"); a.cached() {
			t.Errorf("variant %s is still there", v)
		}
	}
}

func TestOneVariantIsExpiredAndTheOthersStay(t *testing.T) {
	p := func(cc string) http.HandlerFunc {
		var n atomic.Int64
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", cc)
			w.Header().Set("Vary", "A")
			fmt.Fprintf(w, "%s run %d", r.Header.Get("A"), n.Add(1))
		}
	}
	for _, cc := range []string{"max-age=60, stale-while-revalidate=30", "max-age=60", "s-maxage=60"} {
		for _, v := range []string{"x", "y"} {
			t.Run(cc+" "+v, func(t *testing.T) {
				inBubble(t, Options{}, p(cc), func(b *bench) {
					was := map[string]string{"x": b.get("/p", "A", "x").body, "y": b.get("/p", "A", "y").body}
					time.Sleep(10 * time.Second)
					if err := b.cache.ExpireVariant(b.t.Context(), selecting(t, "http://site.test/p", "A", v)); err != nil {
						t.Fatal(err)
					}
					a := b.get("/p", "A", v)
					if swr := strings.Contains(cc, "stale"); swr && (a.body != was[v] || a.header.Get("Age") != "10" || !hasStatus(a, "; hit; ttl=-")) {
						t.Errorf("got %q %v, want the stale one", a.body, a.header)
					} else if !swr && (a.body == was[v] || a.cached()) {
						t.Errorf("got %q %v, want a new one", a.body, a.header["Cache-Status"])
					}
					time.Sleep(time.Second)
					if a := b.get("/p", "A", v); a.body == was[v] || !a.cached() {
						t.Errorf("not refreshed: %q %v", a.body, a.header["Cache-Status"])
					}
					other := map[string]string{"x": "y", "y": "x"}[v]
					if a := b.get("/p", "A", other); a.body != was[other] || hasStatus(a, "ttl=-") {
						t.Errorf("the other: %q %v", a.body, a.header["Cache-Status"])
					}
				})
			})
		}
	}
}

// A variant that is stale already does not live longer for being expired.
func TestExpiringAVariantDoesNotLengthenItsLife(t *testing.T) {
	inBubble(t, Options{Keep: time.Second}, failing("max-age=10, stale-if-error=60", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }), func(b *bench) {
		b.get("/p")
		for range 6 {
			time.Sleep(10 * time.Second)
			if err := b.cache.ExpireVariant(b.t.Context(), selecting(t, "http://site.test/p")); err != nil {
				t.Fatal(err)
			}
			if a := b.get("/p"); a.status != 200 {
				t.Fatalf("got %d within stale-if-error", a.status)
			}
		}
		time.Sleep(11 * time.Second)
		if a := b.get("/p"); a.status != 503 {
			t.Errorf("served %q beyond stale-if-error", a.body)
		}
	})
}

func TestWhatIsLeftOfAPurgedVariantIsServedToNobody(t *testing.T) {
	inBubble(t, Options{}, failing("max-age=60, stale-if-error=600, stale-while-revalidate=600", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(503)
		io.WriteString(w, "broken")
	}), func(b *bench) {
		b.get("/p", "A", "1")
		if err := b.cache.InvalidateVariant(b.t.Context(), selecting(t, "http://site.test/p")); err != nil {
			t.Fatal(err)
		}
		for _, cc := range []string{"", "max-stale", "max-stale=1000", "stale-if-error=1000"} {
			if a := b.get("/p", "Cache-Control", cc); a.status != 503 || a.body != "broken" {
				t.Errorf("%q: got %d %q %v", cc, a.status, a.body, a.header)
			}
		}
		if a := b.do("HEAD", "/p"); a.status != 503 {
			t.Errorf("HEAD: got %d", a.status)
		}
		if a := b.get("/p", "Cache-Control", "only-if-cached, max-stale"); a.status != 504 {
			t.Errorf("only-if-cached: got %d", a.status)
		}
	})
}

func TestAPurgeOfAnExpiredVariantLeavesTheOthersExpired(t *testing.T) {
	inBubble(t, Options{}, variantsOf("max-age=60"), func(b *bench) {
		b.get("/p", "A", "x")
		b.get("/p", "A", "y")
		if err := b.cache.Expire(b.t.Context(), "http://site.test/p"); err != nil {
			t.Fatal(err)
		}
		if err := b.cache.InvalidateVariant(b.t.Context(), selecting(t, "http://site.test/p", "A", "x")); err != nil {
			t.Fatal(err)
		}
		for _, v := range []string{"x", "y"} {
			if a := b.get("/p", "A", v, "Cache-Control", "only-if-cached"); a.status != 504 {
				t.Errorf("%s: got %d %v", v, a.status, a.header["Cache-Status"])
			}
		}
	})
}

// An entry that was written after a request came says nothing of when the
// handler was asked, if it is a copy of an older one.
func TestACopyOfAnOlderAnswerIsNotTakenForANewOne(t *testing.T) {
	p := &response{status: 200, header: http.Header{}, lifetime: time.Minute, grace: time.Minute}
	e := cacheguard.Entry[*response]{Value: p, State: cacheguard.Fresh, Age: 10 * time.Second, Left: 50 * time.Second, TTL: time.Minute, Keep: 110 * time.Second}
	waiting := &job{exchange: exchange{c: &Cache{}}, arrived: time.Now().Add(-time.Second)}
	for name, copied := range map[string]*response{"expired": spent(e), "purged": gone(e)} {
		written := cacheguard.Entry[*response]{Value: copied, State: cacheguard.Stale, Age: 10 * time.Millisecond, Keep: time.Minute}
		if waiting.askedSince(written) {
			t.Errorf("%s: it passes for an answer that was asked for since", name)
		}
	}
	own := cacheguard.Entry[*response]{Value: p, State: cacheguard.Fresh, Age: 10 * time.Millisecond}
	if !waiting.askedSince(own) {
		t.Error("an answer of its own age does not")
	}
}

// counted counts reads.
type counted struct {
	store.Store
	loads atomic.Int64
}

func (c *counted) Load(ctx context.Context, key store.Key) (store.Entry, error) {
	c.loads.Add(1)
	return c.Store.Load(ctx, key)
}

// The copy of this process may be of an entry whose variants are gone.
func TestAPurgeOfAVariantNeverGoesByACopy(t *testing.T) {
	s := &counted{Store: memstore.New(memstore.Options{})}
	c, err := New(s, Options{Near: cacheguard.Near{MaxEntries: 100}, KeyHeaders: []string{"X-Site"}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	b := &bench{t: t, cache: c, h: c.Handler(page("max-age=60"))}
	b.get("/p")
	b.get("/p")
	before := s.loads.Load()
	if a := b.get("/p"); !a.cached() || s.loads.Load() != before {
		t.Fatalf("the near cache is not used: %d reads", s.loads.Load()-before)
	}
	key, err := c.presentKey(t.Context(), selecting(t, "http://site.test/p"))
	if err != nil || s.loads.Load() != before+1 {
		t.Errorf("the generation is a copy: %d reads, %v", s.loads.Load()-before, err)
	}
	if e := c.stored(t.Context(), key); e.State == 0 || s.loads.Load() != before+2 {
		t.Errorf("the entry is a copy: %d reads, %v", s.loads.Load()-before, e.State)
	}
}

func TestAPurgeOfAVariantThatDoesNotReachTheStoreSaysSo(t *testing.T) {
	c, err := New(unreachable{brokenStore{memstore.New(memstore.Options{})}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.InvalidateVariant(t.Context(), selecting(t, "http://site.test/p")); err == nil {
		t.Error("no error")
	}
}

// unreachable fails the writes too.
type unreachable struct{ brokenStore }

func (unreachable) Begin(context.Context, store.Key, time.Duration) (store.Begun, error) {
	return store.Begun{}, errBroken
}
func (unreachable) Set(context.Context, store.Write) error { return errBroken }
func (unreachable) Invalidate(_ context.Context, keys []store.Key) []error {
	errs := make([]error, len(keys))
	for i := range errs {
		errs[i] = errBroken
	}
	return errs
}
