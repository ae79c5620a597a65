package middleware

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard"
)

// Options shape a [Cache]. The zero value works and is safe: it keeps what the
// handler's answers say may be kept by a shared cache, and nothing else.
type Options struct {
	// Namespace is the prefix of every key in the store, and what metrics call
	// the cache. Two applications on one store must have different ones. At
	// most 48 bytes. "": "http".
	Namespace string

	// Policy holds for every route that has none of its own; see [Cache.With].
	Policy

	// StatusLifetime is how long answers of a status are fresh that do not say
	// so themselves, such as {404: 10 * time.Second}. It is never longer than
	// their Retry-After. nil: errors that say nothing are not kept.
	StatusLifetime map[int]time.Duration

	// Heuristic, if above zero, makes answers that say nothing about freshness
	// fresh for this share of the time since their Last-Modified (RFC 9111
	// 4.2.2 names 0.1), for at most a day. At most 1. 0: off.
	Heuristic float64

	// MaxStale bounds how long a stale answer may be served, whatever it or
	// the request says. 0: 24h.
	MaxStale time.Duration

	// Keep is how long an answer is kept after its lifetime to be asked about,
	// if it has an ETag or a Last-Modified, or for requests that accept stale
	// ones. 0: 10m. At most MaxStale.
	Keep time.Duration

	// PassFor is how long it is remembered, in the whole fleet, that the
	// answers under a key are not to be shared: so long nobody waits for
	// another's. In a process, it is how long variants of a URL that nobody
	// shares are not kept before they are asked for again. 0: 1m. From 1s to 10m; up to a fifth of it is taken off at
	// random.
	PassFor time.Duration

	// MaxBody is the size in bytes from which a body is not kept. Its client
	// gets it whole; nobody else waits for it. 0: 4 MiB.
	MaxBody int64

	// CompressAbove is the size in bytes from which an entry is compressed in the
	// store (see package compressed), if it becomes smaller. 0: none is. What
	// others have compressed is read in any case. In Near they are whole.
	CompressAbove int

	// SealKeys, if set, are secrets of at least 32 random bytes: the first signs
	// what goes into the store, and what none of them has signed is a miss and a
	// fault, so that nobody else who can write to the store can have a page
	// served. For how to change them see package sealed. Switch it on together
	// with another Namespace.
	SealKeys [][]byte

	// MaxKey is the length in bytes from which a request has no key and goes
	// past the cache. 0: 4 KiB. At most 8 KiB.
	MaxKey int

	// MaxVariants bounds how many variants of one URL the fleet keeps, so that a
	// field in Vary that takes any value does not fill the store. Once there are
	// so many, others are answered and collapsed like any, and not kept, until
	// one of the first has expired. Within the last fifth some are refused
	// already. What is part of the key (Tenant, Identity, KeyHeaders, KeyCookies)
	// is not counted. 0: 100. At most 10000.
	MaxVariants int

	// Targets are the targeted Cache-Control fields that this cache obeys, the
	// most specific first (RFC 9213). nil: CDN-Cache-Control. Empty: none.
	Targets []string

	// StripTargets removes those fields from what clients get.
	StripTargets bool

	// SetCookie says what becomes of an answer that sets a cookie. The zero
	// value refuses to share it.
	SetCookie SetCookie

	// Strip are fields that belong to the client whose request ran the
	// handler, and are given to nobody else, besides those that are known to
	// (request ids, rate limits, Server-Timing).
	Strip []string

	// AutoETag gives a strong ETag, over the stored bytes, to a 200 that has none
	// and does not say no-transform. What compresses in front of the cache
	// must weaken it.
	AutoETag bool

	// HideHeaders are request fields that the handler is not to see, so that
	// its answers cannot depend on what is not part of the key, such as
	// "X-Forwarded-Host". The same ones must not be in a Vary.
	HideHeaders []string

	// DryRun has every request answered by the handler, and tells in
	// Cache-Status and to Observe what would have become of the answer. Nothing
	// is stored and nobody waits.
	DryRun bool

	// KeyBody is the size in bytes up to which the body of a request is part of
	// its key, together with its method, Content-Type and Content-Encoding. With
	// it, the answers to a QUERY are kept and shared like those to a GET, and so
	// are those to a POST where [Policy].PostReads says so. Each such request
	// holds its body in memory while it is answered. What is longer, breaks off or
	// has trailers goes past the cache, as it came. 0: every request with a body
	// does. At most 16 MiB.
	KeyBody int64

	// Tenant, if set, is part of the key. If it fails, the request goes past
	// the cache.
	Tenant func(*http.Request) (string, error)

	// Identity, if set, names who asks, from credentials that somebody in front
	// of the cache has checked. If ok, it is part of the key, and the
	// request's Authorization and cookies are no reason to go past the cache.
	Identity func(*http.Request) (id string, ok bool)

	// KeyHeaders are request fields that are part of the key, for what the
	// handler varies by without saying so in Vary.
	KeyHeaders []string

	// KeyCookies are cookies that are part of the key; IgnoreCookies are
	// cookies that the handler does not look at ("*": any other). A request
	// with a cookie that is neither goes past the cache.
	KeyCookies, IgnoreCookies []string

	// Query says how the query is read. The zero value takes it as it is.
	Query Query

	// Encodings are the content codings that the handler can produce, such as
	// "gzip", for a Vary: Accept-Encoding: what a client says about others
	// makes no difference. nil: everything does.
	Encodings []string

	// Hosts, if set, says which hosts the cache is for; requests for others go
	// past it.
	Hosts func(host string) bool

	// Skip, if set, says which requests go past the cache.
	Skip func(*http.Request) bool

	// IgnoreRequestControl makes the cache deaf to Cache-Control and Pragma of
	// requests, but for only-if-cached and no-store.
	IgnoreRequestControl bool

	// NoHandOver keeps an answer that is stale as soon as it is made (max-age=0)
	// to the one who asked. Without it, those get it too who asked before the
	// handler was started (RFC 9111 4).
	NoHandOver bool

	// HideStatus leaves out the Cache-Status field (RFC 9211), by which clients
	// can tell what others have asked for. StatusName is this cache's name in
	// it. "": "cacheguard".
	HideStatus bool
	StatusName string

	// FillLimit bounds a handler's run that others may wait for. 0: 30s.
	FillLimit time.Duration

	// WaitLimit bounds how long a request waits for a handler that runs for
	// another, here or in another process; then it runs its own. 0: FillLimit.
	WaitLimit time.Duration

	// MaxWaiting bounds the requests that wait for a run, of whatever key; those
	// beyond it get 503. 0: 100000.
	MaxWaiting int

	// TagHeaders are the response fields by which the handler names what an
	// answer is made of, such as "Surrogate-Key" or "Cache-Tag", for
	// InvalidateTags: names of any kind, separated by spaces or commas, at most
	// 64. With it each hit costs one look-up of the names, in Near if that is
	// on. nil: answers have no tags.
	TagHeaders []string

	// Observe, if set, is told of each answer, before it is sent. It must be
	// quick and safe for concurrent use.
	Observe func(Outcome)

	// Audit, if set, is told what answers depend on without saying so: request
	// fields that the handler reads and that are neither in Vary nor in the key
	// (cache poisoning). It is for development and tests: each page that is
	// stored is asked for some six times more, in the background, with fields
	// changed, and the answers are compared; an input that makes a difference
	// costs some tens more. That is done once in ten minutes for a page, and for
	// one page at a time. Audit is called by one goroutine at a time.
	// AuditHeaders are fields to try besides those that are known to be read
	// often, and those that the request has.
	Audit        func(Unkeyed)
	AuditHeaders []string

	// Near is a copy of answers in this process. Zero: off.
	Near cacheguard.Near

	// Lease shapes the leases. Zero: the guard's defaults.
	Lease cacheguard.LeaseTuning

	// Hooks are told what the guard underneath does.
	Hooks cacheguard.Hooks
}

