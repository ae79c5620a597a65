package middleware

import (
	"net/http"
	"reflect"
	"strings"
	"testing"
)

func TestCacheControlIsReadAsTheRFCDefinesIt(t *testing.T) {
	secs := func(n int64) seconds { return seconds{set: true, n: n} }
	for _, tt := range []struct {
		name  string
		lines []string
		want  directives
	}{
		{"nothing", nil, directives{}},
		{"empty members", []string{",, ,", ""}, directives{}},
		{"several lines are one list", []string{"public", "max-age=1"}, directives{public: true, maxAge: secs(1)}},
		{"names have no case", []string{"MaX-aGe=3600, No-StOrE"}, directives{maxAge: secs(3600), noStore: true}},
		{"unknown directives mean nothing", []string{"foobar, x=\"y\", max-age=3600"}, directives{maxAge: secs(3600)}},
		{"leading zeros", []string{"max-age=003600"}, directives{maxAge: secs(3600)}},
		{"quoted number", []string{`max-age="3600"`}, directives{maxAge: secs(3600)}},
		{"2^31 and more", []string{"max-age=2147483648, s-maxage=99999999999999999999999"}, directives{maxAge: secs(maxDelta), sMaxAge: secs(maxDelta)}},
		{"single quotes are junk: stale", []string{"max-age='3600'"}, directives{maxAge: secs(0)}},
		{"negative: stale", []string{"max-age=-100"}, directives{maxAge: secs(0)}},
		{"decimal: stale", []string{"max-age=3600.0"}, directives{maxAge: secs(0)}},
		{"junk: stale", []string{"max-age=a100"}, directives{maxAge: secs(0)}},
		{"trailing junk: stale", []string{"max-age=100a"}, directives{maxAge: secs(0)}},
		{"no argument: stale", []string{"max-age"}, directives{maxAge: secs(0)}},
		{"space before =: stale", []string{"max-age =100"}, directives{maxAge: secs(0)}},
		{"space after =: stale", []string{"max-age= 100"}, directives{maxAge: secs(0)}},
		{"the same twice", []string{"max-age=5, max-age=5"}, directives{maxAge: secs(5)}},
		{"two that differ: stale", []string{"max-age=1800, max-age=1"}, directives{maxAge: secs(0)}},
		{"two that differ on two lines: stale", []string{"max-age=1", "max-age=1800"}, directives{maxAge: secs(0)}},
		{"in a quoted string it is no directive", []string{`extension="max-age=3600, no-store", max-age=1`}, directives{maxAge: secs(1)}},
		{"escaped quote in a quoted string", []string{`x="a\", no-store=\"", max-age=1`}, directives{maxAge: secs(1)}},
		{"string without end may hide anything", []string{`x="max-age=5, private`}, directives{malformed: true}},
		{"a directive that forbids does so with any argument", []string{"no-store=0, must-revalidate=false"}, directives{noStore: true, mustRevalidate: true}},
		{"one that allows does not", []string{"public=1, must-understand=x"}, directives{}},
		{"private with fields", []string{`private="x-a, X-B"`}, directives{privateFields: []string{"X-A", "X-B"}}},
		{"private with one field as a token", []string{`private=x-a`}, directives{privateFields: []string{"X-A"}}},
		{"private with an empty list is private", []string{`private=""`}, directives{private: true}},
		{"private with junk is private", []string{`private="a b"`}, directives{private: true}},
		{"private twice", []string{`private="a", private`}, directives{private: true, privateFields: []string{"A"}}},
		{"space before = is private", []string{`private ="a"`}, directives{private: true}},
		{"no-cache with fields", []string{`no-cache="set-cookie"`}, directives{noCacheFields: []string{"Set-Cookie"}}},
		{"extensions", []string{"stale-while-revalidate=30, stale-if-error=\"60\""}, directives{staleWhileRevalidate: secs(30), staleIfErrorTime: secs(60)}},
		{"of a request", []string{"max-stale, min-fresh=5, only-if-cached, no-cache"}, directives{anyStale: true, minFresh: secs(5), onlyIfCached: true, noCache: true}},
		{"max-stale with a bound", []string{"max-stale=7"}, directives{maxStale: secs(7)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := parseCacheControl(tt.lines); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("%q\n got %+v\nwant %+v", tt.lines, got, tt.want)
			}
		})
	}
}

