package middleware

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

func request(target string, pairs ...string) *http.Request {
	r := httptest.NewRequest("GET", target, nil)
	r.Header = fields(pairs...)
	return r
}

func TestKeysTellApartWhatHandlersCan(t *testing.T) {
	k := &keyer{limit: 4096}
	seen := make(map[string]string)
	for _, target := range []string{
		"http://a.test/", "https://a.test/", "http://b.test/", "http://a.test:8080/",
		"http://a.test/a/b", "http://a.test/a%2Fb", "http://a.test/a%2fb", "http://a.test/A/b", "http://a.test//a/b", "http://a.test/a/b/",
		"http://a.test/c?d", "http://a.test/c%3Fd", "http://a.test/c", "http://a.test/c?", "http://a.test/c?d=", "http://a.test/c?d&d", "http://a.test/c?d=1&e=2",
		"http://a.test/c?e=2&d=1", "http://a.test/c?d=1;e=2", "http://a.test/c?d=%zz", "http://a.test/c?d=%7a", "http://a.test/c?d=z", "http://a.test/c?d=+", "http://a.test/c?d=%20",
		"http://a.test/.", "http://a.test/x/../y", "http://a.test/y", "http://a.test/%41", "http://a.test/A",
	} {
		key, err := k.primary(request(target))
		if err != nil {
			t.Errorf("%s: %v", target, err)
		}
		if other, ok := seen[key]; ok {
			t.Errorf("%s and %s have one key", target, other)
		}
		seen[key] = target
	}
}

func TestKeysAreOneForWhatIsTheSame(t *testing.T) {
	k := &keyer{limit: 4096}
	for _, same := range [][2]string{
		{"http://A.Test/x", "http://a.test/x"},
		{"http://a.test:80/x", "http://a.test/x"},
		{"https://a.test:443/x", "https://a.test/x"},
	} {
		a, _ := k.primary(request(same[0]))
		b, _ := k.primary(request(same[1]))
		if a != b {
			t.Errorf("%s and %s have two keys", same[0], same[1])
		}
	}
	get, _ := k.primary(request("http://a.test/x"))
	head := request("http://a.test/x")
	head.Method = "HEAD"
	if key, _ := k.primary(head); key != get {
		t.Error("HEAD has another key than GET")
	}
}

func TestAnAbsoluteFormTargetHasTheKeyOfItsPath(t *testing.T) {
	k := &keyer{limit: 4096}
	want, _ := k.primary(request("http://a.test/x?y"))
	r := request("http://a.test/x?y")
	r.RequestURI = "http://a.test/x?y"
	if key, _ := k.primary(r); key != want {
		t.Error("absolute form has another key")
	}
	root, _ := k.primary(request("http://a.test/"))
	r = request("http://a.test/")
	r.RequestURI = "http://a.test"
	if key, _ := k.primary(r); key != root {
		t.Error("absolute form without path has another key than /")
	}
}

func TestRewritesDoNotMergeWhatTheHandlerTellsApart(t *testing.T) {
	k := &keyer{limit: 4096}
	var got []*http.Request
	h := http.StripPrefix("/a", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = append(got, r) }))
	h.ServeHTTP(nil, request("http://a.test/a/x"))
	h = http.StripPrefix("/b", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = append(got, r) }))
	h.ServeHTTP(nil, request("http://a.test/b/x"))
	a, _ := k.primary(got[0])
	b, _ := k.primary(got[1])
	if a == b {
		t.Error("two mounts have one key")
	}
	outside, _ := k.primary(request("http://a.test/a/x"))
	if a != outside {
		t.Error("inside StripPrefix the key is another than outside: an invalidation by URL would miss it")
	}
	if k.selects(request("http://a.test/a/x"), k.selectors(got[0], nil)) {
		t.Error("a request for another URL than the handler saw selects its answer")
	}
}