// Policy is what can differ from route to route. A zero field takes the value
// of Options; a negative one is off.
type Policy struct {
	// Lifetime of answers that do not say how long they are fresh. 0: such
	// answers are not kept.
	Lifetime time.Duration

	// StaleWhileRevalidate is how long after its lifetime an answer that does
	// not say so itself is served while one process asks again (RFC 5861).
	// 0: not at all.
	StaleWhileRevalidate time.Duration

	// StaleIfError is how long after its lifetime an answer that does not say
	// so itself is served when the handler fails (RFC 5861). 0: not at all.
	StaleIfError time.Duration

	// PostReads says that a POST asks for something and changes nothing, such as
	// a search whose terms are in its body. It is then answered from the cache by
	// its body, and invalidates nothing. It needs Options.KeyBody. Set in Options
	// it holds for every route.
	PostReads bool
}

// fits tells whether the cache that p is for can do what it says.
func (p Policy) fits(keyBody int64) error {
	if p.PostReads && keyBody == 0 {
		return errors.New("middleware: Policy.PostReads needs Options.KeyBody; use a size in bytes, such as 65536")
	}
	return nil
}

// SetCookie says what becomes of an answer that sets a cookie.
type SetCookie uint8

const (
	SetCookieRefuse SetCookie = iota // it is for its own client alone
	SetCookieStrip                   // it is kept without the cookie; its own client gets it
	SetCookieKeep                    // it is kept with the cookie: everybody gets it
)

