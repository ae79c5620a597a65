package middleware

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
)

// searching are the options of a cache in front of a search.
var searching = Options{KeyBody: 64 << 10, Policy: Policy{PostReads: true}}

// search answers with what it was asked, and the number of its run.
func search(n *atomic.Int64) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), 400)
			return
		}
		w.Header().Set("Cache-Control", "max-age=60")
		fmt.Fprintf(w, "run %d of %s %s %q", n.Add(1), r.Method, r.Header.Get("Content-Type"), body)
	}
}

// send makes a request with a body, of known length.
func (b *bench) send(method, path, body string, pairs ...string) answer {
	b.t.Helper()
	r := httptest.NewRequest(method, "http://site.test"+path, strings.NewReader(body))
	for i := 0; i < len(pairs); i += 2 {
		r.Header.Add(pairs[i], pairs[i+1])
	}
	w := httptest.NewRecorder()
	b.h.ServeHTTP(w, r)
	a := answer{status: w.Code, header: w.Result().Header, body: w.Body.String()}
	b.flights.settle(a)
	return a
}

func TestReadsWithABodyAreKeptByIt(t *testing.T) {
	for _, method := range []string{"POST", "QUERY"} {
		var n atomic.Int64
		inBubble(t, searching, search(&n), func(b *bench) { readsWithABodyAreKeptByIt(b, method, &n) })
	}
}

func readsWithABodyAreKeptByIt(b *bench, method string, n *atomic.Int64) {
	t := b.t
	first := b.send(method, "/search", "shoes", "Content-Type", "text/plain")
	if first.body != fmt.Sprintf(`run 1 of %s text/plain "shoes"`, method) || !hasStatus(first, "; stored") {
		t.Errorf("%s: got %q, %v", method, first.body, first.header)
	}
	if a := b.send(method, "/search", "shoes", "Content-Type", "text/plain"); !a.cached() || a.body != first.body {
		t.Errorf("%s: the same got %q, %v", method, a.body, a.header)
	}
	runs := n.Load()
	for what, a := range map[string]func() answer{
		"another body": func() answer { return b.send(method, "/search", "shoe", "Content-Type", "text/plain") },
		"no body":      func() answer { return b.send(method, "/search", "", "Content-Type", "text/plain") },
		"another type": func() answer { return b.send(method, "/search", "shoes", "Content-Type", "text/html") },
		"no type":      func() answer { return b.send(method, "/search", "shoes") },
		"an encoding": func() answer {
			return b.send(method, "/search", "shoes", "Content-Type", "text/plain", "Content-Encoding", "br")
		},
		"two types": func() answer {
			return b.send(method, "/search", "shoes", "Content-Type", "text/plain", "Content-Type", "a/b")
		},
		"another path": func() answer { return b.send(method, "/", "shoes", "Content-Type", "text/plain") },
		"another method": func() answer {
			return b.send(map[string]string{"POST": "QUERY", "QUERY": "POST"}[method], "/search", "shoes", "Content-Type", "text/plain")
		},
		"GET": func() answer { return b.get("/search", "Content-Type", "text/plain") },
	} {
		if a := a(); a.cached() || a.status != 200 {
			t.Errorf("%s, %s: got %d %q, %v", method, what, a.status, a.body, a.header)
		}
		if n.Load() == runs {
			t.Errorf("%s, %s: the handler was not asked", method, what)
		}
		runs = n.Load()
	}
}

func TestBodiesAreNotReadUnlessTheUserSaysSo(t *testing.T) {
	for name, tt := range map[string]struct {
		opts   Options
		method string
	}{
		"by default, POST":  {Options{}, "POST"},
		"by default, QUERY": {Options{}, "QUERY"},
		"only KeyBody":      {Options{KeyBody: 1 << 10}, "POST"},
		"PUT":               {searching, "PUT"},
		"PATCH":             {searching, "PATCH"},
		"GET":               {searching, "GET"},
	} {
		var n atomic.Int64
		b := newBench(t, tt.opts, search(&n))
		for i := range 2 {
			if a := b.send(tt.method, "/search", "shoes"); a.cached() || !strings.HasPrefix(a.body, fmt.Sprint("run ", i+1)) || !strings.Contains(a.body, `"shoes"`) {
				t.Errorf("%s: got %q, %v", name, a.body, a.header)
			}
		}
	}
}

