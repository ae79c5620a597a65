// Package middleware is a shared HTTP cache in front of an application's
// handlers, for net/http and chi alike, that asks the handler once for what
// many clients, of many processes, want at the same time.
//
// The quick start for a read API is three lines:
//
//	pages, err := middleware.New(store, middleware.Options{
//		Policy: middleware.Policy{Lifetime: time.Minute}})
//	r.With(pages.Handler).Get("/products/{id}", getProduct)
//
// # What is kept
//
// The cache keeps the rules of a shared cache: RFC 9110 and 9111, 5861
// (stale-while-revalidate, stale-if-error), 9211 (Cache-Status), and 9213
// (CDN-Cache-Control). Without options, it keeps what the handler's answers say
// may be kept, and for how long. [Policy].Lifetime is for answers that say
// nothing.
//
// An answer that is for one client alone is given to no other: private,
// no-store, Set-Cookie, an origin that is reflected without Vary, a nonce, an
// event stream, one that is cut short. Requests with Authorization or a cookie
// go past the cache, unless the answer says public, s-maxage or
// must-revalidate, or [Options].Identity or KeyCookies make them part of the
// key.
//
// Requests with a body go past the cache too, unless [Options].KeyBody makes the
// body part of the key: of a QUERY, and of a POST where [Policy].PostReads says
// that it changes nothing.
//
// # How requests collapse
//
// The first request for something that is not stored runs the handler, here or
// in another process; the others wait, and get its answer. The handler runs on
// a goroutine of its own, with the request's values, and with a deadline
// ([Options].FillLimit) instead of the request's: a client that leaves fails
// nobody else. As soon as it is known that the answer is not for the others,
// they are let go, all at once, and for a while ([Options].PassFor) nobody
// waits for such a key again. An answer that varies collapses per variant.
//
// If the store is out of reach, each process collapses on its own, and nothing
// is kept; no request fails because of it.
//
// # How it is purged
//
// A request with an unsafe method that succeeds removes its URL. The application
// removes the rest: [Cache.Invalidate] a URL with all its variants,
// [Cache.InvalidateVariant] one of them, [Cache.InvalidateTags] whatever bears a
// name, [Cache.InvalidateAll] everything, in every process and although it may
// just be being made; Expire and its like make it stale instead.
// [Cache.PurgeHandler] does the same over HTTP, for those whom you let.
//
// # What is not in the key
//
// A handler that reads a request field, and says so neither in Vary nor in
// [Options].KeyHeaders, lets one client decide what others get. [Options].Audit
// finds such handlers in development; [Options].HideHeaders keeps fields from
// them.
//
// # Where to put it
//
// Before the cache belongs what decides who may ask (authentication,
// authorization, rate limits) and what is made anew for each client
// (compression, CORS, request ids, access logs, Recoverer, Timeout, Throttle).
// Behind it, it would run once for many. Every order is safe, in that nobody
// gets what is another's, but an authentication behind the cache does not see
// the requests that are answered from it. The cache works at every depth of
// chi's routers; a run owns its copy of the routing context.
//
// A handler behind the cache must not expect its http.ResponseWriter to be the
// server's: it is a http.Flusher and a http.Hijacker if that is one, and all of
// http.ResponseController works, but it has no Unwrap, since the run may
// outlive the connection.
package middleware
