package middleware

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fleet is a number of servers, each with a cache of its own, over one store,
// as so many processes would be. All have the same handler.
type fleet struct {
	t       *testing.T
	caches  []*Cache
	servers []*httptest.Server
	client  *http.Client
	runs    atomic.Int64 // of the handler
	flights flights
}

// newFleet starts n servers with a cache in front of handler.
func newFleet(t *testing.T, n int, opts Options, handler http.HandlerFunc) *fleet {
	t.Helper()
	return newFleetOver(t, inMemory(), n, opts, handler, nil)
}

// inMemory is one store for all servers.
func inMemory() func() store.Store {
	s := memstore.New(memstore.Options{})
	return func() store.Store { return s }
}

// newFleetOver is newFleet over given stores, one for each server; wrap, if not
// nil, puts middlewares around the cached handler.
func newFleetOver(t *testing.T, stores func() store.Store, n int, opts Options, handler http.HandlerFunc, wrap func(c *Cache, next http.Handler) http.Handler) *fleet {
	t.Helper()
	f := &fleet{t: t, client: &http.Client{
		Transport:     &http.Transport{MaxIdleConnsPerHost: 1000, DisableCompression: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	counted := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.runs.Add(1)
		handler(w, r)
	})
	for range n {
		c, err := New(stores(), f.flights.of(opts))
		if err != nil {
			t.Fatal(err)
		}
		h := http.Handler(c.Handler(counted))
		if wrap != nil {
			h = wrap(c, counted)
		}
		srv := httptest.NewUnstartedServer(h)
		srv.Config.ErrorLog = discardLog
		srv.Start()
		f.caches, f.servers = append(f.caches, c), append(f.servers, srv)
	}
	t.Cleanup(func() {
		f.client.CloseIdleConnections()
		for i, srv := range f.servers {
			srv.Close()
			if err := f.caches[i].Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return f
}

// answer is what a client got.
type answer struct {
	status  int
	header  http.Header
	trailer http.Header
	body    string
	err     error // of the request, or of reading the body
	first   time.Duration
	took    time.Duration
}

// cached tells whether the answer came from what is stored.
func (a answer) cached() bool { return hasStatus(a, "; hit") }

// ask is one request to one server of the fleet. The pairs are header fields; a
// pair "Host", h sets the request's host.
func (f *fleet) ask(server int, method, path string, pairs ...string) answer {
	return f.askContext(context.Background(), server, method, path, pairs...)
}

func (f *fleet) askContext(ctx context.Context, server int, method, path string, pairs ...string) answer {
	r, err := http.NewRequestWithContext(ctx, method, f.servers[server].URL+path, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	r.Host = "site.test" // the same for all servers, as behind a balancer
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i] == "Host" {
			r.Host = pairs[i+1]
			continue
		}
		r.Header.Add(pairs[i], pairs[i+1])
	}
	began := time.Now()
	resp, err := f.client.Do(r)
	if err != nil {
		return answer{err: err, took: time.Since(began)}
	}
	defer resp.Body.Close()
	a := answer{status: resp.StatusCode, header: resp.Header, first: time.Since(began)}
	var body []byte
	body, a.err = io.ReadAll(resp.Body)
	a.body, a.took, a.trailer = string(body), time.Since(began), resp.Trailer
	f.flights.settle(a)
	return a
}

func (f *fleet) get(path string, pairs ...string) answer {
	f.t.Helper()
	a := f.ask(0, http.MethodGet, path, pairs...)
	if a.err != nil {
		f.t.Fatalf("GET %s: %v", path, a.err)
	}
	return a
}

// storm sends n requests at once and waits for all.
func (f *fleet) storm(n int, send func(i int) answer) []answer {
	answers := make([]answer, n)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-start
			answers[i] = send(i)
		})
	}
	close(start)
	wg.Wait()
	return answers
}

// awaitWaiting waits until n requests wait for an answer, in all servers.
func (f *fleet) awaitWaiting(n int64) {
	f.t.Helper()
	deadline := time.Now().Add(5 * time.Second)
	for {
		var waiting int64
		for _, c := range f.caches {
			waiting += c.waiting.Load()
		}
		if waiting == n {
			return
		}
		if time.Now().After(deadline) {
			f.t.Fatalf("%d requests wait, want %d", waiting, n)
		}
		time.Sleep(time.Millisecond)
	}
}

// warm opens n connections to each server.
func (f *fleet) warm(n int) {
	for s := range f.servers {
		f.storm(n, func(int) answer { return f.ask(s, "OPTIONS", "/warm") })
	}
	f.runs.Store(0)
}

func slowest(answers []answer) (d time.Duration) {
	for _, a := range answers {
		d = max(d, a.took)
	}
	return d
}

func (f *fleet) wantRuns(want int64) {
	f.t.Helper()
	if got := f.runs.Load(); got != want {
		f.t.Errorf("handler ran %d times, want %d", got, want)
	}
}