// leaderOnly are response fields that belong to one request.
var leaderOnly = []string{
	"Ratelimit", "Ratelimit-Limit", "Ratelimit-Policy", "Ratelimit-Remaining", "Ratelimit-Reset",
	"Server-Timing", "Traceparent", "Traceresponse", "Tracestate",
	"X-Amzn-Trace-Id", "X-Correlation-Id", "X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset",
	"X-Request-Id", "X-Response-Time", "X-Runtime", "X-Trace-Id",
}

// withDefaults returns o with its zeros filled in, or an error that says, for
// each option out of range, what to write instead.
func (o Options) withDefaults() (Options, error) {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("middleware: "+format, args...)) }
	duration := func(name string, d *time.Duration, zero, least, most time.Duration) {
		if *d == 0 {
			*d = zero
		}
		if *d < least || *d > most {
			bad("Options.%s is %v; use %v to %v, or 0 for %v", name, *d, least, most, zero)
		}
	}

	if o.Namespace == "" {
		o.Namespace = "http"
	}
	if len(o.Namespace) > 48 {
		bad("Options.Namespace is %d bytes long; use at most 48", len(o.Namespace))
	}
	if err := o.Policy.validate("Options"); err != nil {
		errs = append(errs, err)
	}
	for status, d := range o.StatusLifetime {
		if status < 200 || status > 999 || status == 206 || status == 304 || d < 0 || d > maxLifetime {
			bad("Options.StatusLifetime[%d] is %v; use a final status other than 206 and 304, and 0 to %v", status, d, maxLifetime)
		}
	}
	if !(o.Heuristic >= 0 && o.Heuristic <= 1) {
		bad("Options.Heuristic is %v; use a share from 0 (off) to 1, such as 0.1", o.Heuristic)
	}
	duration("MaxStale", &o.MaxStale, 24*time.Hour, time.Second, maxLifetime)
	duration("Keep", &o.Keep, min(10*time.Minute, o.MaxStale), time.Millisecond, o.MaxStale)
	duration("PassFor", &o.PassFor, time.Minute, time.Second, 10*time.Minute)
	duration("FillLimit", &o.FillLimit, 30*time.Second, time.Millisecond, time.Hour)
	duration("WaitLimit", &o.WaitLimit, o.FillLimit, time.Millisecond, time.Hour)
	if o.MaxBody == 0 {
		o.MaxBody = 4 << 20
	}
	if o.MaxBody < 1 || o.MaxBody > 256<<20 {
		bad("Options.MaxBody is %d; use 1 to 256 MiB, or 0 for 4 MiB", o.MaxBody)
	}
	if o.CompressAbove < 0 {
		bad("Options.CompressAbove is %d; use a size in bytes, such as 1024, or 0 for off", o.CompressAbove)
	}
	if o.MaxKey == 0 {
		o.MaxKey = 4 << 10
	}
	if o.KeyBody < 0 || o.KeyBody > 16<<20 {
		bad("Options.KeyBody is %d; use a size in bytes up to 16 MiB, such as 65536, or 0 for off", o.KeyBody)
	}
	if err := o.Policy.fits(o.KeyBody); err != nil {
		errs = append(errs, err)
	}
	if o.MaxKey < 64 || o.MaxKey > 8<<10 {
		bad("Options.MaxKey is %d; use 64 to 8192, or 0 for 4096", o.MaxKey)
	}
	if o.MaxVariants == 0 {
		o.MaxVariants = 100
	}
	if o.MaxVariants < 1 || o.MaxVariants > 10_000 {
		bad("Options.MaxVariants is %d; use 1 to 10000, or 0 for 100", o.MaxVariants)
	}
	if o.MaxWaiting == 0 {
		o.MaxWaiting = 100_000
	}
	if o.MaxWaiting < 1 {
		bad("Options.MaxWaiting is %d; use a number above zero, or 0 for 100000", o.MaxWaiting)
	}
	if o.SetCookie > SetCookieKeep {
		bad("Options.SetCookie is %d; use SetCookieRefuse, SetCookieStrip or SetCookieKeep", o.SetCookie)
	}
	if o.Targets == nil {
		o.Targets = []string{"Cdn-Cache-Control"}
	}
	if o.StatusName == "" {
		o.StatusName = "cacheguard"
	}
	if !isToken(o.StatusName) || !(isAlpha(o.StatusName[0]) || o.StatusName[0] == '*') {
		bad("Options.StatusName is %q; use a token that begins with a letter, such as \"cacheguard\"", o.StatusName)
	}
	for name, list := range map[string]*[]string{"Targets": &o.Targets, "Strip": &o.Strip, "HideHeaders": &o.HideHeaders, "KeyHeaders": &o.KeyHeaders, "TagHeaders": &o.TagHeaders, "AuditHeaders": &o.AuditHeaders} {
		canon, err := canonicalNames(*list)
		if err != nil {
			bad("Options.%s: %v", name, err)
		}
		*list = canon
	}
	o.Encodings = slices.Clone(o.Encodings)
	for i, coding := range o.Encodings {
		o.Encodings[i] = strings.ToLower(coding)
	}
	if len(o.Encodings) > 0 {
		o.Encodings = append(o.Encodings, "identity", "*")
		slices.Sort(o.Encodings)
	}
	return o, errors.Join(errs...)
}

