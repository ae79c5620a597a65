package middleware

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
)

// proxyFor starts an origin and returns a reverse proxy to it.
func proxyFor(t *testing.T, origin http.HandlerFunc) (http.HandlerFunc, *httptest.Server) {
	t.Helper()
	srv := httptest.NewUnstartedServer(origin)
	srv.Config.ErrorLog = discardLog
	srv.Start()
	t.Cleanup(srv.Close)
	target, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{MaxIdleConnsPerHost: 100}
	t.Cleanup(transport.CloseIdleConnections)
	proxy := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport: transport,
		ErrorLog:  discardLog,
	}
	return proxy.ServeHTTP, srv
}

func TestInFrontOfAReverseProxyItIsACachingProxy(t *testing.T) {
	var version atomic.Int64
	handler, _ := proxyFor(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			version.Add(1)
			w.Header().Set("X-Method", r.Method)
			body, _ := io.ReadAll(r.Body)
			w.Write(body)
			return
		}
		time.Sleep(handlerTime / 2)
		w.Header().Set("X-Unknown", "kept")
		if r.URL.Path == "/p" {
			w.Header().Set("Cache-Control", "max-age=60")
		}
		w.(http.Flusher).Flush() // chunked, of unknown length
		io.WriteString(w, strings.Repeat("page ", 5000))
	})
	f := newFleet(t, 2, Options{}, handler)
	f.warm(25)
	for _, a := range f.storm(50, func(i int) answer { return f.ask(i%2, "GET", "/p") }) {
		if a.status != 200 || a.body != strings.Repeat("page ", 5000) || a.header.Get("X-Unknown") != "kept" {
			t.Fatalf("got %d, %d bytes, %v", a.status, len(a.body), a.err)
		}
	}
	f.wantRuns(1)
	if a := f.ask(0, "PROPPATCH", "/p"); a.header.Get("X-Method") != "PROPPATCH" {
		t.Errorf("an unknown method got %d", a.status)
	}
	if a := f.get("/p"); a.cached() {
		t.Error("an unknown method did not invalidate")
	}
	f.get("/silent")
	if a := f.get("/silent"); a.cached() {
		t.Error("kept without explicit freshness")
	}
}

func TestAnOriginThatBreaksOffLeavesNoShortAnswer(t *testing.T) {
	var n atomic.Int64
	handler, _ := proxyFor(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		time.Sleep(50 * time.Millisecond)
		io.WriteString(w, strings.Repeat("x", 10_000))
		if n.Add(1) == 1 {
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}
		io.WriteString(w, "end")
	})
	f := newFleet(t, 1, Options{}, handler)
	for _, a := range f.storm(10, func(int) answer { return f.ask(0, "GET", "/p") }) {
		if a.err == nil && (a.status != 200 || !strings.HasSuffix(a.body, "end")) && a.status < 500 {
			t.Errorf("a short answer looks whole: %d, %d bytes", a.status, len(a.body))
		}
	}
	if a := f.get("/p"); !strings.HasSuffix(a.body, "end") {
		t.Errorf("the next got %d bytes", len(a.body))
	}
}

func TestAnOriginThatIsGoneIsCoveredByStaleIfError(t *testing.T) {
	handler, srv := proxyFor(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=1, stale-if-error=60")
		io.WriteString(w, "page")
	})
	f := newFleet(t, 1, Options{}, handler)
	f.get("/p")
	srv.Close()
	time.Sleep(1100 * time.Millisecond)
	for _, a := range f.storm(10, func(int) answer { return f.ask(0, "GET", "/p") }) {
		if a.status != 200 || a.body != "page" {
			t.Errorf("got %d %q", a.status, a.body)
		}
	}
	if a := f.get("/other"); a.status != 502 {
		t.Errorf("without anything stored: %d", a.status)
	}
}

func TestWorksOverHTTP2(t *testing.T) {
	c, err := New(memstore.New(memstore.Options{}), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var runs atomic.Int64
	srv := httptest.NewUnstartedServer(c.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		runs.Add(1)
		time.Sleep(50 * time.Millisecond)
		w.Header().Set("Cache-Control", "max-age=60")
		w.Header().Set("Trailer", "X-Sum")
		fmt.Fprintf(w, "page over %s", r.Proto)
		w.Header().Set("X-Sum", "1")
	})))
	srv.EnableHTTP2 = true
	srv.StartTLS()
	defer srv.Close()
	client := srv.Client()
	client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: client.Transport.(*http.Transport).TLSClientConfig.RootCAs}
	defer client.CloseIdleConnections()
	f := &fleet{t: t}
	for _, a := range f.storm(20, func(int) answer {
		resp, err := client.Get(srv.URL + "/p")
		if err != nil {
			return answer{err: err}
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return answer{status: resp.StatusCode, body: string(body), trailer: resp.Trailer, err: err}
	}) {
		if a.err != nil || a.body != "page over HTTP/2.0" || a.trailer.Get("X-Sum") != "1" {
			t.Errorf("got %d %q %v %v", a.status, a.body, a.trailer, a.err)
		}
	}
	if runs.Load() != 1 {
		t.Errorf("handler ran %d times", runs.Load())
	}
}
