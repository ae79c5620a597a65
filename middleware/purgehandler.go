package middleware

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
)

// MaxPurgeBody is the size in bytes above which a request to a
// [Cache.PurgeHandler] is refused.
const MaxPurgeBody = 1 << 20

// maxPurgeNames bounds the URLs, tags and variants of one request: each is told
// to the store.
const maxPurgeNames = 1000

// Purge is what a [Cache.PurgeHandler] is asked to do, as JSON. At least one of
// URLs, Tags, Variants and All is there, and at most 1000 of the first three together.
type Purge struct {
	URLs     []string  `json:"urls,omitempty"`     // absolute, with all variants; see Cache.Invalidate
	Tags     []string  `json:"tags,omitempty"`     // see Cache.InvalidateTags
	Variants []Variant `json:"variants,omitempty"` // see Cache.InvalidateVariant
	All      bool      `json:"all,omitempty"`      // see Cache.InvalidateAll

	// Soft makes what is named stale instead of removing it; see Cache.Expire.
	Soft bool `json:"soft,omitempty"`
}

// Variant names one variant of a URL by a request that selects it.
type Variant struct {
	URL    string            `json:"url"`
	Header map[string]string `json:"header,omitempty"`
}

// PurgeHandler returns a handler by which others can purge the cache, such as a
// deploy script or a content system. It is for a server or a route of its own,
// and never behind a cache: there it refuses to work. Nothing else in this
// package purges at a client's wish.
//
// It asks authorize about each request, before anything else and before the
// body is read: an error refuses the request with 403, and is not shown to the
// client. There is no handler without an authorize, and none that lets
// everybody in but one that is written so.
//
// It takes POST, with a [Purge] as application/json, and answers:
//
//	204  done, in every process, as Cache.Invalidate promises
//	400  not a Purge; nothing was done
//	403  authorize refused it
//	405  not POST
//	413  longer than MaxPurgeBody
//	415  not application/json
//	503  the store could not be told all of it; that is tried again in the
//	     background, and the request can be sent again
//
// with the reason as application/problem+json (RFC 9457).
func (c *Cache) PurgeHandler(authorize func(*http.Request) error) (http.Handler, error) {
	if authorize == nil {
		return nil, errors.New("middleware: PurgeHandler without authorize would let everybody purge; pass a function that checks who asks")
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		if p := c.purgeRequested(w, r, authorize); p != nil {
			p.send(w)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}), nil
}

// problem is why a request was refused (RFC 9457).
type problem struct {
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
}

func refused(status int, detail string) *problem {
	return &problem{Title: http.StatusText(status), Status: status, Detail: detail}
}

func (p *problem) send(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // the client may have left
}

// purgeRequested does what r asks for, or says why not.
func (c *Cache) purgeRequested(w http.ResponseWriter, r *http.Request, authorize func(*http.Request) error) *problem {
	if behindCache(w) {
		return refused(http.StatusInternalServerError, "the purge handler is mounted behind a cache; give it a route of its own")
	}
	if authorize(r) != nil {
		return refused(http.StatusForbidden, "")
	}
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return refused(http.StatusMethodNotAllowed, "use POST")
	}
	// A page of another site can make a browser send a POST with the user's
	// credentials, but not of this type without being asked (CORS).
	media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || media != "application/json" {
		return refused(http.StatusUnsupportedMediaType, "use application/json")
	}
	p, err := readPurge(http.MaxBytesReader(w, r.Body, MaxPurgeBody))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return refused(http.StatusRequestEntityTooLarge, fmt.Sprintf("use at most %d bytes", MaxPurgeBody))
	}
	var todo []func(context.Context) error
	if err == nil {
		todo, err = c.plan(r, p)
	}
	if err != nil {
		return refused(http.StatusBadRequest, err.Error())
	}
	// The client may leave: half a purge helps nobody.
	ctx := context.WithoutCancel(r.Context())
	var errs []error
	for _, do := range todo {
		errs = append(errs, do(ctx))
	}
	if errors.Join(errs...) != nil {
		return refused(http.StatusServiceUnavailable, "the store could not be told all of it; it is tried again in the background")
	}
	return nil
}

// readPurge reads one Purge and nothing else: a name that is misspelt must not
// pass for a purge that was done.
func readPurge(body io.Reader) (p Purge, err error) {
	d := json.NewDecoder(body)
	d.DisallowUnknownFields()
	if err = d.Decode(&p); err != nil {
		return p, fmt.Errorf("not a purge: %w", err)
	}
	if _, err = d.Token(); err != io.EOF {
		return p, errors.Join(errors.New("not a purge: more than one JSON value"), err)
	}
	switch n := len(p.URLs) + len(p.Tags) + len(p.Variants); {
	case n == 0 && !p.All:
		return p, errors.New("not a purge: name urls, tags, variants or all")
	case n > maxPurgeNames:
		return p, fmt.Errorf("%d names are too many; send at most %d at a time", n, maxPurgeNames)
	}
	return p, nil
}

// plan turns a purge into what is to be done, or says what of it cannot be:
// then nothing is.
func (c *Cache) plan(r *http.Request, p Purge) (todo []func(context.Context) error, err error) {
	if _, err := c.urlKeys(p.URLs); err != nil {
		return nil, err
	}
	urls, tags, variant, all := c.Invalidate, c.InvalidateTags, c.InvalidateVariant, c.InvalidateAll
	if p.Soft {
		urls, tags, variant, all = c.Expire, c.ExpireTags, c.ExpireVariant, c.ExpireAll
	}
	if len(p.URLs) > 0 {
		todo = append(todo, func(ctx context.Context) error { return urls(ctx, p.URLs...) })
	}
	if (len(p.Tags) > 0 || p.All) && len(c.opts.TagHeaders) == 0 {
		return nil, errNoTags
	}
	if len(p.Tags) > 0 {
		todo = append(todo, func(ctx context.Context) error { return tags(ctx, p.Tags...) })
	}
	if p.All {
		todo = append(todo, all)
	}
	for _, v := range p.Variants {
		selecting, err := c.selecting(r, v)
		if err != nil {
			return nil, err
		}
		todo = append(todo, func(ctx context.Context) error { return variant(ctx, selecting) })
	}
	return todo, nil
}

// selecting makes the request that selects a variant.
func (c *Cache) selecting(r *http.Request, v Variant) (*http.Request, error) {
	if _, err := c.urlKeys([]string{v.URL}); err != nil {
		return nil, err
	}
	u, err := url.Parse(v.URL)
	if err != nil {
		return nil, err
	}
	header := make(http.Header, len(v.Header))
	for name, value := range v.Header {
		if !isToken(name) || !isFieldValue(value) {
			return nil, fmt.Errorf("header %q of variant %q is none", name, v.URL)
		}
		header.Set(name, value)
	}
	s := &http.Request{Method: http.MethodGet, URL: u, Host: u.Host, Header: header, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Body: http.NoBody}
	s = s.WithContext(context.WithoutCancel(r.Context()))
	key, err := c.urlOf(s)
	if err == nil && c.keys.hasExtras() {
		_, err = c.keys.withExtras(key, "", s, nil)
	}
	return s, err
}

// behindCache tells whether w, or what it wraps, is the writer of a cache of this
// package.
func behindCache(w http.ResponseWriter) bool {
	for {
		switch inner := w.(type) {
		case interface{ ofCache() }:
			return true
		case interface{ Unwrap() http.ResponseWriter }:
			w = inner.Unwrap()
		default:
			return false
		}
	}
}

func (*run) ofCache()        {}
func (*observer) ofCache()   {}
func (*observerFH) ofCache() {}