func TestRequestsWithoutAKey(t *testing.T) {
	long := "http://a.test/" + strings.Repeat("x", 4096)
	for name, tt := range map[string]struct {
		k keyer
		r *http.Request
	}{
		"too long":       {keyer{limit: 4096}, request(long)},
		"no host":        {keyer{limit: 4096}, func() *http.Request { r := request("http://a.test/"); r.Host = ""; return r }()},
		"host with path": {keyer{limit: 4096}, func() *http.Request { r := request("http://a.test/"); r.Host = "a.test/x"; return r }()},
	} {
		if _, err := tt.k.primary(tt.r); !errors.Is(err, errNoKey) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	for name, tenant := range map[string]func(*http.Request) (string, error){
		"tenant fails":  func(*http.Request) (string, error) { return "", errors.New("no") },
		"tenant panics": func(*http.Request) (string, error) { panic("no") },
	} {
		k := keyer{limit: 4096, tenant: tenant}
		if _, err := k.withExtras("k", "m", request("http://a.test/"), nil); !errors.Is(err, errNoKey) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestWhatElseIsPartOfTheKey(t *testing.T) {
	k := keyer{
		limit:   4096,
		tenant:  func(r *http.Request) (string, error) { return r.Header.Get("X-Tenant"), nil },
		headers: []string{"X-Lang"},
		cookies: []string{"c"},
		identity: func(r *http.Request) (string, bool) {
			user, _, ok := r.BasicAuth()
			return user, ok
		},
	}
	seen := make(map[string]int)
	for i, r := range []*http.Request{
		request("http://a.test/"),
		request("http://a.test/", "X-Tenant", "a"),
		request("http://a.test/", "X-Tenant", "b"),
		request("http://a.test/", "X-Lang", ""),
		request("http://a.test/", "X-Lang", "de"),
		request("http://a.test/", "Cookie", "c=1"),
		request("http://a.test/", "Cookie", "c=2"),
		request("http://a.test/", "Cookie", "c=1; c=2"),
		request("http://a.test/", "Authorization", "Basic dTp4"),
		request("http://a.test/", "Authorization", "Basic djp4"),
	} {
		key, err := k.withExtras("k", "m", r, nil)
		if err != nil {
			t.Fatal(err)
		}
		if other, ok := seen[key]; ok {
			t.Errorf("requests %d and %d have one key", i, other)
		}
		seen[key] = i
	}
}

func TestQueryNormalisationMergesOnlyWhatItWasToldTo(t *testing.T) {
	for _, tt := range []struct {
		q        Query
		in, want string
	}{
		{Query{}, "?b=1&a=2&", "?b=1&a=2&"},
		{Query{Sort: true}, "?b=1&a=2", "?a=2&b=1"},
		{Query{Sort: true}, "?a=2&a=1", "?a=2&a=1"}, // the order of one name's values stays
		{Query{Sort: true}, "?b&a=&a", "?a=&a&b"},
		{Query{Sort: true}, "?b=%zz&a=2", "?b=%zz&a=2"}, // not well formed
		{Query{Sort: true}, "?b=1;a=2", "?b=1;a=2"},
		{Query{Sort: true}, "?%62=1&a=2", "?a=2&%62=1"},
		{Query{Deny: []string{"utm"}}, "?utm=1&b=1&%75tm=2&a=2", "?b=1&a=2"},
		{Query{Allow: []string{"a"}}, "?b=1&a=2&a=1", "?a=2&a=1"},
		{Query{Allow: []string{"a"}}, "?b=1", ""},
		{Query{Sort: true}, "?", "?"},
	} {
		if got := tt.q.normalise(tt.in); got != tt.want {
			t.Errorf("%+v %q: got %q, want %q", tt.q, tt.in, got, tt.want)
		}
	}
}

// Two targets must have one key only if they are the same bytes.
func FuzzKey(f *testing.F) {
	f.Add("/a", "/a%2F?b")
	f.Add("/?a&b", "/?a;b")
	f.Fuzz(func(t *testing.T, a, b string) {
		k := &keyer{limit: 4096}
		key := func(target string) (string, bool) {
			u, err := url.ParseRequestURI(target)
			if err != nil || target[0] != '/' {
				return "", false
			}
			key, err := k.primary(&http.Request{Method: "GET", Host: "a.test", URL: u, RequestURI: target})
			return key, err == nil
		}
		ka, oka := key(a)
		kb, okb := key(b)
		if oka && okb && (ka == kb) != (a == b) {
			t.Fatalf("%q and %q: one key %v", a, b, ka == kb)
		}
	})
}

func FuzzSortedQueryKeepsItsMeaning(f *testing.F) {
	f.Add("a=1&b=2&a=3")
	f.Fuzz(func(t *testing.T, raw string) {
		q := Query{Sort: true}
		got := q.normalise("?" + raw)
		before, errBefore := url.ParseQuery(raw)
		after, errAfter := url.ParseQuery(got[1:])
		if (errBefore == nil) != (errAfter == nil) || before.Encode() != after.Encode() {
			t.Fatalf("%q became %q", raw, got)
		}
	})
}
