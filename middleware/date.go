package middleware

import (
	"net/http"
	"strings"
	"time"
)

// parseDate reads an HTTP date in its three forms (RFC 9110 5.6.7), as seen at
// now: a two-digit year that would lie more than fifty years ahead is of the
// century before.
func parseDate(s string, now time.Time) (time.Time, bool) {
	s = trimOWS(s)
	t, err := http.ParseTime(s)
	if err != nil {
		return time.Time{}, false
	}
	if !rfc850(s) {
		return t, true
	}
	year := now.Year()/100*100 + t.Year()%100
	t = time.Date(year, t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), 0, time.UTC)
	if t.After(now.AddDate(50, 0, 0)) {
		t = t.AddDate(-100, 0, 0)
	}
	return t, true
}

// rfc850 tells "Sunday, 06-Nov-94 08:49:37 GMT" from the forms that write out
// the year.
func rfc850(s string) bool {
	_, date, ok := strings.Cut(s, ", ")
	return ok && len(date) > 9 && date[2] == '-' && date[9] == ' '
}

// single returns the one value of a field. A field that comes twice with
// different values has none.
func single(lines []string) (string, bool) {
	if len(lines) == 0 {
		return "", false
	}
	for _, line := range lines[1:] {
		if trimOWS(line) != trimOWS(lines[0]) {
			return "", false
		}
	}
	return trimOWS(lines[0]), true
}
