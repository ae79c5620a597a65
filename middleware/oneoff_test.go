package middleware

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

// userPage is another page for each user, and takes a second.
func userPage(cc string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(time.Second)
		w.Header().Set("Cache-Control", cc)
		w.Header().Set("Vary", "X-User")
		io.WriteString(w, "page of "+r.Header.Get("X-User"))
	}
}

// crowd has users ask for a path at one instant, and checks that each gets the
// page that is theirs.
func (b *bench) crowd(path string, users ...string) []answer {
	b.t.Helper()
	answers := make([]answer, len(users))
	var wg sync.WaitGroup
	for i, user := range users {
		wg.Go(func() { answers[i] = b.get(path, "X-User", user) })
	}
	wg.Wait()
	for i, a := range answers {
		if a.status != 200 || a.body != "page of "+users[i] {
			b.t.Errorf("%s got %d %q %v", users[i], a.status, a.body, a.header)
		}
	}
	return answers
}

// names returns n names that begin with one.
func names(prefix string, n int) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprint(prefix, i))
	}
	return list
}

func count(answers []answer, part string) (n int) {
	for _, a := range answers {
		if hasStatus(a, part) {
			n++
		}
	}
	return n
}

func TestVariantsThatNobodySharesAreMadeForTheirOwnClientsAtOnce(t *testing.T) {
	inBubble(t, Options{}, userPage("max-age=60"), func(b *bench) {
		first := b.crowd("/me", names("a", 10)...)
		if n := count(first, "fwd=vary-miss; fwd-status=200; detail=one-off;"); n != 9 || count(first, "; stored;") != 1 {
			t.Errorf("%d of 10 are one-offs, %d are stored", n, count(first, "; stored;"))
		}
		if d := slowest(first); d != 2*time.Second {
			t.Errorf("the first ones took %v, want two runs", d)
		}
		second := b.crowd("/me", names("b", 10)...)
		if n := count(second, "detail=one-off;"); n != 10 {
			t.Errorf("then %d of 10 are one-offs", n)
		}
		if d := slowest(second); d != time.Second {
			t.Errorf("the second ones took %v, want one run", d)
		}
		b.wantRuns(20)
	})
}

func TestAVariantThatIsAskedForAgainIsKept(t *testing.T) {
	inBubble(t, Options{}, userPage("max-age=60"), func(b *bench) {
		users := names("a", 10)
		was := b.crowd("/me", users...)
		one := users[slices.IndexFunc(was, func(a answer) bool { return hasStatus(a, "detail=one-off") })]
		b.crowd("/me", "b")
		for _, user := range []string{one, "b"} {
			if a := b.get("/me", "X-User", user, "Cache-Control", "only-if-cached"); a.status != 504 {
				t.Errorf("%s is kept already: %d %v", user, a.status, a.header)
			}
		}
		// Those who ask for the same one at once share it, as ever.
		b.runs.Store(0)
		again := b.crowd("/me", one, "b", one, "b", one)
		if n := count(again, "; stored;"); n != 2 || count(again, "; collapsed;") != 3 {
			t.Errorf("%d are stored and %d collapsed, want 2 and 3", n, count(again, "; collapsed;"))
		}
		if hits := b.crowd("/me", one, "b"); count(hits, "; hit;") != 2 {
			t.Errorf("then: %v and %v", hits[0].header, hits[1].header)
		}
		b.wantRuns(2)
		// Two have shared one: the next new one is kept at once.
		if a := b.crowd("/me", "c"); !hasStatus(a[0], "; stored;") {
			t.Errorf("the next: %v", a[0].header)
		}
	})
}

func TestVariantsThatSomeShareAreNotTakenForOneOffs(t *testing.T) {
	for what, users := range map[string][]string{
		"two of many select the same": append(names("a", 20), "a7"),
		"somebody selects the first":  {"a", "a", "b", "c", "d", "e", "f", "g", "h", "i", "j"},
		"few wait":                    names("a", oneOffCrowd-1),
	} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, Options{}, userPage("max-age=60"), func(b *bench) {
				distinct := make(map[string]bool)
				for _, user := range users {
					distinct[user] = true
				}
				answers := b.crowd("/me", users...)
				if n := count(answers, "; stored;"); n != len(distinct) {
					t.Errorf("%d variants of %d are stored", n, len(distinct))
				}
				b.wantRuns(int64(len(distinct)))
				if a := b.crowd("/me", "another"); !hasStatus(a[0], "; stored;") {
					t.Errorf("one who comes later: %v", a[0].header)
				}
			})
		})
	}
}

// Somebody may fetch each variant of a page once, to have them all in the cache.
func TestARowOfDifferentVariantsIsKept(t *testing.T) {
	inBubble(t, Options{}, userPage("max-age=600"), func(b *bench) {
		for _, user := range names("a", 30) {
			if a := b.crowd("/me", user); !hasStatus(a[0], "; stored;") {
				t.Errorf("%s: %v", user, a[0].header)
			}
		}
	})
}

