package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if where := os.Getenv(lateWriterEnv); where != "" {
		if err := lateWriter(where); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// embeddedRedis starts a Redis in the test.
func embeddedRedis(t *testing.T) *miniredis.Miniredis {
	t.Helper()
	m := miniredis.RunT(t)
	m.ClockTTL(true)
	return m
}

// process is a demo-api that runs in the test.
type process struct {
	url  string
	line string       // that it has said so in
	stop func() error // ends it as SIGTERM does, and returns what run returned
}

// start runs demo-api until the test ends.
func start(t *testing.T, args ...string) process {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	pipe, out := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := run(ctx, append([]string{"-addr", "127.0.0.1:0"}, args...), out)
		out.Close()
		ended <- err
	}()
	lines := bufio.NewScanner(pipe)
	if !lines.Scan() {
		cancel()
		t.Fatalf("demo-api did not start: %v", <-ended)
	}
	_, rest, found := strings.Cut(lines.Text(), "serving on ")
	url, _, _ := strings.Cut(rest, " ")
	if !found {
		t.Errorf("the first line does not say where it serves: %q", lines.Text())
	}
	go func() { io.Copy(io.Discard, pipe) }()
	p := process{url: url, line: lines.Text(), stop: func() error {
		cancel()
		err := <-ended
		ended <- err
		return err
	}}
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		if err := p.stop(); err != nil {
			t.Errorf("run = %v", err)
		}
	})
	return p
}

// reply is what a client got.
type reply struct {
	status int
	header http.Header
	body   string
}

func (r reply) state() string { return r.header.Get("X-Cacheguard-State") }

func (r reply) product(t *testing.T) (p product) {
	t.Helper()
	if r.status != http.StatusOK {
		t.Fatalf("status %d: %s", r.status, r.body)
	}
	if err := json.Unmarshal([]byte(r.body), &p); err != nil {
		t.Fatal(err)
	}
	return p
}

func call(t *testing.T, method, url, body string) reply {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Error(err) // not Fatal: it is called from goroutines too
		return reply{}
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	return reply{resp.StatusCode, resp.Header, string(data)}
}

func TestAProductIsLoadedOnceAndThenFresh(t *testing.T) {
	p := start(t, "-load", "1ms")
	first := call(t, "GET", p.url+"/products/1", "")
	if got := first.product(t); got.ID != "1" || got.Version != 1 || got.Name == "" {
		t.Errorf("product %+v", got)
	}
	second := call(t, "GET", p.url+"/products/1", "")
	if first.state() != "rebuilt" || second.state() != "fresh" || second.body != first.body {
		t.Errorf("states %s, %s; bodies %s, %s", first.state(), second.state(), first.body, second.body)
	}
	if loads := second.header.Get("X-Origin-Loads"); loads != "1" {
		t.Errorf("X-Origin-Loads: %s, want 1", loads)
	}
}

func TestAWriteIsSeenByWhoeverAsksAfterItsAnswer(t *testing.T) {
	p := start(t, "-load", "1ms")
	for _, path := range []string{"/products/7", "/products"} {
		if r := call(t, "GET", p.url+path, ""); r.status != http.StatusOK {
			t.Fatalf("GET %s: %d", path, r.status)
		}
	}
	written := call(t, "PUT", p.url+"/products/7", `{"name": "Lamp", "price": 1499}`).product(t)
	if want := (product{ID: "7", Name: "Lamp", Price: 1499, Stock: 16, Version: 2}); written != want {
		t.Errorf("PUT answers %+v, want %+v", written, want)
	}
	if got := call(t, "GET", p.url+"/products/7", "").product(t); got != written {
		t.Errorf("GET after it: %+v", got)
	}
	if list := call(t, "GET", p.url+"/products", ""); !strings.Contains(list.body, `"Lamp"`) {
		t.Errorf("the list after it is still the old one")
	}
}

func TestAPutThatIsNoProductIsRefused(t *testing.T) {
	p := start(t, "-load", "0")
	for body, says := range map[string]string{
		``:                                 "is not a product",
		`[]`:                               "is not a product",
		`{"name": "x", "price": "1"}`:      "is not a product",
		`{"name": "x", "price": 1.5}`:      "is not a product",
		`{"name": "x", "colour": "red"}`:   "is not a product",
		`{"name": "x"}`:                    "send name and price (in cents)",
		`{"name":"x","price":1,"stock":1}`: "to /products/{id}/stock",
		`{"name":"x","price":-1}`:          "must not be negative",
		`{"name":"","price":1}`:            "1 to 200 bytes",
		`{"name":"\u0000","price":1}`:      "none of them zero",
		`{"name":"x","price":1}{}`:         "one JSON object",
		`{"name":"` + strings.Repeat("x", 300) + `","price":1}`:    "1 to 200 bytes",
		`{"name":"` + strings.Repeat("x", 70_000) + `","price":1}`: "is not a product",
	} {
		r := call(t, "PUT", p.url+"/products/1", body)
		if r.status != http.StatusBadRequest || !strings.Contains(r.body, says) {
			t.Errorf("PUT %.60s: %d %s; want 400 and %q", body, r.status, r.body, says)
		}
	}
	if got := call(t, "GET", p.url+"/products/1", "").product(t); got.Version != 1 {
		t.Errorf("something was written: %+v", got)
	}
	if r := call(t, "PUT", p.url+"/products/none", `{"name":"x","price":1}`); r.status != http.StatusNotFound {
		t.Errorf("PUT of what is not there: %d", r.status)
	}
}

