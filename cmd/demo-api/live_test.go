package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

// press uses a control of the page and returns the state that it answers.
func press(t *testing.T, p process, control string) liveState {
	t.Helper()
	return readState(t, call(t, "POST", p.url+"/live/"+control, ""))
}

func readState(t *testing.T, r reply) (s liveState) {
	t.Helper()
	if r.status != http.StatusOK {
		t.Fatalf("status %d: %s", r.status, r.body)
	}
	if err := json.Unmarshal([]byte(r.body), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// until looks at the state until it is as wanted.
func until(t *testing.T, p process, what string, wanted func(liveState) bool) liveState {
	t.Helper()
	var s liveState
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if s = readState(t, call(t, "GET", p.url+"/live/state", "")); wanted(s) {
			return s
		}
	}
	t.Fatalf("never %s: %+v", what, s)
	return s
}

// rage sends a storm from the page and returns what it met.
func rage(t *testing.T, p process, callers int, when string) storm {
	t.Helper()
	before := len(readState(t, call(t, "GET", p.url+"/live/state", "")).Storms)
	press(t, p, fmt.Sprintf("storm?callers=%d&when=%s", callers, url.QueryEscape(when)))
	return until(t, p, "a storm more", func(s liveState) bool { return !s.Storming && len(s.Storms) > before }).Storms[0]
}

func TestTheHerdAppearsAndVanishesWithTheMode(t *testing.T) {
	const callers = 50
	for _, args := range [][]string{nil, {"-redis", embeddedRedis(t).Addr()}} {
		p := start(t, append(args, "-load", "50ms", "-pool", "100")...)
		for _, mode := range []string{"none", "local", "guard"} {
			loads := map[string]int64{"none": callers, "local": 1, "guard": 1}[mode]
			if s := press(t, p, "mode?mode="+mode); s.Mode != mode {
				t.Errorf("mode %s after it was switched to %s", s.Mode, mode)
			}
			if got := rage(t, p, callers, stormInvalidated); got.Mode != mode || got.Callers != callers || got.Loads != loads || got.Errors != 0 {
				t.Errorf("%v, mode %s: %+v; want %d loads and no error", args, mode, got, loads)
			}
		}
		if got := rage(t, p, callers, stormExpired); got.Loads != 1 || got.Errors != 0 {
			t.Errorf("%v: %+v; want one load in the background", args, got)
		}
		until(t, p, "fresh again", func(s liveState) bool { return s.Hot.State == "fresh" })
		if got := rage(t, p, callers, stormAsItIs); got.Loads != 0 {
			t.Errorf("%v: %+v although the product is fresh", args, got)
		}
	}
}

func TestTheStateTellsTheLifeOfTheHotKey(t *testing.T) {
	p := start(t, "-load", "10ms", "-redis", embeddedRedis(t).Addr())
	if s := readState(t, call(t, "GET", p.url+"/live/state", "")); s.Hot.State != "missing" || s.Lease.Holder != "nobody" || !s.Controls {
		t.Errorf("at the start: %+v", s)
	}
	call(t, "GET", p.url+"/products/1", "")
	fresh := until(t, p, "fresh", func(s liveState) bool { return s.Hot.State == "fresh" })
	if fresh.Requests != 1 || fresh.Loads != 1 || fresh.Hot.Fresh <= 0 || fresh.Hot.Token == 0 {
		t.Errorf("after one request: %+v", fresh)
	}
	if s := press(t, p, "expire"); s.Hot.State != "stale" || s.Hot.Left <= 0 || s.Hot.Token != fresh.Hot.Token {
		t.Errorf("expired: %+v", s.Hot)
	}
	if s := press(t, p, "invalidate"); s.Hot.State != "missing" {
		t.Errorf("invalidated: %+v", s.Hot)
	}
}

func TestTheStateTellsWhoHoldsTheLeaseAndWhoWaits(t *testing.T) {
	redis := embeddedRedis(t)
	p, other := start(t, "-load", "0", "-redis", redis.Addr()), start(t, "-load", "0", "-redis", redis.Addr())
	press(t, p, "origin?delay_ms=2000&failing=false")
	press(t, p, fmt.Sprintf("storm?callers=7&when=%s", url.QueryEscape(stormAsItIs)))
	mine := until(t, p, "held here, the origin asked", func(s liveState) bool {
		return s.Lease.Holder == "this process" && s.Hot.Waiting == 7 && s.Origin.InUse == 1
	})
	if mine.Lease.Left <= 0 {
		t.Errorf("the holder: %+v", mine.Lease)
	}
	if s := until(t, other, "held there", func(s liveState) bool { return s.Lease.Holder == "another process" }); s.Lease.Who == "" || s.Lease.Left <= 0 {
		t.Errorf("seen by another process: %+v", s.Lease)
	}
	until(t, p, "at rest", func(s liveState) bool {
		return s.Lease.Holder == "nobody" && s.Hot.Waiting == 0 && s.Hot.State == "fresh"
	})
}

func TestTheOriginFailsAsLongAsItIsTold(t *testing.T) {
	p := start(t, "-load", "0")
	if s := press(t, p, "origin?delay_ms=0&failing=true"); !s.Origin.Failing {
		t.Errorf("%+v", s.Origin)
	}
	if got := rage(t, p, 10, stormInvalidated); got.Errors != 10 || got.Loads != 1 {
		t.Errorf("%+v; want 10 errors of one load", got)
	}
	press(t, p, "origin?delay_ms=0&failing=false")
	until(t, p, "well", func(liveState) bool { return call(t, "GET", p.url+"/products/1", "").status == http.StatusOK })
}

func TestTheLineToTheStoreIsCutAndComesBack(t *testing.T) {
	for _, args := range [][]string{nil, {"-redis", embeddedRedis(t).Addr()}} {
		p := start(t, append(args, "-load", "20ms")...)
		if s := press(t, p, "store?away=true"); !s.Store.Away || s.Hot.State != "unknown" {
			t.Errorf("%v: %+v, %+v", args, s.Store, s.Hot)
		}
		if got := rage(t, p, 20, stormAsItIs); got.Errors != 0 || got.Loads < 1 || got.Loads > 2 {
			t.Errorf("%v: %+v; want everybody to be answered by a load of this process", args, got)
		}
		until(t, p, "the breaker open", func(s liveState) bool {
			call(t, "GET", p.url+"/products/1", "")
			return s.Store.Breaker
		})
		if r := call(t, "POST", p.url+"/live/invalidate", ""); r.status != http.StatusServiceUnavailable || !strings.Contains(r.body, "not reached") {
			t.Errorf("%v: invalidate: %d %s", args, r.status, r.body)
		}
		press(t, p, "store?away=false")
		until(t, p, "stored again", func(s liveState) bool {
			call(t, "GET", p.url+"/products/1", "")
			return s.Hot.State == "fresh" && !s.Store.Breaker
		})
	}
}

func TestSteadyReadersAskUntilTheyAreStopped(t *testing.T) {
	p := start(t, "-load", "0")
	if s := press(t, p, "rate?rate=100"); s.Rate != 100 {
		t.Errorf("rate %d", s.Rate)
	}
	until(t, p, "twenty requests", func(s liveState) bool { return s.Requests >= 20 })
	press(t, p, "rate?rate=0")
	stopped := until(t, p, "at rest", func(s liveState) bool { return s.Hot.Waiting == 0 }).Requests
	time.Sleep(100 * time.Millisecond)
	if s := readState(t, call(t, "GET", p.url+"/live/state", "")); s.Requests > stopped+1 { // one may have been on its way
		t.Errorf("%d requests more after the readers were stopped", s.Requests-stopped)
	}
	press(t, p, "rate?rate=200") // and it ends with the process: see goleak in TestMain
}

func TestControlsThatMakeNoSenseSayWhatToSend(t *testing.T) {
	p := start(t, "-load", "0")
	for control, says := range map[string]string{
		"storm?callers=0&when=as+it+is":     "send a number from 1 to 1000",
		"storm?callers=1001&when=as+it+is":  "send a number from 1 to 1000",
		"storm?callers=10&when=never":       "send one of: just expired, just invalidated, as it is",
		"rate?rate=-1":                      "send a number from 0 to 200",
		"rate":                              "send a number from 0 to 200",
		"mode?mode=best":                    "send one of: guard, local, none",
		"origin?delay_ms=99999&failing=":    "send a number from 0 to 10000",
		"origin?delay_ms=0&failing=perhaps": "send one of: false, true",
		"store?away=":                       "send one of: false, true",
	} {
		if r := call(t, "POST", p.url+"/live/"+control, ""); r.status != http.StatusBadRequest || !strings.Contains(r.body, says) {
			t.Errorf("%s: %d %s; want 400 and %q", control, r.status, r.body, says)
		}
	}
	if r := call(t, "GET", p.url+"/live/expire", ""); r.status != http.StatusMethodNotAllowed {
		t.Errorf("GET of a control: %d", r.status)
	}
}

func TestASecondStormWaitsForTheEndOfTheFirst(t *testing.T) {
	p := start(t, "-load", "500ms")
	press(t, p, "storm?callers=2&when=as+it+is")
	if r := call(t, "POST", p.url+"/live/storm?callers=2&when=as+it+is", ""); r.status != http.StatusConflict || !strings.Contains(r.body, "under way") {
		t.Errorf("a second storm: %d %s", r.status, r.body)
	}
}

func TestControlsAreForCallersOnThisMachineUnlessAsked(t *testing.T) {
	for _, c := range []struct {
		args        []string
		host, site  string
		mayPress    bool
		description string
	}{
		{nil, "", "", true, "curl on this machine"},
		{nil, "localhost:8080", "same-origin", true, "the page itself"},
		{nil, "shop.example", "", false, "a proxy, or a name that leads here"},
		{nil, "", "cross-site", false, "a page of another site"},
		{[]string{"-controls"}, "shop.example", "same-origin", true, "anybody, as asked"},
		{[]string{"-controls"}, "shop.example", "cross-site", false, "a page of another site, all the same"},
	} {
		p := start(t, append(c.args, "-load", "0")...)
		req, err := http.NewRequestWithContext(t.Context(), "POST", p.url+"/live/expire", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = c.host
		if c.site != "" {
			req.Header.Set("Sec-Fetch-Site", c.site)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if want := map[bool]int{true: http.StatusOK, false: http.StatusForbidden}[c.mayPress]; resp.StatusCode != want {
			t.Errorf("%s: %d %s, want %d", c.description, resp.StatusCode, body, want)
		}
	}
}

func TestALoopbackAddressIsTold(t *testing.T) {
	for addr, want := range map[string]bool{
		"127.0.0.1:80": true, "[::1]:80": true, "localhost:8080": true, "localhost": true, "::1": true, "[::1]": true, "127.9.9.9": true,
		"192.0.2.1:80": false, "localhost.example": false, "": false, "shop.example:80": false, "127.0.0.1.example:80": false,
	} {
		if isLoopback(addr) != want {
			t.Errorf("%q: %t, want %t", addr, !want, want)
		}
	}
}

func TestThePageNeedsNothingFromElsewhere(t *testing.T) {
	p := start(t)
	for _, path := range []string{"/", "/live/page.js", "/live/page.css"} {
		r := call(t, "GET", p.url+path, "")
		if r.status != http.StatusOK || len(r.body) < 1000 {
			t.Errorf("%s: %d, %d bytes", path, r.status, len(r.body))
		}
		if strings.Contains(r.body, "http://") || strings.Contains(r.body, "https://") || strings.Contains(r.body, "//cdn") {
			t.Errorf("%s names another server", path)
		}
	}
	if csp := call(t, "GET", p.url+"/", "").header.Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") {
		t.Errorf("Content-Security-Policy %q", csp)
	}
}
