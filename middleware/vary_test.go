package middleware

import (
	"reflect"
	"strings"
	"testing"
)

func TestVaryIsReadInEverySpelling(t *testing.T) {
	for _, tt := range []struct {
		lines []string
		names []string
		star  bool
	}{
		{nil, nil, false},
		{[]string{""}, nil, false},
		{[]string{"Foo"}, []string{"Foo"}, false},
		{[]string{"foo, BAR", "Foo"}, []string{"Bar", "Foo"}, false},
		{[]string{" , foo , "}, []string{"Foo"}, false},
		{[]string{"*"}, nil, true},
		{[]string{"*, *"}, nil, true},
		{[]string{"*", "*"}, nil, true},
		{[]string{", *"}, nil, true},
		{[]string{"", "*"}, nil, true},
		{[]string{"*, Foo"}, nil, true},
		{[]string{"Foo, *"}, nil, true},
		{[]string{"Foo bar"}, nil, true}, // not a name: nothing can be said
	} {
		names, star := varyNames(tt.lines)
		if !reflect.DeepEqual(names, tt.names) || star != tt.star {
			t.Errorf("%q: got %q, %v; want %q, %v", tt.lines, names, star, tt.names, tt.star)
		}
	}
}

func TestWhichRequestsSelectAnAnswer(t *testing.T) {
	type h = []string
	for _, tt := range []struct {
		vary string
		a, b h
		same bool
	}{
		{"Foo", h{"Foo", "1"}, h{"Foo", "1"}, true},
		{"Foo", h{"Foo", "1"}, h{"Foo", "2"}, false},
		{"Foo", h{"Foo", "1"}, nil, false},
		{"Foo", h{"Foo", ""}, nil, false},
		{"Foo", nil, nil, true},
		{"Foo", h{"Foo", "1", "Other", "2"}, h{"Foo", "1", "Other", "3"}, true},
		{"Foo, Bar", h{"Foo", "1", "Bar", "a"}, h{"Bar", "a", "Foo", "1"}, true},
		{"Foo, Bar", h{"Foo", "1"}, h{"Foo", "1", "Bar", "a"}, false},
		{"Foo", h{"Foo", "1,2"}, h{"Foo", " 1, 2 "}, true},
		{"Foo", h{"Foo", "1, 2"}, h{"Foo", "1", "Foo", "2"}, true},
		{"Foo", h{"Foo", "1, 2"}, h{"Foo", "2, 1"}, false},
		{"Foo", h{"Foo", `"1, 2"`}, h{"Foo", `"1,2"`}, false},
		{"Foo", h{"Foo", "1", "Foo", ""}, h{"Foo", "1"}, true},
		{"User-Agent", h{"User-Agent", "a, b"}, h{"User-Agent", "a,b"}, false},
		{"Cookie", h{"Cookie", "a=1, b"}, h{"Cookie", "a=1,b"}, false},
		{"Accept-Encoding", h{"Accept-Encoding", "gzip, br"}, h{"Accept-Encoding", "br, gzip"}, false},
	} {
		k := &keyer{}
		names, _ := varyNames([]string{tt.vary})
		list := k.selectors(request("http://a.test/", tt.a...), names)
		if got := k.selects(request("http://a.test/", tt.b...), list); got != tt.same {
			t.Errorf("Vary: %s: %q and %q: got %v, want %v", tt.vary, tt.a, tt.b, got, tt.same)
		}
	}
}

func TestAcceptEncodingIsReducedToWhatTheHandlerCanProduce(t *testing.T) {
	o := mustOptions(t, Options{Encodings: []string{"gzip"}})
	k := &keyer{encodings: o.Encodings}
	value := func(s string) string {
		return k.selector(request("http://a.test/", "Accept-Encoding", s), "Accept-Encoding").value
	}
	for _, same := range [][2]string{{"gzip, br", "zstd,gzip"}, {"GZIP", "gzip"}, {"gzip; q=0.5, br", "gzip;q=0.5"}, {"br", "zstd"}} {
		if value(same[0]) != value(same[1]) {
			t.Errorf("%q and %q differ", same[0], same[1])
		}
	}
	for _, apart := range [][2]string{{"gzip", "br"}, {"gzip;q=0", "gzip"}, {"gzip", "gzip, identity;q=0"}, {"*", "br"}} {
		if value(apart[0]) == value(apart[1]) {
			t.Errorf("%q and %q are one", apart[0], apart[1])
		}
	}
}

func TestVariantKeysDifferByEveryPart(t *testing.T) {
	k := &keyer{limit: 4096}
	p := &response{branch: newBranch(), selecting: k.selectors(request("http://a.test/"), []string{"A", "B"})}
	key := func(p *response, pairs ...string) string {
		s, err := k.variant("k", request("http://a.test/", pairs...), p)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	keys := map[string]bool{
		key(p): true, key(p, "A", ""): true, key(p, "A", "1"): true, key(p, "B", "1"): true, key(p, "A", "1", "B", "1"): true,
		key(&response{branch: newBranch(), selecting: p.selecting}): true,
	}
	if len(keys) != 6 {
		t.Errorf("got %d keys, want 6", len(keys))
	}
	if _, err := k.variant("k", request("http://a.test/", "A", strings.Repeat("x", 5000)), p); err == nil {
		t.Error("a key beyond the limit was made")
	}
}

func FuzzVary(f *testing.F) {
	f.Add("a, *", "x")
	f.Fuzz(func(t *testing.T, vary, value string) {
		names, star := varyNames([]string{vary})
		if strings.Contains(","+strings.ReplaceAll(strings.ReplaceAll(vary, " ", ""), "\t", "")+",", ",*,") && !star {
			t.Fatalf("%q has a star", vary)
		}
		for _, name := range names {
			if !isToken(name) {
				t.Fatalf("name %q of %q", name, vary)
			}
		}
		k := &keyer{}
		r := request("http://a.test/")
		r.Header["Foo"] = []string{value}
		if !k.selects(r, k.selectors(r, append(names, "Foo"))) {
			t.Fatalf("a request does not select its own answer: %q, %q", vary, value)
		}
	})
}
