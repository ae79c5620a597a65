package middleware

import (
	"strings"
	"time"
)

// directives are the members of a Cache-Control field that a shared cache
// acts upon, of a request or of a response.
//
// What cannot be read is read in the careful way: a directive that forbids
// counts even if its argument is junk, one that allows counts only if it is
// well formed, and a lifetime that makes no sense is zero (RFC 9111 4.2.1:
// "consider responses that have invalid freshness information to be stale").
type directives struct {
	noStore, noTransform                   bool
	public, mustRevalidate, proxyRevalid   bool
	mustUnderstand, onlyIfCached, anyStale bool

	private, noCache             bool     // without a list of fields
	privateFields, noCacheFields []string // canonical names of the fields they are limited to

	maxAge, sMaxAge, minFresh, maxStale    seconds
	staleWhileRevalidate, staleIfErrorTime seconds

	// malformed: a quoted string without an end swallowed what follows.
	// Something in it may have forbidden what we would do.
	malformed bool
}

// seconds is a delta-seconds argument: set tells that the directive was there.
type seconds struct {
	set bool
	n   int64
}

func (s seconds) duration() time.Duration { return time.Duration(s.n) * time.Second }

// maxDelta is what a delta-seconds that is too large counts as (RFC 9111 1.2.2).
const maxDelta = 1 << 31

// parseCacheControl reads all lines of a Cache-Control field as one list
// (RFC 9111 5.2, RFC 9110 5.6.1).
func parseCacheControl(lines []string) directives {
	var d directives
	for _, line := range lines {
		for line != "" {
			var element string
			var ok bool
			element, line, ok = cutElement(line)
			if !ok {
				d.malformed = true
			}
			d.add(element)
		}
	}
	return d
}

// cutElement cuts the first element off a comma-separated list, minding quoted
// strings. ok is false if a quoted string has no end.
func cutElement(s string) (element, rest string, ok bool) {
	quoted := false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case c == ',' && !quoted:
			return trimOWS(s[:i]), s[i+1:], true
		}
	}
	return trimOWS(s), "", !quoted
}

func trimOWS(s string) string { return strings.Trim(s, " \t") }

// add takes one directive. Whitespace around "=" makes its argument invalid,
// which the name before it does not forgive: "no-store =x" still forbids.
func (d *directives) add(element string) {
	name, arg, hasArg := strings.Cut(element, "=")
	value, valid := unquote(arg)
	if trimmed := trimOWS(name); trimmed != name {
		name, valid = trimmed, false
	}
	switch strings.ToLower(name) {
	case "no-store":
		d.noStore = true
	case "no-transform":
		d.noTransform = true
	case "no-cache":
		d.noCache = addFields(&d.noCacheFields, value, hasArg && valid) || d.noCache
	case "private":
		d.private = addFields(&d.privateFields, value, hasArg && valid) || d.private
	case "public":
		d.public = d.public || !hasArg
	case "must-revalidate":
		d.mustRevalidate = true
	case "proxy-revalidate":
		d.proxyRevalid = true
	case "must-understand":
		d.mustUnderstand = d.mustUnderstand || !hasArg
	case "only-if-cached":
		d.onlyIfCached = true
	case "max-age":
		d.maxAge.add(value, valid)
	case "s-maxage":
		d.sMaxAge.add(value, valid)
	case "min-fresh":
		d.minFresh.add(value, valid)
	case "max-stale":
		if !hasArg {
			d.anyStale = true
			return
		}
		d.maxStale.add(value, valid)
	case "stale-while-revalidate":
		d.staleWhileRevalidate.add(value, valid)
	case "stale-if-error":
		d.staleIfErrorTime.add(value, valid)
	}
}

// add takes one argument. Junk, and a second argument that differs from the
// first, make it zero: stale (RFC 9111 4.2.1).
func (s *seconds) add(value string, valid bool) {
	n, ok := deltaSeconds(value)
	if !ok || !valid || (s.set && s.n != n) {
		n = 0
	}
	s.set, s.n = true, n
}

// deltaSeconds reads 1*DIGIT; what is too large counts as maxDelta.
func deltaSeconds(s string) (int64, bool) {
	if s == "" {
		return 0, false
	}
	var n int64
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
		n = min(n*10+int64(s[i]-'0'), maxDelta)
	}
	return n, true
}

// addFields takes the field list of a private or no-cache directive. It
// reports whether the directive has to be taken as one without a list: when
// there is none, or when it is not one.
func addFields(fields *[]string, value string, hasList bool) (whole bool) {
	if !hasList {
		return true
	}
	names, ok := fieldNames(value)
	if !ok || len(names) == 0 {
		return true
	}
	*fields = append(*fields, names...)
	return false
}

// fieldNames reads a comma-separated list of field names, in canonical form.
// ok is false if a member is not a name.
func fieldNames(list string) (names []string, ok bool) {
	for _, name := range strings.Split(list, ",") {
		name = trimOWS(name)
		if name == "" {
			continue
		}
		if !isToken(name) {
			return nil, false
		}
		names = append(names, canonical(name))
	}
	return names, true
}

// unquote returns the value of a token or quoted-string. It is not valid if it
// is neither.
func unquote(s string) (value string, valid bool) {
	if s == "" || s[0] != '"' {
		return s, isToken(s)
	}
	if len(s) < 2 || s[len(s)-1] != '"' {
		return "", false
	}
	s = s[1 : len(s)-1]
	if !strings.ContainsAny(s, `\"`) {
		return s, true
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '"': // the string ended before the element did
			return "", false
		case '\\':
			if i++; i == len(s) {
				return "", false
			}
		}
		b.WriteByte(s[i])
	}
	return b.String(), true
}
