package middleware

import (
	"net/http"
	"slices"
	"strings"
	"time"
)

// admission is what a request may do with the cache, decided before it can
// queue for anything.
type admission struct {
	bypass       string      // why it goes past the cache; "": it does not
	cc           *directives // what it asks of the cache; nobody changes it
	plain        bool        // it asks nothing of it
	credentialed bool        // it has credentials that are not part of its key
}

// noDirectives is what most requests ask of a cache.
var noDirectives directives

// admit decides about a request by its own fields alone.
// reads: its body is part of its key.
func (o *Options) admit(r *http.Request, reads bool) admission {
	if reason := o.past(r, reads); reason != "" {
		return admission{bypass: reason}
	}
	a := admission{cc: &noDirectives, plain: r.Header["Cache-Control"] == nil && r.Header["Pragma"] == nil}
	if !a.plain {
		a.cc = requestDirectives(r.Header)
	}
	if a.cc.noStore {
		return admission{bypass: "request-no-store"}
	}
	if o.IgnoreRequestControl {
		a.cc = &directives{onlyIfCached: a.cc.onlyIfCached}
	}
	if r.Header["Authorization"] == nil && r.Header["Cookie"] == nil {
		return a
	}
	if o.identified(r) {
		return a
	}
	if !o.cookiesKnown(r.Header["Cookie"]) {
		return admission{bypass: "cookie"}
	}
	a.credentialed = r.Header["Authorization"] != nil
	return a
}

// past says why a request cannot be answered by any cache, or "".
func (o *Options) past(r *http.Request, reads bool) string {
	h := r.Header
	switch {
	case reads && (isConditional(r) || h["Range"] != nil):
		return "precondition" // what they mean here is up to the handler (RFC 9110 13.1, 14.2)
	case reads:
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		return "method"
	case r.ContentLength != 0 || len(r.TransferEncoding) > 0:
		return "body" // it is not in the key
	}
	switch {
	case h["Upgrade"] != nil || listHas(h["Connection"], "upgrade"):
		return "upgrade"
	case h["If-Match"] != nil || h["If-Unmodified-Since"] != nil:
		return "precondition"
	case isStreamRequest(h):
		return "stream"
	case o.Hosts != nil && !o.Hosts(r.Host):
		return "host"
	case o.Skip != nil && o.Skip(r):
		return "skip"
	}
	return ""
}

// isStreamRequest: the client asks for server-sent events or speaks gRPC.
func isStreamRequest(h http.Header) bool {
	for _, line := range h["Accept"] {
		if strings.Contains(strings.ToLower(line), "text/event-stream") {
			return true
		}
	}
	media := h["Content-Type"]
	return len(media) > 0 && strings.HasPrefix(strings.ToLower(media[0]), "application/grpc")
}

func requestDirectives(h http.Header) *directives {
	lines := h["Cache-Control"]
	if lines == nil {
		return &directives{noCache: listHas(h["Pragma"], "no-cache")} // RFC 9111 5.4
	}
	d := parseCacheControl(lines)
	d.noCache = d.noCache || len(d.noCacheFields) > 0
	return &d
}

func (o *Options) identified(r *http.Request) (ok bool) {
	if o.Identity == nil {
		return false
	}
	defer func() {
		if recover() != nil {
			ok = false
		}
	}()
	_, ok = o.Identity(r)
	return ok
}

// cookiesKnown reports whether the user has said of every cookie what it means.
// The names are read from the raw field: a cookie that the standard library
// cannot parse may still mean something to the handler.
func (o *Options) cookiesKnown(lines []string) bool {
	if slices.Contains(o.IgnoreCookies, "*") {
		return true
	}
	for name := range cookies(lines) {
		if !slices.Contains(o.KeyCookies, name) && !slices.Contains(o.IgnoreCookies, name) {
			return false
		}
	}
	return true
}

// cookies yields the names and raw values in a Cookie field.
func cookies(lines []string) func(yield func(name, value string) bool) {
	return func(yield func(name, value string) bool) {
		for _, line := range lines {
			for line != "" {
				var part string
				part, line, _ = strings.Cut(line, ";")
				if part = trimOWS(part); part == "" {
					continue
				}
				name, value, _ := strings.Cut(part, "=")
				if !yield(trimOWS(name), value) {
					return
				}
			}
		}
	}
}

// use is what one request may do with one stored answer.
type use uint8

const (
	useReload  use = iota // nothing: the handler has to be asked
	useTake               // be answered by it
	useRefresh            // be answered by it, while the handler is asked once for all
)

// standing is where a stored answer stands in its life.
type standing struct {
	fresh     bool
	since     time.Duration // since the handler was asked
	staleness time.Duration // since it was no longer fresh
	forMe     bool          // the handler was asked after this request arrived
}

// decide says whether a request may be answered by a stored answer that it
// selects (RFC 9111 4).
func (o *Options) decide(a *admission, p *response, s standing) use {
	cc := a.cc
	switch {
	case p.rules.has(ruleGone), a.credentialed && !p.rules.has(rulePublic):
		return useReload
	case p.rules.has(ruleHere) && !s.forMe:
		return useReload
	case s.forMe:
		return useTake
	case cc.noCache || p.rules.has(ruleValidate):
		return useReload
	case cc.maxAge.set && p.age(s.since) > cc.maxAge.duration():
		return useReload
	case s.fresh:
		if cc.minFresh.set && p.lifetime-p.age(s.since) < cc.minFresh.duration() {
			return useReload
		}
		return useTake
	case p.rules.has(ruleNeverStale) || cc.minFresh.set || s.staleness > o.MaxStale:
		return useReload
	case cc.anyStale || (cc.maxStale.set && s.staleness <= cc.maxStale.duration()):
		return useRefresh
	case cc.maxAge.set:
		return useReload
	case p.swr > 0 && s.staleness <= p.swr:
		return useRefresh
	}
	return useReload
}

// decideOnError says whether a request may be answered by a stale answer
// because the handler failed (RFC 5861 4).
func (o *Options) decideOnError(a *admission, p *response, s standing) bool {
	if a.cc.noCache || p.rules&(ruleValidate|ruleNeverStale|ruleGone) != 0 || (a.credentialed && !p.rules.has(rulePublic)) {
		return false
	}
	limit := min(max(p.sie, a.cc.staleIfErrorTime.duration()), o.MaxStale)
	return limit > 0 && s.staleness <= limit
}
