package middleware

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// Cache is a shared HTTP cache in front of an application's handlers. It is
// safe for concurrent use. Caches of one namespace on one store, in any number
// of processes, are one cache.
type Cache struct {
	opts  Options
	keys  keyer
	guard *cacheguard.Guard[*response]

	fillings *fillings
	bypassed map[string]string // texts of Cache-Status by reason; not changed
	marks    *marks            // generations of URLs and tags
	seats    *seats            // for the variants of each URL

	audience audience      // who waits for a run of this process
	logins   recent        // what is known of the answers to requests with credentials
	oneOffs  oneOffs       // and of variants that are asked for once
	escapes  chan struct{} // runs of those who have waited too long
	auditor  *auditor      // nil: off
	waiting  atomic.Int64  // requests that wait for a run
	off      atomic.Bool

	// ctx ends with Close; runs that outlive their request end with it.
	ctx context.Context
	end context.CancelFunc

	mu     sync.Mutex // protects closed against runs.Add
	closed bool
	runs   sync.WaitGroup
}

// maxEscapes bounds the runs of requests that have waited too long for
// another's.
const maxEscapes = 64

// New returns a cache over s. It fails if an option is out of range, and says
// what to write instead; it does not ask whether the store can be reached.
//
// Close the cache when the server has shut down. It does not close s.
func New(s store.Store, opts Options) (*Cache, error) {
	if s == nil {
		return nil, errors.New("middleware: the store is nil; use redisstore.New or memstore.New")
	}
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	s, entries, err := opts.storage(s)
	if err != nil {
		return nil, err
	}
	c := &Cache{opts: opts, fillings: newFillings(s), bypassed: bypassedTexts(opts.StatusName), escapes: make(chan struct{}, maxEscapes), auditor: newAuditor(opts.Audit), keys: keyer{
		tenant:    opts.Tenant,
		identity:  opts.Identity,
		headers:   opts.KeyHeaders,
		cookies:   opts.KeyCookies,
		query:     opts.Query,
		encodings: opts.Encodings,
		limit:     opts.MaxKey,
	}}
	c.guard, err = cacheguard.New(c.fillings, cacheguard.Options[*response]{
		Namespace:    opts.Namespace,
		LifetimeFunc: lifetimeOf,
		LoadLimit:    opts.FillLimit,
		WaitLimit:    opts.WaitLimit,
		Lease:        opts.Lease,
		Near:         opts.Near,
		Codec:        entries,
		Hooks:        opts.Hooks,
	})
	if err != nil {
		return nil, fmt.Errorf("middleware: %w", err)
	}
	c.marks, err = newMarks(s, &opts, c.keys.hasExtras() || opts.KeyBody > 0 || len(opts.TagHeaders) > 0)
	if err != nil {
		return nil, fmt.Errorf("middleware: %w", errors.Join(err, c.guard.Close()))
	}
	c.seats, err = newSeats(s, &opts)
	if err != nil {
		return nil, fmt.Errorf("middleware: %w", errors.Join(err, c.guard.Close(), c.marks.close()))
	}
	c.ctx, c.end = context.WithCancel(context.Background())
	return c, nil
}

func lifetimeOf(_ string, p *response) cacheguard.Lifetime {
	return cacheguard.Lifetime{TTL: p.ttl(), Grace: p.grace}
}

// Handler puts the cache in front of next. It is a middleware in the sense of
// net/http and chi.
//
// Put what decides who may ask (authentication, authorization) and what is
// made anew for each client (compression, request ids, CORS, logging) before
// the cache, and the handlers behind it. What is behind the cache runs once
// for many requests, on a goroutine of its own, and may outlive the request
// that began it.
func (c *Cache) Handler(next http.Handler) http.Handler { return c.With(Policy{})(next) }

// With is Handler for a route with a policy of its own.
func (c *Cache) With(policy Policy) func(next http.Handler) http.Handler {
	err := errors.Join(policy.validate("Policy"), policy.fits(c.opts.KeyBody))
	if err != nil {
		panic(err) // a mistake in the program, seen when the routes are made
	}
	policy = policy.over(c.opts.Policy)
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c.serve(w, r, next, &policy)
		})
	}
}

// SetEnabled switches the cache off, and on again, while it serves. Switched
// off it passes requests on; entries stay, and what unsafe methods change is
// still invalidated.
func (c *Cache) SetEnabled(on bool) { c.off.Store(!on) }

// Close ends the cache: runs are cancelled (cause cacheguard.ErrClosed), leases
// are released. It waits for all of it, for handlers that do not heed their
// context at most FillLimit; if one is still running then, it says so in its
// error. Requests that come later go straight to the handler. Closing twice is
// fine.
func (c *Cache) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.end()
	err := errors.Join(c.guard.Close(), c.marks.close(), c.seats.close())
	return errors.Join(err, c.waitForRuns())
}

func (c *Cache) waitForRuns() error {
	done := make(chan struct{})
	go func() {
		c.runs.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-time.After(c.opts.FillLimit):
		return fmt.Errorf("middleware: a handler is still running %v after Close", c.opts.FillLimit)
	}
}

// enter counts a goroutine of the cache; false: the cache is closed.
func (c *Cache) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.runs.Add(1)
	return true
}

func (c *Cache) serve(w http.ResponseWriter, r *http.Request, next http.Handler, policy *Policy) {
	reads := c.reads(r, policy)
	if c.off.Load() && (reads || safeMethod(r.Method)) {
		next.ServeHTTP(w, r)
		return
	}
	a := c.opts.admit(r, reads)
	var body *requestBody
	if reads && a.bypass == "" {
		if r, body = c.takeBody(r); body == nil {
			a.bypass = "body"
		}
	}
	if a.bypass != "" {
		c.past(w, r, next, a.bypass)
		return
	}
	key, away, err := c.key(r, body)
	if err != nil {
		c.past(w, r, next, "no-key")
		return
	}
	probing := false
	if a.credentialed {
		var may bool
		if may, probing = c.mayProbe(key); !may {
			c.past(w, r, next, "authorization")
			return
		}
	}
	x := exchange{c: c, w: w, r: r}
	if !a.credentialed && !c.opts.DryRun && x.near(&a, key) {
		return
	}
	j := &job{exchange: x, next: next, policy: policy, adm: a, probing: probing, url: key, key: key, body: body, away: away, arrived: time.Now()}
	j.client.w = w
	if c.opts.DryRun {
		j.forward(fwdBypass, "dry-run")
		return
	}
	defer j.leave()
	j.serve()
}

// key returns the key of r's entry: its URL's, and if more than the URL is part
// of the key, under the URL's present generation, so that Invalidate reaches
// them all. away: the store is out of reach, and that generation not known.
func (c *Cache) key(r *http.Request, body *requestBody) (key string, away bool, err error) {
	key, err = c.keys.primary(r)
	if err != nil || (body == nil && !c.keys.hasExtras()) {
		return key, false, err
	}
	mark, known, err := c.marks.current(r.Context(), urlMark(key))
	if err != nil {
		return "", false, fmt.Errorf("%w: %v", errNoKey, err)
	}
	key, err = c.keys.withExtras(key, mark, r, body)
	return key, !known, err
}