func TestARouteSaysThatItsPostsAreReads(t *testing.T) {
	c, err := New(memstore.New(memstore.Options{}), Options{KeyBody: 1 << 10})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var n atomic.Int64
	mux := http.NewServeMux()
	mux.Handle("/search", c.With(Policy{PostReads: true})(search(&n)))
	mux.Handle("/orders", c.Handler(search(&n)))
	b := &bench{t: t, cache: c, h: mux}
	b.send("POST", "/search", "shoes")
	if a := b.send("POST", "/search", "shoes"); !a.cached() {
		t.Errorf("the search got %q, %v", a.body, a.header)
	}
	b.send("POST", "/orders", "shoes")
	if a := b.send("POST", "/orders", "shoes"); a.cached() || !hasStatus(a, "fwd=method") {
		t.Errorf("the order got %q, %v", a.body, a.header)
	}
	c2, err := New(memstore.New(memstore.Options{}), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c2.Close()
	defer func() {
		if v := recover(); v == nil || !strings.Contains(fmt.Sprint(v), "use a size") {
			t.Errorf("a policy that the cache cannot keep: %v", v)
		}
	}()
	c2.With(Policy{PostReads: true})
}

func TestIdenticalReadsWithABodyRunTheHandlerOnce(t *testing.T) {
	var n atomic.Int64
	f := newFleet(t, 2, searching, func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(handlerTime)
		search(&n)(w, r)
	})
	f.warm(20)
	before := n.Load()
	send := func(i int) answer {
		req, err := http.NewRequestWithContext(t.Context(), "POST", f.servers[i%2].URL+"/search", strings.NewReader(fmt.Sprint("terms ", i/2%4)))
		if err != nil {
			return answer{err: err}
		}
		req.Host = "site.test"
		resp, err := f.client.Do(req)
		if err != nil {
			return answer{err: err}
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return answer{status: resp.StatusCode, body: string(body), header: resp.Header, err: err}
	}
	for i, a := range f.storm(40, send) {
		if a.err != nil || a.status != 200 || !strings.HasSuffix(a.body, fmt.Sprintf("%q", fmt.Sprint("terms ", i/2%4))) {
			t.Errorf("%d got %d %q %v", i, a.status, a.body, a.err)
		}
	}
	if runs := n.Load() - before; runs != 4 {
		t.Errorf("the handler ran %d times for 4 bodies", runs)
	}
}

// The client that began a run leaves, and its connection with it: the handler
// reads on in what the run owns.
func TestARunOwnsItsBody(t *testing.T) {
	read := make(chan struct{})
	var n atomic.Int64
	f := newFleet(t, 1, searching, func(w http.ResponseWriter, r *http.Request) {
		<-read
		search(&n)(w, r)
	})
	text := strings.Repeat("terms ", 5000)
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan struct{})
	post := func(ctx context.Context) (*http.Response, error) {
		req, err := http.NewRequestWithContext(ctx, "POST", f.servers[0].URL+"/search", strings.NewReader(text))
		if err != nil {
			return nil, err
		}
		return f.client.Do(req)
	}
	go func() {
		defer close(left)
		if resp, err := post(ctx); err == nil {
			resp.Body.Close()
			t.Error("the leader got an answer")
		}
	}()
	for f.runs.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	leave()
	<-left
	close(read)
	resp, err := post(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if want := fmt.Sprintf("run 1 of POST  %q", text); err != nil || string(body) != want {
		t.Errorf("got %d bytes, %v", len(body), err)
	}
}

func TestAStaleReadWithABodyIsRefreshedByTheBodyThatItHad(t *testing.T) {
	var n atomic.Int64
	inBubble(t, searching, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		w.Header().Set("Cache-Control", "max-age=1, stale-while-revalidate=60")
		w.Header().Set("Etag", `"a"`) // a condition on a POST would mean another thing
		if r.Header.Get("If-None-Match") != "" {
			w.WriteHeader(412)
		}
		fmt.Fprintf(w, "run %d of %q %v", n.Add(1), body, err)
	}, func(b *bench) {
		for i, want := range []string{"run 1", "run 1", "run 2"} {
			if a := b.send("POST", "/search", "shoes"); a.status != 200 || a.body != want+` of "shoes" <nil>` {
				t.Errorf("%d: got %d %q", i, a.status, a.body)
			}
			time.Sleep(1500 * time.Millisecond)
		}
	})
}