func TestTargetedCacheControlIsAStrictDictionary(t *testing.T) {
	secs := func(n int64) seconds { return seconds{set: true, n: n} }
	for _, tt := range []struct {
		name  string
		lines []string
		ok    bool
		want  directives
	}{
		{"absent", nil, false, directives{}},
		{"empty", []string{""}, false, directives{}},
		{"plain", []string{"max-age=60, public"}, true, directives{maxAge: secs(60), public: true}},
		{"several lines", []string{"max-age=60", "must-revalidate"}, true, directives{maxAge: secs(60), mustRevalidate: true}},
		{"the last of two counts", []string{"max-age=60, max-age=5"}, true, directives{maxAge: secs(5)}},
		{"parameters mean nothing", []string{"max-age=60;x=1"}, true, directives{maxAge: secs(60)}},
		{"unknown members mean nothing", []string{"max-age=60, foo=(1 2), bar=:aGk=:"}, true, directives{maxAge: secs(60)}},
		{"2^31 and more", []string{"max-age=99999999999"}, true, directives{maxAge: secs(maxDelta)}},
		{"negative: stale", []string{"max-age=-1"}, true, directives{maxAge: secs(0)}},
		{"false is not there", []string{"no-store=?0"}, true, directives{}},
		{"private with a string", []string{`private="x-a, x-b"`}, true, directives{privateFields: []string{"X-A", "X-B"}}},
		{"private with an inner list", []string{`private=("x-a" x-b)`}, true, directives{privateFields: []string{"X-A", "X-B"}}},
		{"private with an empty list is private", []string{`private=()`}, true, directives{private: true}},
		{"no dictionary", []string{"max-age=10000, &&&&&"}, false, directives{}},
		{"upper case is no key", []string{"MaX-aGe=3600"}, false, directives{}},
		{"space before =", []string{"max-age =100"}, false, directives{}},
		{"space after =", []string{"max-age= 100"}, false, directives{}},
		{"wrong type: string", []string{`max-age="10000"`}, false, directives{}},
		{"wrong type: decimal", []string{`max-age=1.5`}, false, directives{}},
		{"wrong type: no argument", []string{`max-age`}, false, directives{}},
		{"wrong type: flag", []string{`no-store=1`}, false, directives{}},
		{"wrong type: list", []string{`no-store=(1)`}, false, directives{}},
		{"wrong type: fields", []string{`private=5`}, false, directives{}},
		{"too many digits", []string{"max-age=9999999999999999"}, false, directives{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := parseTargeted(tt.lines)
			if ok != tt.ok || !reflect.DeepEqual(got, tt.want) {
				t.Errorf("%q\n got %v %+v\nwant %v %+v", tt.lines, ok, got, tt.ok, tt.want)
			}
		})
	}
}

func TestTheFirstValidTargetRules(t *testing.T) {
	h := http.Header{
		"A-Cache-Control":   {"bad bad"},
		"B-Cache-Control":   {"max-age=2"},
		"Cdn-Cache-Control": {"max-age=3"},
		"Cache-Control":     {"no-store"},
	}
	for _, tt := range []struct {
		targets []string
		age     int64
		noStore bool
	}{
		{[]string{"A-Cache-Control", "B-Cache-Control", "Cdn-Cache-Control"}, 2, false},
		{[]string{"Cdn-Cache-Control", "B-Cache-Control"}, 3, false},
		{[]string{"A-Cache-Control"}, 0, true},
		{nil, 0, true},
	} {
		d, _ := responseDirectives(h, tt.targets)
		if d.maxAge.n != tt.age || d.noStore != tt.noStore {
			t.Errorf("%v: got %+v", tt.targets, d)
		}
	}
}

// A parser must not be talked out of a directive that forbids by anything that
// is put next to it.
func FuzzCacheControl(f *testing.F) {
	f.Add(`max-age=1, private="a, b"`, "")
	f.Add(`x="\"`, "no-store")
	f.Fuzz(func(t *testing.T, a, b string) {
		d := parseCacheControl([]string{a, b})
		for _, s := range []seconds{d.maxAge, d.sMaxAge, d.minFresh, d.maxStale, d.staleWhileRevalidate, d.staleIfErrorTime} {
			if s.n < 0 || s.n > maxDelta || (s.n != 0 && !s.set) {
				t.Fatalf("seconds %+v of %q", s, a)
			}
		}
		for _, name := range append(d.privateFields, d.noCacheFields...) {
			if !isToken(name) {
				t.Fatalf("field %q of %q", name, a)
			}
		}
		with := parseCacheControl([]string{a, b, "no-store, private"})
		if !with.noStore || !with.private {
			t.Fatalf("no-store, private on a line of their own were lost after %q", a)
		}
		if !strings.Contains(a, `"`) {
			if d := parseCacheControl([]string{a + ",no-store"}); !d.noStore {
				t.Fatalf("no-store was lost after %q", a)
			}
		}
		_, _ = parseTargeted([]string{a, b})
	})
}
