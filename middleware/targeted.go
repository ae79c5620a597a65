package middleware

import (
	"net/http"

	"github.com/dunglas/httpsfv"
)

// responseDirectives returns the directives that rule a response for this
// cache: of the first of the targeted fields that is there and valid
// (RFC 9213 2.2), else of Cache-Control. With a targeted field, Cache-Control
// and Expires have no say at all.
func responseDirectives(h http.Header, targets []string) (d directives, targeted bool) {
	for _, name := range targets {
		if d, ok := parseTargeted(h[name]); ok {
			return d, true
		}
	}
	return parseCacheControl(h["Cache-Control"]), false
}

// parseTargeted reads a targeted field, which is a Dictionary (RFC 9213 2.1,
// RFC 9651 3.2). A field that is absent, empty, not a Dictionary, or gives a
// known directive an argument of another type is to be ignored: ok is false.
func parseTargeted(lines []string) (d directives, ok bool) {
	if len(lines) == 0 {
		return d, false
	}
	dict, err := httpsfv.UnmarshalDictionary(lines)
	if err != nil || len(dict.Names()) == 0 {
		return d, false
	}
	for _, name := range dict.Names() {
		member, _ := dict.Get(name)
		if !d.addMember(name, member) {
			return directives{}, false
		}
	}
	return d, true
}

func (d *directives) addMember(name string, m httpsfv.Member) bool {
	switch name {
	case "no-store":
		return addFlag(&d.noStore, m)
	case "no-transform":
		return addFlag(&d.noTransform, m)
	case "public":
		return addFlag(&d.public, m)
	case "must-revalidate":
		return addFlag(&d.mustRevalidate, m)
	case "proxy-revalidate":
		return addFlag(&d.proxyRevalid, m)
	case "must-understand":
		return addFlag(&d.mustUnderstand, m)
	case "no-cache":
		return addMemberFields(&d.noCache, &d.noCacheFields, m)
	case "private":
		return addMemberFields(&d.private, &d.privateFields, m)
	case "max-age":
		return addInteger(&d.maxAge, m)
	case "s-maxage":
		return addInteger(&d.sMaxAge, m)
	case "stale-while-revalidate":
		return addInteger(&d.staleWhileRevalidate, m)
	case "stale-if-error":
		return addInteger(&d.staleIfErrorTime, m)
	}
	return true
}

func addFlag(flag *bool, m httpsfv.Member) bool {
	item, ok := m.(httpsfv.Item)
	if !ok {
		return false
	}
	*flag, ok = item.Value.(bool)
	return ok
}

// addInteger takes an Integer; one below zero counts as zero: stale.
func addInteger(s *seconds, m httpsfv.Member) bool {
	item, ok := m.(httpsfv.Item)
	if !ok {
		return false
	}
	n, ok := item.Value.(int64)
	if !ok {
		return false
	}
	*s = seconds{set: true, n: min(max(n, 0), maxDelta)}
	return true
}

// addMemberFields takes private or no-cache: true, or the fields that it is
// limited to, as a String that holds a list or as an Inner List.
func addMemberFields(whole *bool, fields *[]string, m httpsfv.Member) bool {
	var list []httpsfv.Item
	switch m := m.(type) {
	case httpsfv.InnerList:
		list = m.Items
	case httpsfv.Item:
		if flag, ok := m.Value.(bool); ok {
			*whole = flag
			return true
		}
		list = []httpsfv.Item{m}
	}
	for _, item := range list {
		var value string
		switch v := item.Value.(type) {
		case string:
			value = v
		case httpsfv.Token:
			value = string(v)
		default:
			return false
		}
		names, ok := fieldNames(value)
		if !ok {
			return false
		}
		*fields = append(*fields, names...)
	}
	if len(*fields) == 0 {
		*whole = true
	}
	return true
}
