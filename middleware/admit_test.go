package middleware

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestWhichRequestsGoPastTheCache(t *testing.T) {
	for _, tt := range []struct {
		name   string
		opts   Options
		method string
		body   string
		h      http.Header
		bypass string
		cred   bool
	}{
		{name: "GET"},
		{name: "HEAD", method: "HEAD"},
		{name: "POST", method: "POST", bypass: "method"},
		{name: "unknown method", method: "PURGE", bypass: "method"},
		{name: "lower case is another method", method: "get", bypass: "method"},
		{name: "GET with a body", body: "x", bypass: "body"},
		{name: "upgrade", h: fields("Upgrade", "WebSocket"), bypass: "upgrade"},
		{name: "upgrade in any case and company", h: fields("Connection", "keep-alive, UPGRADE"), bypass: "upgrade"},
		{name: "If-Match", h: fields("If-Match", "*"), bypass: "precondition"},
		{name: "If-Unmodified-Since", h: fields("If-Unmodified-Since", at(0)), bypass: "precondition"},
		{name: "event stream", h: fields("Accept", "text/html, Text/Event-Stream;q=1"), bypass: "stream"},
		{name: "gRPC", h: fields("Content-Type", "application/grpc+proto"), bypass: "stream"},
		{name: "no-store", h: fields("Cache-Control", "no-store"), bypass: "request-no-store"},
		{name: "no-store although deaf", opts: Options{IgnoreRequestControl: true}, h: fields("Cache-Control", "no-store"), bypass: "request-no-store"},
		{name: "conditions and ranges do not", h: fields("If-None-Match", `"a"`, "Range", "bytes=0-1", "If-Range", `"a"`)},
		{name: "Authorization", h: fields("Authorization", "Basic x"), cred: true},
		{name: "empty Authorization", h: fields("Authorization", ""), cred: true},
		{name: "identified", opts: Options{Identity: func(*http.Request) (string, bool) { return "u", true }}, h: fields("Authorization", "x", "Cookie", "a=b")},
		{name: "not identified", opts: Options{Identity: func(*http.Request) (string, bool) { return "", false }}, h: fields("Authorization", "x"), cred: true},
		{name: "identity panics", opts: Options{Identity: func(*http.Request) (string, bool) { panic("x") }}, h: fields("Cookie", "a=b"), bypass: "cookie"},
		{name: "cookie", h: fields("Cookie", "a=b"), bypass: "cookie"},
		{name: "known cookies", opts: Options{KeyCookies: []string{"lang"}, IgnoreCookies: []string{"_ga"}}, h: fields("Cookie", "lang=de; _ga=1")},
		{name: "one unknown cookie", opts: Options{KeyCookies: []string{"lang"}}, h: fields("Cookie", "lang=de", "Cookie", "sid=1"), bypass: "cookie"},
		{name: "a cookie that net/http cannot parse", opts: Options{KeyCookies: []string{"lang"}}, h: fields("Cookie", "lang=de; si d=1"), bypass: "cookie"},
		{name: "all cookies ignored", opts: Options{IgnoreCookies: []string{"*"}}, h: fields("Cookie", "sid=1")},
		{name: "host", opts: Options{Hosts: func(h string) bool { return h == "a.test" }}, bypass: "host"},
		{name: "skip", opts: Options{Skip: func(r *http.Request) bool { return r.URL.Path == "/x" }}, bypass: "skip"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			method := tt.method
			if method == "" {
				method = "GET"
			}
			r := httptest.NewRequest(method, "http://site.test/x", nil)
			if tt.body != "" {
				r = httptest.NewRequest(method, "http://site.test/x", strings.NewReader(tt.body))
			}
			if tt.h != nil {
				r.Header = tt.h
			}
			o := mustOptions(t, tt.opts)
			if a := o.admit(r, false); a.bypass != tt.bypass || a.credentialed != tt.cred {
				t.Errorf("got bypass %q, credentialed %v; want %q, %v", a.bypass, a.credentialed, tt.bypass, tt.cred)
			}
		})
	}
}

