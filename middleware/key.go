package middleware

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// keyer makes cache keys. A key is the whole of what tells two requests apart,
// not a hash of it: each part is written with a letter and its length, so that
// no two lists of parts give one text. The store compares it on every read.
type keyer struct {
	tenant    func(*http.Request) (string, error)
	identity  func(*http.Request) (string, bool)
	headers   []string // canonical names of fields that are part of the key
	cookies   []string // names of cookies that are part of the key
	query     Query
	encodings []string // sorted names of the codings the handler can produce
	limit     int      // of a key's length
}

// errNoKey says that a request has no key: it goes past the cache.
var errNoKey = errors.New("request has no cache key")

// primary returns the key under which a request's URL is kept. GET and HEAD
// have the same.
func (k *keyer) primary(r *http.Request) (string, error) {
	path, query := target(r)
	return k.build(scheme(r), r.Host, path, query)
}

// build writes the key of a URL.
func (k *keyer) build(scheme, host, path, query string) (string, error) {
	host, ok := normalHost(scheme, host)
	if !ok {
		return "", fmt.Errorf("%w: host %q", errNoKey, host)
	}
	size := len(scheme) + len(host) + len(path) + len(query) + 16
	if size > k.limit {
		return "", fmt.Errorf("%w: longer than %d bytes", errNoKey, k.limit)
	}
	var room [128]byte // for most keys
	b := appendPart(room[:0], 's', scheme)
	b = appendPart(b, 'h', host)
	b = appendPart(b, 'p', path)
	b = appendPart(b, 'q', k.query.normalise(query))
	return string(b), nil
}

// hasExtras tells whether more than the URL is part of a key.
func (k *keyer) hasExtras() bool {
	return k.tenant != nil || k.identity != nil || len(k.headers) > 0 || len(k.cookies) > 0
}

// withExtras adds to a URL's key the URL's generation and what else of r is
// part of it. The user's functions may fail or panic: then the request has no
// key.
func (k *keyer) withExtras(key, mark string, r *http.Request, body *requestBody) (string, error) {
	b := append(make([]byte, 0, len(key)+128), key...)
	b, err := k.appendExtras(appendPart(b, 'g', mark), r)
	if body != nil {
		b = body.appendTo(b, r)
	}
	if err == nil && len(b) > k.limit {
		err = fmt.Errorf("%w: longer than %d bytes", errNoKey, k.limit)
	}
	return string(b), err
}

func (k *keyer) appendExtras(b []byte, r *http.Request) (_ []byte, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%w: key function panicked: %v", errNoKey, v)
		}
	}()
	if k.tenant != nil {
		tenant, err := k.tenant(r)
		if err != nil {
			return nil, fmt.Errorf("%w: %v", errNoKey, err)
		}
		b = appendPart(b, 't', tenant)
	}
	if k.identity != nil {
		if identity, ok := k.identity(r); ok {
			b = appendPart(b, 'i', identity)
		}
	}
	for _, name := range k.headers {
		if s := k.selector(r, name); !s.absent {
			b = appendPart(appendPart(b, 'n', name), 'v', s.value)
		}
	}
	for _, name := range k.cookies {
		for own, value := range cookies(r.Header["Cookie"]) {
			if own == name {
				b = appendPart(appendPart(b, 'n', name), 'c', value)
			}
		}
	}
	return b, nil
}

// variant returns the key of another variant of the entry under key: the one
// that r selects by the fields that p was selected by.
func (k *keyer) variant(key string, r *http.Request, p *response) (string, error) {
	b := make([]byte, 0, len(key)+64)
	b = append(b, key...)
	b = appendPart(b, 'b', string(p.branch[:]))
	for _, s := range p.selecting {
		own := k.selector(r, s.name)
		b = appendPart(b, 'n', own.name)
		if !own.absent {
			b = appendPart(b, 'v', own.value)
		}
	}
	if len(b) > k.limit {
		return "", fmt.Errorf("%w: longer than %d bytes", errNoKey, k.limit)
	}
	return string(b), nil
}

