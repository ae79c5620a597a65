package middleware

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	"github.com/cacheguard-go/cacheguard/cacheguard"
)

// Invalidate removes what is stored of the given URLs, with all variants, for
// GET and HEAD. They are absolute, as clients ask for them ("https://host/path?query").
// After it has returned, no request that comes later, in any process, is
// answered by what was made before it, but for the near caches of other
// processes (Options.Near).
//
// If the store cannot be reached, the error says so, and it is tried again in
// the background.
func (c *Cache) Invalidate(ctx context.Context, urls ...string) error {
	keys, err := c.urlKeys(urls)
	return errors.Join(err, c.invalidate(ctx, keys...))
}

// Expire makes what is stored of the given URLs stale, with all variants: it is
// served as after its lifetime, and the handler is asked once for all. What may
// not be served stale is asked for at once.
func (c *Cache) Expire(ctx context.Context, urls ...string) error {
	keys, err := c.urlKeys(urls)
	if c.keys.hasExtras() {
		// What else is part of the keys is not known here.
		return errors.Join(err, c.invalidate(ctx, keys...))
	}
	if c.opts.KeyBody > 0 {
		// Nor which bodies there were: what was made for them is removed.
		err = errors.Join(err, c.forgetURLs(ctx, keys))
	}
	return errors.Join(err, c.guard.Expire(ctx, keys...))
}

func (c *Cache) invalidate(ctx context.Context, keys ...string) error {
	var err error
	if c.keys.hasExtras() || c.opts.KeyBody > 0 {
		err = c.forgetURLs(ctx, keys)
	}
	if !c.keys.hasExtras() {
		err = errors.Join(err, c.guard.Invalidate(ctx, keys...))
	}
	return err
}

// forgetURLs begins another generation of URLs: what has more than the URL in
// its key is of one.
func (c *Cache) forgetURLs(ctx context.Context, keys []string) error {
	names := make([]string, len(keys))
	for i, key := range keys {
		names[i] = urlMark(key)
	}
	return c.marks.forget(ctx, names...)
}

// urlKeys returns the keys of all URLs that have one, and an error that names
// those that have none.
func (c *Cache) urlKeys(urls []string) ([]string, error) {
	var errs []error
	keys := make([]string, 0, len(urls))
	for _, text := range urls {
		u, err := url.Parse(text)
		if err == nil && u.Scheme != "http" && u.Scheme != "https" {
			err = fmt.Errorf("not absolute; write https://host/path")
		}
		var key string
		if err == nil {
			key, err = c.urlKey(u)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("middleware: URL %q: %w", text, err))
			continue
		}
		keys = append(keys, key)
	}
	return keys, errors.Join(errs...)
}

// urlKey returns the key of a URL's entry.
func (c *Cache) urlKey(u *url.URL) (string, error) {
	path := u.EscapedPath()
	if path == "" {
		path = "/"
	}
	query := ""
	if u.ForceQuery || u.RawQuery != "" {
		query = "?" + u.RawQuery
	}
	return c.keys.build(u.Scheme, u.Host, path, query)
}

// heal takes the mark off a key whose answers can be shared again, if it still
// has it.
func (c *Cache) heal(ctx context.Context, key string) {
	_, err := c.guard.Do(ctx, key, cacheguard.Ask[*response]{
		Accept: func(cacheguard.Entry[*response]) cacheguard.Use { return cacheguard.Take },
	})
	var pass *cacheguard.PassError
	if errors.As(err, &pass) {
		_ = c.guard.Invalidate(ctx, key)
	}
}