func TestWhichStoredAnswersARequestTakes(t *testing.T) {
	const s = time.Second
	plain := &response{lifetime: 100 * s, swr: 10 * s, sie: 20 * s}
	for _, tt := range []struct {
		name string
		cc   string // of the request
		p    *response
		at   standing
		cred bool
		deaf bool
		want use
		err  bool // taken when the handler fails
	}{
		{name: "fresh", at: standing{fresh: true, since: 5 * s}, want: useTake, err: true},
		{name: "fresh, max-age not reached", cc: "max-age=5", at: standing{fresh: true, since: 5 * s}, want: useTake, err: true},
		{name: "fresh, max-age passed", cc: "max-age=5", at: standing{fresh: true, since: 6 * s}, want: useReload, err: true},
		{name: "fresh, max-age counts the received age", cc: "max-age=5", p: &response{lifetime: 100 * s, base: 4 * s}, at: standing{fresh: true, since: 2 * s}, want: useReload},
		{name: "fresh, max-age=0", cc: "max-age=0", at: standing{fresh: true, since: s / 2}, want: useReload, err: true},
		{name: "fresh, min-fresh", cc: "min-fresh=96", at: standing{fresh: true, since: 5 * s}, want: useReload, err: true},
		{name: "fresh, min-fresh left", cc: "min-fresh=95", at: standing{fresh: true, since: 5 * s}, want: useTake, err: true},
		{name: "fresh, no-cache", cc: "no-cache", at: standing{fresh: true}, want: useReload},
		{name: "fresh, no-cache, asked since", cc: "no-cache", at: standing{fresh: true, forMe: true}, want: useTake},
		{name: "fresh, no-cache to the deaf", cc: "no-cache", deaf: true, at: standing{fresh: true}, want: useTake, err: true},
		{name: "fresh, credentials", cred: true, at: standing{fresh: true}, want: useReload},
		{name: "fresh, credentials, asked since", cred: true, at: standing{fresh: true, forMe: true}, want: useReload},
		{name: "fresh, credentials, public", cred: true, p: &response{lifetime: 100 * s, rules: rulePublic}, at: standing{fresh: true}, want: useTake},
		{name: "fresh, to be validated", p: &response{lifetime: 100 * s, rules: ruleValidate}, at: standing{fresh: true}, want: useReload},
		{name: "stale, within swr", at: standing{since: 109 * s, staleness: 9 * s}, want: useRefresh, err: true},
		{name: "stale, beyond swr", at: standing{since: 111 * s, staleness: 11 * s}, want: useReload, err: true},
		{name: "stale, beyond sie", at: standing{since: 121 * s, staleness: 21 * s}, want: useReload},
		{name: "stale, the request's own sie", cc: "stale-if-error=30", at: standing{since: 121 * s, staleness: 21 * s}, want: useReload, err: true},
		{name: "stale, max-stale", cc: "max-stale=30", at: standing{since: 121 * s, staleness: 21 * s}, want: useRefresh},
		{name: "stale, any max-stale", cc: "max-stale", at: standing{since: 999 * s, staleness: 899 * s}, want: useRefresh},
		{name: "stale, max-stale, bounded by the user", cc: "max-stale", at: standing{since: 99999 * s, staleness: 90000 * s}, want: useReload},
		{name: "stale, must-revalidate", cc: "max-stale, stale-if-error=99", p: &response{rules: ruleNeverStale, sie: 9 * s}, at: standing{staleness: s}, want: useReload},
		{name: "stale, max-age does not take stale", cc: "max-age=500", at: standing{since: 101 * s, staleness: s}, want: useReload, err: true},
		{name: "stale, min-fresh", cc: "min-fresh=1", at: standing{since: 101 * s, staleness: s}, want: useReload, err: true},
		{name: "stale, asked since", at: standing{forMe: true, staleness: s}, want: useTake, err: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := mustOptions(t, Options{MaxStale: 80000 * s, IgnoreRequestControl: tt.deaf})
			r := httptest.NewRequest("GET", "http://site.test/x", nil)
			if tt.cc != "" {
				r.Header.Set("Cache-Control", tt.cc)
			}
			if tt.cred {
				r.Header.Set("Authorization", "x")
			}
			a := o.admit(r, false)
			p := tt.p
			if p == nil {
				p = plain
			}
			if got := o.decide(&a, p, tt.at); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
			if got := o.decideOnError(&a, p, tt.at); got != tt.err {
				t.Errorf("on error: got %v, want %v", got, tt.err)
			}
		})
	}
}

func TestPragmaIsNoCacheWithoutCacheControl(t *testing.T) {
	if d := requestDirectives(fields("Pragma", "No-Cache")); !d.noCache {
		t.Error("Pragma: no-cache is not heard")
	}
	if d := requestDirectives(fields("Pragma", "no-cache", "Cache-Control", "max-age=5")); d.noCache {
		t.Error("Pragma is heard although there is Cache-Control")
	}
}
