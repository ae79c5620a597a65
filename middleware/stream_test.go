package middleware

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
)

func TestABodyThatIsTooBigGoesWholeToEveryClientAndIsNotKept(t *testing.T) {
	const size = 8 << 20
	chunk := strings.Repeat("0123456789abcdef", 4<<10)
	f := newFleet(t, 2, Options{MaxBody: 1 << 20}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		for range size / len(chunk) {
			if _, err := io.WriteString(w, chunk); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for round := range 2 {
		for _, a := range f.storm(4, func(i int) answer { return f.ask(i%2, "GET", "/big") }) {
			if a.err != nil || len(a.body) != size || !strings.HasPrefix(a.body, chunk) {
				t.Errorf("round %d: got %d of %d bytes, %v", round, len(a.body), size, a.err)
			}
		}
	}
	f.wantRuns(8)
}

func TestWaitersAreReleasedWhenTheCapIsCrossed(t *testing.T) {
	hold := make(chan struct{})
	var n atomic.Int64
	f := newFleet(t, 2, Options{MaxBody: 1000}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		leads := n.Add(1) == 1
		time.Sleep(100 * time.Millisecond)
		io.WriteString(w, strings.Repeat("x", 2000))
		if leads {
			<-hold // the leader is not done, the others must not wait for it
		}
	})
	leader := make(chan answer, 1)
	go func() { leader <- f.ask(0, "GET", "/big") }()
	for n.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	for _, a := range f.storm(6, func(i int) answer { return f.ask(i%2, "GET", "/big") }) {
		if len(a.body) != 2000 || a.took > 2*time.Second {
			t.Errorf("got %d bytes after %v, %v", len(a.body), a.took, a.err)
		}
	}
	close(hold)
	if a := <-leader; len(a.body) != 2000 {
		t.Errorf("the leader got %d bytes, %v", len(a.body), a.err)
	}
}

// firstByte sends a request and returns when the first byte of its body came.
func (f *fleet) firstByte(ctx context.Context, server int, path string, pairs ...string) (time.Time, *http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, "GET", f.servers[server].URL+path, nil)
	if err != nil {
		return time.Time{}, nil, err
	}
	r.Host = "site.test"
	for i := 0; i < len(pairs); i += 2 {
		r.Header.Add(pairs[i], pairs[i+1])
	}
	resp, err := f.client.Do(r)
	if err != nil {
		return time.Time{}, nil, err
	}
	_, err = io.ReadFull(resp.Body, make([]byte, 1))
	return time.Now(), resp, err
}

// streamHeads are the answers that are flushed before they end.
var streamHeads = map[string]http.Header{
	"events":         fields("Content-Type", "text/event-stream"),
	"says nothing":   fields("Content-Type", "text/plain"),
	"to be kept":     fields("Content-Type", "text/plain", "Cache-Control", "max-age=60"),
	"private stream": fields("Content-Type", "text/plain", "Cache-Control", "private"),
}

// stream is a handler that writes and flushes "1", tells when, and ends with
// "2" when it is told to.
type stream struct {
	head    http.Header
	flushed chan time.Time
	end     chan struct{}
}

func newStream(head http.Header) *stream {
	return &stream{head: head, flushed: make(chan time.Time, 64), end: make(chan struct{})}
}

func (s *stream) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	for k, v := range s.head {
		w.Header()[k] = v
	}
	time.Sleep(100 * time.Millisecond)
	io.WriteString(w, "1")
	w.(http.Flusher).Flush()
	s.flushed <- time.Now()
	<-s.end
	io.WriteString(w, "2")
}

// streamReaders is how many clients read a stream at once.
const streamReaders = 8

// lag is how long after the last flush the last of the clients had the first
// byte. It ends the stream, and checks the rest of it.
func (s *stream) lag(f *fleet, path string) time.Duration {
	f.t.Helper()
	var (
		mu     sync.Mutex
		last   time.Time
		begun  = make(chan struct{}, streamReaders)
		ending sync.WaitGroup
	)
	for range streamReaders {
		ending.Go(func() {
			at, resp, err := f.firstByte(f.t.Context(), 0, path)
			mu.Lock()
			if at.After(last) {
				last = at
			}
			mu.Unlock()
			begun <- struct{}{}
			if err != nil {
				f.t.Error(err)
				return
			}
			defer resp.Body.Close()
			if rest, err := io.ReadAll(resp.Body); err != nil || string(rest) != "2" {
				f.t.Errorf("the rest is %q, %v", rest, err)
			}
		})
	}
	for range streamReaders {
		<-begun
	}
	var flush time.Time
	for range len(s.flushed) {
		if at := <-s.flushed; at.After(flush) {
			flush = at
		}
	}
	close(s.end)
	ending.Wait()
	return last.Sub(flush)
}

