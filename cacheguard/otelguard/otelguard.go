// Package otelguard makes OpenTelemetry spans of what takes time in a guard:
// reading the store, waiting for a rebuild, loading, and filling.
//
//	guard, err := cacheguard.New(store, cacheguard.Options[Product]{
//		Hooks: otelguard.New(otelguard.Options{}).Hooks("products"),
//	})
//
// A caller who waits has a link to the load that it waited for, if that ran in
// its own process; the load of another process has the same cacheguard.token.
// A refresh that nobody waits for is a trace of its own, with a link to the
// caller that set it off. An answer of the near cache makes no span.
//
// It is a module of its own, so that a service without OpenTelemetry does not
// get it.
package otelguard

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// Options of a [Tracer]. The zero value works.
type Options struct {
	// Provider makes the spans. nil: otel.GetTracerProvider(), as it is when a
	// span begins.
	Provider trace.TracerProvider

	// Keys puts the key on each span (cacheguard.key), and on one that failed
	// the text of its error, which may quote it. Both may be private, and traces
	// are often kept elsewhere. Zero: no.
	Keys bool
}

// Tracer makes hooks that trace. It is safe for concurrent use.
type Tracer struct{ opts Options }

// scope names this package as the source of its spans.
const scope = "github.com/cacheguard-go/cacheguard/cacheguard/otelguard"

// The attributes of the spans.
const (
	attrGuard     = attribute.Key("cacheguard.guard")
	attrKey       = attribute.Key("cacheguard.key")
	attrKeys      = attribute.Key("cacheguard.keys")      // how many, if several
	attrToken     = attribute.Key("cacheguard.token")     // of the load; of a wait or lookup: of its answer
	attrState     = attribute.Key("cacheguard.state")     // fresh, stale, rebuilt, followed, absent; none: a miss
	attrCoalesced = attribute.Key("cacheguard.coalesced") // the wait was for another caller's rebuild
)

// New returns a Tracer.
func New(opts Options) *Tracer { return &Tracer{opts: opts} }

// Hooks returns the hooks of the guard of that name, for
// [cacheguard.Options].Hooks.
func (t *Tracer) Hooks(guard string) cacheguard.Hooks {
	return cacheguard.Hooks{
		Start: func(ctx context.Context, info cacheguard.SpanInfo) (context.Context, func(cacheguard.SpanEnd)) {
			return t.start(ctx, guard, info)
		},
	}
}

func (t *Tracer) tracer() trace.Tracer {
	provider := t.opts.Provider
	if provider == nil {
		provider = otel.GetTracerProvider()
	}
	return provider.Tracer(scope)
}

func (t *Tracer) start(ctx context.Context, guard string, info cacheguard.SpanInfo) (context.Context, func(cacheguard.SpanEnd)) {
	attrs := []attribute.KeyValue{attrGuard.String(guard)}
	if t.opts.Keys && info.Key != "" {
		attrs = append(attrs, attrKey.String(info.Key))
	}
	if info.Keys > 0 {
		attrs = append(attrs, attrKeys.Int(info.Keys))
	}
	if info.Token != 0 {
		attrs = append(attrs, attrToken.Int64(int64(info.Token)))
	}
	opts := []trace.SpanStartOption{trace.WithAttributes(attrs...), trace.WithSpanKind(trace.SpanKindInternal)}
	if info.Background {
		// Its caller has its answer, and may have ended its own span.
		opts = append(opts, trace.WithNewRoot())
		if from := trace.SpanContextFromContext(ctx); from.IsValid() {
			opts = append(opts, trace.WithLinks(trace.Link{SpanContext: from}))
		}
	}
	ctx, span := t.tracer().Start(ctx, "cacheguard "+info.Span.String(), opts...)
	return ctx, func(e cacheguard.SpanEnd) { t.end(span, info.Span, e) }
}

// end completes a span.
func (t *Tracer) end(span trace.Span, what cacheguard.Span, e cacheguard.SpanEnd) {
	defer span.End()
	if !span.IsRecording() {
		return
	}
	if what == cacheguard.SpanLookup || what == cacheguard.SpanWait {
		span.SetAttributes(attrState.String(e.State.String()))
	}
	if e.Token != 0 {
		span.SetAttributes(attrToken.Int64(int64(e.Token)))
	}
	if what == cacheguard.SpanWait {
		span.SetAttributes(attrCoalesced.Bool(e.Coalesced))
	}
	if e.Load != nil {
		if load := trace.SpanContextFromContext(e.Load); load.IsValid() {
			span.AddLink(trace.Link{SpanContext: load})
		}
	}
	if fails(e.Err) {
		if t.opts.Keys {
			span.RecordError(e.Err)
		}
		span.SetStatus(codes.Error, kind(e.Err))
	}
}

// fails tells whether an error is one to whoever reads traces. That there is no
// such thing is an answer, and so is that it is not to be shared; a caller who
// left and a fill that came too late are as it should be.
func fails(err error) bool {
	switch {
	case err == nil, errors.Is(err, cacheguard.ErrNotFound), cacheguard.NotShared(err):
		return false
	case errors.Is(err, context.Canceled), errors.Is(err, store.ErrFenced), errors.Is(err, store.ErrLost):
		return false
	}
	return true
}

// kind is a short description of an error without anybody's data in it.
func kind(err error) string {
	var fault *store.Fault
	var panicked *cacheguard.PanicError
	switch {
	case errors.As(err, &fault):
		return "store: " + string(fault.Class)
	case errors.As(err, &panicked):
		return "the loader panicked"
	case errors.Is(err, cacheguard.ErrCooldown):
		return "cooling down"
	case errors.Is(err, cacheguard.ErrWaitLimit):
		return "gave up waiting"
	case errors.Is(err, cacheguard.ErrLoadLimit):
		return "cut at LoadLimit"
	}
	return "the load failed"
}
