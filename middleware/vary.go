package middleware

import (
	"crypto/rand"
	"net/http"
	"slices"
	"strings"
)

// selector is one request field that a response was selected by, with its
// normalised value; absent is another value than empty.
type selector struct {
	name   string // canonical
	value  string
	absent bool
}

// branch is a random mark.
type branch [12]byte

func newBranch() (b branch) {
	rand.Read(b[:])
	return b
}

// varyNames reads a Vary field: canonical names, sorted, each once. star is
// true if it has a member "*", in any company: no other request can be known
// to select the response (RFC 9111 4.1). So is a member that is not a name.
func varyNames(lines []string) (names []string, star bool) {
	for _, line := range lines {
		for part := range strings.SplitSeq(line, ",") {
			switch part = trimOWS(part); {
			case part == "":
			case part == "*" || !isToken(part):
				return nil, true
			default:
				names = append(names, canonical(part))
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), false
}

// selectors returns what r says for each of the names, and for the URL as the
// handler sees it, which a middleware in front of the cache may have rewritten.
func (k *keyer) selectors(r *http.Request, names []string) []selector {
	list := make([]selector, 0, len(names)+1)
	for _, name := range names {
		list = append(list, k.selector(r, name))
	}
	return append(list, k.selector(r, seenURL))
}

// seenURL is the selector of the URL that the handler sees. It cannot be the
// name of a field.
const seenURL = ":url"

func (k *keyer) selector(r *http.Request, name string) selector {
	switch name {
	case seenURL:
		if !rewritten(r) {
			return selector{name: name, absent: true}
		}
		return selector{name: name, value: r.URL.RequestURI()}
	case "Host":
		return selector{name: name, value: r.Host}
	}
	lines, ok := r.Header[name]
	if !ok {
		return selector{name: name, absent: true}
	}
	if name == "Accept-Encoding" && len(k.encodings) > 0 {
		return selector{name: name, value: k.acceptEncoding(lines)}
	}
	return selector{name: name, value: normalise(name, lines)}
}

// selects reports whether r selects what was selected by list.
func (k *keyer) selects(r *http.Request, list []selector) bool {
	for _, s := range list {
		if k.selector(r, s.name) != s {
			return false
		}
	}
	return true
}

// opaque are fields whose value is one text, not a list: whitespace and commas
// in them are theirs.
var opaque = map[string]bool{
	"Authorization": true, "Cookie": true, "Date": true, "From": true, "If-Modified-Since": true,
	"Origin": true, "Referer": true, "User-Agent": true,
}

// normalise joins a field's lines and takes away the whitespace around commas,
// which means nothing in a list (RFC 9111 4.1).
func normalise(name string, lines []string) string {
	if opaque[name] {
		return strings.Join(lines, "\x00")
	}
	if len(lines) == 1 && !strings.ContainsAny(lines[0], ", \t\"") {
		return lines[0]
	}
	var parts []string
	for _, line := range lines {
		for line != "" {
			var part string
			part, line, _ = cutElement(line)
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, ",")
}

// acceptEncoding reduces an Accept-Encoding to what it says about the codings
// that the handler can produce: the weight of each, as it was written.
func (k *keyer) acceptEncoding(lines []string) string {
	weights := make(map[string]string)
	for _, line := range lines {
		for part := range strings.SplitSeq(line, ",") {
			coding, weight, _ := strings.Cut(part, ";")
			weights[strings.ToLower(trimOWS(coding))] = strings.ReplaceAll(trimOWS(weight), " ", "")
		}
	}
	var b strings.Builder
	for _, coding := range k.encodings {
		if weight, ok := weights[coding]; ok {
			b.WriteString(coding + ";" + weight + ",")
		}
	}
	return b.String()
}