func TestAnAbsentProductIs404AndRemembered(t *testing.T) {
	p := start(t, "-load", "1ms")
	for range 3 {
		if r := call(t, "GET", p.url+"/products/none", ""); r.status != http.StatusNotFound {
			t.Errorf("status %d: %s", r.status, r.body)
		}
	}
	if metrics := call(t, "GET", p.url+"/metrics", "").body; !strings.Contains(metrics, "demo_origin_loads_total 1\n") {
		t.Error("absence was asked for more than once")
	}
}

// fakeOrigin serves one origin to all processes of a test, as -origin asks.
func fakeOrigin(t *testing.T, handler http.HandlerFunc) (url string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: handler}
	served := make(chan struct{})
	go func() { defer close(served); srv.Serve(ln) }()
	t.Cleanup(func() { srv.Close(); <-served })
	return "http://" + ln.Addr().String()
}

func TestAFailingOriginIsAnErrorAndThenACooldown(t *testing.T) {
	origin := fakeOrigin(t, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "secret detail", http.StatusInternalServerError)
	})
	p := start(t, "-origin", origin)
	if r := call(t, "GET", p.url+"/products/1", ""); r.status != http.StatusBadGateway || strings.Contains(r.body, "secret") {
		t.Errorf("the failure: %d %s; want 502 without the origin's words", r.status, r.body)
	}
	r := call(t, "GET", p.url+"/products/1", "")
	if r.status != http.StatusServiceUnavailable || r.header.Get("Retry-After") != "1" {
		t.Errorf("in the cooldown: %d, Retry-After %q; want 503 and 1", r.status, r.header.Get("Retry-After"))
	}
}

func TestAnOriginThatAnswersSomethingElseIsAnError(t *testing.T) {
	for name, body := range map[string]string{
		"another product": `{"id": "2", "version": 1}`, "no JSON": `<html>`, "too long": `{"id": "` + strings.Repeat("x", maxOriginAnswer) + `"}`,
	} {
		t.Run(name, func(t *testing.T) {
			origin := fakeOrigin(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, body) })
			p := start(t, "-origin", origin)
			if r := call(t, "GET", p.url+"/products/1", ""); r.status != http.StatusBadGateway {
				t.Errorf("status %d: %s", r.status, r.body)
			}
		})
	}
}

func TestTheModesDifferInHowOftenTheOriginIsAsked(t *testing.T) {
	const callers = 20
	for mode, want := range map[string]int64{"guard": 1, "local": 2, "none": 2 * callers} {
		t.Run(mode, func(t *testing.T) {
			var loads atomic.Int64
			all := make(chan struct{})
			origin := fakeOrigin(t, func(w http.ResponseWriter, r *http.Request) {
				loads.Add(1)
				select {
				case <-all:
				case <-time.After(5 * time.Second):
				}
				fmt.Fprint(w, `{"id": "1", "name": "n", "version": 1}`)
			})
			redis := embeddedRedis(t)
			args := []string{"-origin", origin, "-redis", redis.Addr(), "-mode", mode, "-pool", "100"}
			a, b := start(t, args...), start(t, args...)
			done := make(chan reply)
			for i := range 2 * callers {
				go func() { done <- call(t, "GET", []process{a, b}[i%2].url+"/products/1", "") }()
			}
			for _, p := range []process{a, b} { // or who comes late finds a flight that has ended
				until(t, p, "everybody there", func(s liveState) bool { return s.Hot.Waiting == callers && loads.Load() >= want })
			}
			close(all)
			for range 2 * callers {
				if got := (<-done).product(t); got.ID != "1" {
					t.Errorf("product %+v", got)
				}
			}
			if n := loads.Load(); n != want {
				t.Errorf("%d loads, want %d", n, want)
			}
		})
	}
}

func TestSIGTERMGivesBackTheLeaseOfALoadUnderWay(t *testing.T) {
	redis := embeddedRedis(t)
	var loads atomic.Int64
	stuck := make(chan struct{})
	origin := fakeOrigin(t, func(w http.ResponseWriter, r *http.Request) {
		if loads.Add(1) == 2 { // the refresh of the stale product
			close(stuck)
			<-r.Context().Done()
			return
		}
		fmt.Fprint(w, `{"id": "1", "name": "n", "version": 1}`)
	})
	args := []string{"-origin", origin, "-redis", redis.Addr(), "-ttl", "30ms", "-grace", "1h"}
	p := start(t, args...)
	for loads.Load() < 2 {
		if r := call(t, "GET", p.url+"/products/1", ""); r.status != http.StatusOK {
			t.Fatalf("status %d", r.status)
		}
		time.Sleep(5 * time.Millisecond)
	}
	<-stuck
	const lease = "products:{1}:lease"
	if holder := redis.HGet(lease, "holder"); holder == "" {
		t.Fatalf("nobody holds %s: %v", lease, redis.Keys())
	}
	if err := p.stop(); err != nil {
		t.Errorf("run = %v", err)
	}
	if holder := redis.HGet(lease, "holder"); holder != "" {
		t.Errorf("%s still holds the lease", holder)
	}
}