func TestStreamsReachEveryClientAsTheyAreFlushed(t *testing.T) {
	for name, head := range streamHeads {
		t.Run(name, func(t *testing.T) {
			s := newStream(head)
			f := newFleet(t, 1, Options{}, s.ServeHTTP)
			s.lag(f, "/s")
			if runs := f.runs.Load(); name == "to be kept" {
				if a := f.get("/s"); a.body != "12" || f.runs.Load() != runs {
					t.Errorf("what was streamed is not kept: %q", a.body)
				}
			}
		})
	}
}

// The cache adds at most 10 ms to what the bare handler needs, in the same run
// and with as many clients. A machine that has other work to do now and then
// gets another chance.
func TestTheFirstByteOfAStreamIsNoLaterThanWithoutTheCache(t *testing.T) {
	const most, chances = 10 * time.Millisecond, 6
	direct := func(_ *Cache, next http.Handler) http.Handler { return next }
	for name, head := range streamHeads {
		t.Run(name, func(t *testing.T) {
			var s *stream
			handler := func(w http.ResponseWriter, r *http.Request) {
				if r.Method == "GET" {
					s.ServeHTTP(w, r)
				}
			}
			bare, cached := newFleetOver(t, inMemory(), 1, Options{}, handler, direct), newFleet(t, 1, Options{}, handler)
			bare.warm(streamReaders)
			cached.warm(streamReaders)
			var seen []string
			for n := range chances {
				s = newStream(head)
				floor := s.lag(bare, "/s")
				s = newStream(head)
				lag := s.lag(cached, fmt.Sprint("/s", n))
				seen = append(seen, fmt.Sprintf("%v after %v", lag, floor))
				if lag-floor <= most {
					t.Log(seen)
					return
				}
			}
			t.Errorf("the last client's first byte came, with the cache and without it: %v", seen)
		})
	}
}

func TestReadersAlongSeeTheAbort(t *testing.T) {
	broke := make(chan struct{})
	f := newFleet(t, 1, Options{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		time.Sleep(100 * time.Millisecond)
		io.WriteString(w, "1")
		w.(http.Flusher).Flush()
		<-broke
		panic(http.ErrAbortHandler)
	})
	done := make(chan error, 4)
	began := make(chan struct{}, 4)
	for range 4 {
		go func() {
			_, resp, err := f.firstByte(t.Context(), 0, "/s")
			if err != nil {
				done <- nil
				return
			}
			began <- struct{}{}
			_, err = io.ReadAll(resp.Body)
			resp.Body.Close()
			done <- err
		}()
	}
	for range 4 {
		<-began
	}
	close(broke)
	for range 4 {
		if err := <-done; err == nil {
			t.Error("a client took an aborted answer for whole")
		}
	}
}

func TestASlowClientDoesNotSlowTheOthers(t *testing.T) {
	f := newFleet(t, 1, Options{}, func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(50 * time.Millisecond)
		w.Header().Set("Cache-Control", "max-age=60")
		io.WriteString(w, strings.Repeat("x", 3<<20))
	})
	conn, err := net.Dial("tcp", f.servers[0].Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "GET /p HTTP/1.1\r\nHost: site.test\r\n\r\n") // and reads nothing
	for f.runs.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	for _, a := range f.storm(5, func(int) answer { return f.ask(0, "GET", "/p") }) {
		if len(a.body) != 3<<20 || a.took > 2*time.Second {
			t.Errorf("got %d bytes after %v", len(a.body), a.took)
		}
	}
	f.wantRuns(1)
}

func TestWebSocketsAndHijackersGetTheirConnection(t *testing.T) {
	handler := func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nhi")
		rw.Flush()
	}
	for name, upgrade := range map[string]string{"asked for": "Upgrade: WebSocket\r\nConnection: keep-alive, Upgrade\r\n", "unasked": ""} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, 1, Options{}, handler)
			for range 2 {
				conn, err := net.Dial("tcp", f.servers[0].Listener.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				conn.SetDeadline(time.Now().Add(5 * time.Second))
				fmt.Fprintf(conn, "GET /ws HTTP/1.1\r\nHost: site.test\r\n%s\r\n", upgrade)
				resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil || resp.StatusCode != 101 {
					t.Errorf("got %v, %v", resp, err)
				}
				conn.Close()
			}
			f.wantRuns(2)
		})
	}
}

