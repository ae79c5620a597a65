package otelguard_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/otelguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
)

// traced returns a provider and what has ended under it.
func traced() (*sdk.TracerProvider, *tracetest.SpanRecorder) {
	rec := tracetest.NewSpanRecorder()
	return sdk.NewTracerProvider(sdk.WithSpanProcessor(rec)), rec
}

func newGuard(t *testing.T, s *memstore.Store, opts otelguard.Options) *cacheguard.Guard[string] {
	t.Helper()
	g, err := cacheguard.New(s, cacheguard.Options[string]{
		Lifetime: cacheguard.Lifetime{TTL: time.Second, Grace: time.Minute}, Jitter: -1, EarlyRefresh: -1,
		Hooks: otelguard.New(opts).Hooks("products"),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close() })
	return g
}

func named(rec *tracetest.SpanRecorder, name string) (spans []sdk.ReadOnlySpan) {
	for _, s := range rec.Ended() {
		if s.Name() == name {
			spans = append(spans, s)
		}
	}
	return spans
}

func attr(s sdk.ReadOnlySpan, key string) attribute.Value {
	for _, a := range s.Attributes() {
		if string(a.Key) == key {
			return a.Value
		}
	}
	return attribute.Value{}
}

func TestCallersOfOneRebuildHaveLinksToItsLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		provider, rec := traced()
		s := memstore.New(memstore.Options{})
		g, far := newGuard(t, s, otelguard.Options{Provider: provider}), newGuard(t, s, otelguard.Options{Provider: provider})
		tracer := provider.Tracer("test")
		load := func(ctx context.Context, key string) (string, error) {
			_, span := tracer.Start(ctx, "query")
			defer span.End()
			time.Sleep(100 * time.Millisecond)
			return "v", nil
		}
		var wg sync.WaitGroup
		for _, guard := range []*cacheguard.Guard[string]{g, g, far} {
			wg.Go(func() {
				ctx, span := tracer.Start(t.Context(), "request")
				defer span.End()
				_, _ = guard.Get(ctx, "secret", load)
			})
			synctest.Wait()
		}
		wg.Wait()

		loads, waits := named(rec, "cacheguard load"), named(rec, "cacheguard wait")
		if len(loads) != 1 || len(waits) != 3 || len(named(rec, "cacheguard fill")) != 1 {
			t.Fatalf("%d loads, %d waits, %d fills; want 1, 3, 1", len(loads), len(waits), len(named(rec, "cacheguard fill")))
		}
		if q := named(rec, "query"); len(q) != 1 || q[0].Parent().SpanID() != loads[0].SpanContext().SpanID() {
			t.Error("what the loader does is not under the load's span")
		}
		token := attr(loads[0], "cacheguard.token").AsInt64()
		var linked, coalesced int
		for _, w := range waits {
			for _, l := range w.Links() {
				if l.SpanContext.SpanID() == loads[0].SpanContext().SpanID() {
					linked++
				}
			}
			if attr(w, "cacheguard.coalesced").AsBool() {
				coalesced++
			}
			if got := attr(w, "cacheguard.token").AsInt64(); got != token || token == 0 {
				t.Errorf("a wait has the token %d, and its load %d", got, token)
			}
		}
		if linked != 2 || coalesced != 1 {
			t.Errorf("%d waits have a link to the load and %d are coalesced; want 2 (those of its process) and 1", linked, coalesced)
		}
		for _, s := range rec.Ended() {
			if v := attr(s, "cacheguard.key"); v.AsString() != "" {
				t.Errorf("the key is on span %s", s.Name())
			}
			if strings.HasPrefix(s.Name(), "cacheguard ") && attr(s, "cacheguard.guard").AsString() != "products" {
				t.Errorf("span %s has no guard", s.Name())
			}
		}
	})
}

func TestRefreshThatNobodyWaitsForIsATraceOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		provider, rec := traced()
		g := newGuard(t, memstore.New(memstore.Options{}), otelguard.Options{Provider: provider, Keys: true})
		load := func(context.Context, string) (string, error) { return "v", nil }
		_, _ = g.Get(t.Context(), "k", load)
		time.Sleep(2 * time.Second) // stale
		ctx, request := provider.Tracer("test").Start(t.Context(), "request")
		_, _ = g.Get(ctx, "k", load)
		request.End()
		synctest.Wait()

		loads := named(rec, "cacheguard load")
		if len(loads) != 2 {
			t.Fatalf("%d loads, want 2", len(loads))
		}
		refresh := loads[1]
		if refresh.Parent().IsValid() || refresh.SpanContext().TraceID() == request.SpanContext().TraceID() {
			t.Error("the refresh is part of the request's trace, which has ended")
		}
		if l := refresh.Links(); len(l) != 1 || l[0].SpanContext.SpanID() != request.SpanContext().SpanID() {
			t.Errorf("the refresh has the links %v, want one to the request that set it off", l)
		}
		if attr(refresh, "cacheguard.key").AsString() != "k" {
			t.Error("Options.Keys is set, and the key is not on the span")
		}
	})
}

// ownAnswer is a loader's error that says that nothing has failed.
type ownAnswer struct{}

func (ownAnswer) Error() string   { return "for its own caller" }
func (ownAnswer) NotShared() bool { return true }

func TestOnlyFailuresAreErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		provider, rec := traced()
		g := newGuard(t, memstore.New(memstore.Options{}), otelguard.Options{Provider: provider})
		for key, err := range map[string]error{"absent": cacheguard.ErrNotFound, "broken": errors.New("user 4711 is unknown here"), "fine": nil, "own": ownAnswer{}} {
			_, _ = g.Get(t.Context(), key, func(context.Context, string) (string, error) { return "", err })
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			_, _ = g.Get(ctx, "left", func(context.Context, string) (string, error) { time.Sleep(time.Second); return "", nil })
		}()
		synctest.Wait()
		cancel()
		time.Sleep(2 * time.Second)

		var failed []string
		for _, s := range rec.Ended() {
			if len(s.Events()) > 0 {
				t.Errorf("span %s has the text of an error, and Options.Keys is not set: %v", s.Name(), s.Events())
			}
			if s.Status().Code == codes.Error {
				failed = append(failed, s.Name()+": "+s.Status().Description)
			}
		}
		slices.Sort(failed)
		if want := []string{"cacheguard load: the load failed", "cacheguard wait: the load failed"}; !slices.Equal(failed, want) {
			t.Errorf("spans with errors: %q, want %q", failed, want)
		}
	})
}

func TestNearHitMakesNoSpan(t *testing.T) {
	provider, rec := traced()
	g, err := cacheguard.New(memstore.New(memstore.Options{}), cacheguard.Options[string]{
		Near: cacheguard.Near{MaxEntries: 10}, Hooks: otelguard.New(otelguard.Options{Provider: provider}).Hooks("g"),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	load := func(context.Context, string) (string, error) { return "v", nil }
	_, _ = g.Get(t.Context(), "k", load)
	before := len(rec.Started())
	_, _ = g.Get(t.Context(), "k", load)
	if after := len(rec.Started()); after != before {
		t.Errorf("a near hit began %d spans", after-before)
	}
}
