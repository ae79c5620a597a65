package middleware

import (
	"net/http"
	"testing"
	"time"
)

func TestConditionsAreJudgedAsTheRFCDefinesThem(t *testing.T) {
	for _, tt := range []struct {
		name string
		req  http.Header
		h    http.Header
		want bool
	}{
		{"no condition", fields(), fields("Etag", `"a"`), false},
		{"same tag", fields("If-None-Match", `"a"`), fields("Etag", `"a"`), true},
		{"other tag", fields("If-None-Match", `"b"`), fields("Etag", `"a"`), false},
		{"weak compare", fields("If-None-Match", `W/"a"`), fields("Etag", `"a"`), true},
		{"weak compare, the other way", fields("If-None-Match", `"a"`), fields("Etag", `W/"a"`), true},
		{"list", fields("If-None-Match", `"x", W/"y" , "a"`), fields("Etag", `"a"`), true},
		{"several lines", fields("If-None-Match", `"x"`, "If-None-Match", `"a"`), fields("Etag", `"a"`), true},
		{"comma in a tag", fields("If-None-Match", `"x,y"`), fields("Etag", `"x,y"`), true},
		{"part of a tag", fields("If-None-Match", `"x,"a",y"`), fields("Etag", `"y"`), false},
		{"star", fields("If-None-Match", `*`), fields(), true},
		{"tag that is not quoted", fields("If-None-Match", `a`), fields("Etag", `a`), false},
		{"tag before date", fields("If-None-Match", `"b"`, "If-Modified-Since", at(0)), fields("Etag", `"a"`, "Last-Modified", at(0)), false},
		{"tag against none", fields("If-None-Match", `"a"`, "If-Modified-Since", at(0)), fields("Last-Modified", at(0)), false},
		{"date", fields("If-Modified-Since", at(0)), fields("Last-Modified", at(0)), true},
		{"later date", fields("If-Modified-Since", at(time.Hour)), fields("Last-Modified", at(0)), true},
		{"earlier date", fields("If-Modified-Since", at(-time.Second)), fields("Last-Modified", at(0)), false},
		{"date of RFC 850", fields("If-Modified-Since", "Monday, 30-Nov-26 12:00:00 GMT"), fields("Last-Modified", at(0)), true},
		{"date of asctime", fields("If-Modified-Since", "Mon Nov 30 12:00:00 2026"), fields("Last-Modified", at(0)), true},
		{"junk date", fields("If-Modified-Since", "yesterday"), fields("Last-Modified", at(0)), false},
		{"date against none", fields("If-Modified-Since", at(0)), fields(), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := &http.Request{Header: tt.req}
			if got := notModified(r, tt.h, noon); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestA304SpeaksOfWhatIsKept(t *testing.T) {
	tagged := &response{header: fields("Etag", `"a"`, "Last-Modified", at(0))}
	dated := &response{header: fields("Last-Modified", at(0))}
	for _, tt := range []struct {
		p    *response
		h    http.Header
		want bool
	}{
		{tagged, fields(), true},
		{tagged, fields("Etag", `"a"`), true},
		{tagged, fields("Etag", `W/"a"`), true},
		{tagged, fields("Etag", `"b"`), false},
		{tagged, fields("Last-Modified", at(time.Hour)), true},
		{dated, fields("Last-Modified", at(0)), true},
		{dated, fields("Last-Modified", at(time.Hour)), false},
		{dated, fields("Etag", `"a"`), false},
	} {
		if got := sameValidator(tt.p, tt.h); got != tt.want {
			t.Errorf("%v against %v: got %v", tt.h, tt.p.header, got)
		}
	}
}

func TestTwoDigitYearsLieAtMostFiftyYearsAhead(t *testing.T) {
	for s, year := range map[string]int{
		"Sunday, 06-Nov-94 08:49:37 GMT": 1994,
		"Sunday, 06-Nov-76 08:49:37 GMT": 2076,
		"Sunday, 06-Nov-77 08:49:37 GMT": 1977,
		"Sunday, 06-Nov-26 08:49:37 GMT": 2026,
		"Sun, 06 Nov 1994 08:49:37 GMT":  1994,
		"Sun Nov  6 08:49:37 1994":       1994,
	} {
		got, ok := parseDate(s, noon)
		if !ok || got.Year() != year {
			t.Errorf("%q: got %v, %v", s, got, ok)
		}
	}
	for _, s := range []string{"", "0", "-1", "Sun, 06 Nov 1994 08:49:37 UTC", "Sun 06 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08.49.37 GMT"} {
		if _, ok := parseDate(s, noon); ok {
			t.Errorf("%q is a date", s)
		}
	}
}

func TestAgeIsCorrectedAndNeverNegative(t *testing.T) {
	for _, tt := range []struct {
		name  string
		h     http.Header
		delay time.Duration
		want  time.Duration
	}{
		{"made here", fields(), time.Second, 0},
		{"received", fields("Age", "30"), time.Second, 30 * time.Second},
		{"apparent", fields("Date", at(-time.Minute)), 0, time.Minute},
		{"apparent, less the delay that is counted anyway", fields("Date", at(-time.Minute)), 10 * time.Second, 50 * time.Second},
		{"the larger of both", fields("Date", at(-time.Minute), "Age", "90"), 0, 90 * time.Second},
		{"a clock that is ahead", fields("Date", at(time.Hour)), 0, 0},
		{"junk", fields("Age", "abc"), 0, 0},
		{"negative", fields("Age", "-7200"), 0, 0},
		{"decimal", fields("Age", "7200.0"), 0, 0},
		{"several, one line", fields("Age", "0, 7200"), 0, 7200 * time.Second},
		{"several lines", fields("Age", "7200", "Age", "0"), 0, 7200 * time.Second},
		{"too large", fields("Age", "99999999999999999999"), 0, maxDelta * time.Second},
	} {
		if got := baseAge(tt.h, tt.delay, noon); got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
	if ageSeconds(-time.Second) != 0 || ageSeconds(1900*time.Millisecond) != 1 {
		t.Error("Age is not in whole seconds from zero")
	}
}

func TestRangesThatAreNotUnderstoodAreIgnored(t *testing.T) {
	for s, want := range map[string]bool{
		"bytes=0-1": true, "bytes=1-": true, "bytes=-5": true, "bytes=0-0,-1": true, "Bytes=0-1": true, "bytes= 0-1 , 3-4": true,
		"": false, "items=0-1": false, "bytes": false, "bytes=": false, "bytes=-": false, "bytes=a-b": false, "bytes=2-1": false,
		"bytes=0-1-2": false, "bytes=0 - 1": false, "bytes=0-1;2-3": false, "bytes=99999999999999999999-": false,
		"bytes=0-0,0-0,0-0,0-0,0-0,0-0,0-0,0-0,0-0,0-0,0-0,0-0,0-0,0-0,0-0,0-0,0-0": false,
	} {
		if got := rangeUsable([]string{s}); got != want {
			t.Errorf("%q: got %v", s, got)
		}
	}
	if rangeUsable([]string{"bytes=0-1", "bytes=2-3"}) {
		t.Error("two Range fields are one")
	}
}

func FuzzConditions(f *testing.F) {
	f.Add(`"a", W/"b"`, `"b"`)
	f.Fuzz(func(t *testing.T, list, tag string) {
		r := &http.Request{Header: http.Header{"If-None-Match": {list}}}
		notModified(r, http.Header{"Etag": {tag}}, noon)
		_, _ = parseDate(list, noon)
		rangeUsable([]string{list})
		if opaque, rest := cutTag(tag); opaque != "" && rest == "" {
			if !tagMatches([]string{`"x", ` + opaque + `, "y"`}, opaque) {
				t.Fatalf("%q is not found in a list that has it", opaque)
			}
		}
	})
}
