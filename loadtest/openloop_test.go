package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	vegeta "github.com/tsenart/vegeta/v12/lib"
)

// Were the first request due before it is sent, each would seem to have waited for
// as long.
func TestRequestsAreSentWhenTheyAreDueTheFirstAtOnce(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "x") }))
	defer server.Close()
	client, end := newOpenClient(t.Context())
	defer end()
	loop := openLoop{rate: perSecond(10), span: 2 * time.Second, client: client, maxBody: -1}
	all := newLatencies()
	n := 0
	rate, err := loop.run(t.Context(), vegeta.NewStaticTargeter(vegeta.Target{Method: http.MethodGet, URL: server.URL}), func(a reply) {
		if want := time.Duration(a.Seq) * 100 * time.Millisecond; a.due != want || string(a.Body) != "x" {
			t.Errorf("request %d was due at %v, want %v; answer %q", a.Seq, a.due, want, a.Body)
		}
		n++
		all.add(a.latency)
	})
	if err != nil || n != 20 || rate < 9 || rate > 11 {
		t.Errorf("%d requests at a rate of %v, %v; want 20 at 10 a second", n, rate, err)
	}
	if half := all.quantile(0.5); half > 50 {
		t.Errorf("half of the requests took %v ms: more than half of the time between them", half)
	}
}

func TestWhoIsInterruptedDoesNotWaitForAServiceThatHangs(t *testing.T) {
	hang := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { <-hang }))
	defer server.Close()
	defer close(hang)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	begin := time.Now()
	r, err := steady(ctx, []string{server.URL}, 100, time.Minute, newProgress(io.Discard))
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) > callLimit/3 {
		t.Errorf("steady = %v after %v", err, time.Since(begin))
	}
	if r.Errors > 0 {
		t.Errorf("%d errors of our own doing are shown: %s", r.Errors, r.Error)
	}
}

// A machine that is late sends what was due all the same.
func TestLateRequestsAreSentAtOnceAndNoneIsDropped(t *testing.T) {
	loop := openLoop{rate: perSecond(100), span: time.Second}
	for _, c := range []struct {
		elapsed time.Duration
		sent    uint64
		wait    time.Duration
		stop    bool
	}{
		{0, 0, 0, false},
		{0, 1, 10 * time.Millisecond, false},
		{500 * time.Millisecond, 10, -400 * time.Millisecond, false},
		{5 * time.Second, 99, -4010 * time.Millisecond, false},
		{time.Second, 100, 0, true},
	} {
		if wait, stop := loop.Pace(c.elapsed, c.sent); wait != c.wait || stop != c.stop {
			t.Errorf("after %v and %d requests: %v, %v; want %v, %v", c.elapsed, c.sent, wait, stop, c.wait, c.stop)
		}
	}
}

func TestAnAnswerSaysWhereItCameFrom(t *testing.T) {
	header := func(name, value string) http.Header { return http.Header{name: {value}} }
	for _, c := range []struct {
		status int
		header http.Header
		want   string
	}{
		{200, header("Cache-Status", "shop; hit; ttl=30"), "hit"},
		{200, header("Cache-Status", "inner; hit, shop; fwd=uri-miss; collapsed"), "uri-miss, collapsed"},
		{200, header("Cache-Status", "shop; fwd=stale"), "stale"},
		{200, header("Cache-Status", `shop; fwd="<b>"`), "status 200"},
		{200, header("Cache-Status", "((("), "status 200"},
		{200, header("X-Cacheguard-State", "rebuilt"), "rebuilt"},
		{200, header("X-Cache", "HIT from edge-7"), "hit"},
		{200, header("X-Cache", "<script>"), "status 200"},
		{204, nil, "status 204"},
		{503, header("X-Cache", "MISS"), "status 503"},
		{0, nil, "no answer"},
	} {
		if got := stateOf(c.status, c.header); got != c.want {
			t.Errorf("stateOf(%d, %v) = %q, want %q", c.status, c.header, got, c.want)
		}
	}
}

func TestATimelineKeepsTheSlowestOfEachMoment(t *testing.T) {
	l := newTimeline(time.Duration(timelineParts) * time.Second)
	l.add(0, 5*time.Millisecond, "hit")
	l.add(900*time.Millisecond, 2*time.Millisecond, "miss")
	l.add(time.Hour, time.Millisecond, "hit") // due after the end by rounding
	if *l.slowest[0] != 5 || l.slowest[1] != nil || *l.slowest[timelineParts-1] != 1 {
		t.Errorf("slowest %v, %v, %v", *l.slowest[0], l.slowest[1], *l.slowest[timelineParts-1])
	}
	if hits, misses := l.perSecond("hit"), l.perSecond("miss"); *hits[0] != 1 || *misses[0] != 1 || *hits[1] != 0 {
		t.Errorf("rates %v, %v, %v", *hits[0], *misses[0], *hits[1])
	}
	if at := l.seconds(); at[0] != 0.5 || at[timelineParts-1] != timelineParts-0.5 {
		t.Errorf("middles %v to %v", at[0], at[timelineParts-1])
	}
}
