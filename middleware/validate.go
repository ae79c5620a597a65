package middleware

import (
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strings"
	"time"
)

// etagOf makes a strong entity tag of the bytes.
func etagOf(body []byte) string {
	sum := sha256.Sum256(body)
	return `"` + base64.RawURLEncoding.EncodeToString(sum[:16]) + `"`
}

// setConditions asks whether what is kept still holds (RFC 9111 4.3.1).
func setConditions(h http.Header, p *response) {
	if tag := p.etag(); tag != "" {
		h.Set("If-None-Match", tag)
	}
	if modified := p.lastModified(); modified != "" {
		h.Set("If-Modified-Since", modified)
	}
}

// dropConditions makes a request one for the whole answer, whatever its client
// has: its conditions and its range are applied to the answer afterwards.
func dropConditions(h http.Header) {
	for _, name := range []string{"If-None-Match", "If-Modified-Since", "If-Range", "Range"} {
		delete(h, name)
	}
}

// sameValidator tells whether a 304 speaks of what is kept (RFC 9111 4.3.4): one
// that names another validator does not.
func sameValidator(p *response, h http.Header) bool {
	if tag := h.Get("Etag"); tag != "" {
		return weak(tag) == weak(p.etag())
	}
	if modified := h.Get("Last-Modified"); modified != "" && p.etag() == "" {
		return modified == p.lastModified()
	}
	return true
}

func isConditional(r *http.Request) bool {
	return r.Header["If-None-Match"] != nil || r.Header["If-Modified-Since"] != nil
}

// notModified tells whether the client has what h describes already, by its
// own conditions (RFC 9110 13.2.2; RFC 9111 4.3.2).
func notModified(r *http.Request, h http.Header, now time.Time) bool {
	if lines, ok := r.Header["If-None-Match"]; ok {
		return tagMatches(lines, h.Get("Etag"))
	}
	since, ok := single(r.Header["If-Modified-Since"])
	if !ok {
		return false
	}
	sinceTime, ok := parseDate(since, now)
	if !ok {
		return false
	}
	modified, ok := parseDate(h.Get("Last-Modified"), now)
	return ok && !modified.After(sinceTime)
}

// tagMatches compares weakly with each member of an If-None-Match.
func tagMatches(lines []string, tag string) bool {
	for _, line := range lines {
		for line = trimOWS(line); line != ""; line = strings.TrimLeft(line, ", \t") {
			if line[0] == '*' {
				return true
			}
			var member string
			if member, line = cutTag(line); member == "" {
				break // junk: the rest cannot be read
			}
			if tag != "" && weak(member) == weak(tag) {
				return true
			}
		}
	}
	return false
}

// cutTag cuts an entity tag off the front of s. "": there is none.
func cutTag(s string) (tag, rest string) {
	opaque := weak(s)
	if opaque == "" || opaque[0] != '"' {
		return "", s
	}
	end := strings.IndexByte(opaque[1:], '"')
	if end < 0 {
		return "", s
	}
	n := len(s) - len(opaque) + end + 2
	return s[:n], s[n:]
}

func weak(tag string) string { return strings.TrimPrefix(tag, "W/") }