func TestDrainingSaysSoAndGoesOnServing(t *testing.T) {
	p := start(t, "-load", "0", "-drain", "2s")
	if r := call(t, "GET", p.url+"/readyz", ""); r.status != http.StatusOK {
		t.Errorf("readyz before: %d %s", r.status, r.body)
	}
	stopped := make(chan error)
	go func() { stopped <- p.stop() }()
	for call(t, "GET", p.url+"/readyz", "").status != http.StatusServiceUnavailable {
		time.Sleep(5 * time.Millisecond)
	}
	if r := call(t, "GET", p.url+"/products/1", ""); r.status != http.StatusOK {
		t.Errorf("a product while draining: %d", r.status)
	}
	if r := call(t, "GET", p.url+"/healthz", ""); r.status != http.StatusOK {
		t.Errorf("healthz while draining: %d", r.status)
	}
	if err := <-stopped; err != nil {
		t.Errorf("run = %v", err)
	}
}

func TestAStoreOutOfReachIsNotReadyButServes(t *testing.T) {
	redis := embeddedRedis(t)
	p := start(t, "-load", "1ms", "-redis", redis.Addr())
	redis.Close()
	if r := call(t, "GET", p.url+"/readyz", ""); r.status != http.StatusServiceUnavailable {
		t.Errorf("readyz: %d", r.status)
	}
	if got := call(t, "GET", p.url+"/products/1", "").product(t); got.ID != "1" {
		t.Errorf("product %+v", got)
	}
	if r := call(t, "PUT", p.url+"/products/1", `{"name":"x","price":1}`); r.status != http.StatusServiceUnavailable || r.header.Get("Retry-After") == "" {
		t.Errorf("a write that no cache could be told of: %d %s", r.status, r.body)
	}
}

func TestWhatIsServedForLoadtestIsOffUnlessAsked(t *testing.T) {
	p := start(t)
	if r := call(t, "GET", p.url+"/floor/1?sleep=0s", ""); r.status != http.StatusNotFound {
		t.Errorf("/floor: %d", r.status)
	}
	q := start(t, "-loadtest")
	if r := call(t, "GET", q.url+"/floor/1?sleep=1ms", ""); r.status != http.StatusOK || r.product(t).ID != "1" {
		t.Errorf("/floor: %d %s", r.status, r.body)
	}
	for _, sleep := range []string{"", "x", "-1s", "1h"} {
		if r := call(t, "GET", q.url+"/floor/1?sleep="+sleep, ""); r.status != http.StatusBadRequest {
			t.Errorf("sleep %q: %d", sleep, r.status)
		}
	}
}

func TestThePageSaysWhatThereIs(t *testing.T) {
	p := start(t, "-load", "123ms")
	r := call(t, "GET", p.url+"/", "")
	for _, want := range []string{"123ms", "GET /products/{id}", "curl -i " + strings.TrimPrefix(p.url, "http://") + "/products/1"} {
		if !strings.Contains(r.body, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
}

func TestWhatCannotStartSaysWhyInOneSentence(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for args, says := range map[string]string{
		"-mode best":                         "use one of guard, local, none",
		"-load -1s":                          "use 0 to less than 30s",
		"-load 30s":                          "use 0 to less than 30s",
		"-pool 0":                            "use 1 to 10000 connections",
		"-ttl 0":                             "use more than 0",
		"-grace -1s":                         "use 0 to 24h",
		"-drain 2m":                          "use 0 to 1m",
		"-origin localhost":                  "is not the URL of a server",
		"-origin http://h -load 1s":          "leave one of them out",
		"-mongo x":                           "not defined",
		"-postgres a://b":                    "is not the DSN of a PostgreSQL",
		"-postgres postgres://127.0.0.1:1/d": "no PostgreSQL at 127.0.0.1:1",
		"-postgres p://h -origin http://h":   "leave one of them out",
		"-postgres p://h -load 1s":           "leave one of them out",
		"serve":                              "is not a flag",
		"-redis 127.0.0.1:1":                 "no Redis answers at 127.0.0.1:1",
		"-redis localhost":                   "use HOST:PORT",
		"-redis redis://h:x":                 "is not a URL of a Redis",
		"-addr " + taken.Addr().String():     "cannot listen",
	} {
		err := run(t.Context(), strings.Fields(args), io.Discard)
		if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v; want one line that says %q", args, err, says)
		}
	}
}
