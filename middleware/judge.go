package middleware

import (
	"net/http"
	"slices"
	"strings"
	"time"
)

// class says what may be done with a handler's answer.
type class uint8

const (
	classStore    class = iota + 1 // keep it, for everybody whom it is selected by
	classHandOver                  // only for those who asked before it was asked for
	classPass                      // for its own client alone; so will the next answers be
	classUnshared                  // for its own client alone; says nothing about the next ones
)

// question is what an answer is judged by, besides itself.
type question struct {
	credentialed bool          // the request had credentials that are not part of its key
	origin       string        // its Origin
	now          time.Time     // when the answer came
	delay        time.Duration // how long it took
	policy       Policy        // of the route
}

// verdict is the judgement on an answer.
type verdict struct {
	class    class
	reason   string // why it is not stored; one of few words, fit for a label
	base     time.Duration
	lifetime time.Duration
	swr, sie time.Duration
	grace    time.Duration
	rules    rules
	omit     []string // fields that must not be kept
	assumed  bool     // the lifetime is not the answer's own word
	held     bool     // not to be streamed before its end, whatever its class
}

// String is the class, or the reason why the answer is not stored.
func (v verdict) String() string {
	if v.class == classStore {
		return "stored"
	}
	return v.reason
}

// judge says what may be done with an answer (RFC 9111 3): never wrong first.
func (o *Options) judge(q question, status int, h http.Header) verdict {
	cc, targeted := responseDirectives(h, o.Targets)
	if reason := o.forbidden(q, cc, status, h); reason != "" {
		return refuse(status, reason)
	}
	if q.credentialed && !cc.public && !cc.sMaxAge.set && !cc.mustRevalidate {
		return verdict{class: classUnshared, reason: "authorization"}
	}
	v := verdict{
		class: classStore,
		base:  baseAge(h, q.delay, q.now),
		rules: rulesOf(cc),
		omit:  slices.Concat(cc.privateFields, cc.noCacheFields),
	}
	lifetime, said, known := o.freshness(q, cc, targeted, status, h)
	switch {
	case known:
		v.lifetime, v.assumed = lifetime, !said
	case status >= 500:
		// A failure that says nothing about its keeping: everybody who waited
		// for it gets it, and nobody else.
		return verdict{class: classHandOver, reason: "status", base: v.base, rules: v.rules, omit: v.omit}
	default:
		return refuse(status, "no-freshness")
	}
	o.staleness(&v, q.policy, cc, h)
	if v.lifetime > v.base || v.grace > 0 {
		return v
	}
	v.class, v.reason = classHandOver, "stale"
	if o.NoHandOver {
		v.class = classPass
	}
	return v
}

// refuse is the verdict on an answer that is for its own client alone. The key
// is marked for it, so that nobody queues for the next one, unless the status
// says that it may be the request's fault rather than the key's: a client must
// not be able to switch a key's cache off by sending nonsense.
func refuse(status int, reason string) verdict {
	if status >= 400 && !keyStatus(status) {
		return verdict{class: classUnshared, reason: reason}
	}
	return verdict{class: classPass, reason: reason}
}

// keyStatus: errors that are about the resource, not about this request of it.
func keyStatus(status int) bool {
	switch status {
	case http.StatusNotFound, http.StatusGone, http.StatusUnavailableForLegalReasons:
		return true
	}
	return false
}

// forbidden says why an answer may be given to nobody else, or "".
func (o *Options) forbidden(q question, cc directives, status int, h http.Header) string {
	understood := http.StatusText(status) != ""
	_, star := varyNames(h["Vary"])
	switch {
	case status < 200 || status == http.StatusPartialContent || status == http.StatusNotModified:
		return "status"
	case cc.malformed:
		return "malformed"
	case cc.mustUnderstand && !understood:
		return "must-understand"
	case cc.noStore && !cc.mustUnderstand:
		return "no-store"
	case cc.private:
		return "private"
	case star:
		return "vary"
	case o.SetCookie == SetCookieRefuse && (h["Set-Cookie"] != nil || h["Set-Cookie2"] != nil):
		return "set-cookie"
	case reflectsOrigin(q.origin, h):
		return "cors"
	case hasNonce(h["Content-Security-Policy"]):
		return "nonce"
	case isEventStream(h):
		return "stream"
	}
	return ""
}

// reflectsOrigin: the answer allows the origin that asked, and forgot to say
// that it varies by it.
func reflectsOrigin(origin string, h http.Header) bool {
	allowed := h.Get("Access-Control-Allow-Origin")
	return allowed != "" && allowed != "*" && origin != "" && !listHas(h["Vary"], "Origin")
}

// hasNonce: a policy with a nonce is for one rendering of one page.
func hasNonce(lines []string) bool {
	return slices.ContainsFunc(lines, func(s string) bool { return strings.Contains(s, "'nonce-") })
}

