package main

import (
	"bufio"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// behind starts a demo-api that is the cache of a server that answers with h.
func behind(t *testing.T, h http.HandlerFunc, args ...string) process {
	t.Helper()
	return start(t, append([]string{"-upstream", serverOf(t, h)}, args...)...)
}

func serverOf(t *testing.T, h http.HandlerFunc) (url string) {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv.URL
}

// send sends a request with header fields, given as name and value in turn.
func send(t *testing.T, method, url, body string, fields ...string) reply {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(fields); i += 2 {
		req.Header.Add(fields[i], fields[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	return reply{resp.StatusCode, resp.Header, string(data)}
}

func TestAnUpstreamSeesEveryMethodHeaderAndByteOfTheTarget(t *testing.T) {
	p := behind(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Seen", r.Method+" "+r.RequestURI+" "+r.Header.Get("X-Unknown")+" "+string(body))
		w.Header().Set("X-Unknown-Too", "kept")
		w.WriteHeader(299)
	})
	for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND", "QUERY", "BREW"} {
		body := "body"
		if method == "GET" {
			body = ""
		}
		a := send(t, method, p.url+"/a%2Fb/%7e?x=1;y&%zz", body, "X-Unknown", "value")
		want := strings.TrimSpace(method + " /a%2Fb/%7e?x=1;y&%zz value " + body)
		if a.status != 299 || a.header.Get("X-Seen") != want || a.header.Get("X-Unknown-Too") != "kept" {
			t.Errorf("%s: %d, seen %q, want %q", method, a.status, a.header.Get("X-Seen"), want)
		}
	}
}

func TestWhatAClientInventsOfForwardingReachesNoUpstream(t *testing.T) {
	p := behind(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		io.WriteString(w, r.Header.Get("X-Forwarded-Host")+" "+r.Header.Get("X-Forwarded-Proto")+" "+r.Header.Get("Forwarded"))
	})
	a := send(t, "GET", p.url+"/", "", "X-Forwarded-Host", "evil.example", "X-Forwarded-Proto", "gopher", "Forwarded", "host=evil.example")
	if want := strings.TrimPrefix(p.url, "http://") + " http "; a.body != want {
		t.Errorf("the upstream saw %q, want %q", a.body, want)
	}
}

// counted answers with a number that grows, after header was called.
func counted(header func(w http.ResponseWriter)) http.HandlerFunc {
	var n atomic.Int64
	return func(w http.ResponseWriter, r *http.Request) {
		header(w)
		w.(http.Flusher).Flush() // of unknown length: sent in chunks, and flushed by the proxy
		io.WriteString(w, "answer "+string(rune('0'+n.Add(1))))
	}
}

func TestWhatAnUpstreamsAnswersAreKept(t *testing.T) {
	set := func(pairs ...string) func(w http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			for i := 0; i < len(pairs); i += 2 {
				w.Header().Set(pairs[i], pairs[i+1])
			}
		}
	}
	for name, c := range map[string]struct {
		header func(w http.ResponseWriter)
		args   []string
		kept   bool
	}{
		"says how long":                     {set("Cache-Control", "max-age=60"), nil, true},
		"says nothing":                      {set(), nil, false},
		"says nothing, with -ttl":           {set(), []string{"-ttl", "1m"}, true},
		"says public alone, with -ttl":      {set("Cache-Control", "public"), []string{"-ttl", "1m"}, true},
		"no-store, with -ttl":               {set("Cache-Control", "no-store"), []string{"-ttl", "1m"}, false},
		"event stream, with -ttl":           {set("Content-Type", "text/event-stream"), []string{"-ttl", "1m"}, false},
		"sets a cookie":                     {set("Cache-Control", "max-age=60", "Set-Cookie", "a=b"), nil, false},
		"sets a cookie, -store-set-cookie":  {set("Cache-Control", "max-age=60", "Set-Cookie", "a=b"), []string{"-store-set-cookie"}, true},
		"a target that is obeyed by itself": {set("CDN-Cache-Control", "max-age=60", "Cache-Control", "no-store"), nil, true},
		"a target of others":                {set("Shop-Cache-Control", "max-age=60", "Cache-Control", "no-store"), nil, false},
		"a target that -targets names":      {set("Shop-Cache-Control", "max-age=60", "Cache-Control", "no-store"), []string{"-targets", "Edge-Cache-Control, Shop-Cache-Control"}, true},
		"a target that -targets leaves out": {set("CDN-Cache-Control", "max-age=60", "Cache-Control", "no-store"), []string{"-targets", "Shop-Cache-Control"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := behind(t, counted(c.header), c.args...)
			first, second := call(t, "GET", p.url+"/x", ""), call(t, "GET", p.url+"/x", "")
			if first.body != "answer 1" || second.hit() && !c.kept || c.kept != (second.body == first.body) {
				t.Errorf("got %q and then %q, %v", first.body, second.body, second.header)
			}
			if c.kept && second.header.Get("Set-Cookie") != first.header.Get("Set-Cookie") {
				t.Errorf("cookies %q and %q", first.header.Get("Set-Cookie"), second.header.Get("Set-Cookie"))
			}
		})
	}
}

