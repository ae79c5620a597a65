package middleware

import (
	"net/http"
	"net/textproto"
	"strings"
)

// canonical returns the canonical form of a field name.
func canonical(name string) string { return textproto.CanonicalMIMEHeaderKey(name) }

// isToken reports whether s is a token (RFC 9110 5.6.2).
func isToken(s string) bool {
	if s == "" {
		return false
	}
	for i := range len(s) {
		if !tokenByte(s[i]) {
			return false
		}
	}
	return true
}

func tokenByte(c byte) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		return true
	}
	return strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}

// isFieldValue reports whether s can be sent as a field value: no control
// byte, so that no stored byte can end a line and begin another header.
func isFieldValue(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < ' ' && c != '\t') || c == 0x7f {
			return false
		}
	}
	return true
}

// listHas reports whether a comma-separated list on any number of lines has a
// member, compared without case (RFC 9110 5.6.1).
func listHas(lines []string, member string) bool {
	for _, line := range lines {
		for part := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(trimOWS(part), member) {
				return true
			}
		}
	}
	return false
}

// hopByHop are the fields that belong to one connection (RFC 9110 7.6.1) or to
// one proxy (RFC 9111 3.1), and those that a replay computes anew.
var hopByHop = []string{
	"Connection", "Keep-Alive", "Proxy-Connection", "Te", "Transfer-Encoding", "Upgrade",
	"Proxy-Authenticate", "Proxy-Authentication-Info", "Proxy-Authorization",
	"Content-Length", "Trailer", "Age",
}

// deleteConnectionFields deletes from h the hop-by-hop fields and those that
// its Connection field lists.
func deleteConnectionFields(h http.Header) {
	for _, line := range h["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			h.Del(trimOWS(name))
		}
	}
	for _, name := range hopByHop {
		delete(h, name)
	}
}

// cloneHeader is http.Header.Clone, whose values have no spare capacity that an
// Add to one copy could write into another's.
func cloneHeader(h http.Header) http.Header {
	n := 0
	for _, values := range h {
		n += len(values)
	}
	backing := make([]string, 0, n)
	clone := make(http.Header, len(h)+4)
	for name, values := range h {
		start := len(backing)
		backing = append(backing, values...)
		clone[name] = backing[start:len(backing):len(backing)]
	}
	return clone
}
