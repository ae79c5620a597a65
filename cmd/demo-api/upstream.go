package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"

	"github.com/go-chi/chi/v5/middleware"

	"github.com/cacheguard-go/cacheguard/cacheguard/promguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	httpcache "github.com/cacheguard-go/cacheguard/middleware"
)

// upstreamConfig is what the flags say of a cache in front of another server.
type upstreamConfig struct {
	url            string        // "": there is none
	ttl            time.Duration // of answers that do not say how long they are fresh; 0: they are not kept
	staleIfError   time.Duration
	storeSetCookie bool
	targets        string // names, with commas between them; "": the middleware's
	admin          string // address for operators; "": none
}

// upstream is the HTTP cache in front of any origin: every path is the
// origin's.
type upstream struct {
	http.Handler
	cache     *httpcache.Cache
	transport *http.Transport
}

func newUpstream(cfg upstreamConfig, s store.Store, m *metrics) (*upstream, error) {
	target, err := url.Parse(cfg.url)
	if err != nil {
		return nil, err
	}
	answered := m.guards.HTTP("upstream")
	opts := httpcache.Options{
		// Two origins on one Redis are two caches.
		Namespace: fmt.Sprintf("upstream-%x", sha256.Sum256([]byte(cfg.url)))[:25],
		Policy:    httpcache.Policy{Lifetime: cfg.ttl, StaleIfError: cfg.staleIfError},
		FillLimit: loadLimit,
		Hooks:     m.hooks("upstream"),
		Observe:   func(o httpcache.Outcome) { answered(promguard.HTTPOutcome(o)) },
	}
	if cfg.storeSetCookie {
		opts.SetCookie = httpcache.SetCookieKeep
	}
	for name := range strings.SplitSeq(cfg.targets, ",") {
		if name = strings.TrimSpace(name); name != "" {
			opts.Targets = append(opts.Targets, name)
		}
	}
	cache, err := httpcache.New(s, opts)
	if err != nil {
		return nil, err
	}
	u := &upstream{cache: cache, transport: newTransport()}
	var proxy http.Handler = &httputil.ReverseProxy{
		Rewrite:      func(r *httputil.ProxyRequest) { rewrite(r, target) },
		Transport:    u.transport,
		ErrorHandler: upstreamFailed,
	}
	if cfg.ttl > 0 {
		proxy = withoutFlush(proxy)
	}
	u.Handler = middleware.Recoverer(cache.Handler(proxy))
	return u, nil
}

// newTransport passes on what it is told: no Accept-Encoding of its own, no
// proxy that the environment names.
func newTransport() *http.Transport {
	return &http.Transport{
		DisableCompression:    true,
		MaxIdleConnsPerHost:   100,
		IdleConnTimeout:       time.Minute,
		ResponseHeaderTimeout: loadLimit,
	}
}

// rewrite sends a request to target, with the query as it came: the key of what
// is kept is made of those bytes, so the origin must see the same.
//
// The proxy has taken off what the client says of X-Forwarded-* by itself. So it
// must be: they are no part of the key, and an origin that builds links of a
// host that one client invents would have them kept for all.
func rewrite(r *httputil.ProxyRequest, target *url.URL) {
	r.SetURL(target)
	r.Out.URL.RawQuery = r.In.URL.RawQuery
	r.SetXForwarded()
}

// upstreamFailed answers in the place of an origin that did not.
func upstreamFailed(w http.ResponseWriter, r *http.Request, err error) {
	if !errors.Is(err, context.Canceled) {
		slog.Warn("the upstream failed", "method", r.Method, "error", err)
	}
	w.WriteHeader(http.StatusBadGateway)
}

// Close ends the cache, the runs of it, and the connections to the origin.
func (u *upstream) Close() error {
	err := u.cache.Close()
	u.transport.CloseIdleConnections()
	return err
}