// branchPart is the length of the part of a variant's key that holds the branch.
var branchPart = len(appendPart(nil, 'b', string(new(branch)[:])))

func appendPart(b []byte, kind byte, part string) []byte {
	b = append(b, kind)
	b = strconv.AppendInt(b, int64(len(part)), 10)
	b = append(b, ':')
	return append(b, part...)
}

func scheme(r *http.Request) string {
	if r.TLS != nil {
		return "https"
	}
	return "http"
}

// target returns the path and the query as the client sent them, escapes
// untouched, whatever a middleware in front of this one has done to r.URL.
func target(r *http.Request) (path, query string) {
	uri := r.RequestURI
	if uri == "" { // made by hand, not by a server
		uri = r.URL.RequestURI()
	}
	if uri[0] != '/' {
		uri = dropAuthority(uri)
	}
	if i := strings.IndexByte(uri, '?'); i >= 0 {
		return uri[:i], uri[i:] // with its "?": "/a" and "/a?" are two URLs
	}
	return uri, ""
}

// dropAuthority takes scheme and authority off an absolute-form target; the
// server has put the authority into r.Host.
func dropAuthority(uri string) string {
	_, rest, ok := strings.Cut(uri, "://")
	if !ok {
		return uri
	}
	for i := range len(rest) {
		switch rest[i] {
		case '/':
			return rest[i:]
		case '?':
			return "/" + rest[i:]
		}
	}
	return "/"
}

// rewritten reports whether the URL that the handler sees is another than the
// one the client sent.
func rewritten(r *http.Request) bool {
	if r.RequestURI == "" {
		return false
	}
	path, query := target(r)
	if query != "" {
		query = query[1:]
	}
	return path != r.URL.EscapedPath() || query != r.URL.RawQuery
}

// normalHost returns host in lower case and without the scheme's default port.
// ok is false if it is empty or holds what no host holds.
func normalHost(scheme, host string) (string, bool) {
	upper := false
	for i := range len(host) {
		switch c := host[i]; {
		case c <= ' ' || c == '/' || c == '?' || c == '#' || c == '@' || c == '\\' || c == 0x7f:
			return host, false
		case 'A' <= c && c <= 'Z', c >= 0x80:
			upper = true
		}
	}
	if upper {
		host = strings.ToLower(host)
	}
	if scheme == "https" {
		host = strings.TrimSuffix(host, ":443")
	} else {
		host = strings.TrimSuffix(host, ":80")
	}
	return host, host != ""
}

// Query says how the query is read when keys are made. The zero Query takes it
// as it is, which is always right; anything else is a promise about the
// handler. The handler sees the query as it was sent in any case. A query that
// is not well formed is never touched.
type Query struct {
	Sort  bool     // the order of parameters with different names means nothing
	Allow []string // if not empty: only these parameters mean anything
	Deny  []string // these parameters mean nothing
}

func (q *Query) normalise(query string) string {
	if query == "" || (!q.Sort && len(q.Allow) == 0 && len(q.Deny) == 0) {
		return query
	}
	type pair struct{ name, raw string }
	var pairs []pair
	for raw := range strings.SplitSeq(query[1:], "&") {
		if strings.Contains(raw, ";") {
			return query
		}
		rawName, value, _ := strings.Cut(raw, "=")
		name, err := url.QueryUnescape(rawName)
		if err != nil {
			return query
		}
		if _, err := url.QueryUnescape(value); err != nil {
			return query
		}
		if (len(q.Allow) > 0 && !slices.Contains(q.Allow, name)) || slices.Contains(q.Deny, name) {
			continue
		}
		pairs = append(pairs, pair{name, raw})
	}
	if q.Sort {
		slices.SortStableFunc(pairs, func(a, b pair) int { return strings.Compare(a.name, b.name) })
	}
	var b strings.Builder
	for i, p := range pairs {
		b.WriteByte("?&"[min(i, 1)])
		b.WriteString(p.raw)
	}
	return b.String()
}
