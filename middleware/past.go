package middleware

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// passing is a request that goes past the cache.
type passing struct {
	observer
	c      *Cache
	reason string        // why
	writes *http.Request // the request as it came, if it may change what is stored; else nil
	room   [1]string     // of the Cache-Status

	invalidated bool // by its success
}

// past serves a request that goes past the cache, and carries out what its
// success means to what is stored.
func (c *Cache) past(w http.ResponseWriter, r *http.Request, next http.Handler, reason string) {
	p := &passing{observer: observer{ResponseWriter: w}, c: c, reason: reason}
	p.looker = p
	if reason == "method" && !safeMethod(r.Method) {
		p.writes = r.Clone(r.Context()) // a handler may rewrite the path of its request, or its method
	}
	c.hand(next, p.writer(), r)
	p.see(http.StatusOK) // the server sends it now, if the handler has sent nothing
	if p.invalidated && p.flushed {
		// The answer has begun before the handler was done: what it changed
		// after that may have been filled as it was before.
		c.invalidateAfter(p.writes, w.Header())
	}
}

func (p *passing) look(status int, h http.Header) {
	fwd, detail := fwdBypass, p.reason
	if p.reason == "method" {
		fwd, detail = fwdMethod, ""
		if p.writes != nil && status >= 200 && status < 400 {
			p.c.invalidateAfter(p.writes, h)
			p.invalidated = true
		}
	}
	p.c.addStatusTo(h, cacheStatus{fwd: fwd, detail: detail}, p.room[:0])
}

// safeMethod: methods that ask for nothing to be changed (RFC 9110 9.2.1). Any
// other may have changed what is stored, a method that nobody knows as well.
func safeMethod(method string) bool {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, methodQuery:
		return true
	}
	return false
}

// invalidateAfter invalidates what a successful unsafe request may have changed
// (RFC 9111 4.4), before its answer goes out: whoever has seen the answer does
// not see the old page.
func (c *Cache) invalidateAfter(r *http.Request, h http.Header) {
	key, err := c.keys.primary(r)
	if err != nil {
		return
	}
	keys := []string{key}
	for _, name := range []string{"Location", "Content-Location"} {
		if key, ok := c.sameOrigin(r, h.Get(name)); ok {
			keys = append(keys, key)
		}
	}
	// The client may leave; what it changed has changed. A store that is out of
	// reach is told later, by the guard.
	_ = c.invalidate(context.WithoutCancel(r.Context()), keys...)
}

// sameOrigin returns the key of a URL in an answer, if it is of the request's
// own origin: an answer has no say about others.
func (c *Cache) sameOrigin(r *http.Request, ref string) (string, bool) {
	if ref == "" {
		return "", false
	}
	base := &url.URL{Scheme: scheme(r), Host: r.Host, Path: r.URL.Path, RawPath: r.URL.RawPath}
	u, err := base.Parse(ref)
	if err != nil || u.Scheme != base.Scheme {
		return "", false
	}
	own, _ := normalHost(base.Scheme, r.Host)
	if host, ok := normalHost(u.Scheme, u.Host); !ok || host != own {
		return "", false
	}
	key, err := c.urlKey(u)
	return key, err == nil
}

// forwarding is a request that uses the cache and is answered by a run for it
// alone.
type forwarding struct {
	observer
	j           *job
	fwd, detail string
	asked       time.Time
	heal        bool
	head        *headSaid // nil: it is none that says something of what is kept
}

// forward runs the handler for this request alone. If the key is marked as one
// whose answers are not to be shared and this answer is, the mark is taken
// away.
func (j *job) forward(fwd, detail string) { j.forwardSaying(fwd, detail, nil) }

// forwardSaying is forward for a HEAD, whose answer says something of what is
// kept.
func (j *job) forwardSaying(fwd, detail string, head *headSaid) {
	f := &forwarding{observer: observer{ResponseWriter: j.w}, j: j, fwd: fwd, detail: detail, asked: time.Now(), head: head}
	f.looker = f
	j.client.begin()
	r := j.r
	j.r = r.Clone(r.Context()) // what follows is about the request as it came
	j.c.hand(j.next, f.writer(), r)
	f.see(http.StatusOK)
	if f.heal {
		j.c.heal(context.WithoutCancel(j.r.Context()), j.key)
	}
	if head != nil {
		j.heed(head, f.asked)
	}
}

func (f *forwarding) look(status int, h http.Header) {
	detail := f.detail
	v := f.j.judge(status, h, f.asked)
	f.j.learn(v.class == classStore)
	if f.head != nil {
		f.head.hear(status, h)
	}
	switch {
	case detail == "dry-run":
		detail = "dry-" + v.String()
	case detail == "pass" && f.j.r.Method != http.MethodHead && status == http.StatusOK:
		f.heal = v.class == classStore
	}
	f.j.c.addStatus(h, cacheStatus{fwd: f.fwd, fwdStatus: status, detail: detail})
}

// judge says what might be done with the answer of a run for this request alone.
func (j *job) judge(status int, h http.Header, asked time.Time) verdict {
	now := time.Now()
	return j.c.opts.judge(question{
		credentialed: j.adm.credentialed,
		origin:       j.r.Header.Get("Origin"),
		now:          now,
		delay:        now.Sub(asked),
		policy:       *j.policy,
	}, status, h)
}

// hand gives a request that came to the handler, without the fields that it is not
// to see.
func (c *Cache) hand(next http.Handler, w http.ResponseWriter, r *http.Request) {
	own := r
	if len(c.opts.HideHeaders) > 0 {
		own = r.Clone(r.Context())
		for _, name := range c.opts.HideHeaders {
			delete(own.Header, name)
		}
	}
	next.ServeHTTP(w, own)
	r.MultipartForm = own.MultipartForm // the server removes its files
}