func TestWritersHaveExactlyWhatTheClientsHas(t *testing.T) {
	type plain struct{ http.ResponseWriter }
	type flush struct {
		http.ResponseWriter
		http.Flusher
	}
	type hijack struct {
		http.ResponseWriter
		http.Hijacker
	}
	type both struct {
		http.ResponseWriter
		http.Flusher
		http.Hijacker
	}
	rec := httptest.NewRecorder()
	for _, tt := range []struct {
		w               http.ResponseWriter
		flusher, hijack bool
	}{
		{plain{rec}, false, false},
		{flush{rec, rec}, true, false},
		{hijack{rec, nil}, false, true},
		{both{rec, rec, nil}, true, true},
	} {
		for _, method := range []string{"GET", "POST"} {
			c, err := New(memstore.New(memstore.Options{}), Options{})
			if err != nil {
				t.Fatal(err)
			}
			h := c.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, f := w.(http.Flusher)
				_, h := w.(http.Hijacker)
				if f != tt.flusher || h != tt.hijack {
					t.Errorf("%T, %s: Flusher %v, Hijacker %v", tt.w, method, f, h)
				}
			}))
			h.ServeHTTP(tt.w, httptest.NewRequest(method, "http://site.test/", nil))
			c.Close()
		}
	}
}

func TestResponseControllerWorks(t *testing.T) {
	f := newFleet(t, 1, Options{}, func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		for what, err := range map[string]error{
			"SetReadDeadline":  rc.SetReadDeadline(time.Now().Add(time.Minute)),
			"SetWriteDeadline": rc.SetWriteDeadline(time.Now().Add(time.Minute)),
			"EnableFullDuplex": rc.EnableFullDuplex(),
			"Flush":            rc.Flush(),
		} {
			if err != nil {
				t.Errorf("%s %s: %v", r.Method, what, err)
			}
		}
		io.WriteString(w, "page")
	})
	f.get("/p")
	if a := f.ask(0, "POST", "/p"); a.body != "page" {
		t.Errorf("got %q", a.body)
	}
}

func TestInformationalAnswersGoThroughLiveAndAreNotReplayed(t *testing.T) {
	f := newFleet(t, 1, Options{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</a.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Link")
		w.Header().Set("Cache-Control", "max-age=60")
		io.WriteString(w, "page")
	})
	raw := func() string {
		conn, err := net.Dial("tcp", f.servers[0].Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(5 * time.Second))
		fmt.Fprint(conn, "GET /p HTTP/1.1\r\nHost: site.test\r\nConnection: close\r\n\r\n")
		all, _ := io.ReadAll(conn)
		return string(all)
	}
	first, second := raw(), raw()
	if !strings.HasPrefix(first, "HTTP/1.1 103 Early Hints\r\nLink: </a.css>") || strings.Count(first, "Link:") != 1 || !strings.HasSuffix(first, "page") {
		t.Errorf("first: %s", first)
	}
	if !strings.HasPrefix(second, "HTTP/1.1 200") || strings.Contains(second, "Link:") || !strings.HasSuffix(second, "page") {
		t.Errorf("second: %s", second)
	}
}

func TestTrailersAreKept(t *testing.T) {
	f := newFleet(t, 1, Options{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		w.Header().Set("Trailer", "X-Sum")
		io.WriteString(w, "page")
		if r.URL.Path == "/p" {
			w.Header().Set("X-Sum", "4")
		}
	})
	for i := range 2 {
		if a := f.get("/p"); a.body != "page" || a.trailer.Get("X-Sum") != "4" {
			t.Errorf("answer %d: %q, trailer %v", i, a.body, a.trailer)
		}
	}
	f.wantRuns(1)
	for range 2 {
		f.get("/promised-and-not-sent")
	}
	f.wantRuns(3)
}

func TestBodilessAnswersAreKeptExactly(t *testing.T) {
	for status, body := range map[int]string{200: "", 204: "", 404: "", 301: "moved"} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			f := newFleet(t, 1, Options{}, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "max-age=60")
				w.Header().Set("Location", "/other")
				w.WriteHeader(status)
				if _, err := io.WriteString(w, body); (err != nil) != (status == 204 && body != "") {
					t.Errorf("write: %v", err)
				}
			})
			first, second := f.get("/p"), f.get("/p")
			for _, a := range []answer{first, second} {
				if a.status != status || a.body != body {
					t.Errorf("got %d %q", a.status, a.body)
				}
			}
			if a, b := first.header.Get("Content-Type"), second.header.Get("Content-Type"); a != b {
				t.Errorf("Content-Type %q became %q", a, b)
			}
			f.wantRuns(1)
		})
	}
}