func TestWhatIsKnownOfOneOffsIsForgottenInTime(t *testing.T) {
	inBubble(t, Options{PassFor: 10 * time.Second}, userPage("max-age=600"), func(b *bench) {
		b.crowd("/me", names("a", 10)...)
		time.Sleep(11 * time.Second)
		if a := b.crowd("/me", "b"); !hasStatus(a[0], "; stored;") {
			t.Errorf("after PassFor: %v", a[0].header)
		}
	})
}

// A process that has learned that variants are one-offs still finds those that
// others have stored, and brings them up to date.
func TestAOneOffThatIsStoredIsAnOrdinaryVariant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(memstore.Options{})
		page := userPage("max-age=10, stale-while-revalidate=600")
		one, other := benchOver(t, s, Options{}, page), benchOver(t, s, Options{}, page)
		one.crowd("/me", names("a", 10)...)
		other.crowd("/me", "x")
		other.crowd("/me", "y")
		other.crowd("/me", "z")
		one.runs.Store(0)
		if a := one.crowd("/me", "x"); !a[0].cached() {
			t.Errorf("fresh: %v", a[0].header)
		}
		if a := one.get("/me", "X-User", "y", "Cache-Control", "no-cache"); !hasStatus(a, "; stored;") {
			t.Errorf("asked for anew: %v", a.header)
		}
		time.Sleep(15 * time.Second)
		if a := one.crowd("/me", "z"); !hasStatus(a[0], "; hit; ttl=-") || a[0].took != 0 {
			t.Errorf("stale: after %v, %v", a[0].took, a[0].header)
		}
		time.Sleep(2 * time.Second)
		if a := one.crowd("/me", "z"); !a[0].cached() || hasStatus(a[0], "ttl=-") {
			t.Errorf("not refreshed: %v", a[0].header)
		}
		if a := one.crowd("/me", "new"); !hasStatus(a[0], "detail=one-off;") {
			t.Errorf("it has forgotten: %v", a[0].header)
		}
		one.wantRuns(3)
	})
}

// waiters counts the requests that wait for a run.
func (b *bench) waiters() (n int) {
	for i := range b.cache.audience.shards {
		s := &b.cache.audience.shards[i]
		s.mu.Lock()
		for _, jobs := range s.waiting {
			n += len(jobs)
		}
		s.mu.Unlock()
	}
	return n
}

func TestWhatAMissOfAVariantCostsTheStore(t *testing.T) {
	onReadPaths(t, whatAMissOfAVariantCostsTheStore)
}

func whatAMissOfAVariantCostsTheStore(t *testing.T, opts redisstore.Options) {
	server := redistest.Start(t)
	var sent trips
	gate := make(chan struct{}, 1)
	b := benchOver(t, overRedis(t, server.Addr, &sent, opts)(), Options{}, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/crowd" {
			<-gate
			gate <- struct{}{}
		}
		w.Header().Set("Cache-Control", "max-age=60")
		w.Header().Set("Vary", "X-User")
		io.WriteString(w, "page of "+r.Header.Get("X-User"))
	})
	await := func(is func() bool) {
		for end := time.Now().Add(10 * time.Second); !is(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Error("waited in vain")
				return
			}
		}
	}
	cost := func(path string, users ...string) int64 {
		before := sent.n.Load()
		b.crowd(path, users...)
		await(func() bool { return b.flights.running() == 0 }) // a client may be let go before
		return sent.n.Load() - before
	}
	for range 5 {
		cost("/warm", "a") // scripts, clock, subscription
		cost("/warm", "b")
	}
	var opener sync.WaitGroup
	defer opener.Wait()
	opener.Go(func() {
		await(func() bool { return b.waiters() == 10 })
		gate <- struct{}{}
	})
	for _, tt := range []struct {
		what  string
		path  string
		users []string
		trips int64
	}{
		{"ten at once, each another variant", "/crowd", names("a", 10), 3}, // the first one's look, claim and fill
		{"a one-off", "/crowd", []string{"b"}, 2},                          // the entry above, and itself
		{"a one-off that is asked for again", "/crowd", []string{"b"}, 7},
		{"a hit of it", "/crowd", []string{"b"}, 2},
		{"the first variant", "/p", []string{"a"}, 3},
		{"the next", "/p", []string{"b"}, 7}, // the entry above; look, claim and fill, of itself and of its seat
		{"a hit of the first", "/p", []string{"a"}, 1},
		{"a hit of the next", "/p", []string{"b"}, 2},
	} {
		if n := cost(tt.path, tt.users...); n != tt.trips {
			t.Errorf("%s: %d round trips, want %d", tt.what, n, tt.trips)
		}
	}
}
