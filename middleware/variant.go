package middleware

import (
	"context"
	"errors"
	"net/http"
	"net/url"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// InvalidateVariant removes the one variant of r's URL that r selects, as a
// client that sent r would: by its URL, its host, the fields that the answers
// vary by, and whatever else is part of the key (Options.Tenant, Identity,
// KeyHeaders, KeyCookies). The other variants stay. An r that is made by hand
// has an absolute URL; its method and context mean nothing. What is kept for the
// bodies of requests (Options.KeyBody) is not reached.
//
// For what holds when it has returned see [Cache.Invalidate]. Where nothing is
// stored under the URL yet, the variant that is being made there cannot be told
// from others, and none of them is stored.
func (c *Cache) InvalidateVariant(ctx context.Context, r *http.Request) error {
	return c.changeVariant(ctx, r, gone)
}

// ExpireVariant makes the one variant stale that r selects; see
// [Cache.InvalidateVariant] and [Cache.Expire].
func (c *Cache) ExpireVariant(ctx context.Context, r *http.Request) error {
	return c.changeVariant(ctx, r, spent)
}

// changeVariant walks down to the variant that r selects and puts what change
// makes of it in its place. Nothing can be removed there: the entry's branch is
// in the keys of the variants below it, which are to stay.
func (c *Cache) changeVariant(ctx context.Context, r *http.Request, change func(cacheguard.Entry[*response]) *response) error {
	key, err := c.presentKey(ctx, r)
	if err != nil {
		return err
	}
	for range maxDepth + 1 {
		e := c.stored(ctx, key)
		if e.State == 0 || c.keys.selects(asSeen(r, e.Value), e.Value.selecting) {
			return c.change(ctx, key, r, change)
		}
		if key, err = c.keys.variant(key, asSeen(r, e.Value), e.Value); err != nil {
			return err
		}
	}
	return nil // deeper than this nothing is stored
}

// change replaces the entry under key by what change makes of it. It takes its
// token before it looks:
//
//	purge:   begin (token 5)   look: A           set A's remains: refused, removed
//	another:                        invalidate (6), fill B (7)
//
// so that what it writes never comes after something newer; that is removed
// instead, which costs a run of the handler.
func (c *Cache) change(ctx context.Context, key string, r *http.Request, change func(cacheguard.Entry[*response]) *response) error {
	_, err := c.guard.Update(ctx, key, func(ctx context.Context) (*response, error) {
		e := c.stored(ctx, key)
		if e.State == 0 || !c.keys.selects(asSeen(r, e.Value), e.Value.selecting) {
			return nil, errNotThere // and what is on its way there is fenced off
		}
		return change(e), nil
	})
	var fault *store.Fault
	if errors.Is(err, errNotThere) && !errors.As(err, &fault) {
		return nil
	}
	return err
}

// errNotThere says that the variant is not there, so that its key is only
// invalidated.
var errNotThere = errors.New("middleware: the variant is not stored")

// stored returns what the store has under key, or nothing. It is never from the
// near cache, where the entry above may be one whose variants are gone.
func (c *Cache) stored(ctx context.Context, key string) cacheguard.Entry[*response] {
	e, _ := c.guard.Do(ctx, key, cacheguard.Ask[*response]{
		Accept: func(cacheguard.Entry[*response]) cacheguard.Use { return cacheguard.Reload },
	})
	if e.Value == nil {
		return cacheguard.Entry[*response]{}
	}
	return e
}

// presentKey is key for a request that is not served: of the URL's generation,
// no copy will do.
func (c *Cache) presentKey(ctx context.Context, r *http.Request) (string, error) {
	key, err := c.urlOf(r)
	if err != nil || !c.keys.hasExtras() {
		return key, err
	}
	e, err := c.marks.epochs.GetEntry(ctx, urlMark(key), newMark)
	if err == nil && e.Token == 0 { // made up here
		err = errMarksAway
	}
	if err != nil {
		return "", err
	}
	return c.keys.withExtras(key, e.Value, r, nil)
}

// urlOf returns the key of r's URL. That of a request made by hand is in r.URL.
func (c *Cache) urlOf(r *http.Request) (string, error) {
	if r.RequestURI != "" || r.URL.Host == "" {
		return c.keys.primary(r)
	}
	u := *r.URL
	if r.Host != "" {
		u.Host = r.Host
	}
	return c.urlKey(&u)
}

// asSeen returns r as the handler saw the request that brought p: if a
// middleware in front of the cache rewrites URLs, it has rewritten that one, and
// would rewrite r.
func asSeen(r *http.Request, p *response) *http.Request {
	own := *r
	if own.RequestURI == "" {
		own.RequestURI = r.URL.RequestURI()
	}
	seen := own.RequestURI
	for _, s := range p.selecting {
		if s.name == seenURL && !s.absent {
			seen = s.value
		}
	}
	if u, err := url.ParseRequestURI(seen); err == nil {
		own.URL = u
	}
	return &own
}

// gone is what is left of an entry whose answer is purged: its place above the
// variants. It is kept as long as the entry was to be.
func gone(e cacheguard.Entry[*response]) *response {
	p := remains(e)
	p.status, p.header, p.body, p.trailer, p.tags = http.StatusOK, http.Header{}, nil, nil, nil
	p.base, p.lifetime, p.swr, p.sie, p.grace = 0, e.Keep, 0, 0, 0
	p.rules |= ruleGone | ruleValidate | ruleNeverStale
	return p.ready()
}

// spent is an entry that is stale from now on, and kept no longer than it was to
// be.
func spent(e cacheguard.Entry[*response]) *response {
	p := remains(e)
	stale := standingOf(e).staleness
	p.base += e.Age
	p.lifetime = min(p.lifetime, p.base)
	p.swr, p.sie = max(p.swr-stale, 0), max(p.sie-stale, 0)
	if p.grace = min(p.grace, e.Keep); p.grace == 0 {
		return gone(e)
	}
	return p
}

// remains is a copy of an entry's answer, in its place, to be changed.
func remains(e cacheguard.Entry[*response]) *response {
	p := *e.Value
	if expiredByHand(e) {
		p.epoch = newBranch() // the variants below are still stale: see response.epoch
	}
	p.rules |= ruleOlder
	return &p
}