func TestReadsWithABodyInvalidateNothingAndAreInvalidated(t *testing.T) {
	var n atomic.Int64
	for _, more := range []func(*Options){func(*Options) {}, func(o *Options) { o.Tenant = tenant }} {
		opts := searching
		opts.Policy.PostReads = false
		more(&opts)
		c, err := New(memstore.New(memstore.Options{}), opts)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		reading, writing := c.With(Policy{PostReads: true})(search(&n)), c.Handler(search(&n))
		b := &bench{t: t, cache: c, h: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Write") != "" {
				writing.ServeHTTP(w, r)
				return
			}
			reading.ServeHTTP(w, r)
		})}
		both := func() (get, post answer) { return b.get("/search"), b.send("POST", "/search", "shoes") }
		both()
		b.send("POST", "/search", "other")
		b.send("QUERY", "/search", "other")
		b.send("POST", "/search", strings.Repeat("x", 100<<10)) // goes past
		b.send("POST", "/search", "shoes", "If-None-Match", `"x"`)
		if get, post := both(); !get.cached() || !post.cached() {
			t.Errorf("reads have invalidated: %v, %v", get.header, post.header)
		}
		for what, do := range map[string]func(){
			"a POST that writes": func() { b.send("POST", "/search", "shoes", "X-Write", "1") },
			"DELETE":             func() { b.do("DELETE", "/search") },
			"Invalidate":         func() { _ = c.Invalidate(t.Context(), "http://site.test/search") },
		} {
			do()
			if get, post := both(); get.cached() || post.cached() {
				t.Errorf("%s: %v, %v", what, get.header, post.header)
			}
		}
		if err := c.Expire(t.Context(), "http://site.test/search"); err != nil {
			t.Fatal(err)
		}
		if get, post := both(); get.cached() || post.cached() {
			t.Errorf("Expire: %v, %v", get.header, post.header)
		}
	}
}

func TestReadsWithABodyGoPastTheCacheWhenTheyMust(t *testing.T) {
	for name, tt := range map[string]struct {
		pairs  []string
		change func(*http.Request)
		detail string
	}{
		"condition":      {pairs: []string{"If-None-Match", `"a"`}, detail: "precondition"},
		"since":          {pairs: []string{"If-Modified-Since", "Mon, 30 Nov 2026 12:00:00 GMT"}, detail: "precondition"},
		"range":          {pairs: []string{"Range", "bytes=0-1"}, detail: "precondition"},
		"cookie":         {pairs: []string{"Cookie", "a=b"}, detail: "cookie"},
		"no-store":       {pairs: []string{"Cache-Control", "no-store"}, detail: "request-no-store"},
		"form read":      {change: func(r *http.Request) { r.PostForm = map[string][]string{"a": {"b"}} }, detail: "body"},
		"partly read":    {change: func(r *http.Request) { _, _ = r.Body.Read(make([]byte, 2)) }, detail: "body"},
		"of no length":   {change: func(r *http.Request) { r.ContentLength = -1; _, _ = io.Copy(io.Discard, r.Body) }, detail: "body"},
		"with a trailer": {change: func(r *http.Request) { r.ContentLength = -1; r.Trailer = http.Header{"X-Sum": nil} }, detail: "body"},
	} {
		t.Run(name, func(t *testing.T) {
			var n atomic.Int64
			b := newBench(t, searching, search(&n))
			inner := b.h
			b.h = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if tt.change != nil {
					tt.change(r)
				}
				inner.ServeHTTP(w, r)
			})
			for range 2 {
				if a := b.send("POST", "/search", "shoes", tt.pairs...); a.status != 200 || !hasStatus(a, "detail="+tt.detail) {
					t.Errorf("got %d %q, %v", a.status, a.body, a.header)
				}
			}
			if n.Load() != 2 {
				t.Errorf("the handler ran %d times", n.Load())
			}
		})
	}
}

func TestACacheThatIsSwitchedOffReadsNoBody(t *testing.T) {
	var n atomic.Int64
	b := newBench(t, searching, search(&n))
	b.cache.SetEnabled(false)
	for range 2 {
		if a := b.send("POST", "/search", "shoes"); a.header["Cache-Status"] != nil || !strings.Contains(a.body, `"shoes"`) {
			t.Errorf("got %q, %v", a.body, a.header)
		}
	}
	if n.Load() != 2 {
		t.Errorf("the handler ran %d times", n.Load())
	}
}

// echo answers with the whole of what a handler can see of a body.
func echo(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "max-age=60")
	length, coding := r.ContentLength, r.TransferEncoding
	body, err := io.ReadAll(r.Body)
	fmt.Fprintf(w, "%d %v %v %d %x %v", length, coding, err, len(body), sum(body), r.Trailer)
}

func sum(body []byte) (n uint64) {
	for _, c := range body {
		n = n*31 + uint64(c)
	}
	return n
}