// maxLifetime is the longest any answer is kept fresh or stale by an option.
const maxLifetime = 365 * 24 * time.Hour

func (p Policy) validate(where string) error {
	var errs []error
	for name, d := range map[string]time.Duration{
		"Lifetime": p.Lifetime, "StaleWhileRevalidate": p.StaleWhileRevalidate, "StaleIfError": p.StaleIfError,
	} {
		if d > maxLifetime {
			errs = append(errs, fmt.Errorf("middleware: %s.%s is %v; use at most %v", where, name, d, maxLifetime))
		}
	}
	return errors.Join(errs...)
}

// over returns p with its zero fields taken from base.
func (p Policy) over(base Policy) Policy {
	if p.Lifetime == 0 {
		p.Lifetime = base.Lifetime
	}
	if p.StaleWhileRevalidate == 0 {
		p.StaleWhileRevalidate = base.StaleWhileRevalidate
	}
	if p.StaleIfError == 0 {
		p.StaleIfError = base.StaleIfError
	}
	p.PostReads = p.PostReads || base.PostReads
	return p
}

func canonicalNames(names []string) ([]string, error) {
	if names == nil {
		return nil, nil
	}
	canon := make([]string, len(names))
	for i, name := range names {
		if !isToken(name) {
			return nil, fmt.Errorf("%q is not the name of a field; use one such as \"X-Request-Id\"", name)
		}
		canon[i] = canonical(name)
	}
	return canon, nil
}

func isAlpha(c byte) bool { return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' }
