package middleware

import (
	"context"

	"github.com/go-chi/chi/v5"
)

// ownRoute returns what gives a context its own copy of chi's routing context,
// if ctx has one. chi takes that back into a pool when the request ends: a run
// that outlives the request would read another request's parameters, and the
// page that it makes of them would be kept under this one's key.
//
// It must be called before the request ends; what it returns may be called at
// any time, and gives each run a copy: one that has been routed with leads
// nowhere a second time.
//
// This is the only file of the library that imports chi.
func ownRoute(ctx context.Context) func(context.Context) context.Context {
	route := chi.RouteContext(ctx)
	if route == nil {
		return func(ctx context.Context) context.Context { return ctx }
	}
	own := route.Clone()
	return func(ctx context.Context) context.Context {
		return context.WithValue(ctx, chi.RouteCtxKey, own.Clone())
	}
}