// Over a real connection, the handler behind the cache sees what it would see
// without it, whatever the body is like.
func TestTheHandlerSeesTheBodyAsItCame(t *testing.T) {
	const limit = 1 << 10
	opts := searching
	opts.KeyBody = limit
	f := newFleet(t, 1, opts, echo)
	bare := httptest.NewServer(http.HandlerFunc(echo))
	defer bare.Close()
	ask := func(addr, raw string, whole bool) string {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, raw); err != nil {
			t.Fatal(err)
		}
		if !whole { // else the server takes it for a client that has left
			_ = conn.(*net.TCPConn).CloseWrite()
		}
		answer, _ := io.ReadAll(conn)
		_, body, _ := strings.Cut(string(answer), "\r\n\r\n")
		return body
	}
	chunk := func(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }
	long := strings.Repeat("0123456789", limit/5)
	for name, raw := range map[string]string{
		"of known length":      "Content-Length: 5\r\n\r\nshoes",
		"empty":                "Content-Length: 0\r\n\r\n",
		"as long as the limit": fmt.Sprintf("Content-Length: %d\r\n\r\n%s", limit, long[:limit]),
		"one more":             fmt.Sprintf("Content-Length: %d\r\n\r\n%s", limit+1, long[:limit+1]),
		"too long":             fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(long), long),
		"in chunks":            "Transfer-Encoding: chunked\r\n\r\n" + chunk("sho") + chunk("es") + "0\r\n\r\n",
		"in chunks, too long":  "Transfer-Encoding: chunked\r\n\r\n" + chunk(long[:900]) + chunk(long[900:]) + "0\r\n\r\n",
		"in chunks, broken":    "Transfer-Encoding: chunked\r\n\r\n" + chunk("sho") + "zz\r\n",
		"cut off":              "Content-Length: 500\r\n\r\nshoes",
		"cut off, too long":    "Transfer-Encoding: chunked\r\n\r\n" + chunk(long[:900]) + chunk(long[900:]),
		"announced trailer":    "Transfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n" + chunk("shoes") + "0\r\nX-Sum: 1\r\n\r\n",
		"trailer":              "Transfer-Encoding: chunked\r\n\r\n" + chunk("shoes") + "0\r\nX-Sum: 1\r\n\r\n",
		"too long, trailer":    "Transfer-Encoding: chunked\r\n\r\n" + chunk(long) + "0\r\nX-Sum: 1\r\n\r\n",
	} {
		head := "POST /" + strings.ReplaceAll(name, " ", "-") + " HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n"
		whole := !strings.Contains(name, "broken") && !strings.Contains(name, "cut")
		got, want := ask(f.servers[0].Listener.Addr().String(), head+raw, whole), ask(bare.Listener.Addr().String(), head+raw, whole)
		if got != want {
			t.Errorf("%s: the handler saw %q, and without the cache %q", name, got, want)
		}
		if want == "" && whole {
			t.Errorf("%s: no answer", name)
		}
	}
}

// bodyOf is a body that comes in pieces and ends with err.
func bodyOf(data []byte, piece int, err error) io.ReadCloser {
	end := iotest.ErrReader(err)
	if err == nil {
		end = strings.NewReader("")
	}
	return io.NopCloser(&pieces{io.MultiReader(bytes.NewReader(data), end), piece})
}

type pieces struct {
	r    io.Reader
	most int
}

func (p *pieces) Read(b []byte) (int, error) { return p.r.Read(b[:min(len(b), p.most)]) }

func FuzzTheBodyIsRestored(f *testing.F) {
	f.Add([]byte("shoes"), uint16(3), uint16(5), true, false)
	f.Add([]byte("shoes"), uint16(1), uint16(4), true, false)
	f.Add([]byte("shoes"), uint16(9), uint16(0), false, true)
	f.Add([]byte(nil), uint16(1), uint16(1), false, false)
	f.Add(bytes.Repeat([]byte("x"), 5000), uint16(512), uint16(4999), false, true)
	f.Add(bytes.Repeat([]byte("x"), 5000), uint16(4096), uint16(5000), true, true)
	f.Fuzz(func(t *testing.T, data []byte, piece, limit uint16, known, broken bool) {
		var fail error
		if broken {
			fail = errors.New("broken off")
		}
		request := func() *http.Request {
			r := httptest.NewRequest("POST", "/", bodyOf(data, int(piece)+1, fail))
			r.ContentLength = -1
			if known {
				r.ContentLength = int64(len(data))
			}
			return r
		}
		bare := request()
		want, wantErr := io.ReadAll(bare.Body)
		c := &Cache{opts: Options{KeyBody: int64(limit) + 1}}
		r, body := c.takeBody(request())
		for range 3 { // a handler may read on after an error
			got, err := io.ReadAll(r.Body)
			if !bytes.Equal(got, want) || !errors.Is(err, wantErr) {
				t.Fatalf("read %d bytes and %v, want %d and %v", len(got), err, len(want), wantErr)
			}
			want, wantErr = io.ReadAll(bare.Body)
		}
		if r.ContentLength != bare.ContentLength {
			t.Errorf("the length is %d, and was %d", r.ContentLength, bare.ContentLength)
		}
		if body == nil {
			return
		}
		if broken || int64(len(data)) > c.opts.KeyBody {
			t.Fatalf("%d bytes of at most %d, broken: %v, are part of a key", len(data), c.opts.KeyBody, broken)
		}
		again, err := r.GetBody()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(again); err != nil || !bytes.Equal(got, data) {
			t.Errorf("GetBody gives %d bytes, %v", len(got), err)
		}
	})
}
