package main

import (
	"mime"
	"net/http"
	"strings"
)

// withoutFlush hides http.Flusher from a reverse proxy where it would keep
// answers out of the cache. The proxy flushes every answer of unknown length,
// piece by piece, and the cache takes an answer that is flushed, and that only
// the default lifetime would keep, for a stream: it may never end, and nothing
// says that it may be shared. Of what a reverse proxy flushes that is mostly not
// so: it is a page that was sent in chunks.
//
// What is left as it is: event streams, answers that say themselves whether they
// may be kept, and those to methods and credentials that are not kept anyway.
// Other streams reach their client in pieces of the cache's MaxBody, or at their
// end: give them a Cache-Control.
func withoutFlush(proxy http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && r.Header.Get("Authorization") == "" && r.Header.Get("Cookie") == "" {
			w = &unflushed{ResponseWriter: w}
		}
		proxy.ServeHTTP(w, r)
	})
}

// unflushed is a writer that ignores the flushes of answers that say nothing of
// their freshness.
type unflushed struct {
	http.ResponseWriter
	seen   bool // the answer's header
	ignore bool
}

func (u *unflushed) WriteHeader(status int) {
	if status >= http.StatusOK && !u.seen {
		u.seen = true
		u.ignore = saysNothing(u.Header())
	}
	u.ResponseWriter.WriteHeader(status)
}

// saysNothing reports whether an answer leaves it to a cache whether to keep it.
func saysNothing(h http.Header) bool {
	kind, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err == nil && kind == "text/event-stream" || h.Get("Expires") != "" {
		return false
	}
	for name, lines := range h {
		if name != "Cache-Control" && !strings.HasSuffix(name, "-Cache-Control") { // targeted: RFC 9213
			continue
		}
		said := strings.ToLower(strings.Join(lines, ","))
		for _, directive := range []string{"max-age", "s-maxage", "no-store", "no-cache", "private"} {
			if strings.Contains(said, directive) {
				return false
			}
		}
	}
	return true
}

// FlushError is what http.ResponseController finds, before it would unwrap.
func (u *unflushed) FlushError() error {
	if u.ignore {
		return nil
	}
	return http.NewResponseController(u.ResponseWriter).Flush()
}

// Unwrap is for the rest of what http.ResponseController does.
func (u *unflushed) Unwrap() http.ResponseWriter { return u.ResponseWriter }
