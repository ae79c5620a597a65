package middleware

import (
	"net/http"
	"testing"
	"time"
)

func mustOptions(t testing.TB, o Options) Options {
	t.Helper()
	o, err := o.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// fields makes a header of name, value pairs.
func fields(pairs ...string) http.Header {
	h := make(http.Header)
	for i := 0; i < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func at(d time.Duration) string { return noon.Add(d).Format(http.TimeFormat) }

func TestWhichAnswersAreKept(t *testing.T) {
	for _, tt := range []struct {
		name     string
		opts     Options
		q        question
		status   int
		h        http.Header
		class    class
		reason   string
		lifetime time.Duration
	}{
		// RFC 9111 3: what says how long it is fresh.
		{name: "max-age", h: fields("Cache-Control", "max-age=60"), class: classStore, lifetime: time.Minute},
		{name: "s-maxage before max-age", h: fields("Cache-Control", "max-age=3600, s-maxage=1"), class: classStore, lifetime: time.Second},
		{name: "max-age before Expires", h: fields("Cache-Control", "max-age=60", "Expires", at(-time.Hour)), class: classStore, lifetime: time.Minute},
		{name: "Expires less Date", h: fields("Expires", at(30*time.Second), "Date", at(-30*time.Second)), class: classStore, lifetime: time.Minute},
		{name: "Expires without Date", h: fields("Expires", at(time.Minute)), class: classStore, lifetime: time.Minute},
		{name: "Expires that is no date is in the past", h: fields("Expires", "0"), class: classHandOver, reason: "stale"},
		{name: "two Expires that differ are no date", h: fields("Expires", at(time.Hour), "Expires", at(2*time.Hour)), class: classHandOver, reason: "stale"},
		{name: "Expires in the form of RFC 850", h: fields("Expires", "Monday, 30-Nov-26 12:01:00 GMT"), class: classStore, lifetime: time.Minute},
		{name: "Expires in the form of asctime", h: fields("Expires", "Mon Nov 30 12:01:00 2026"), class: classStore, lifetime: time.Minute},
		{name: "Age above max-age is stale", h: fields("Cache-Control", "max-age=3600", "Age", "7200"), class: classHandOver, reason: "stale", lifetime: time.Hour},
		{name: "max-age=0 goes to those who waited", h: fields("Cache-Control", "max-age=0"), class: classHandOver, reason: "stale"},
		{name: "max-age=0 with a validator is kept to be asked about", h: fields("Cache-Control", "max-age=0", "Etag", `"a"`), class: classStore},
		{name: "no-cache with a validator is kept to be asked about", h: fields("Cache-Control", "no-cache, max-age=60", "Etag", `"a"`), class: classStore},
		{name: "no-cache without", h: fields("Cache-Control", "no-cache, max-age=60"), class: classHandOver, reason: "stale"},
		{name: "NoHandOver", opts: Options{NoHandOver: true}, h: fields("Cache-Control", "max-age=0"), class: classPass, reason: "stale"},
		{name: "malformed Cache-Control", h: fields("Cache-Control", `max-age=60, x="`), class: classPass, reason: "malformed"},

		// What forbids.
		{name: "no-store", h: fields("Cache-Control", "max-age=60, no-store"), class: classPass, reason: "no-store"},
		{name: "private", h: fields("Cache-Control", "max-age=60, private"), class: classPass, reason: "private"},
		{name: "private fields only", h: fields("Cache-Control", `max-age=60, private="x-user"`), class: classStore, lifetime: time.Minute},
		{name: "must-understand lifts no-store", h: fields("Cache-Control", "max-age=60, must-understand, no-store"), class: classStore, lifetime: time.Minute},
		{name: "must-understand of an unknown status", status: 299, h: fields("Cache-Control", "max-age=60, must-understand"), class: classPass, reason: "must-understand"},
		{name: "Vary: *", h: fields("Cache-Control", "max-age=60", "Vary", "Accept", "Vary", " , *"), class: classPass, reason: "vary"},
		{name: "Set-Cookie", h: fields("Cache-Control", "max-age=60", "Set-Cookie", "a=b"), class: classPass, reason: "set-cookie"},
		{name: "Set-Cookie stripped", opts: Options{SetCookie: SetCookieStrip}, h: fields("Cache-Control", "max-age=60", "Set-Cookie", "a=b"), class: classStore, lifetime: time.Minute},
		{name: "reflected origin", q: question{origin: "https://a"}, h: fields("Cache-Control", "max-age=60", "Access-Control-Allow-Origin", "https://a"), class: classPass, reason: "cors"},
		{name: "reflected origin with Vary", q: question{origin: "https://a"}, h: fields("Cache-Control", "max-age=60", "Access-Control-Allow-Origin", "https://a", "Vary", "origin"), class: classStore, lifetime: time.Minute},
		{name: "any origin", q: question{origin: "https://a"}, h: fields("Cache-Control", "max-age=60", "Access-Control-Allow-Origin", "*"), class: classStore, lifetime: time.Minute},
		{name: "nonce", h: fields("Cache-Control", "max-age=60", "Content-Security-Policy", "script-src 'nonce-abc'"), class: classPass, reason: "nonce"},
		{name: "event stream", h: fields("Cache-Control", "max-age=60", "Content-Type", "text/event-stream; charset=utf-8"), class: classPass, reason: "stream"},
		{name: "206", status: 206, h: fields("Cache-Control", "max-age=60"), class: classPass, reason: "status"},
		{name: "304 that nobody asked for", status: 304, h: fields("Cache-Control", "max-age=60"), class: classPass, reason: "status"},

		// Credentials (RFC 9111 3.5).
		{name: "Authorization", q: question{credentialed: true}, h: fields("Cache-Control", "max-age=60"), class: classUnshared, reason: "authorization"},
		{name: "Authorization and public", q: question{credentialed: true}, h: fields("Cache-Control", "max-age=60, public"), class: classStore, lifetime: time.Minute},
		{name: "Authorization and s-maxage", q: question{credentialed: true}, h: fields("Cache-Control", "s-maxage=60"), class: classStore, lifetime: time.Minute},
		{name: "Authorization and must-revalidate", q: question{credentialed: true}, h: fields("Cache-Control", "max-age=60, must-revalidate"), class: classStore, lifetime: time.Minute},

		// What says nothing.
		{name: "silent", h: fields(), class: classPass, reason: "no-freshness"},
		{name: "silent with a default", opts: Options{Policy: Policy{Lifetime: time.Hour}}, h: fields(), class: classStore, lifetime: time.Hour},
		{name: "silent redirect with a default", opts: Options{Policy: Policy{Lifetime: time.Hour}}, status: 302, h: fields(), class: classPass, reason: "no-freshness"},
		{name: "silent public redirect with a default", opts: Options{Policy: Policy{Lifetime: time.Hour}}, status: 302, h: fields("Cache-Control", "public"), class: classStore, lifetime: time.Hour},
		{name: "heuristic", opts: Options{Heuristic: 0.1}, h: fields("Last-Modified", at(-10*time.Hour)), class: classStore, lifetime: time.Hour},
		{name: "heuristic is bounded", opts: Options{Heuristic: 1}, h: fields("Last-Modified", at(-10000*time.Hour)), class: classStore, lifetime: 24 * time.Hour},
		{name: "heuristic is off", h: fields("Last-Modified", at(-10*time.Hour)), class: classPass, reason: "no-freshness"},

		// Failures.
		{name: "404 silent, whatever the default", opts: Options{Policy: Policy{Lifetime: time.Hour}}, status: 404, h: fields(), class: classPass, reason: "no-freshness"},
		{name: "404 with a lifetime for its status", opts: Options{StatusLifetime: map[int]time.Duration{404: time.Second}}, status: 404, h: fields(), class: classStore, lifetime: time.Second},
		{name: "400 says nothing about the key", status: 400, h: fields(), class: classUnshared, reason: "no-freshness"},
		{name: "400 that says it is fresh", status: 400, h: fields("Cache-Control", "max-age=60"), class: classStore, lifetime: time.Minute},
		{name: "500 goes to those who waited", opts: Options{Policy: Policy{Lifetime: time.Hour}}, status: 500, h: fields(), class: classHandOver, reason: "status"},
		{name: "500 that says it is fresh", status: 500, h: fields("Cache-Control", "max-age=60"), class: classStore, lifetime: time.Minute},
		{name: "500 private", status: 500, h: fields("Cache-Control", "private"), class: classUnshared, reason: "private"},
		{name: "503 never beyond its Retry-After", status: 503, h: fields("Cache-Control", "max-age=600", "Retry-After", "5"), class: classStore, lifetime: 5 * time.Second},
		{name: "429 never beyond its Retry-After date", status: 429, h: fields("Cache-Control", "max-age=600", "Retry-After", at(7*time.Second)), class: classStore, lifetime: 7 * time.Second},

		// RFC 9213.
		{name: "target over no-store", h: fields("Cdn-Cache-Control", "max-age=60", "Cache-Control", "no-store"), class: classStore, lifetime: time.Minute},
		{name: "target no-store", h: fields("Cdn-Cache-Control", "no-store", "Cache-Control", "max-age=60"), class: classPass, reason: "no-store"},
		{name: "target private", h: fields("Cdn-Cache-Control", "private", "Cache-Control", "max-age=60"), class: classPass, reason: "private"},
		{name: "target over Expires", h: fields("Cdn-Cache-Control", "max-age=0", "Expires", at(time.Hour)), class: classHandOver, reason: "stale"},
		{name: "target without lifetime over Expires", h: fields("Cdn-Cache-Control", "foo", "Expires", at(time.Hour)), class: classPass, reason: "no-freshness"},
		{name: "invalid target", h: fields("Cdn-Cache-Control", "max-age=60, &&&", "Cache-Control", "no-store"), class: classPass, reason: "no-store"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := mustOptions(t, tt.opts)
			tt.q.now, tt.q.policy = noon, o.Policy
			if tt.status == 0 {
				tt.status = 200
			}
			v := o.judge(tt.q, tt.status, tt.h)
			if v.class != tt.class || v.reason != tt.reason || v.lifetime != tt.lifetime {
				t.Errorf("got class %d, reason %q, lifetime %v; want %d, %q, %v", v.class, v.reason, v.lifetime, tt.class, tt.reason, tt.lifetime)
			}
		})
	}
}

func TestHowLongAnAnswerMayBeServedStale(t *testing.T) {
	opts := Options{MaxStale: time.Hour, Policy: Policy{StaleWhileRevalidate: 5 * time.Second, StaleIfError: 7 * time.Second}}
	for _, tt := range []struct {
		cc       string
		swr, sie time.Duration
	}{
		{"max-age=60", 5 * time.Second, 7 * time.Second},
		{"max-age=60, stale-while-revalidate=10, stale-if-error=20", 10 * time.Second, 20 * time.Second},
		{"max-age=60, stale-while-revalidate=0", 0, 7 * time.Second},
		{"max-age=60, stale-while-revalidate=999999", time.Hour, 7 * time.Second},
		{"max-age=60, stale-while-revalidate=10, must-revalidate", 0, 0},
		{"max-age=60, stale-while-revalidate=10, proxy-revalidate", 0, 0},
		{"s-maxage=60, stale-while-revalidate=10, stale-if-error=20", 0, 0},
		{"no-cache, stale-while-revalidate=10", 0, 0},
	} {
		o := mustOptions(t, opts)
		v := o.judge(question{now: noon, policy: o.Policy}, 200, fields("Cache-Control", tt.cc, "Etag", `"a"`))
		if v.swr != tt.swr || v.sie != tt.sie || v.grace < max(v.swr, v.sie) || v.grace > o.MaxStale {
			t.Errorf("%s: swr %v, sie %v, grace %v; want %v, %v", tt.cc, v.swr, v.sie, v.grace, tt.swr, tt.sie)
		}
	}
}

func TestFieldsThatAreNotForOthersAreNotKept(t *testing.T) {
	o := mustOptions(t, Options{Strip: []string{"x-mine"}, StripTargets: true, SetCookie: SetCookieStrip})
	sent := fields(
		"Connection", "x-hop, close", "X-Hop", "1", "Keep-Alive", "1", "Proxy-Connection", "1", "Te", "1", "Upgrade", "1",
		"Proxy-Authenticate", "1", "Proxy-Authentication-Info", "1", "Transfer-Encoding", "chunked", "Content-Length", "4",
		"X-Request-Id", "1", "Server-Timing", "1", "X-Ratelimit-Remaining", "1", "Traceparent", "1", "Age", "1",
		"X-Mine", "1", "Set-Cookie", "a=b", "Cdn-Cache-Control", "max-age=1", "X-Private", "1",
		"X-Kept", "1", "X-Kept", "2", "Cache-Control", `private="x-private"`, "Date", at(0))
	h := o.kept(sent, []string{"X-Private"})
	want := map[string]int{"X-Kept": 2, "Cache-Control": 1, "Date": 1}
	for name, n := range want {
		if len(h[name]) != n {
			t.Errorf("%s has %d values, want %d", name, len(h[name]), n)
		}
	}
	for name := range h {
		if want[name] == 0 {
			t.Errorf("%s is kept", name)
		}
	}
	if len(sent["X-Request-Id"]) == 0 {
		t.Error("the live header was changed")
	}
}