func TestEventStreamsOfAnUpstreamAreSentAtOnce(t *testing.T) {
	next := make(chan struct{})
	p := behind(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		for i := range 3 {
			io.WriteString(w, "data: "+string(rune('a'+i))+"\n")
			w.(http.Flusher).Flush()
			select {
			case <-next: // only when the client has read the last
			case <-r.Context().Done():
				return
			case <-time.After(10 * time.Second):
				return
			}
		}
	}, "-ttl", "1m")
	resp, err := http.Get(p.url + "/events")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for _, want := range []string{"data: a", "data: b", "data: c"} {
		began := time.Now()
		if !lines.Scan() || lines.Text() != want || time.Since(began) > 5*time.Second {
			t.Fatalf("got %q after %v, want %q: %v", lines.Text(), time.Since(began), want, lines.Err())
		}
		next <- struct{}{}
	}
}

func TestAnUpstreamIsAskedOnceByTheFleet(t *testing.T) {
	var runs atomic.Int64
	page := strings.Repeat("page ", 5000)
	url := serverOf(t, func(w http.ResponseWriter, r *http.Request) {
		runs.Add(1)
		time.Sleep(200 * time.Millisecond)
		w.(http.Flusher).Flush()
		io.WriteString(w, page)
	})
	redis := embeddedRedis(t)
	fleet := []process{
		start(t, "-upstream", url, "-redis", redis.Addr(), "-ttl", "1m"),
		start(t, "-upstream", url, "-redis", redis.Addr(), "-ttl", "1m"),
	}
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			req, err := http.NewRequest("GET", fleet[i%2].url+"/p", nil)
			if err != nil {
				t.Error(err)
				return
			}
			req.Host = "shop.example" // under which a load balancer in front of both is asked
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			if body, err := io.ReadAll(resp.Body); err != nil || string(body) != page {
				t.Errorf("got %d bytes, %v", len(body), err)
			}
		})
	}
	wg.Wait()
	if runs.Load() != 1 {
		t.Errorf("the upstream was asked %d times", runs.Load())
	}
}

func TestAnUpstreamThatIsGoneIsCoveredByStaleIfError(t *testing.T) {
	for _, c := range []struct {
		args []string
		want int
	}{{nil, http.StatusBadGateway}, {[]string{"-stale-if-error", "1m"}, http.StatusOK}} {
		srv := httptest.NewServer(counted(func(w http.ResponseWriter) { w.Header().Set("Cache-Control", "max-age=1") }))
		p := start(t, append(c.args, "-upstream", srv.URL)...)
		if a := call(t, "GET", p.url+"/p", ""); a.body != "answer 1" {
			t.Fatalf("got %d %q", a.status, a.body)
		}
		srv.Close()
		until := time.Now().Add(10 * time.Second)
		a := call(t, "GET", p.url+"/p", "")
		says := func(what string) bool { return strings.Contains(a.header.Get("Cache-Status"), what) }
		// A refresh just before the end fails, too, and the upstream is left alone
		// for a moment.
		for (a.status == http.StatusOK && !says("fwd=stale") && !says("ttl=-") || says("detail=cooldown")) && time.Now().Before(until) {
			time.Sleep(20 * time.Millisecond)
			a = call(t, "GET", p.url+"/p", "")
		}
		if a.status != c.want || c.want == http.StatusOK && a.body != "answer 1" {
			t.Errorf("%v: after its lifetime: %d %q %v", c.args, a.status, a.body, a.header)
		}
	}
}

func TestFlagsThatDoNothingAreRefused(t *testing.T) {
	for args, says := range map[string]string{
		"-store-set-cookie":                        "use it with -upstream",
		"-admin :0":                                "use it with -upstream",
		"-stale-if-error 1m":                       "use it with -upstream",
		"-targets X":                               "use it with -upstream",
		"-upstream http://a -mode none":            "leave one of them out",
		"-upstream http://a -origin http://b":      "leave one of them out",
		"-upstream http://a -grace 1m":             "leave one of them out",
		"-upstream a.example":                      "use one such as",
		"-upstream http://u:p@a":                   "scheme, host and path alone",
		"-upstream http://a/?q":                    "scheme, host and path alone",
		"-upstream http://a -stale-if-error 1000h": "out of range",
	} {
		_, err := parseFlags(strings.Fields(args), io.Discard)
		if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "u:p") {
			t.Errorf("%s: %v, want %q", args, err, says)
		}
	}
}