func isEventStream(h http.Header) bool {
	media, _, _ := strings.Cut(h.Get("Content-Type"), ";")
	return strings.EqualFold(trimOWS(media), "text/event-stream")
}

func rulesOf(cc directives) (r rules) {
	if cc.noCache {
		r |= ruleValidate
	}
	if cc.mustRevalidate || cc.proxyRevalid || cc.sMaxAge.set {
		r |= ruleNeverStale
	}
	if cc.public || cc.sMaxAge.set || cc.mustRevalidate {
		r |= rulePublic
	}
	if cc.noTransform {
		r |= ruleTransform
	}
	return r
}

// freshness returns how long an answer is fresh from its making (RFC 9111
// 4.2.1): what it says itself, else what the user said about such answers.
// said tells which; known is false if nobody said anything.
func (o *Options) freshness(q question, cc directives, targeted bool, status int, h http.Header) (d time.Duration, said, known bool) {
	d, said = explicitFreshness(cc, targeted, h, q.now)
	if known = said; !said {
		d, known = o.assumedFreshness(q, cc, status, h)
	}
	if limit, ok := retryAfter(status, h, q.now); ok && known {
		d = min(d, limit)
	}
	return d, said, known
}

func explicitFreshness(cc directives, targeted bool, h http.Header, now time.Time) (time.Duration, bool) {
	switch {
	case cc.noCache:
		return 0, true
	case cc.sMaxAge.set:
		return cc.sMaxAge.duration(), true
	case cc.maxAge.set:
		return cc.maxAge.duration(), true
	case targeted || h["Expires"] == nil:
		return 0, false
	}
	// Any Expires that is not a date is in the past (RFC 9111 5.3).
	s, _ := single(h["Expires"])
	expires, ok := parseDate(s, now)
	if !ok {
		return 0, true
	}
	return max(expires.Sub(dateOf(h, now)), 0), true
}

// assumedFreshness is for answers that say nothing.
func (o *Options) assumedFreshness(q question, cc directives, status int, h http.Header) (time.Duration, bool) {
	if d, ok := o.StatusLifetime[status]; ok {
		return d, d > 0
	}
	if status >= 400 || (!cc.public && !heuristicStatus(status)) {
		return 0, false
	}
	if d := q.policy.Lifetime; d > 0 {
		return d, true
	}
	if o.Heuristic > 0 {
		if modified, ok := parseDate(h.Get("Last-Modified"), q.now); ok {
			d := time.Duration(float64(dateOf(h, q.now).Sub(modified)) * o.Heuristic)
			return min(max(d, 0), maxHeuristic), true
		}
	}
	return 0, false
}

// maxHeuristic bounds a lifetime that was only guessed (RFC 9111 4.2.2).
const maxHeuristic = 24 * time.Hour

// heuristicStatus: answers that may be kept without saying so (RFC 9110 15.1),
// of those that are not errors.
func heuristicStatus(status int) bool {
	switch status {
	case 200, 203, 204, 300, 301, 308:
		return true
	}
	return false
}

func dateOf(h http.Header, now time.Time) time.Time {
	if s, ok := single(h["Date"]); ok {
		if t, ok := parseDate(s, now); ok {
			return t
		}
	}
	return now
}

// retryAfter bounds how long a "come back later" is kept.
func retryAfter(status int, h http.Header, now time.Time) (time.Duration, bool) {
	if status != http.StatusTooManyRequests && status != http.StatusServiceUnavailable {
		return 0, false
	}
	s := trimOWS(h.Get("Retry-After"))
	if n, ok := deltaSeconds(s); ok {
		return time.Duration(n) * time.Second, true
	}
	if t, ok := parseDate(s, now); ok {
		return max(t.Sub(now), 0), true
	}
	return 0, false
}

// staleness fills in how long an answer may be served stale, and how long it
// is kept to be asked about.
func (o *Options) staleness(v *verdict, policy Policy, cc directives, h http.Header) {
	validator := h.Get("Etag") != "" || h.Get("Last-Modified") != ""
	if v.rules&(ruleValidate|ruleNeverStale) != 0 {
		if validator {
			v.grace = o.Keep
		}
		return
	}
	v.swr = min(pick(cc.staleWhileRevalidate, policy.StaleWhileRevalidate), o.MaxStale)
	v.sie = min(pick(cc.staleIfErrorTime, policy.StaleIfError), o.MaxStale)
	v.grace = max(v.swr, v.sie)
	if validator || v.lifetime > v.base {
		v.grace = max(v.grace, o.Keep)
	}
}

func pick(said seconds, otherwise time.Duration) time.Duration {
	if said.set {
		return said.duration()
	}
	return max(otherwise, 0)
}
